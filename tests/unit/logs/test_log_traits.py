"""What checks declare of their log signs: it is about signs that there are, and each part that asks finds a check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from signal import Signals

import pytest

from ddpdoctor.base.findings import FAIL, Finding
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.registry import Catalogue, Check, LogSign, LogTraits
from ddpdoctor.facts.log import Log, LogFile, LogLine, ProcessExit, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.failures import Failure, failures_of

pytestmark = pytest.mark.quick

SIGNS = [(check, sign) for check in all_checks() for sign in check.log_signs]


@pytest.mark.parametrize("topic", LogTopic)
def test_each_topic_has_a_check(topic: LogTopic) -> None:
    assert catalogue().standing_for(topic)
    if topic is not LogTopic.KILLED_FOR_MEMORY:
        assert catalogue().slug_for(topic)


def test_the_likeliest_check_of_a_bus_error_comes_first() -> None:
    assert [check.family for check in catalogue().standing_for(Signals.SIGBUS)] == ["host", "log"]


def test_what_a_sign_refutes_is_another_sign_of_its_check() -> None:
    for check, sign in SIGNS:
        assert set(sign.refutes) <= {sign.text for sign in check.log_signs} - {sign.text}, (check.slug, sign.text)
        assert sign.refutes or not sign.refutes_earlier


def test_a_sign_that_names_its_speaker_has_the_word_for_it() -> None:
    naming = [sign for _, sign in SIGNS if sign.names_speaker]
    assert naming
    assert all("(?P<rank>" in sign.pattern for sign in naming)


def nothing_here(log: Log) -> Iterator[Finding]:
    """Finds nothing."""
    yield from ()


def catalogue_of(traits: LogTraits, *signs: LogSign) -> Catalogue:
    """One check with these traits, and those that every log needs."""
    made = Catalogue()
    made.add(Check("spilt-milk", FAIL, nothing_here, log_signs=signs, log=traits))
    made.add(Check("mistake", FAIL, nothing_here, stands_for=(LogTopic.MISTAKE,)))
    made.add(Check("stopped", FAIL, nothing_here, stands_for=(LogTopic.STOPPED,)))
    made.add(Check("bus", FAIL, nothing_here, stands_for=(Signals.SIGBUS, HangCause.UNEVEN)))
    return made


def seen(sign: str, number: int, role: SignRole = SignRole.NAMES) -> SignMatch:
    line = LogLine(file=0, number=number, order=number, text=sign, rank=0)
    return SignMatch(slug="spilt-milk", sign=sign, role=role, line=line)


def failures(checks: Catalogue, *sightings: SignMatch, exited: Sequence[ProcessExit] = ()) -> list[Failure]:
    return failures_of(Log(files=(LogFile(name="run.log"),), sightings=sightings, exited=tuple(exited)), checks)


def test_a_check_may_say_that_its_sign_is_about_something_else() -> None:
    assert failures(catalogue_of(LogTraits()), seen("milk", 3))
    assert not failures(catalogue_of(LogTraits(refuted=lambda one, log: one.line.number == 3)), seen("milk", 3))


@pytest.mark.parametrize(("mopped_at", "left"), [(9, 0), (1, 1)])
def test_a_sign_refutes_those_that_it_declares(mopped_at: int, left: int) -> None:
    mopped = LogSign("mopped", role=SignRole.NOISE, refutes=("milk",), refutes_earlier=True)
    checks = catalogue_of(LogTraits(), LogSign("milk"), mopped)
    assert len(failures(checks, seen("milk", 3), seen("mopped", mopped_at, SignRole.NOISE))) == left


def test_a_check_may_hold_its_signs_against_each_other() -> None:
    def only_the_last(every: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
        assert slug == "spilt-milk"
        return list(every[-1:])

    (last,) = failures(catalogue_of(LogTraits(revises=only_the_last)), seen("milk", 3), seen("milk", 7))
    assert last.line.number == 7


def test_a_signal_hints_at_the_checks_that_stand_for_it() -> None:
    line = LogLine(file=0, number=5, order=5, text="rank 0 exited")
    (ended,) = failures(
        catalogue_of(LogTraits()), exited=[ProcessExit(line=line, said_by="torchrun", rank=0, exit_code=-7)]
    )
    assert [(sign.slug, sign.role) for sign in ended.signs] == [("bus", SignRole.HINTS)]
