"""Parses what NCCL's RAS answers to `VERBOSE STATUS` in the format json: the names and types are those that NVIDIA/nccl writes in
src/ras/client_support.cc (jsonWriteHeader and what follows, read at a commit of 2026 with NCCL 2.30's diagnostics). Before
2.30.7 a comma is left out where a rank is missing; every member stands in a line of its own there, so that it is known where one lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import RasCount

IN_PROGRESS = 7
ERROR_NAMES = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
    8: "timeout",
}
"""Of ncclResult_t."""

LACKS_COMMA = re.compile(rb'([\w"}\]])([ \t\r]*\n[ \t]*"\w+":)')
"""A value, and in the next line the next key: no text of JSON goes on in another line."""

_Number = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=300)]


class _Status(msgspec.Struct, frozen=True):
    """The state of a rank: one that answers has the first five fields, a missing one the other two."""

    init_state: _Number = 0
    async_error: _Number = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False

    @property
    def words(self) -> str:
        """Words for what is wrong; "" where it is well."""
        troubles = [
            (self.considered_dead, "dead, RAS says"),
            (self.unresponsive, "doesn't answer RAS"),
            (self.init_state == IN_PROGRESS, "still joining"),
            (self.init_state not in (0, IN_PROGRESS), f"could not join: {_error(self.init_state)}"),
            (self.async_error not in (0, IN_PROGRESS), _error(self.async_error)),
            (self.abort_flag, "aborted"),
            (self.finalize_called or self.destroy_flag, "leaving"),
        ]
        return next((words for holds, words in troubles if holds), "")


class _Rank(msgspec.Struct, frozen=True):
    rank: _Number
    host: _Text = ""
    pid: _Number = 0
    status: _Status = _Status()
    collective_counts: dict[_Text, _Number] = {}


class _Communicator(msgspec.Struct, frozen=True):
    hash: _Text
    secondary_hash: _Text = ""
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Rank, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    communicators: tuple[_Communicator, ...]


class NotUnderstood(Exception):
    """Why an answer is none of RAS, in a few words."""


Counts = dict[tuple[str, str, int], RasCount]
"""By communicator (both its hashes) and rank in it. Each has `first` alone."""


def parse_json(answer: bytes) -> Counts:
    """Parse an answer.

    Raises:
        NotUnderstood: it isn't the JSON that RAS writes.
    """
    try:
        parsed = _decoded(answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NotUnderstood(f"it isn't the JSON that RAS writes ({masked(str(error))[:150]})") from None
    return {key: count for communicator in parsed.communicators for key, count in _counts(communicator)}


def _decoded(answer: bytes) -> _Answer:
    try:
        return msgspec.json.decode(answer, type=_Answer)
    except msgspec.DecodeError as error:
        mended = LACKS_COMMA.sub(rb"\1,\2", answer)
        if mended == answer:
            raise
        try:
            return msgspec.json.decode(mended, type=_Answer)
        except msgspec.MsgspecError:
            raise error from None


def join_answers(first: Counts, second: Counts) -> tuple[RasCount, ...]:
    """Join two answers: of every rank that either tells of, both counts, and the status as it was last."""
    merged = {key: msgspec.structs.replace(count, first=(), second=count.first) for key, count in second.items()}
    for key, count in first.items():
        later = merged.get(key)
        merged[key] = msgspec.structs.replace(later, first=count.first) if later else count
    return tuple(merged[key] for key in sorted(merged))


def _counts(communicator: _Communicator) -> Iterator[tuple[tuple[str, str, int], RasCount]]:
    for rank in (*communicator.ranks, *communicator.missing_ranks):
        counted = tuple((masked(name), count) for name, count in sorted(rank.collective_counts.items()) if count)
        yield (
            (communicator.hash, communicator.secondary_hash, rank.rank),
            RasCount(
                communicator=masked(communicator.hash),
                rank=rank.rank,
                host=masked(rank.host),
                pid=max(0, rank.pid),
                first=counted,
                status=rank.status.words,
            ),
        )


def _error(number: int) -> str:
    return ERROR_NAMES.get(number, f"NCCL's error {number}")
