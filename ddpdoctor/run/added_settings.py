"""Adds settings that make a failure tell more and cost a healthy run nothing, where the user hasn't set them.

What is set goes by the release of torch that the command will run: a release warns of a name that is older than itself, and the
output is to be the same with us as without us.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.base.private_folders import Needs, NoFolderError, private_folder
from ddpdoctor.probes.files import read_start
from ddpdoctor.probes.programs import find_program, interpreter_of
from ddpdoctor.run.command_wrappers import wrappers_and_program
from ddpdoctor.run.launchers import launcher_among

RECORDER_ENTRIES: Final = "2000"
"""In each rank's flight recorder: torch's own default from 2.10 on."""
FIRST_RELEASE_WITH_RECORDER: Final = (2, 5)
"""It is older, and was called experimental before."""
MAX_VERSION_FILE_BYTES: Final = 1 << 16
FOLDER: Final = Needs(prefix="ddpdoctor-run-")

_VERSION: Final = re.compile(r"""^__version__ = ["'](\d+)\.(\d+)""", re.MULTILINE)
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")


class AddedSetting(NamedTuple):
    """A setting: the name that this release reads, and those that count for the same (if the user has set any of them, it stays)."""

    names: tuple[str, ...]
    value: str


def folder_for_dumps(environ: Mapping[str, str]) -> str:
    """Make a new folder; "" where there is no place for it."""
    with suppress(NoFolderError):
        return private_folder(environ, FOLDER).path
    return ""


def settings_for(command: Sequence[str], environ: Mapping[str, str], dumps: str) -> dict[str, str]:
    """The settings to add to the command's environment. dumps: the beginning of the names of the recorders' files; "" for torch's own."""
    wrappers, program = wrappers_and_program(command)
    if launcher_among((*wrappers, program[0])):
        dumps = ""
    wanted = [AddedSetting(("PYTHONFAULTHANDLER",), "1"), *_recorder(program, environ, dumps)]
    return {
        added_setting.names[0]: added_setting.value
        for added_setting in wanted
        if not any(name in environ for name in added_setting.names)
    }


def _recorder(command: Sequence[str], environ: Mapping[str, str], dumps: str) -> Iterator[AddedSetting]:
    release = torch_release(command, environ)
    size = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    file = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    when = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT")
    if release and release < (2, 8):
        if release < FIRST_RELEASE_WITH_RECORDER:
            return
        size, file = size[::-1], file[::-1]
    yield AddedSetting(size, RECORDER_ENTRIES)
    # From 2.10 on that is the default, and this name an old one.
    if release and release < (2, 10):
        yield AddedSetting(when, "1")
    if dumps:
        yield AddedSetting(file, dumps)


def torch_release(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int] | None:
    """The release of the torch that the command imports, as far as files tell without starting anything."""
    for python in _pythons(command, environ):
        # The folder that it stands in counts, not what it links to: so a virtual environment is told from its base.
        for folder in ("lib", "lib64"):
            for file in sorted((python.parent.parent / folder).glob("python3*/*-packages/torch/version.py")):
                with suppress(OSError, ValueError):
                    if found := _VERSION.search(read_start(file, MAX_VERSION_FILE_BYTES).decode()):
                        return int(found[1]), int(found[2])
    return None


def _pythons(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[Path]:
    path = environ.get("PATH")
    if program := find_program(command[0], path):
        if _PYTHON.fullmatch(Path(program).name):
            yield Path(program)
            return
        if (script := interpreter_of(program)) and _PYTHON.fullmatch(Path(script).name):
            yield Path(script)
            return
    # A script in another language, most likely, which takes the Python that the shell would.
    if python := find_program("python", path) or find_program("python3", path):
        yield Path(python)
