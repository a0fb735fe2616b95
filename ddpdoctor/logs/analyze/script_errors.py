"""Errors of a script for which the log shows more than a mistake: a missing module, a failed program, a server out of reach. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.log import Log, LoggedException
from ddpdoctor.logs.analyze.failures import Failure
from ddpdoctor.logs.exceptions import is_of_launcher, short_name

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
_MISSING: Final = compile_lazily(r"No module named '(?P<module>[\w.]+)'")
_BINARY: Final = compile_lazily(r" of binary: (?P<python>/\S*python[\d.]*)(?=\s|$)")
_SITE: Final = compile_lazily(r"^(?P<prefix>/\S*)/lib/python3\.\d+/site-packages/")


def module_missing(raised: LoggedException) -> str:
    """Name the module that the exception says isn't there; "" for any other."""
    found = _MISSING.match(raised.message)
    return found["module"] if found and short_name(raised.exception) == "ModuleNotFoundError" else ""


def missing_module_fixes(module: str, log: Log) -> tuple[Fix, ...]:
    """Say what to do where that module is missing."""
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
    """Find the interpreter of the ranks: by the launcher's word, else by where its packages lie."""
    for exited in log.exited:
        if found := _BINARY.search(exited.line.text):
            return found["python"]
    for raised in log.raised:
        for frame in raised.frames:
            if found := _SITE.match(frame.path):
                return f"{found['prefix']}/bin/python"
    return "python"


# --- a program that the script starts -----------------------------------------------------------------------------------


_STARTS_RANKS: Final = compile_lazily(
    r"""Command ['"](?:\[['"])?(?:\S*[/\\])?(?:python[\d.]*|torchrun|accelerate|deepspeed|colossalai|horovodrun|srun|sbatch|mpirun|mpiexec|ssh|pdsh|ray)\b"""
)
"""Its own words are elsewhere, and say more."""
PROGRAM_FAILED_CAUSE: Final = "A program that the script starts and waits for failed; what it wrote itself stands before the traceback, if it wrote anything."


def is_of_a_program(raised: LoggedException) -> bool:
    """Whether a line of the script's own started a program that failed, and that starts no ranks."""
    named = short_name(raised.exception) == "CalledProcessError" and not _STARTS_RANKS.match(raised.message)
    # What a launcher has started as a rank may be a wrapper around the rank itself.
    return named and raised.own is not None and raised.line.rank is None


def program_that_failed(failures: Sequence[Failure]) -> Failure | None:
    """Find the failure that is such a program's, where all that is told beside it follows from it."""
    ended = (
        failure.exited is None or failure.exited.said_by == "subprocess" or failure.exited.told_to
        for failure in failures
    )
    raised = (failure.raised is None or is_of_launcher(failure.raised) for failure in failures)
    if not (all(ended) and all(raised)) or any(failure.effects for failure in failures):
        return None
    return next((failure for failure in failures if failure.raised and is_of_a_program(failure.raised)), None)


# --- a server that doesn't answer ---------------------------------------------------------------------------------------


_CLIENTS: Final = compile_lazily(
    r"(?:^|/)(?:urllib/request\.py|http/client\.py|ftplib\.py|(?:urllib3|requests|httpx|httpcore|aiohttp|huggingface_hub|botocore|gcsfs|s3fs)/.{0,300}\.py)$"
)
"""What fetches: not torch's store, nor sockets of the script's own."""
_UNREACHED: Final = compile_lazily(
    r"Connection (?:refused|reset by peer|timed out|aborted)|[Nn]ame or service not known|[Nn]ame resolution|nodename nor servname"
    r"|No address associated with hostname|Network is unreachable|No route to host|[Tt]imed out|Max retries exceeded|[Cc]an(?:no|')t connect"
    r"|[Cc]ouldn't connect|Remote end closed connection|CERTIFICATE_VERIFY_FAILED|Tunnel connection failed|All connection attempts failed"
)
SERVER_UNREACHED_CAUSE: Final = (
    "A server that the script asks over the network doesn't answer: its name isn't found, nobody listens there, or a firewall or a "
    "missing proxy is between. Compute nodes often have no way to the Internet."
)
SERVER_UNREACHED_FIXES: Final = (
    Fix("See from that host whether the server answers, and whether a proxy is set", ("env | grep -i _proxy", "curl -sSI URL")),
    Fix(
        "Or fetch it before the job, on a node that has a way out, and let the job read it from disk; for Hugging Face's Hub",
        ("export HF_HUB_OFFLINE=1",),
    ),
)  # fmt: skip


def server_unreached(raised: LoggedException) -> bool:
    """Whether the exception says that a server of the script's can't be reached."""
    by_client = any(_CLIENTS.search(frame.path.replace("\\", "/")) for frame in raised.frames)
    return by_client and bool(_UNREACHED.search(f"{raised.exception}: {raised.message}"))
