"""Finds programs: those that the environment names, and the system's own tools, which it has no say in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddpdoctor.base.ownership import ROOT, foothold_on
from ddpdoctor.probes.files import isfile, read_start
from ddpdoctor.probes.run_as import is_wary

DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where there is no PATH."""
SYSTEM_FOLDERS: Final = (
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/run/current-system/sw/bin",  # NixOS
)
MAX_FIRST_LINE: Final = 256
"""Bytes of the line that names a script's interpreter, as in the kernel."""


def find_program(name: str, path: str | None, root: Path = Path("/")) -> str | None:
    """Find a program as a shell would, but never in a relative or empty part of PATH: what lies in the folder in which
    somebody happens to be was put there by whoever may write to it.

    name: one with a "/" isn't looked for. path: the value of PATH, None where it isn't set. root: where that host's files lie.
    """
    folders = (DEFAULT_PATH if path is None else path).split(":")
    places = [name] if "/" in name else [f"{folder.rstrip('/')}/{name}" for folder in folders if folder.startswith("/")]
    return next((place for place in places if _is_program(_below(root, place))), None)


def find_system_tool(name: str, root: Path = Path("/")) -> Path | None:
    """Find a tool of the system where systems keep them, whatever PATH says. For root: one that nobody else could replace."""
    for folder in SYSTEM_FOLDERS:
        tool = _below(root, f"{folder}/{name}")
        if _is_program(tool) and not (is_wary() and _could_be_replaced(tool)):
            return tool
    return None


def interpreter_of(program: str | os.PathLike[str]) -> str | None:
    """The one that a script's first line names."""
    with suppress(OSError, ValueError):
        line, newline, _ = read_start(program, MAX_FIRST_LINE).partition(b"\n")
        if newline and line.startswith(b"#!") and (words := line[2:].split()):
            return os.fsdecode(words[0])
    return None


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/") if path.startswith("/") else Path(path)


def _is_program(path: Path) -> bool:
    return isfile(path) and os.access(path, os.X_OK)


def _could_be_replaced(tool: Path) -> bool:
    try:
        return foothold_on(tool, (ROOT,)) is not None
    except OSError:
        return True
