"""What may be on a disk after a power cut, told from the calls that were made: any of them that no fsync covered is lost.

A write may also be there by half, or only the length that it gave to the file. Names (created, renamed, removed) are
durable once their folder was synced; a name and its file's content know nothing of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Disk = dict[str, tuple[bytes, int]]
"""Files by name: content and date (ns)."""


class Call(NamedTuple):
    """kind: write, truncate, date, fsync, create, rename, unlink; names without their folder ("" is the folder)."""

    kind: str
    name: str
    other: str
    at: int
    data: bytes


def read_log(log: Path, folder: Path) -> list[Call]:
    """The calls as killer.c wrote them down."""
    raw = log.read_bytes()
    calls = []
    while raw:
        line, _, raw = raw.partition(b"\n")
        kind, path, other, at, length = line.decode().split("\t")
        calls.append(Call(kind, _name(path, folder), _name(other, folder), int(at), raw[: int(length)]))
        raw = raw[int(length) :]
    return calls


def _name(path: str, folder: Path) -> str:
    return "" if path in ("", str(folder)) else str(Path(path).relative_to(folder))


class _Files:
    """Files by number, so that a content survives its renaming; names point to them."""

    def __init__(self, disk: Disk) -> None:
        self.names = {name: number for number, name in enumerate(disk)}
        self.contents = [content for content, _ in disk.values()]
        self.dates = [date for _, date in disk.values()]

    def copy(self) -> _Files:
        other = _Files({})
        other.names, other.contents, other.dates = dict(self.names), list(self.contents), list(self.dates)
        return other

    def disk(self) -> Disk:
        return {name: (self.contents[number], self.dates[number]) for name, number in self.names.items()}


NOW = 1_800_000_000_000_000_000


class _Pending(NamedTuple):
    call: Call
    number: int
    """Of the file; -1 for what is done to names."""


def after_power_cuts(before: Disk, calls: list[Call]) -> Iterator[tuple[int, Disk]]:
    """Every state in which the disk can be after each number of calls, and that number."""
    durable, live, pending = _Files(before), _Files(before), list[_Pending]()
    for number, call in enumerate(calls, start=1):
        if call.kind == "fsync":
            covered = [one for one in pending if one.number == (live.names[call.name] if call.name else -1)]
            for one in covered:
                _apply(durable, one, "whole")
                pending.remove(one)
        elif call.kind in ("create", "rename", "unlink"):
            if call.kind == "unlink" and call.name not in live.names:
                continue
            one = _Pending(call, -1)
            if call.kind == "create":
                for files in (live, durable):
                    files.contents.append(b"")
                    files.dates.append(NOW)
            pending.append(one)
            _apply(live, one, "whole")
        elif call.kind in ("write", "truncate", "date"):
            one = _Pending(call, live.names[call.name])
            pending.append(one)
            _apply(live, one, "whole")
        for fates in itertools.product(*(_fates(one.call) for one in pending)):
            files = durable.copy()
            for one, fate in zip(pending, fates, strict=True):
                _apply(files, one, fate)
            yield number, files.disk()


def _fates(call: Call) -> tuple[str, ...]:
    if call.kind == "write" and len(call.data) > 1:
        return ("lost", "whole", "first half", "second half", "length")
    return ("lost", "whole")


def _apply(files: _Files, one: _Pending, fate: str) -> None:
    call, number = one
    if fate == "lost":
        return
    if call.kind == "write":
        files.contents[number] = _written(files.contents[number], call, fate)
        files.dates[number] = NOW
    elif call.kind == "truncate":
        files.contents[number] = files.contents[number][: call.at].ljust(call.at, b"\0")
        files.dates[number] = NOW
    elif call.kind == "date":
        files.dates[number] = call.at
    elif call.kind == "create":
        # The number that it got when it was made: the highest yet without a name, since one is made at a time.
        files.names[call.name] = len(files.contents) - 1
    elif call.kind == "rename" and call.name in files.names:
        files.names[call.other] = files.names.pop(call.name)
    elif call.kind == "unlink":
        files.names.pop(call.name, None)


def _written(content: bytes, call: Call, fate: str) -> bytes:
    half = len(call.data) // 2
    parts = {
        "whole": [(0, len(call.data))],
        "first half": [(0, half)],
        "second half": [(half, len(call.data))],
        "length": [],
    }[fate]
    new = bytearray(content.ljust(call.at + len(call.data), b"\0"))
    for start, end in parts:
        new[call.at + start : call.at + end] = call.data[start:end]
    return bytes(new)
