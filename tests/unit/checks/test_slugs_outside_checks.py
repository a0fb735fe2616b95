"""No part outside of checks/ knows a check by its slug: what it needs of one, that check declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ddpdoctor
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.registry import Catalogue, Check, Subject
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.processes.job_words import Oddity
from ddpdoctor.report.reported_leftovers import LeftoverKind as Leftover

pytestmark = pytest.mark.quick

PACKAGE = Path(ddpdoctor.__file__).parent


@cache
def a_slug() -> re.Pattern[str]:
    """As a whole word of any text. A log of the corpus, by which a rule says what taught it, stands in a folder of that name."""
    slugs = sorted((check.slug for check in all_checks()), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, slugs))})(?![\w-]|/(?:sick|near-miss)-)")


def texts_of(source: str) -> Iterator[ast.Constant]:
    """The string literals of a module, parts of f-strings among them, without docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def slugs_in(source: str) -> list[str]:
    """Slugs with their lines, "12: port-in-use"."""
    return [f"{node.lineno}: {slug}" for node in texts_of(source) for slug in a_slug().findall(node.value)]


def modules() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] != "checks":
            yield path


def test_no_slug_stands_outside_of_checks() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): slugs_in(path.read_text()) for path in modules()}
    assert {path: slugs for path, slugs in found.items() if slugs} == {}


def test_slugs_are_seen_in_literals_and_commands_and_not_in_docstrings() -> None:
    source = '"""Of port-in-use."""\nA = "port-in-use"\n"""port-in-use"""\nB = f"{A} check --select port-in-use"\nC = "port-in-uses"\nD = "port-in-use/sick-a.log"'
    assert slugs_in(source) == ["2: port-in-use", "4: port-in-use"]


@pytest.mark.parametrize("cause", HangCause)
def test_each_cause_of_a_hang_has_one_check(cause: HangCause) -> None:
    assert "hang" in next(check for check in all_checks() if cause in check.stands_for).groups
    assert catalogue().slug_for(cause)


def test_what_no_check_stands_for_is_no_slug() -> None:
    here = Catalogue()
    with pytest.raises(LookupError, match="0 checks"):
        here.slug_for(HangCause.EXIT)
    for slug in ("a", "b"):
        here.add(Check(slug, all_checks()[0].severity, all_checks()[0].predicate, stands_for=(HangCause.EXIT,)))
    with pytest.raises(LookupError, match="2 checks"):
        here.slug_for(HangCause.EXIT)
    with pytest.raises(ValueError, match="two checks are called a"):
        here.add(Check("a", all_checks()[0].severity, all_checks()[0].predicate))


@pytest.mark.parametrize("kind", Leftover)
def test_each_kind_of_leftover_has_one_check(kind: Leftover) -> None:
    assert catalogue().slug_for(kind)


@pytest.mark.parametrize("oddity", [one for one in Oddity if one is not Oddity.SEVERAL_RUNS])
def test_each_oddity_of_a_job_has_a_check_unless_it_is_a_mere_doubt(oddity: Oddity) -> None:
    assert catalogue().standing_for(oddity)


@pytest.mark.parametrize("subject", Subject)
def test_each_subject_has_a_check_that_judges_it(subject: Subject) -> None:
    assert any(subject in check.judges for check in all_checks())
