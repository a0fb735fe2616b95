"""The settings file: a user sources it to have the settings that were found right. No other user's file is ever touched."""

from __future__ import annotations

import errno
import os
import pwd
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

from ddpdoctor.base.ownership import ROOT, Foothold, footholds_on, writers_of_folder
from ddpdoctor.fixes.settings_lines import Line, keys_of_line

FILE_NAME = "ddpdoctor-settings"
HEADER = "# Settings that ddpdoctor found right here (check --fix). They count in a shell, or job script, that sources this file."
GOING_BACK = "# To go back, take lines out or don't source it: nothing else was changed for them."
SHELLS = ("/bin/bash", "/usr/bin/bash")
MAX_FILE_BYTES = 1 << 20
"""A larger file isn't ours."""
SOURCING_SECONDS = 5.0

_OURS = re.compile(r"  # [a-z0-9, -]+, \d{4}-\d\d-\d\d$")
"""The end of each of our own lines."""


class SettingsLine(NamedTuple):
    """A line for the file, and the slug of the check that it is for."""

    line: Line
    slug: str


class SettingsPlace(NamedTuple):
    """A place for the settings; path: None where no folder is fit; reason: why it isn't the current one, "" where it is."""

    path: Path | None
    reason: str = ""


def safe_place(folder: Path) -> SettingsPlace:
    """Choose a place in that folder; or, where another user could change or replace what lies there, in the home folder."""
    reason = danger(folder)
    if not reason:
        return SettingsPlace(free_path(folder))
    # sudo may have kept HOME from the calling user.
    homes = [Path(home) for home in (os.environ.get("HOME"), _home()) if home]
    home = next((home for home in homes if home.is_dir() and not danger(home)), None)
    if home:
        return SettingsPlace(free_path(home), f"not in {folder}: {reason}")
    return SettingsPlace(
        None, f"whoever sources a file in {folder} can be harmed: {reason}. Run it in a folder of your own"
    )


def danger(folder: Path) -> str:
    """Say which other user could change or replace a file in a folder; "" if none. One who could do that to the home folder, as the
    system has it, needs no such file: its profile is run anyway."""
    try:
        home = _home()
        known = set(_footholds(home)) if home and home.is_dir() else set()
        found = next((foothold for foothold in _footholds(folder) if foothold not in known), None)
    except OSError as error:
        # Nothing can be written there either, and that says why.
        return "" if error.errno == errno.ENOENT else error.strerror or str(error)
    return found.words if found else ""


def _footholds(folder: Path) -> Iterator[Foothold]:
    yield from footholds_on(folder)
    # Also a sticky one: when our file is cleared away, as in /tmp, another may take its name.
    if found := writers_of_folder(folder):
        yield found


def _home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None


def free_path(folder: Path) -> Path:
    """The path of ddpdoctor-settings.sh in that folder, or where that file is another user's or would end a shell, of
    ddpdoctor-settings-2.sh and so on."""
    names = chain([f"{FILE_NAME}.sh"], (f"{FILE_NAME}-{number}.sh" for number in count(2)))
    paths = (folder / name for name in names)
    return next(
        path for path in paths if not os.path.lexists(path) or ((ours := read_ours(path)) and can_be_sourced(ours.text))
    )


def shell() -> str:
    """The shell that sources settings. bash goes first: some shells don't know ulimit -u, and the fixes are written for it. Root's
    PATH may have been kept from another user."""
    found = next((path for path in SHELLS if os.access(path, os.X_OK)), None)
    if not found and os.geteuid() != ROOT:
        folders = filter(os.path.isabs, os.get_exec_path())
        found = shutil.which("bash", path=os.pathsep.join(folders))
    return found or "/bin/sh"


def shell_environ() -> dict[str, str]:
    """The environment of a shell that sources settings. Root's runs nothing else first."""
    ran_first = ("BASH_ENV", "ENV") if os.geteuid() == ROOT else ()
    return {name: value for name, value in os.environ.items() if name not in ran_first}


