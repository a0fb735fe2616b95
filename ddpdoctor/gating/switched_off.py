"""Reads the file by which an administrator switches single checks off for a whole fleet."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from ddpdoctor.base.ownership import foothold_of_file, foothold_on
from ddpdoctor.base.regular_files import open_regular

DEFAULT_FILE: Final = "/etc/ddpdoctor/killswitch"
MAX_BYTES: Final = 64 * 1024


class SwitchedOff(msgspec.Struct, frozen=True):
    """Checks and families that are switched off. remarks: what is wrong with the file."""

    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class KillSwitchError(Exception):
    """The file can't be read: nobody knows what is switched off."""


def read_switched_off(path: str | None) -> SwitchedOff:
    """Read the names of checks and families, one a line; what follows a # is a comment.

    A file that another user could have written is not believed.

    Args:
        path: None for the usual file, which need not be there.
    Raises:
        KillSwitchError: it can't be read.
    """
    file = path or DEFAULT_FILE
    try:
        if foothold := foothold_on(file):
            return SwitchedOff(remarks=(f"the kill switch {file} is not believed: {foothold.words}",))
        descriptor = open_regular(file)
        with os.fdopen(descriptor, "rb") as opened:
            if foothold := foothold_of_file(descriptor, file):
                return SwitchedOff(remarks=(f"the kill switch {file} is not believed: {foothold.words}",))
            content = opened.read(MAX_BYTES)
    except FileNotFoundError as error:
        if path is None:
            return SwitchedOff()
        raise KillSwitchError(f"the kill switch {file} isn't there") from error
    except OSError as error:
        raise KillSwitchError(f"the kill switch {file} can't be read: {error.strerror or error}") from error
    lines = content.decode("utf-8", "replace").splitlines()
    return SwitchedOff(tuple(name for line in lines for name in line.partition("#")[0].replace(",", " ").split()))
