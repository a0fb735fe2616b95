"""Log signs, and what exceptions mean, as people write them, and what is said of a file that can't be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.log_signs import HEALTHY_RUNS, LogSign, SignRole
from ddpdoctor.base.sign_files import SignFileError, make_signs, parse_sign_tables, read_tables
from ddpdoctor.checks.catalogue import all_checks, packaged_signs
from ddpdoctor.checks.python.version_changes import packaged_changes
from ddpdoctor.logs.analyze.error_meanings import Meaning, packaged_meanings
from tests.log_sign_files import make_changes, make_meanings, read_all, read_changes, read_meanings

WRITTEN = """
[parts]
LITRES = '(?P<litres>\\d+) l'

[[spilt-milk]]
text = 'milk on the floor'
role = 'hints'
pattern = '^{LITRES}{1,2}'
near = 'crash'
within = 3
refutes = ['milk']
why = "what it's worth"
source = "made to happen"

[[spilt-milk]]
text = ['a. b', 'c']
near = ['d', 'e']
pattern = '^{TEXT}$'
"""


def parse_signs(text: str, shared: Mapping[str, list[dict[str, Any]]] | None = None) -> dict[str, tuple[LogSign, ...]]:
    return make_signs(read_tables(text, "kitchen"), "kitchen", shared)


def test_fields_parts_and_lists() -> None:
    first, *others = parse_signs(WRITTEN)["spilt-milk"]
    assert first == LogSign(
        "milk on the floor",
        role=SignRole.HINTS,
        pattern=r"^(?P<litres>\d+) l{1,2}",
        near="crash",
        within=3,
        refutes=("milk",),
        why="what it's worth",
        source="made to happen",
    )
    assert [(sign.text, sign.near) for sign in others] == [("a. b", "d"), ("c", "d"), ("a. b", "e"), ("c", "e")]
    assert others[0].pattern == r"^a\.\ b$"


def test_shared_signs_have_what_stands_beside_their_name() -> None:
    written = "[[drops]]\ntext = 'drip'\nwhy = 'a'\n[[drops]]\ntext = 'drop'\nwhy = 'b'"
    shared = parse_sign_tables(read_tables(written, "shared"), "shared")
    signs = parse_signs("[[spilt-milk]]\nshared = 'drops'\nwhy = 'c'", shared)
    assert signs == {"spilt-milk": (LogSign("drip", why="c"), LogSign("drop", why="c"))}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[[a]]\ntext = 'x", 'kitchen: Expected "\'" (at end of document)'),
        ("a = 1", "kitchen: Expected `array`, got `int` - at `$[...]`"),
        ("[[a]]\ntext = 'x'\n[[a]]\ntext = 'y'\nrole = 'king'", "kitchen: a, sign 2: Invalid enum value 'king'"),
        ("[[a]]\ntext = 'x'\npatern = 'y'", "kitchen: a, sign 1: Object contains unknown field `patern`"),
        ("[[a]]\ntext = 1", "kitchen: a, sign 1: Expected `str`, got `int` - at `$.text`"),
        ("[[a]]\npattern = 'y'", "kitchen: a, sign 1: it has no text"),
        ("[[a]]\ntext = 'x'\npattern = '('", "kitchen: a, sign 1: its pattern is no regular expression: missing )"),
        ("[[a]]\ntext = 'x'\npattern = '{WORD}'", "kitchen: a, sign 1: its pattern has {WORD}, which [parts] hasn't"),
        ("[[a]]\nshared = 'x'", "kitchen: a, sign 1: there are no shared signs called 'x'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_reason(text: str, error: str) -> None:
    with pytest.raises(SignFileError) as refused:
        parse_signs(text)
    assert str(refused.value).startswith(error)


def test_a_slug_has_its_signs_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "shared.signs.toml").touch()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.signs.toml").write_text("[[spilt-milk]]\ntext = 'x'")
    with pytest.raises(SignFileError, match=r"two/a\.signs\.toml: spilt-milk has signs in another file, too"):
        read_all(tmp_path)


def test_what_the_program_reads_is_what_the_files_say_of_checks_that_there_are() -> None:
    assert packaged_signs() == read_all(), "run: python -m tests.regenerate"
    assert set(packaged_signs()) - {HEALTHY_RUNS} <= {check.slug for check in all_checks()}


MEANING = """
[parts]
LITRES = '(?P<litres>\\d+) l'

