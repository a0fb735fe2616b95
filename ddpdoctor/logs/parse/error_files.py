"""torchrun's error.json: what a rank's exception was, as torch's `record` writes it beside the logs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

import msgspec

NAME: Final = "error.json"
MOST: Final = 1 << 22
"""Bytes of one."""


class _Extra(msgspec.Struct):
    py_callstack: str = ""
    timestamp: str | int | float = ""


class _Message(msgspec.Struct):
    message: str = ""
    extraInfo: _Extra = msgspec.field(default_factory=_Extra)


class _ErrorFile(msgspec.Struct):
    message: str | _Message = ""


def as_log(content: bytes) -> bytes:
    """The file as the rank would have printed it, with its time; as it is where it isn't torch's."""
    try:
        said = msgspec.json.decode(content, type=_ErrorFile).message
    except msgspec.DecodeError:
        return content
    if isinstance(said, str):
        return said.encode() or content
    text = said.extraInfo.py_callstack or said.message
    return (_clock(said.extraInfo.timestamp) + text).encode() if text else content


def _clock(timestamp: str | float) -> str:
    try:
        return f"{datetime.fromtimestamp(float(timestamp), timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ} "
    except (ValueError, OverflowError, OSError):
        return ""
