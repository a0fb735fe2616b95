"""ddpdoctor, the doctor for PyTorch multi-GPU and multi-node training."""

__version__ = "0.1.0"
