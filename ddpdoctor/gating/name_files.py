"""Reads the files in which an administrator names checks or programs for a whole fleet."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from ddpdoctor.base.ownership import foothold_of_file, foothold_on
from ddpdoctor.base.regular_files import open_regular

MAX_BYTES: Final = 64 * 1024


class NameFile(msgspec.Struct, frozen=True):
    """Names out of a file. remarks: what is wrong with the file."""

    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class NameFileError(Exception):
    """The file can't be read: nobody knows what it names."""


def read_names(file: str, subject: str, *, may_be_missing: bool) -> NameFile:
    """Read names, one a line; what follows a # is a comment.

    A file that another user could have written is not believed.

    Args:
        file: its path.
        subject: what it is, in words: "the kill switch".
        may_be_missing: a file that isn't there names nothing.
    Raises:
        NameFileError: it can't be read, or is no such file.
    """
    try:
        if foothold := foothold_on(file):
            return NameFile(remarks=(f"{subject} {file} is not believed: {foothold.words}",))
        descriptor = open_regular(file)
        with os.fdopen(descriptor, "rb") as opened:
            if foothold := foothold_of_file(descriptor, file):
                return NameFile(remarks=(f"{subject} {file} is not believed: {foothold.words}",))
            content = opened.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        if may_be_missing:
            return NameFile()
        raise NameFileError(f"{subject} {file} isn't there") from error
    except OSError as error:
        raise NameFileError(f"{subject} {file} can't be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise NameFileError(f"{subject} {file} is larger than {MAX_BYTES // 1024} KiB")
    try:
        # Some editors write a mark before the first line.
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise NameFileError(f"{subject} {file} isn't text in UTF-8") from error
    return NameFile(tuple(name for line in lines for name in line.partition("#")[0].replace(",", " ").split()))
