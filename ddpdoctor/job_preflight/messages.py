"""Messages that the ranks leave for each other in the job's store."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from ddpdoctor.base.findings import Finding, Fix
from ddpdoctor.base.text import clip, clip_middle, one_line
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Skipped
from ddpdoctor.facts.preflight import PreflightRank

T = TypeVar("T", bound=msgspec.Struct)

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A longer one is not read: the job's other ranks write some kilobytes."""
MAX_TEXT_LENGTH: Final = 4000
"""Characters of each text in a message: the longest that a check writes is half as long."""
TOO_LONG: Final = "the command is not shown: it is too long"

Slug = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+\Z", max_length=100)]
"""Of a check. It becomes part of a command."""


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

    slug: Slug
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
    """Read a message, and make its texts fit to be shown: whoever reaches the job's store may have written it.

    Raises:
        ForeignWords: it is too long, or none of that kind.
    """
    if len(content) > MAX_MESSAGE_BYTES:
        raise ForeignWords(f"a message of {len(content)} bytes")
    try:
        message = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ForeignWords(clip(str(error))) from error
    return _fit(message)  # type: ignore[no-any-return]


def _fit(value: Any) -> Any:
    """The same with each text on one line, without what a terminal obeys, and of a bounded length."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return clip_middle(one_line(value), MAX_TEXT_LENGTH)
    if isinstance(value, tuple):
        return tuple(map(_fit, value))
    if isinstance(value, dict):
        return {key: _fit(of_key) for key, of_key in value.items()}
    if isinstance(value, msgspec.Struct):
        fit = {name: _fit(getattr(value, name)) for name in value.__struct_fields__}
        return replace(value, **(fit | _fit_commands(value)) if isinstance(value, Fix) else fit)
    return value


def _fit_commands(fix: Fix) -> dict[str, Any]:
    """The commands as they came, since each blank of them counts, or none: `Fix` itself leaves out those that can't be typed."""
    if all(len(command) <= MAX_TEXT_LENGTH for command in fix.commands):
        return {"commands": fix.commands}
    return {"commands": (), "appliable": False, "text": f"{_fit(fix.text)} ({TOO_LONG})"}
