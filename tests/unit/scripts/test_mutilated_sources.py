"""Sources that were cut, shuffled or lost words are judged or told as no Python: nothing crashes."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpdoctor import lint
from tests.support.script_cases import script_cases

SOURCES = [case.path.read_text() for case in script_cases()]


def cut(text: str, chance: random.Random) -> str:
    """End somewhere, or begin there."""
    place = chance.randrange(len(text))
    return text[:place] if chance.random() < 0.5 else text[place:]


def swap_lines(text: str, chance: random.Random) -> str:
    """Put lines in each other's place, with the indentation of the place, so that the most still parses."""
    lines = text.split("\n")
    for _ in range(chance.randrange(1, 6)):
        first, second = (chance.randrange(len(lines)) for _ in range(2))
        (before, one), (behind, other) = (
            re.fullmatch(r"(\s*)(.*)", lines[place]).groups() for place in (first, second)
        )  # type: ignore[union-attr]
        lines[first], lines[second] = before + other, behind + one
    return "\n".join(lines)


def drop_words(text: str, chance: random.Random) -> str:
    """Lose some words or signs."""
    parts = re.split(r"(\w+|[^\w\s])", text)
    for _ in range(chance.randrange(1, 4)):
        parts[chance.randrange(len(parts))] = ""
    return "".join(parts)


def exchange_names(text: str, chance: random.Random) -> str:
    """Let one name be another one's: functions call themselves, values hold themselves."""
    names = sorted(
        set(re.findall(r"\b[a-z_]{3,}\b", text)) - {"import", "from", "def", "for", "with", "class", "return", "not"}
    )
    for _ in range(chance.randrange(1, 4) if len(names) > 1 else 0):
        old, new = chance.sample(names, 2)
        text = re.sub(rf"\b{old}\b", new, text)
    return text


WAYS: tuple[Callable[[str, random.Random], str], ...] = (cut, swap_lines, drop_words, exchange_names)


def judge_mutilated(seed: int) -> None:
    chance = random.Random(seed)
    text = chance.choice(SOURCES)
    for way in chance.choices(WAYS, k=chance.randrange(1, 3)):
        text = way(text, chance) or "pass"
    result = lint(["-"], stdin=text.encode())
    assert not any(script.crashed for script in result.judged), text
    assert all("a bug in ddpdoctor" not in problem and "\n" not in problem for problem in result.problems), text
    assert len(result.judged) + len(result.problems) == 1


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_mutilated_sources_crash_nothing(first: int) -> None:
    for seed in range(first, first + 20):
        judge_mutilated(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(1000, 9000, 100))
def test_many_more_mutilated_sources_crash_nothing(first: int) -> None:
    for seed in range(first, first + 100):
        judge_mutilated(seed)


def test_devices_and_links_in_circles_are_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "circle.py").symlink_to("circle.py")
    (tmp_path / "other.py").symlink_to("gone.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    names = ["circle.py", "other.py"]
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null.py", 0o020666, os.makedev(1, 3))
        names.append("null.py")
    result = lint([tmp_path])
    assert [Path(script.path).name for script in result.judged] == ["train.py"]
    assert sorted(Path(problem.partition(": ")[0]).name for problem in result.problems) == sorted(names)
    assert not any("\n" in problem for problem in result.problems)
