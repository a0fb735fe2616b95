"""What isn't seen, and what is done with it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.shell import is_typeable, quoted
from ddpdoctor.base.text import clip, clip_middle, escaped_json, guard, has_unseen, masked, pid_named, visible


def test_no_control_or_format_character_is_forgotten() -> None:
    """Of the Unicode that this Python knows: a new one is found here."""
    kinds = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    every = {
        character for number in range(sys.maxunicode + 1) if unicodedata.category(character := chr(number)) in kinds
    }
    assert {character for character in every if not has_unseen(character)} == {"\t", "\n"}


@pytest.mark.parametrize("text", ["a\tb\nc", "Müller 模型 données \xa0", "100 \u2009µs", "👩"])
def test_what_is_seen_stays(text: str) -> None:
    assert visible(text) == masked(text) == text


def test_what_is_not_is_named_or_masked() -> None:
    assert visible("a\x1b\x9b\u202e\udcff\U000e0041") == r"a\x1b\x9b\u202e\xff\ue0041"
    assert masked("a\x1b\u202e") == "a??"


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_reads_back_as_it_was(text: str) -> None:
    written = escaped_json(json.dumps({"a": text}, ensure_ascii=False))
    assert not has_unseen(written)
    assert json.loads(written) == {"a": text}


@given(st.text(st.characters(exclude_characters="\0")))
def test_a_path_in_a_command_can_be_typed_and_is_that_path(text: str) -> None:
    command = quoted(text)
    assert is_typeable(command)
    assert is_typeable(text) or command.isascii()


@pytest.mark.parametrize("name", ["a\nb", "\x1b]0;x\x07", "-rf", "a'b\t", "\u202egpj.pt", "\udcff", "'; touch x; '"])
def test_a_shell_reads_the_path_as_it_is(name: str) -> None:
    ended = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(name)}"], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True
    )
    assert ended.stdout.removeprefix(b"./") == name.encode("utf-8", "surrogateescape")


def written(*texts: str) -> str:
    stream = io.StringIO()
    guard(stream)
    for text in texts:
        assert stream.write(text) == len(text)
    return stream.getvalue()


def test_the_guard_lets_our_own_through() -> None:
    ours = "\x1b[1;31mFAIL\x1b[0m\r\x1b[K\x1b]8;id=1;https://pytorch.org/x\x1b\\docs\x1b]8;;\x1b\\\n\ttext\x1b[?25l"
    assert written(ours, "\n") == f"{ours}\n"


@pytest.mark.parametrize(
    "text", ["\x1b]0;title\x07", "\x9b2J", "\u202e", "\x1b]52;c;eA==\x1b\\", "\x1bc", "\x07", "\x1bP0\x1b\\"]
)
def test_the_guard_stops_others(text: str) -> None:
    assert "\x1b]" not in written(text)
    assert "\x1bc" not in written(text)
    assert "\x1bP" not in written(text)
    assert not {"\x9b", "\u202e", "\x07"} & set(written(text))


@given(st.text(), st.integers(10, 60))
def test_what_is_clipped_is_no_longer_than_that(text: str, most: int) -> None:
    assert len(clip(text, most)) <= most
    assert len(clip_middle(text, most)) <= most
    assert clip_middle(text[:most], most) == text[:most]


def test_of_a_name_both_ends_are_kept_and_of_a_sentence_more_of_the_beginning() -> None:
    assert clip("It goes  on\nand on", 11) == "It goes..."
    assert clip_middle("/home/ada/proj/.venv/bin/python", 21) == "/home/ada...in/python"
    assert clip_middle("It goes on and on, and then it ends", 23) == "It goes on a ... t ends"


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("4711", 4711), (" 4711\n", 4711), ("0004711", 4711), ("4194304", 4194304), ("9" * 10, 9_999_999_999), ("9" * 11, 0),
        ("9" * 5000, 0), ("", 0), ("0", 0), ("-1", 0), ("1.5", 0), ("1_000", 0), ("\u0661", 0), ("train.py", 0),
    ],
)  # fmt: skip
def test_what_is_a_pid(text: str, pid: int) -> None:
    assert pid_named(text) == pid
