"""Runs the kit: `python -m tests.gpu --help`."""

from __future__ import annotations

import argparse
import math
import platform
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NEEDED = (
    "typer", "rich", "psutil", "nvidia-ml-py", "msgspec", "packaging", "py-spy", "ahocorasick_rs", "torch",
)  # fmt: skip
"""ddpdoctor's own dependencies, and torch."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the parts and what each takes, and run nothing")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="only this part, or parts so beginning"
    )
    parser.add_argument(
        "--budget", type=seconds, default=480, metavar="SECONDS", help="for the whole (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=Path("gpu-run"), metavar="FOLDER", help="default: %(default)s")
    parser.add_argument(
        "--earlier", type=Path, metavar="FILE", help="an earlier run's record.json, to be compared with"
    )
    parser.add_argument(
        "--rehearse", nargs="?", type=int, const=2, default=0, metavar="GPUS", choices=range(1, 9),
        help="without a GPU: so many stand-ins (%(const)s), gloo, and no word on GPUs",
    )  # fmt: skip
    options = parser.parse_args()
    missing = lacking()
    if missing:
        print(how_to_bring(missing), file=sys.stderr)
        return 2
    # What these import may be what was missing.
    from tests.gpu.running import list_parts, run_all

    if options.list:
        list_parts()
        return 0
    return run_all(options.only, options.budget, options.output, options.earlier, rehearsed_gpus=options.rehearse)


def seconds(text: str) -> float:
    """A number of seconds, above 0."""
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(text)
    return number


def lacking() -> list[str]:
    """The packages, as pip calls them, that this Python has not."""
    return [name for name in NEEDED if not _there(name)]


def _there(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def how_to_bring(missing: list[str]) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    arch = platform.machine()
    names = " ".join(name for name in missing if name != "torch")
    said = [f"{sys.executable} lacks {', '.join(missing)}."]
    if names:
        said += [
            "On a machine with a network, in a new folder:",
            f"    python3 -m pip download --only-binary=:all: --python-version {version} "
            f"--platform manylinux2014_{arch} --platform manylinux_2_28_{arch} -d wheels {names}",
            "Bring the folder here, then:",
            f"    {sys.executable} -m pip install --no-index --no-deps --target site wheels/*.whl && export PYTHONPATH=$PWD/site",
        ]
    if "torch" in missing:
        said.append("The kit needs a CUDA build of torch, 2.5 or later: run it with the Python that has one.")
    return "\n".join(said)


if __name__ == "__main__":
    sys.exit(main())
