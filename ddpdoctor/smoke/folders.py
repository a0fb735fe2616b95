"""Where the ranks' own temporary files go for the time of the run."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Final

import msgspec

from ddpdoctor.wording import human

ROOM: Final = 1 << 20
"""Bytes that must fit in there: a checkpoint of the small model, and the engine's own files."""

LONGEST: Final = 75
"""Characters of its path: the socket of multiprocessing's server lies in it, and a socket's path has 107 at most."""

PREFIX: Final = "ddpdoctor-smoke-"


class Folder(msgspec.Struct, frozen=True):
    """One of our own. passed_over: why it isn't where temporary files usually go; "" where it is."""

    path: str
    passed_over: str

    @property
    def told(self) -> str:
        """ "in /dev/shm, since others can't be used (/tmp: No space left on device)"; "" where it is in the first place."""
        if not self.passed_over:
            return ""
        return f"in {Path(self.path).parent}, since others can't be used ({self.passed_over})"


class NoFolderError(Exception):
    """There is none; the text says why not, place by place."""


def own_folder(environ: Mapping[str, str]) -> Folder:
    """A new folder in the first place that can be used.

    Raises:
        NoFolderError: in none, or this process may write no file that is large enough.
    """
    reasons: list[str] = []
    for place in dict.fromkeys(_places(environ)):
        try:
            return Folder(_made(place), "; ".join(reasons))
        except OSError as error:
            if error.errno == errno.EFBIG:
                most = human(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
                raise NoFolderError(
                    f"no file may be larger than {most} here (ulimit -f), and {human(ROOM)} is needed"
                ) from None
            reasons.append(f"{place}: {error.strerror or error}")
    raise NoFolderError(f"no place for temporary files: {'; '.join(reasons)}")


def _places(environ: Mapping[str, str]) -> Iterator[str]:
    for name in ("TMPDIR", "TEMP", "TMP"):
        if environ.get(name):
            yield os.fspath(Path(environ[name]).absolute())
    yield from ("/tmp", "/var/tmp", "/dev/shm")
    for name in ("XDG_RUNTIME_DIR", "HOME"):
        if environ.get(name):
            yield os.fspath(Path(environ[name]).absolute())
    with suppress(OSError):
        yield os.fspath(Path.cwd())


def _made(place: str) -> str:
    if len(place) + len(PREFIX) + 9 > LONGEST:
        raise OSError("its path is too long for the sockets of multiprocessing")
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
    try:
        # Written, not asked for: a quota shows in no other way.
        trial = Path(folder, "trial")
        trial.write_bytes(bytes(ROOM))
        trial.unlink()
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    return folder