@contextmanager
def private_copy(text: str) -> Iterator[tuple[int, str]]:
    """The text as an open file that no other user can reach, and its name for a program that has inherited it."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(FILE_NAME)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    with open(file, "w", encoding="utf-8") as copy:  # noqa: PTH123 (a descriptor)
        copy.write(text)
        copy.flush()
        yield file, f"/proc/self/fd/{file}"


def can_be_sourced(text: str) -> bool:
    """Whether a shell goes on after it: its user may have added an `exit`, or something that isn't the shell's."""
    word = secrets.token_hex(8)
    try:
        with private_copy(text) as (file, name):
            ended = subprocess.run(
                [shell(), "-c", '. "$1" >/dev/null && echo "$2"', "sh", name, word],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=SOURCING_SECONDS,
                check=False,
                env=shell_environ(),
                pass_fds=(file,),
            )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return word.encode() in ended.stdout


class Ours(NamedTuple):
    """A file that ddpdoctor wrote; mode: its permissions."""

    text: str
    mode: int


def read_ours(path: Path) -> Ours | None:
    """Read the file if ddpdoctor wrote it for this user: what another user could have written, be it one of their group, is never to
    be sourced. It is judged while it is open: by its name another may be there a moment later."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as opened:  # noqa: PTH123 (a descriptor)
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink > 1:
                return None
            if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or state.st_size > MAX_FILE_BYTES:
                return None
            text = opened.read(MAX_FILE_BYTES + 1).decode()
    except (OSError, ValueError):
        return None
    return Ours(text, stat.S_IMODE(state.st_mode)) if text.split("\n", 1)[0] == HEADER else None


def merged(before: str, settings: Sequence[SettingsLine], day: str) -> str:
    """Merge settings into the file's text. Lines of ours that set the same are gone; a user's own that do are comments now.

    day: for the comments, "2026-11-21".
    """
    lines = before.splitlines() or [HEADER, GOING_BACK]
    new = {setting.line.key for setting in settings}
    kept = [line for line in (_kept(line, new) for line in lines) if line is not None]
    return "\n".join([*kept, *_written(settings, day)]) + "\n"


def _kept(line: str, new: set[str]) -> str | None:
    if not keys_of_line(line) & new:
        return line
    return None if _OURS.search(line) else f"# yours, replaced by what follows: {line}"


def _written(settings: Sequence[SettingsLine], day: str) -> Iterator[str]:
    """Each line once, with all the checks that asked for it."""
    slugs: dict[Line, list[str]] = {}
    for setting in settings:
        slugs.setdefault(setting.line, []).append(setting.slug)
    for line, names in slugs.items():
        yield f"{line.text}  # {', '.join(dict.fromkeys(names))}, {day}"


def write(path: Path, settings: Sequence[SettingsLine], day: str) -> str:
    """Make the file, or add to it where it is ours: it is whole there, or as it was. Returns its text. An OSError tells that it can't
    be written; the old one, if there is one, is as it was, and nothing is left of the new one."""
    with _draft(path, settings, day) as (name, text):
        os.replace(name, path)  # noqa: PTH105 (a name of mkstemp)
    return text


def rehearse(path: Path, settings: Sequence[SettingsLine], day: str) -> str:
    """Do all of `write` but its last step: nothing is there afterwards that wasn't before."""
    with _draft(path, settings, day) as (_, text):
        return text


@contextmanager
def _draft(path: Path, settings: Sequence[SettingsLine], day: str) -> Iterator[tuple[str, str]]:
    """The name of a file beside it that holds the whole text, with its mode, and that text; afterwards it is gone.

    Raises:
        FileExistsError: the file is no longer ours.
    """
    ours = read_ours(path)
    if ours is None and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "it isn't ddpdoctor's any more", str(path))
    text = merged(ours.text if ours else "", settings, day)
    # Whatever the umask, nobody else may write it: else it would not be ours next time.
    umask = os.umask(0o077)
    os.umask(umask)
    mode = ours.mode if ours else 0o644 & ~umask
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE_NAME}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
            file.write(text)
            os.fchmod(descriptor, mode)
        yield name, text
    finally:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108
