"""Where the tests find a libnccl: a real one if there is any, and one of our own that answers nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HOW_TO_GET_ONE = (
    "no libnccl here; to run this (it needs no GPU): pip download --no-deps -d . nvidia-nccl-cu13==2.28.9 && "
    "unzip nvidia_nccl*.whl && export DDPDOCTOR_LIBNCCL=$PWD/nvidia/nccl/lib/libnccl.so.2"
)

SPEECHLESS = """
int ncclGetVersion(int *version) { *version = 22809; return 0; }
int ncclGetUniqueId(char *id) { return 5; }
"""


def real_libraries() -> list[Path]:
    """Those that DDPDOCTOR_LIBNCCL names (":" between them), else the one that pip has put beside a CUDA build of torch."""
    if named := os.environ.get("DDPDOCTOR_LIBNCCL", ""):
        return [Path(part) for part in named.split(":") if part]
    return beside_torch()


def beside_torch() -> list[Path]:
    """The one that pip has put beside a CUDA build of torch, as a list of at most one."""
    here = (Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for folder in sys.path)
    return [path for path in here if path.is_file()][:1]


def build_speechless(folder: Path) -> Path:
    """A libnccl that refuses whatever it is asked, so that nothing but our prediction counts."""
    (folder / "nccl.c").write_text(SPEECHLESS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnccl.so.2", folder / "nccl.c"], check=True)
    return folder / "libnccl.so.2"
