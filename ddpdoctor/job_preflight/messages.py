"""Messages that the ranks leave for each other in the job's store."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.text import clip
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Skipped
from ddpdoctor.facts.preflight import PreflightRank

T = TypeVar("T", bound=msgspec.Struct)

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A longer one is not read: the job's other ranks write some kilobytes."""


class OwnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's own words.

    token: of its process, so that one that was started anew is told from the one before.
    looks: it looks at its host, for all ranks there.
    gloo: its torch has gloo.
    """

    rank: PreflightRank
    token: str
    looks: bool = False
    gloo: bool = True


class JudgedCheck(msgspec.Struct, frozen=True):
    """What one check came to, by its slug."""

    slug: str
    findings: tuple[Finding, ...] = ()
    not_tested: Skipped | None = None


class HostAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at one host came to. checks: those that found something or could not be tested; the others are counted."""

    host: str
    checks: tuple[JudgedCheck, ...] = ()
    passed: int = 0
    idle: int = 0
    problem: str = ""
    """Why it could not be looked at."""


class CallsOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen once the ranks have come, or the time for it is over.

    absent: ranks that had not come.
    untried: why no calls are tried; "" where all are to try them.
    """

    absent: tuple[int, ...] = ()
    untried: str = ""


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict as all ranks get it.

    judge: the rank that has come to it.
    tokens: of the ranks that answered, by rank.
    calls: those that all ranks have passed.
    problems: why something was not looked at, a sentence each.
    """

    verdict: Verdict
    judge: int
    world_size: int
    answered: int
    hosts: tuple[HostAnswer, ...]
    checks: tuple[JudgedCheck, ...]
    tokens: dict[int, str]
    absent: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class ForeignWords(ValueError):
    """A message that no ddpdoctor of this release has written."""


def decode(content: bytes, kind: type[T]) -> T:
    """Read a message.

    Raises:
        ForeignWords: it is too long, or none of that kind.
    """
    if len(content) > MAX_MESSAGE_BYTES:
        raise ForeignWords(f"a message of {len(content)} bytes")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise ForeignWords(clip(str(error))) from error
