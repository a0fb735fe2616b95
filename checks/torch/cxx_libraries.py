"""The C++ library that the loader took, and the file that wants a newer one, as the loader's own words name them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import clip_middle
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.python_commands import python_of

_NOT_FOUND: Final = compile_lazily(
    r"(?<![^\s:])(?P<taken>/[^\s:]*libstdc\+\+\.so[.\d]*): version [`']?(?P<wanted>(?:GLIBCXX|CXXABI)_[\d.]+)'? not found \(required by (?P<by>/[^()\n]{1,1000})\)"
)
_TURN: Final = compile_lazily(r"/(?!\.\./)[^/]+/\.\./")
_SYSTEM: Final = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_CONDA: Final = compile_lazily(
    r"^(?P<env>/(?:(?!conda|mamba|miniforge)\S)*(?:conda|mamba|miniforge)(?:(?!/(?:lib|bin)/)\S)*)/(?:lib|bin)/"
)
_GCC: Final = {
    "GLIBCXX_3.4.26": 9, "GLIBCXX_3.4.27": 9, "GLIBCXX_3.4.28": 9, "GLIBCXX_3.4.29": 11, "GLIBCXX_3.4.30": 12, "GLIBCXX_3.4.31": 13,
    "GLIBCXX_3.4.32": 13, "GLIBCXX_3.4.33": 14, "GLIBCXX_3.4.34": 15, "CXXABI_1.3.12": 10, "CXXABI_1.3.13": 11, "CXXABI_1.3.14": 13,
    "CXXABI_1.3.15": 14, "CXXABI_1.3.16": 15,
}  # fmt: skip
"""The release of gcc whose libstdc++ has it for certain, which is how conda counts them, too."""
_LONGEST_PATH: Final = 52


def which_is_too_old(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Name both files, and the commands for the one that was taken."""
    found = next((said for match in seen if (said := _NOT_FOUND.search(match.line.text))), None)
    if found is None:
        return Particulars()
    taken, wanted, by = _straight(found["taken"]), found["wanted"], _straight(found["by"])
    by_env = _CONDA.match(by) or _CONDA.match(python_of(log))
    if taken.startswith(_SYSTEM):
        whose, fixes = "the system's", _system_too_old(taken, wanted, by_env["env"] if by_env else "")
    elif of := _CONDA.match(taken):
        whose, fixes = "conda's", _conda_too_old(of["env"], wanted)
    else:
        whose, fixes = "neither the system's nor conda's", _leave_out(taken)
    return Particulars(
        f"{clip_middle(by, _LONGEST_PATH)} needs {wanted}, which {clip_middle(taken, _LONGEST_PATH)} doesn't have",
        fixes,
        f"The loader took {taken}, which is {whose}, and {by} was compiled with a newer one.",
        of_everybody=True,
    )


def _straight(path: str) -> str:
    """Write a path without the turns that a library's RPATH takes: "lib/torch/../x" is "lib/x"."""
    path = path.replace("/./", "/")
    while (shorter := _TURN.sub("/", path, count=1)) != path:
        path = shorter
    return path


def _system_too_old(taken: str, wanted: str, env: str) -> tuple[Fix, ...]:
    if not env:
        return (
            Fix(
                "Build that file with this system's own compiler, or take a newer base image; this shows the newest that is here",
                (f"grep -ao 'GLIBCXX_[0-9.]*' {shlex.quote(taken)} | sort -Vu | tail -n 1",),
            ),
        )
    return (
        Fix(
            "Have the environment's own taken first, before the job starts",
            (f"export LD_LIBRARY_PATH={shlex.quote(f'{env}/lib')}:$LD_LIBRARY_PATH",),
        ),
        Fix("If that one hasn't got it either, bring a newer one", (_install(env, wanted),)),
    )


def _conda_too_old(env: str, wanted: str) -> tuple[Fix, ...]:
    return (
        Fix("Bring a newer one into the environment", (_install(env, wanted),)),
        Fix(
            "Or have the system's taken first, where that is newer",
            ("export LD_PRELOAD=$(/sbin/ldconfig -p | awk '/libstdc\\+\\+\\.so\\.6 / {print $NF; exit}')",),
        ),
    )


def _leave_out(taken: str) -> tuple[Fix, ...]:
    folder = taken.rpartition("/")[0]
    return (
        Fix(
            f"Take {folder} out of LD_LIBRARY_PATH, so that a newer one is found",
            (
                f"export LD_LIBRARY_PATH=$(echo \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -vx {shlex.quote(folder)} | paste -sd:)",
            ),
        ),
    )


def _install(env: str, wanted: str) -> str:
    least = f">={_GCC[wanted]}" if wanted in _GCC else ""
    return shlex.join(("conda", "install", "-p", env, "-c", "conda-forge", f"libstdcxx-ng{least}"))
