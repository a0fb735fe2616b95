"""The rest of what compiling an extension of torch takes: ninja, and a C++ compiler that nvcc knows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from shlex import quote

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.torch.extensions import compiling, why_compiling, working_nvcc
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Toolchain
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.building import gcc_fixes, gcc_limit, too_new
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.python_commands import pip_install
from ddpdoctor.logs.analyze.sightings import word


def _newest_gcc(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """The newest gcc that nvcc takes, by its own header, or by torch, which names the first one that it doesn't."""
    newest = word(seen, "newest_gcc")
    if not newest and (below := word(seen, "gcc_below")):
        major, _, minor = below.partition(".")
        newest = major if int(minor) else str(int(major) - 1)
    if not newest:
        return Particulars()
    conda = f"conda install -c conda-forge gxx_linux-64={quote(newest)}"
    return Particulars(
        f"The C++ compiler is newer than nvcc takes, which is gcc {newest} at most",
        (
            Fix(
                f"Install gcc {newest}, or an older one, beside it, and name it; build again in a fresh folder",
                (f"export CC=gcc-{quote(newest)} CXX=g++-{quote(newest)}",),
            ),
            Fix("Without root, conda has it, and sets CC and CXX when its environment is activated anew", (conda,)),
            Fix("Or take a newer CUDA toolkit, and torch's build for that"),
        ),
    )


@check("ninja-missing", severity=WARN)
def ninja_missing(toolchain: Toolchain, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
    """Something compiles extensions here, but ninja can't be run.

    ## What breaks
    Extensions that are compiled at first use (DeepSpeed's ops) stop with "Ninja is required to load C++ extensions";
    a setup.py falls back to compiling one file after the other.

    ## Why
    torch calls `ninja` by that name, so it has to be on PATH. Installed in a virtual environment that isn't activated,
    as under srun or in an editor, it isn't.

    ## Fix
    `pip install ninja` in the training environment, and put its bin folder on PATH: `export PATH=/path/to/env/bin:$PATH`.
    """
    requires(torch.installed, "torch is not installed")
    requires(toolchain.compiles, "nothing compiles CUDA code here")
    if known(toolchain.ninja) is not None:
        return
    if toolchain.ninja_beside_python:
        # Whoever names an interpreter may well activate its environment for the job.
        requires(
            target_python.chosen_by != "--python",
            "the PATH of the job isn't known, since --python named the interpreter",
        )
        folder = target_python.python.rpartition("/")[0]
        summary = "ninja is installed, but not on PATH"
        fix = Fix("Put its folder on PATH", (f"export PATH={shlex.quote(folder)}:$PATH",))
    else:
        summary, fix = "There is no ninja on PATH", Fix("Install ninja", (pip_install(target_python, "ninja"),))
    yield Finding(
        summary=f"{summary}; extensions can't be compiled at first use",
        evidence=(told(toolchain, "ninja", "no ninja on PATH"), *why_compiling(toolchain)),
        fixes=(fix,),
    )


@check("gcc-too-new", severity=WARN, log=LogTraits(particulars=_newest_gcc))
def gcc_too_new(toolchain: Toolchain, torch: Torch, machine: Maybe[Machine]) -> Iterator[Finding]:
    """The C++ compiler is newer than nvcc takes.

    ## What breaks
    The first .cu file stops with "#error -- unsupported GNU version! gcc versions later than 13 are not supported!".

    ## Why
    nvcc reads the compiler's own headers and knows only those that were there when it was made; each release has its
    newest gcc (CUDA 11.8: 11, 12.2: 12, 12.6: 13, 12.8: 14, 13.0: 15). New distributions come with newer ones.

    ## Fix
    Install an older one beside it and name it: `export CC=gcc-13 CXX=g++-13`; conda:
    `conda install -c conda-forge gxx_linux-64=13`. `-allow-unsupported-compiler` may compile, and may compile wrongly.
    """
    compiling(toolchain, torch)
    nvcc = working_nvcc(toolchain)
    limit = gcc_limit(nvcc)
    if limit is None:
        known(Unknown(f"which gcc nvcc {nvcc.version} takes isn't known"))
        return
    asked = (
        known(toolchain.compiler) if not toolchain.skips_compiler_check else None,
        known(toolchain.nvcc_compiler) if not toolchain.unsupported_allowed else None,
    )
    for compiler in asked:
        if found := too_new(compiler, limit):
            yield Finding(
                summary=f"{found.path} is gcc {found.version}, but nvcc {nvcc.version} takes none newer than gcc {limit}",
                evidence=(
                    Evidence(f"{found.path} is gcc {found.version} (found by {found.found_by})", "-dumpfullversion"),
                    Evidence(f"{nvcc.path} is of CUDA {nvcc.version}", "nvcc --version"),
                    *why_compiling(toolchain),
                ),
                fixes=gcc_fixes(limit, machine),
            )
            return
