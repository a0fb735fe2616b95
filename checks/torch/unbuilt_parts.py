"""Compiled parts of packages that aren't there at all, told from a log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from ddpdoctor.logs.analyze.sightings import shown_by, word
from ddpdoctor.logs.exceptions import package_of, short_name

_LOADER: Final = compile_lazily(r"(?i)(?:load|find|get)\w{0,40}(?:lib|ext|shared_obj|cuda|native|kernel|_so\b)")
"""A function by which a package takes up its compiled part."""
_OF_LIBRARY: Final = compile_lazily(r"(?i)\.so\b|\bso_\w|shared (?:object|library)|\bglob\(|CDLL|\bextension\b")
_NOT_THERE: Final = ("StopIteration", "FileNotFoundError", "AssertionError", "IndexError")
"""What a search for a file that isn't there ends with."""


def with_loaders_in_vain(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Add the exceptions of packages whose own loaders find no compiled library."""
    found = [
        shown_by(raised, slug, SignRole.NAMES, {"package": package_of(raised.frames[-1].path)})
        for raised in log.raised
        if short_name(raised.exception) in _NOT_THERE and raised.frames and _loads_in_vain(raised)
    ]
    known = {match.line.order for match in seen}
    return [*seen, *(match for match in found if match.line.order not in known)]


def _loads_in_vain(raised: LoggedException) -> bool:
    last = raised.frames[-1]
    of_library = _OF_LIBRARY.search(last.code) or _OF_LIBRARY.search(raised.message)
    return bool(package_of(last.path) and _LOADER.search(last.function) and of_library)


_XFORMERS: Final = "xformers"
_ITS_OWN_FILE: Final = (
    "The compiled part of a package is a file of its own, built for one torch, one CUDA and one Python. Without it, only the package's "
    "Python code is there."
)


_WITHOUT_CUDA: Final = compile_lazily(r"ot compiled with (?:GPU|CUDA) support|: implementation for device cuda:")


def _without_cuda(seen: Sequence[SignMatch], python: str) -> Particulars | None:
    """Tell of an extension that was built for the CPU alone."""
    if word(seen, "for_cpu"):
        fix = Fix(
            "Install its build for the CUDA that torch has, from DGL's own index: on PyPI there is the one for the CPU",
            (versions_installed(python, "dgl", "torch"),),
        )
    elif all(_WITHOUT_CUDA.search(match.line.text) for match in seen):
        fix = Fix(
            "Build it again on a host with nvcc, and say that it is to have its part for CUDA even if no GPU is seen there, as in a docker build; "
            "in the folder of its source, or with its name in the place of the dot",
            (
                "export FORCE_CUDA=1   # of mmcv MMCV_WITH_OPS=1, too",
                f"{python} -m pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps .",
            ),
        )
    else:
        return None
    cause = "It was installed as a build for the CPU, or was compiled where there was no nvcc or no GPU was seen: its setup.py then leaves CUDA out without a word."
    return Particulars("A compiled extension was built without CUDA", (fix,), cause, of_everybody=True)


def _left_half_done(seen: Sequence[SignMatch]) -> Particulars | None:
    """Tell of an extension that torch was to compile at its first use, and that isn't there."""
    if not all("/torch_extensions/" in match.line.text and "cannot open shared" in match.line.text for match in seen):
        return None
    return Particulars(
        "An extension that is compiled at its first use was not built: its folder is there, and no library in it",
        (
            Fix("Remove what is left of the build, and start again on one rank, which says why the compiler fails", ("rm -r ~/.cache/torch_extensions",)),
            Fix("See on that host whether nvcc, the compiler and torch go together", ("ddpdoctor check",)),
        ),
        "The compiler failed there, in an earlier run or on another rank, or was ended while it worked: its words are in the log of the first that built.",
        of_everybody=True,
    )  # fmt: skip


_NEEDS_GLIBC: Final = compile_lazily(r"not found \(required by (?P<by>/[^()\n]{1,1000})\)")


def _for_newer_system(seen: Sequence[SignMatch]) -> Particulars | None:
    """Tell of a compiled file that was built on a newer system: its C library can't be installed beside the old one."""
    wanted = word(seen, "wanted")
    named = next((found for match in seen if (found := _NEEDS_GLIBC.search(match.line.text))), None)
    if not wanted.startswith("GLIBC_") or named is None:
        return None
    by = named["by"]
    return Particulars(
        f"{by.rpartition('/')[2]} was built for a newer system: it needs {wanted}, and this system's C library is older",
        (
            Fix("See which C library the system has", ("ldd --version | head -n 1",)),
            Fix(
                "Build the package here from its source, or take a release of it whose wheel is for older systems (manylinux2014 needs glibc 2.17), "
                "or run in a container with a newer system; the C library itself can't be exchanged by pip or conda"
            ),
        ),
        f"{by} was compiled where glibc was newer; a program works with the glibc that it was built with, or a newer one.",
        of_everybody=True,
    )


def which_part(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell of a compiled part that isn't there from one that doesn't fit."""
    python, package, part = python_of(log), word(seen, "package"), word(seen, "part")
    if not package:
        return _for_newer_system(seen) or _without_cuda(seen, python) or _left_half_done(seen) or Particulars()
    fixes: tuple[Fix, ...]
    if package.lower() == _XFORMERS:
        summary = "xFormers was installed without kernels for CUDA that fit this torch"
        fixes = (
            Fix("See which torch and CUDA it was built for", (shlex.join((python, "-m", "xformers.info")),)),
            Fix(
                "Install the release of xformers that was made for this torch, from the index that torch came from; or train without it: "
                "torch's own scaled_dot_product_attention does the same"
            ),
        )
    elif part:
        summary = f"{package} has no {part}: compiled parts are called so, and this one was never built, or not for this Python"
        fixes = (
            Fix(
                "Build it where its source lies: `pip install --no-build-isolation -e .` in the folder of its setup.py, or `make` where a "
                "Makefile lies beside it; on each node, or on a file system that all share"
            ),
        )
    else:
        summary = f"{package} finds no compiled library of its own: it was installed without it, or for another Python or torch"
        fixes = (
            Fix(
                f"See what of {package} is installed: its parts must be of one release, that for PyTorch among them",
                (versions_installed(python, package),),
            ),
            Fix("Install it again in this environment, with its part for PyTorch, and without a wheel from a cache"),
        )
    return Particulars(summary, fixes, _ITS_OWN_FILE, of_everybody=True)
