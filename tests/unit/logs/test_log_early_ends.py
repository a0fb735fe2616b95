"""A rank that was aborted as it came to its end left the others; one that fell by something before did not."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import LoggedException, LogLine, SignMatch
from ddpdoctor.logs.analyze.endings import WITH_THREADS
from ddpdoctor.logs.analyze.verdict import verdict_of
from tests.support.logs_by_hand import exited, line, log, raised, seen

LOST = seen("peer-rank-crashed", number=20, role=SignRole.EFFECT, rank=0, sign="closed by peer")
CRASH = seen("process-crashed", number=30, role=SignRole.HINTS, rank=1, sign="Signal 6 (SIGABRT)")
SAID = line(15, WITH_THREADS)


def slugs(*parts: SignMatch | LoggedException, code: int = -6, errors: tuple[LogLine, ...] = (SAID,)) -> list[str]:
    ended = msgspec.structs.replace(exited(1, code, number=30, first=True), line=line(30, "exitcode"))
    return [suspect.slug for suspect in verdict_of(log(*parts, CRASH, ended, errors=errors), catalogue()).suspects]


def test_it_left_the_others() -> None:
    assert slugs(LOST) == ["uneven-inputs", "process-crashed"]


@pytest.mark.parametrize(
    ("parts", "errors"),
    [
        ((), (SAID,)),
        ((LOST,), ()),
        ((LOST,), (line(15, "terminate called after throwing an instance of 'c10::Error'"),)),
        ((LOST,), (line(14, "malloc(): corrupted top size"), SAID)),
        ((LOST,), (line(15, WITH_THREADS, rank=0),)),
        ((LOST, raised("KeyError", "'lr'", number=12, rank=1)), (SAID,)),
        ((LOST, seen("disk-full", number=12, rank=1)), (SAID,)),
    ],
)
def test_it_did_not(parts: tuple[SignMatch | LoggedException, ...], errors: tuple[LogLine, ...]) -> None:
    assert "uneven-inputs" not in slugs(*parts, errors=errors)


def test_of_another_signal_the_words_say_nothing() -> None:
    assert "uneven-inputs" not in slugs(LOST, code=-11)
