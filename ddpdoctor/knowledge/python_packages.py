"""Names of Python packages that trainings use. Pure."""

from __future__ import annotations

from typing import Final

PACKAGES: Final = {
    "Crypto": "pycryptodome", "GPUtil": "GPUtil", "PIL": "pillow", "absl": "absl-py", "accelerate": "accelerate", "albumentations": "albumentations",
    "attr": "attrs", "av": "av", "bitsandbytes": "bitsandbytes", "boto3": "boto3", "bs4": "beautifulsoup4", "click": "click",
    "comet_ml": "comet-ml", "cv2": "opencv-python", "datasets": "datasets", "dateutil": "python-dateutil", "deepspeed": "deepspeed",
    "diffusers": "diffusers", "dotenv": "python-dotenv", "easydict": "easydict", "einops": "einops", "etcd": "python-etcd", "evaluate": "evaluate", "fire": "fire",
    "flash_attn": "flash-attn", "fsspec": "fsspec", "google.protobuf": "protobuf", "h5py": "h5py", "huggingface_hub": "huggingface-hub",
    "hydra": "hydra-core", "imageio": "imageio", "kornia": "kornia", "librosa": "librosa", "lightning": "lightning", "lmdb": "lmdb", "loguru": "loguru",
    "matplotlib": "matplotlib", "mlflow": "mlflow", "mpi4py": "mpi4py", "nltk": "nltk", "numba": "numba", "numpy": "numpy", "omegaconf": "omegaconf",
    "open_clip": "open-clip-torch", "packaging": "packaging", "pandas": "pandas", "peft": "peft", "pkg_resources": "setuptools", "psutil": "psutil",
    "pyarrow": "pyarrow", "pycocotools": "pycocotools", "pydantic": "pydantic", "pynvml": "nvidia-ml-py", "pytorch_lightning": "pytorch-lightning",
    "ray": "ray", "regex": "regex", "requests": "requests", "rich": "rich", "safetensors": "safetensors", "scipy": "scipy", "seaborn": "seaborn",
    "sentence_transformers": "sentence-transformers", "sentencepiece": "sentencepiece", "setuptools": "setuptools", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "soundfile": "soundfile", "spacy": "spacy", "tensorboard": "tensorboard", "tensorboardX": "tensorboardX",
    "termcolor": "termcolor", "tiktoken": "tiktoken", "timm": "timm", "tokenizers": "tokenizers", "torch": "torch", "torchaudio": "torchaudio",
    "torchdata": "torchdata", "torchmetrics": "torchmetrics", "torchvision": "torchvision", "tqdm": "tqdm", "transformers": "transformers", "trl": "trl",
    "wandb": "wandb", "webdataset": "webdataset", "xformers": "xformers", "yacs": "yacs", "yaml": "PyYAML", "zarr": "zarr",
}  # fmt: skip
"""Module -> what pip installs it by."""
