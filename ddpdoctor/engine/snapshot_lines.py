"""A snapshot as short lines, each of which says where it belongs: launchers cut long lines, and mix those of several hosts.

srun hands on a kilobyte at a time: of eight hosts that print a snapshot in one line of 60 kB each, it lets two or three arrive whole.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.text import plural
from ddpdoctor.facts.snapshot import Snapshot

MARK: Final = b"ddpdoctor-snapshot"
DATA_CHARACTERS: Final = 900
"""Of a line; with what stands before it, it stays below the 1024 bytes that srun hands on at once."""
MAX_LINES: Final = 9999
MAX_CONTENT_BYTES: Final = 64 * 1024 * 1024
"""A few lines may be packed so that they fill any memory."""
MAX_PENDING_CHARACTERS: Final = 128 * 1024 * 1024
"""Of snapshots that haven't arrived whole; 10,000 hosts with eight GPUs each, of all of which the last line is missing, have 120 million."""
PENDING_OVERHEAD: Final = 512
"""What such a snapshot takes beside its characters."""
MAX_LABEL_CHARACTERS: Final = 80
LABELS_SHOWN: Final = 3
MAX_LABELS: Final = 65_536
"""That are kept of snapshots that were given up: more than any cluster has hosts."""
BEGINNING_BYTES: Final = 1024
"""Of a snapshot that isn't whole: whose it is stands there."""

_LINE: Final = re.compile(rb"(.*?)" + MARK + rb" ([0-9a-f]{16}) ([0-9]{1,4})/([0-9]{1,4}) ([A-Za-z0-9+/=]{1,1000})\s*")


def to_lines(snapshot: Snapshot) -> str:
    """Write the snapshot as such lines."""
    content = msgspec.json.encode(snapshot)
    data = base64.b64encode(zlib.compress(content, 9)).decode()
    parts = [data[start : start + DATA_CHARACTERS] for start in range(0, len(data), DATA_CHARACTERS)]
    head = f"{MARK.decode()} {_digest(content)}"
    return "".join(f"{head} {number}/{len(parts)} {part}\n" for number, part in enumerate(parts, 1))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class _Pending:
    def __init__(self, label: str, count: int) -> None:
        self.label = label
        self.count = count
        self.parts: dict[int, bytes] = {}


class Lack(NamedTuple):
    """What lines that haven't arrived lack, in a sentence.

    Args:
        text: the sentence.
        labels: that a launcher wrote before the lines.
        beginning: of the JSON, as far as it came.
    """

    text: str
    labels: tuple[str, ...]
    beginning: bytes = b""


class SnapshotLines:
    """Puts snapshots together out of their lines, in whatever order those arrive, and whatever a launcher wrote before them."""

    def __init__(self) -> None:
        self._pending: dict[bytes, _Pending] = {}
        self._characters = 0
        self._given_up: dict[str, None] = {}
        self._given_up_count = 0

    def add(self, line: bytes) -> bytes | None:
        """Take a line. It gives back the snapshot's JSON if that is whole now, b"" where more is to come, and None if it is no such line."""
        # A snapshot in one line has 70 kB, which the pattern would go through character by character.
        matched = _LINE.fullmatch(line) if MARK in line else None
        if not matched:
            return None
        label, digest, number, count, data = matched.groups()
        if not 1 <= int(number) <= int(count):
            return None
        if (pending := self._pending.get(digest)) is None:
            words = label.decode(errors="replace").strip(" :")[:MAX_LABEL_CHARACTERS]
            pending = self._pending[digest] = _Pending(words, int(count))
            self._characters += PENDING_OVERHEAD
        if int(number) not in pending.parts:
            pending.parts[int(number)] = data
            self._characters += len(data)
        if len(pending.parts) < pending.count:
            while self._characters > MAX_PENDING_CHARACTERS:
                self._give_up_oldest()
            return b""
        self._take_out(digest)
        return _unpacked(pending, digest.decode())

    def _take_out(self, digest: bytes) -> _Pending:
        pending = self._pending.pop(digest)
        self._characters -= PENDING_OVERHEAD + sum(map(len, pending.parts.values()))
        return pending

    def _give_up_oldest(self) -> None:
        """Drop what was begun first: more was begun than memory should hold."""
        label = self._take_out(next(iter(self._pending))).label
        self._given_up_count += 1
        if len(self._given_up) < MAX_LABELS and label:
            self._given_up[label] = None

    def lacking(self) -> Iterator[Lack]:
        """Say of each snapshot that hasn't arrived whole what it lacks."""
        if self._given_up_count:
            labels = tuple(self._given_up)
            shown = labels[:LABELS_SHOWN]
            others = " and others" if self._given_up_count > len(shown) else ""
            whose = f" ({', '.join(shown)}{others})" if shown else ""
            yield Lack(
                f"{plural(self._given_up_count, 'snapshot')}{whose} had not arrived whole when {MAX_PENDING_CHARACTERS >> 20} MiB of such "
                "lay here; nothing of them was used: sweep over fewer hosts at once, or over a folder",
                labels,
            )
        for pending in self._pending.values():
            missing = pending.count - len(pending.parts)
            yield Lack(
                f"{pending.label or 'a snapshot'}: {missing} of its {pending.count} lines didn't arrive; was the command ended, or its output cut?",
                (pending.label,) if pending.label else (),
                _beginning(pending),
            )


def _unpacked(pending: _Pending, digest: str) -> bytes:
    """The JSON; what isn't whole is handed on as it is, and whoever reads it says so."""
    try:
        packed = base64.b64decode(b"".join(pending.parts[number] for number in range(1, pending.count + 1)))
        content = zlib.decompressobj().decompress(packed, MAX_CONTENT_BYTES)
    except (ValueError, KeyError, zlib.error):
        return MARK
    return content if _digest(content) == digest else MARK


def _beginning(pending: _Pending) -> bytes:
    """The JSON's first bytes, out of the first line; nothing where that isn't there."""
    try:
        packed = base64.b64decode(pending.parts.get(1, b""))
        return zlib.decompressobj().decompress(packed, BEGINNING_BYTES)
    except (ValueError, zlib.error):
        return b""


def joined(content: bytes) -> bytes:
    """The JSON of a file or stream of such lines; anything else as it is."""
    if MARK not in content[:300]:
        return content
    lines = SnapshotLines()
    for line in content.splitlines():
        if whole := lines.add(line):
            return whole
    return content
