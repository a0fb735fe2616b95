"""The version of this ddpdoctor."""

__version__ = "0.1.0"