[[meaning]]
begins = ['{LITRES} spilt', 'Spilt: {1,2}(?P<what>\\w+)']
exception = "SpiltError"
code = 'pour'
cause = "{litres} l of {what}: {} is no name"
fixes = [{ text = "Wipe it up", commands = ["wipe {what}"] }, { text = "Or leave it" }]
source = "kitchen 1: floor.c"
"""


def parse_meanings(text: str) -> dict[str, tuple[Meaning, ...]]:
    return make_meanings(read_tables(text, "kitchen"), "kitchen")


def test_a_meaning_has_patterns_parts_and_fixes() -> None:
    assert parse_meanings(MEANING)["meaning"] == (
        Meaning(
            begins=r"(?P<litres>\d+) l spilt|Spilt: {1,2}(?P<what>\w+)",
            exception="SpiltError",
            code="pour",
            cause="{litres} l of {what}: {} is no name",
            fixes=(Fix("Wipe it up", ("wipe {what}",)), Fix("Or leave it")),
            source="kitchen 1: floor.c",
        ),
    )


SPILT = MEANING[MEANING.index("[[meaning]]") :]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (MEANING.replace("source", "sauce"), "Object contains unknown field `sauce`"),
        (MEANING.replace('cause = "', 'cause = ""  # "'), "litres is not both a group"),
        (MEANING.replace("of {what}", "of {who}"), "who is not both a group"),
        (MEANING.replace("commands", "comands"), "a fix has no field comands"),
        (MEANING.replace("'pour'", "'('"), "its code is no regular expression: missing )"),
        (MEANING.replace("LITRES}", "PINTS}"), "its begins has {PINTS}, which [parts] hasn't"),
        ('[[meaning]]\nbegins = "x?"\ncause = ""\nfixes = []\nsource = ""', "any message begins so"),
        ('[[meaning]]\ncause = ""\nfixes = []', "Object missing required field `source`"),
    ],
)
def test_a_wrong_meaning_is_refused_with_the_place_and_the_reason(text: str, error: str) -> None:
    with pytest.raises(SignFileError) as refused:
        parse_meanings(text)
    assert str(refused.value).startswith(f"kitchen: meaning, number 1: {error}")


def test_no_two_meanings_are_for_the_same_words() -> None:
    with pytest.raises(SignFileError, match=r"SpiltError pour' has 2 meanings"):
        parse_meanings(MEANING + SPILT)


def test_what_the_program_reads_is_what_the_file_of_meanings_says() -> None:
    assert packaged_meanings() == read_meanings()["meaning"], "run: python -m tests.regenerate"


def test_each_meaning_has_a_cause_a_fix_and_a_source() -> None:
    assert [
        meaning for meaning in packaged_meanings() if not (meaning.cause and meaning.fixes and meaning.source)
    ] == []


CHANGE = """
[[change]]
package = "kitchen"
names = ["kitchen.Kettle", "kitchen.Pot"]
removed = "2.0"
instead = "stove.{name}"
source = "kitchen 1.9, 2.0"
"""


def test_what_the_program_reads_is_what_the_file_of_changes_says() -> None:
    names = {name for row in read_changes()["change"] for name in row.names}
    assert packaged_changes().keys() == names, "run: python -m tests.regenerate"


def test_what_takes_a_names_place_has_its_last_part() -> None:
    assert packaged_changes()["collections.Iterable"].instead == "collections.abc.Iterable"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (CHANGE + CHANGE.replace("Pot", "Pan"), "kitchen.Kettle has 2 changes"),
        (CHANGE.replace("removed", "added") + 'removed = "3"\n', "one of removed and added"),
        (CHANGE.replace("package", "parcel"), "unknown field `parcel`"),
    ],
)
def test_a_wrong_change_is_refused(text: str, error: str) -> None:
    with pytest.raises(SignFileError, match=error):
        make_changes(read_tables(text, "kitchen"), "kitchen")
