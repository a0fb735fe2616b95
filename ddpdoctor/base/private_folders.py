"""Where our own files lie: folders for temporary ones, which nobody but we and root can look into, replace or move away, and the one for what stays."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import msgspec

from ddpdoctor.base.ownership import foothold_on
from ddpdoctor.base.text import human


def state_folder(environ: Mapping[str, str]) -> Path:
    """The user's own folder for what we keep from one run to the next. Source: the XDG base directory specification, by which a relative
    XDG_STATE_HOME doesn't count."""
    state = Path(environ.get("XDG_STATE_HOME", ""))
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 (also of a user without a home)
    return (state if state.is_absolute() else home / ".local/state") / "ddpdoctor"


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Purpose of a folder.

    Args:
        prefix: its name begins so.
        room_bytes: they must fit in there.
        max_path_length: characters, and why no more.
    """

    prefix: str
    room_bytes: int = 0
    max_path_length: tuple[int, str] | None = None


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


def private_folder(environ: Mapping[str, str], needs: Needs) -> Folder:
    """Make a new folder in the first place that can be used, and in which nobody else decides what is found there.

    Raises:
        NoFolderError: in none, or this process may write no file that is large enough.
    """
    reasons: list[str] = []
    for place in dict.fromkeys(temporary_places(environ)):
        try:
            return Folder(_made(place, needs), "; ".join(reasons))
        except OSError as error:
            if error.errno == errno.EFBIG:
                most = human(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
                raise NoFolderError(
                    f"no file may be larger than {most} here (ulimit -f), and {human(needs.room_bytes)} is needed"
                ) from None
            reasons.append(f"{place}: {error.strerror or error}")
    raise NoFolderError(f"no place for temporary files: {'; '.join(reasons)}")


def temporary_places(environ: Mapping[str, str]) -> Iterator[str]:
    """Places where such a folder may lie, the best first."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        if environ.get(name):
            yield os.fspath(Path(environ[name]).absolute())
    yield from ("/tmp", "/var/tmp", "/dev/shm")
    for name in ("XDG_RUNTIME_DIR", "HOME"):
        if environ.get(name):
            yield os.fspath(Path(environ[name]).absolute())
    with suppress(OSError):
        yield os.fspath(Path.cwd())


def _made(place: str, needs: Needs) -> str:
    if needs.max_path_length and len(place) + len(needs.prefix) + 9 > needs.max_path_length[0]:
        raise OSError(needs.max_path_length[1])
    if foothold := foothold_on(place):
        raise OSError(foothold.words)
    # Here and not above: it brings random numbers along, and not every command makes a folder.
    import tempfile

    folder = tempfile.mkdtemp(prefix=needs.prefix, dir=place)
    if not needs.room_bytes:
        return folder
    try:
        # Written, not asked for: a quota shows in no other way.
        trial = Path(folder, "trial")
        trial.write_bytes(bytes(needs.room_bytes))
        trial.unlink()
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    return folder
