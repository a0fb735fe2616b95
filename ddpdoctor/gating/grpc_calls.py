"""Protocol Buffers' bytes for the few messages of others that a gate sends and receives, and the optional grpcio that carries them.

The messages are small and their fields fixed, so no generated code, and no protobuf of a certain release, has to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

INSTALL: Final = "pip install 'ddpdoctor[grpc]'"

_VARINT, _BYTES = 0, 2
Value = int | bool | str | bytes | Sequence[str]


def encode(fields: Sequence[tuple[int, Value]]) -> bytes:
    """Write a message: numbers and values of its fields; those that are empty or 0 are left out, as proto3 has it."""
    written = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            if value:
                written += _tag(number, _VARINT) + _varint(int(value))
            continue
        for part in (value,) if isinstance(value, str | bytes) else value:
            content = part.encode("utf-8", "replace") if isinstance(part, str) else part
            if content or not isinstance(value, str | bytes):
                written += _tag(number, _BYTES) + _varint(len(content)) + content
    return bytes(written)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    written = bytearray()
    # A negative number is sent as its two's complement of 64 bits.
    value &= (1 << 64) - 1
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def load_grpc() -> Any:
    """Load grpcio, which isn't installed with ddpdoctor.

    Raises:
        ImportError: it isn't there, or doesn't load; the text says what to install.
    """
    try:
        return import_module("grpc")
    except ImportError as error:
        raise ImportError(f"grpcio can't be loaded ({error}): {INSTALL}") from error


def unix_target(socket: str) -> str:
    """The socket's name as gRPC writes it: "unix:/run/x.sock"."""
    return f"unix:{socket.removeprefix('unix://').removeprefix('unix:')}"
