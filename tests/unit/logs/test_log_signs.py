"""The meta-tests of signs: what must hold of every one, whoever adds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpdoctor.base.log_signs import LogSign, SignRole
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.registry import LEAST_SIGN, Check
from ddpdoctor.logs.parse.labels import Style, unlabelled
from tests.log_corpus import HEALTHY, LOGS, OUTCOMES, corpus, text_of

LEAST_NEAR = 6

NAMING = (SignRole.NAMES, SignRole.HINTS)

CHECKS = [check for check in all_checks() if check.log_signs]
SIGNS = [(check, sign) for check in CHECKS for sign in check.log_signs]

LABELLED = Style(numbers=True)
"""Some of the logs have srun's labels."""

LINES_OF_ANY_LOG = (
    "",
    "step 100 | loss 2.314 | 1024 samples/s",
    "Traceback (most recent call last):",
    "RuntimeError: CUDA error",
    "W1122 02:13:07.123000 4711 torch/distributed/run.py:852]",
)


def complaints(about: Callable[[Check, LogSign], str]) -> list[str]:
    """One for each sign of which there is something to say."""
    told = [(one, sign, about(one, sign)) for one, sign in SIGNS]
    return [f"{one.slug}: {sign.text!r} {words}" for one, sign, words in told if words]


def test_there_are_signs() -> None:
    assert len(SIGNS) > 100


def test_says_why_it_is_specific_enough_and_where_that_was_verified() -> None:
    def about(_: Check, sign: LogSign) -> str:
        missing = [name for name in ("why", "source") if not getattr(sign, name)]
        unsure = ["a verification"] if "not verified" in sign.why else []
        return f"has no {', '.join(missing + unsure)}" if missing or unsure else ""

    assert not complaints(about)


def test_its_text_is_a_part_of_one_line_as_a_program_prints_it() -> None:
    def about(_: Check, sign: LogSign) -> str:
        if not sign.text.strip() or re.search(r"[\n\r\x1b]", sign.text):
            return "is no text of one line"
        labelled = re.match(r"\[(?:rank|default)\d", sign.text)
        return "has the label of a launcher, which is taken off before" if labelled else ""

    assert not complaints(about)


def test_is_long_enough_or_has_more_to_go_by() -> None:
    """A short text stands in any log."""
    assert not complaints(
        lambda _, sign: "" if len(sign.text) >= LEAST_SIGN or sign.pattern or sign.near else "is too short by itself"
    )


def test_its_pattern_asks_for_more_than_any_line_has() -> None:
    def about(_: Check, sign: LogSign) -> str:
        pattern = re.compile(sign.pattern)
        fitting = [line for line in LINES_OF_ANY_LOG if sign.pattern and pattern.search(line)]
        return f"has a pattern that fits {fitting[0]!r}, too" if any(sign.text not in line for line in fitting) else ""

    assert not complaints(about)


def test_a_line_with_the_text_of_a_sign_is_seen() -> None:
    """Of the logs of its illness, by that sign or another of the same illness: a pattern that never fits is never seen."""
    logs = {
        check.slug: [
            unlabelled(line, LABELLED).text for path in sick_logs(check) for line in text_of(path).splitlines()
        ]
        for check in CHECKS
    }

    def about(one: Check, sign: LogSign) -> str:
        lines = [line for line in logs[one.slug] if sign.text in line]
        seen = any(each.text in line and re.search(each.pattern, line) for line in lines for each in one.log_signs)
        return "" if seen or not lines else f"has a pattern that doesn't fit {lines[0]!r}"

    assert not complaints(about)


def test_what_must_be_near_is_something_else() -> None:
    def about(_: Check, sign: LogSign) -> str:
        if sign.near and sign.near in sign.text:
            return "has a neighbour that is always there"
        ill_set = sign.near and (len(sign.near) < LEAST_NEAR or "\n" in sign.near)
        return f"has {sign.near!r} for a neighbour" if ill_set else ""

    assert not complaints(about)


def test_what_names_one_illness_names_no_other() -> None:
    """A text that two illnesses have in common is a hint at each of them, unless a pattern or a neighbour sets them apart."""
    plain = [(one.slug, sign) for one, sign in SIGNS if not sign.pattern and not sign.near]
    shared = Counter(sign.text for _, sign in plain)
    names = [f"{slug}: {sign.text!r}" for slug, sign in plain if sign.role is SignRole.NAMES and shared[sign.text] > 1]
    assert not names


def test_no_check_has_a_sign_twice() -> None:
    counted = Counter((one.slug, sign.text, sign.pattern, sign.near) for one, sign in SIGNS)
    assert not [key for key, times in counted.items() if times > 1]


def sick_logs(check: Check) -> list[Path]:
    return [one.path for one in corpus() if one.sick and one.slug == check.slug]


def test_every_illness_with_signs_has_a_log() -> None:
    naming = [check for check in CHECKS if any(sign.role in NAMING for sign in check.log_signs)]
    assert not [one.slug for one in naming if not sick_logs(one)]


@pytest.mark.parametrize("kind", ["sick-", "near-miss-"])
def test_what_only_a_log_shows_has_logs_of_both_kinds(kind: str) -> None:
    """What is no mistake of the script, or no end from outside, all the other logs show; what is harmless makes nobody sick."""
    logged = [check for check in all_checks() if check.groups == {"log"} and check.slug not in OUTCOMES]
    harmless = {one.slug for one in logged if {sign.role for sign in one.log_signs} == {SignRole.NOISE}}
    there = {one.slug for one in corpus() if one.path.name.startswith(kind)}
    there |= harmless if kind == "sick-" else set()
    assert logged
    assert not [one.slug for one in logged if one.slug not in there]


def test_every_folder_of_logs_is_an_illness_an_outcome_or_healthy() -> None:
    known = {check.slug for check in all_checks()} | {HEALTHY, *OUTCOMES}
    assert {path.name for path in LOGS.iterdir()} <= known
