"""A new folder for what was seen of a job that stands still: its owner's alone, never where something was, and never through a link."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddpdoctor.base.ownership import ROOT, Foothold, foothold_on, open_folder

MAX_TRIES: Final = 100
"""Folders of the same second and job."""


def prepare(parent: Path) -> None:
    """Make the folder in which the folders will lie, and find out whether something can be written there.

    Raises:
        OSError: it can't; the words say why.
    """
    if foothold := _refuse_strangers(parent):
        if not parent.is_dir():
            raise OSError(errno.EPERM, f"it is not made there, since {foothold.words}", os.fspath(parent))
    else:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = open_folder(parent)
    try:
        trial = f".ddpdoctor-{os.urandom(8).hex()}"
        os.mkdir(trial, 0o700, dir_fd=folder)
        os.rmdir(trial, dir_fd=folder)
    finally:
        os.close(folder)


def _refuse_strangers(parent: Path) -> Foothold | None:
    """Find by whom else the way to that folder could be changed. Root writes nothing there: what was seen of everybody's jobs could be
    moved away, and another folder be put in its place.

    Raises:
        OSError: root would write there.
    """
    foothold = foothold_on(parent, may_be_missing=True)
    if foothold and os.geteuid() == ROOT:
        raise OSError(errno.EPERM, f"root writes none there, since {foothold.words}", os.fspath(parent))
    return foothold


def write_evidence(parent: Path, job: str, files: Mapping[str, bytes]) -> str:
    """Write the files into a new folder, and return its path.

    Args:
        parent: of that folder.
        job: whose name begins the folder's.
        files: names without a folder, and contents.

    Raises:
        OSError: it can't be written. What was written by then is still there.
    """
    _refuse_strangers(parent)
    above = open_folder(parent)
    try:
        name = _make_new(above, f"{job}-{time.strftime('%Y%m%d-%H%M%S')}")
        # By its descriptor: in a folder of somebody else's there may be another by that name by now.
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EPERM, "somebody has put another folder there", os.fspath(parent / name))
        os.fchmod(folder, 0o700)
        for file, content in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(file, flags, 0o600, dir_fd=folder), "wb") as opened:
                opened.write(content)
    finally:
        os.close(folder)
    return os.fspath(parent / name)


def _make_new(above: int, name: str) -> str:
    for number in range(MAX_TRIES):
        made = f"{name}-{number}" if number else name
        with suppress(FileExistsError):
            os.mkdir(made, 0o700, dir_fd=above)
            return made
    raise OSError(errno.EEXIST, f"there are {MAX_TRIES} folders of this job and second", name)
