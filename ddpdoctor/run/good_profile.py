"""The profile of a command's last run that ended well: what its next failure is compared with. In the user's own folder for state."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor import __version__
from ddpdoctor.base.ownership import foothold_on
from ddpdoctor.base.private_folders import state_folder
from ddpdoctor.base.regular_files import read_start
from ddpdoctor.base.whole_files import write_whole
from ddpdoctor.logs.analyze.good_runs import GoodRun

MAX_BYTES: Final = 4 << 20
"""Of a profile; a larger one isn't kept."""
MAX_PROFILES: Final = 50
"""The oldest ones go, and what a write left that was killed."""


class StoredProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A profile as it lies in its file. version: of the ddpdoctor that wrote it; another one may tell lines apart otherwise."""

    version: str
    run: GoodRun


def name_of_run(ended: float) -> str:
    """How the run is called in reports. ended: in seconds since the epoch."""
    return f"the run of {time.strftime('%Y-%m-%d %H:%M', time.localtime(ended))}"


def keep_profile(command: Sequence[str], run: GoodRun) -> None:
    """Keep the profile in place of the one before, whole or not at all.

    Raises:
        OSError: it can't be written; the one before is as it was.
    """
    content = msgspec.json.encode(StoredProfile(__version__, run))
    path = _path_of(command)
    if path is None or len(content) > MAX_BYTES or foothold_on(path, may_be_missing=True):
        # Where another user decides what lies there, nothing of ours is put, and nothing believed.
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, content, 0o600)
    _drop_oldest(path.parent)


def last_good_run(command: Sequence[str]) -> GoodRun | None:
    """The last good run of the same command in the same folder; None where none is kept, or none that can be believed."""
    path = _path_of(command)
    with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        if path is None or foothold_on(path):
            return None
        stored = msgspec.json.decode(read_start(path, MAX_BYTES + 1), type=StoredProfile)
        return stored.run if stored.version == __version__ else None
    return None


def _path_of(command: Sequence[str]) -> Path | None:
    folder = state_folder(os.environ)
    if not folder.is_absolute():
        return None
    told = "\0".join((os.getcwd(), *command)).encode(errors="surrogateescape")  # noqa: PTH109
    return folder.joinpath("good-runs", f"{hashlib.sha256(told).hexdigest()[:32]}.json")


def _drop_oldest(folder: Path) -> None:
    profiles = []
    for path in folder.iterdir():
        with suppress(OSError):
            profiles.append((path.lstat().st_mtime, path))
    for _, path in sorted(profiles)[:-MAX_PROFILES]:
        with suppress(OSError):
            path.unlink()
