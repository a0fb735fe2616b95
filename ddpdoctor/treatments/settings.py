"""The settings file: what a user sources to have the settings that were found right. Nobody else's file is ever touched."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.treatments.lines import Line, keys_of_line

NAME = "ddpdoctor-settings"
HEADER = "# Settings that ddpdoctor found right here (check --fix). They count in a shell, or job script, that sources this file."
GOING_BACK = "# To go back, take lines out or don't source it: nothing else was changed for them."
LARGEST = 1 << 20
"""Bytes; what is larger isn't ours."""
SOURCING_SECONDS = 5.0

_OURS = re.compile(r"  # [a-z0-9, -]+, \d{4}-\d\d-\d\d$")
"""How each of our own lines ends."""


class Setting(NamedTuple):
    """A line for the file, and the slug of the check that it is for."""

    line: Line
    slug: str


def place(folder: Path) -> Path:
    """Where the settings go: ddpdoctor-settings.sh in that folder, or where there is one of that name that is somebody
    else's or would end a shell, ddpdoctor-settings-2.sh and so on."""
    names = chain([f"{NAME}.sh"], (f"{NAME}-{number}.sh" for number in count(2)))
    paths = (folder / name for name in names)
    return next(path for path in paths if not os.path.lexists(path) or (is_ours(path) and can_be_sourced(path)))


def shell() -> str:
    """ulimit -u is unknown to some shells, so that bash goes first: it is what the fixes are written for."""
    return shutil.which("bash") or "sh"


def can_be_sourced(path: Path) -> bool:
    """Whether a shell goes on after it: its user may have added an `exit`, or something that isn't the shell's."""
    word = secrets.token_hex(8)
    command = [shell(), "-c", '. "$1" >/dev/null && echo "$2"', "sh", str(path.absolute()), word]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SOURCING_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return word.encode() in ended.stdout


def is_ours(path: Path) -> bool:
    """Whether we wrote it for this user: nobody is to source what somebody else, be it one of their group, could have
    written."""
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            return False
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        return state.st_size <= LARGEST and path.read_text("utf-8").split("\n", 1)[0] == HEADER
    except (OSError, ValueError):
        return False


def merged(before: str, settings: Sequence[Setting], day: str) -> str:
    """The file's text with these settings. Of what was in it before, only lines of ours that set the same are gone; a user's
    own that do are comments now.

    day: for the comments, "2026-11-21".
    """
    lines = before.splitlines() or [HEADER, GOING_BACK]
    new = {one.line.key for one in settings}
    kept = [one for one in (_kept(line, new) for line in lines) if one is not None]
    return "\n".join([*kept, *_written(settings, day)]) + "\n"


def _kept(line: str, new: set[str]) -> str | None:
    if not keys_of_line(line) & new:
        return line
    return None if _OURS.search(line) else f"# yours, replaced by what follows: {line}"


def _written(settings: Sequence[Setting], day: str) -> Iterator[str]:
    """Each line once, with all the checks that asked for it."""
    slugs: dict[Line, list[str]] = {}
    for one in settings:
        slugs.setdefault(one.line, []).append(one.slug)
    for line, names in slugs.items():
        yield f"{line.text}  # {', '.join(dict.fromkeys(names))}, {day}"


def write(path: Path, settings: Sequence[Setting], day: str) -> None:
    """Makes the file, or adds to it where it is ours: it is whole there, or as it was.

    Raises:
        OSError: it can't be written; the old one, if there is one, is as it was, and nothing is left of the new one.
    """
    with _draft(path, settings, day) as name:
        os.replace(name, path)  # noqa: PTH105 (a name of mkstemp)


def rehearse(path: Path, settings: Sequence[Setting], day: str) -> None:
    """All of `write` but its last step: nothing is there afterwards that wasn't before.

    Raises:
        OSError: as `write`.
    """
    with _draft(path, settings, day):
        pass


@contextmanager
def _draft(path: Path, settings: Sequence[Setting], day: str) -> Iterator[str]:
    """The name of a file beside it that holds the whole text, with its mode; afterwards it is gone."""
    there = os.path.lexists(path)
    text = merged(path.read_text("utf-8") if there else "", settings, day)
    # Whatever the umask, nobody else may write it: else it would not be ours next time.
    mode = stat.S_IMODE(path.stat().st_mode) if there else 0o644 & ~_umask()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{NAME}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
            file.write(text)
            os.fchmod(descriptor, mode)
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
