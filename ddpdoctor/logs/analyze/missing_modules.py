"""A module that a script wants and its Python doesn't have: which package yields it, and for which Python. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.facts.log import Log, LoggedException
from ddpdoctor.logs.analyze.exceptions import short_name

PACKAGES: Final = {
    "Crypto": "pycryptodome", "GPUtil": "GPUtil", "PIL": "pillow", "absl": "absl-py", "accelerate": "accelerate", "albumentations": "albumentations",
    "attr": "attrs", "av": "av", "bitsandbytes": "bitsandbytes", "boto3": "boto3", "bs4": "beautifulsoup4", "click": "click",
    "comet_ml": "comet-ml", "cv2": "opencv-python", "datasets": "datasets", "dateutil": "python-dateutil", "deepspeed": "deepspeed",
    "diffusers": "diffusers", "dotenv": "python-dotenv", "easydict": "easydict", "einops": "einops", "evaluate": "evaluate", "fire": "fire",
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
APEX: Final = "apex"
_OF_APEX: Final = (
    Fix(
        "Of Apex torch has nearly all itself, and nothing to build: mixed precision, fused AdamW, SyncBatchNorm, layer norm",
        (
            "# before: model, opt = amp.initialize(model, opt, opt_level='O1')",
            "# after:  with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(batch)   # float16: and torch.amp.GradScaler",
        ),
    ),
    Fix(
        "NVIDIA's Apex isn't on PyPI (the apex there is a web framework): it is built from its source, and what to type on that host it tells",
        ("ddpdoctor explain apex",),
    ),
)
_MISSING: Final = re.compile(r"No module named '(?P<module>[\w.]+)'")
_BINARY: Final = re.compile(r" of binary: (?P<python>/\S*python[\d.]*)(?=\s|$)")
_SITE: Final = re.compile(r"^(?P<prefix>/\S*)/lib/python3\.\d+/site-packages/")


def module_missing(raised: LoggedException) -> str:
    """The module that the exception says isn't there; "" for any other."""
    found = _MISSING.match(raised.message)
    return found["module"] if found and short_name(raised.exception) == "ModuleNotFoundError" else ""


def missing_module_fixes(module: str, log: Log) -> tuple[Fix, ...]:
    """What to do where that module is missing."""
    python = shlex.quote(python_of(log))
    top, _, rest = module.partition(".")
    if rest and module not in PACKAGES:
        code = f"'import {top}; print({top})'"
        return (
            Fix(
                f"There is a {top}, but no {module}: see which it is; it is of another version, or hides the one meant",
                (f"{python} -c {code}",),
            ),
        )
    if top == APEX:
        return _OF_APEX
    own = Fix(
        f"If {module} is a file or folder of your own: start the job in the folder that it lies in, or name that folder",
        ('export PYTHONPATH="$PWD"',),
    )
    package = PACKAGES.get(module)
    if package is None:
        # Who installs by a module's name what is the user's own file gets a stranger's package.
        return (
            own,
            Fix(
                f"If {module} is a package: start the job in the environment that has it, the wrong one may be active; to install it, "
                f"look up what it is called: its name on PyPI may be another, and {module} there a stranger's"
            ),
        )
    return (
        Fix(
            f"If {module} is a package: install {package} for the Python that ran, or start the job in the environment that has it; "
            "the wrong one may be active",
            (f"{python} -m pip install {package}",),
        ),
        own,
    )


def python_of(log: Log) -> str:
    """The interpreter of the ranks: by the launcher's word, else by where its packages lie."""
    for exited in log.exited:
        if found := _BINARY.search(exited.line.text):
            return found["python"]
    for raised in log.raised:
        for frame in raised.frames:
            if found := _SITE.match(frame.path):
                return f"{found['prefix']}/bin/python"
    return "python"
