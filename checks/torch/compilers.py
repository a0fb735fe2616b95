"""What compiles code while a training runs, or for it: torch.compile, Triton, extensions of packages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from ddpdoctor.logs.analyze.sightings import word

HEADERS: Final = "import os, sysconfig; print(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
WITHOUT_COMPILING: Final = Fix(
    "Or, where that was torch.compile, train without it for now: slower, and the same results",
    ("export TORCHDYNAMO_DISABLE=1",),
)


@log_check("compiler-missing", severity=FAIL, owner=Owner.NODE)
def compiler_missing(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A compiler, Python's headers or Triton isn't there, and code has to be compiled.

    ## What breaks
    torch.compile, Triton and packages that bring their kernels as source compile at the first step, or as they are installed. Without a C
    compiler, without the file Python.h, or, for GPUs, without Triton they stop: "Failed to find C compiler", "fatal error: Python.h: No
    such file or directory", "Cannot find a working triton installation".

    ## Why
    Compute nodes and slim containers often have no gcc, though login nodes do. Python.h is in a package of its own (python3-dev,
    python3-devel), which the Python of an operating system comes without. Triton comes with torch's wheels for CUDA on Linux only.

    ## Fix
    Install the compiler or the headers on every node, or use a Python that brings its own (conda's, uv's), and conda's compiler:
    `conda install -c conda-forge gxx_linux-64`. Or train without compiling: `export TORCHDYNAMO_DISABLE=1`.
    """
    python = python_of(log)
    if word(seen, "triton"):
        return Finding.of(
            "torch.compile finds no Triton that works: it isn't installed, or goes with another torch",
            Fix(
                "See which torch that is, and whether Triton goes with it",
                (versions_installed(python, "torch", "triton"),),
            ),
            Fix(
                "On Linux install torch anew, which brings its Triton; on Windows it is triton-windows",
                ("pip install --force-reinstall torch",),
            ),
            WITHOUT_COMPILING,
        )
    if word(seen, "header"):
        return Finding.of(
            "Python's headers aren't there (Python.h), which compiled code needs",
            Fix(
                "See whether this Python has them, on that host", (f"{shlex.quote(python)} -c {shlex.quote(HEADERS)}",)
            ),
            Fix(
                "Install them there, for the very version of that Python",
                ("apt install python3-dev", "dnf install python3-devel"),
            ),
            Fix(
                "Without root: an environment of conda or uv brings its Python with its headers",
                ("conda create -n NAME python=3.11",),
            ),
            WITHOUT_COMPILING,
        )
    program = word(seen, "program") or ("g++" if word(seen, "language") == "C++" else "gcc")
    return Finding.of(
        f"No compiler is found ({program}), and code has to be compiled",
        Fix("See whether there is one, on that host", ("command -v gcc g++ clang; echo CC=$CC CXX=$CXX",)),
        Fix("Install one there, or load the cluster's module", ("apt install g++", "module load gcc")),
        Fix(
            "Without root, conda has it; activate the environment again, which sets CC and CXX",
            ("conda install -c conda-forge gxx_linux-64",),
        ),
        WITHOUT_COMPILING,
    )
