"""Reads the file by which an administrator switches single checks off for a whole fleet."""

from __future__ import annotations

from typing import Final

from ddpdoctor.gating.name_files import NameFile, read_names

DEFAULT_FILE: Final = "/etc/ddpdoctor/killswitch"


def read_switched_off(path: str | None) -> NameFile:
    """Read the names of checks and families.

    Args:
        path: None for the usual file, which need not be there.
    Raises:
        NameFileError: it can't be read.
    """
    return read_names(path or DEFAULT_FILE, "the kill switch", may_be_missing=path is None)
