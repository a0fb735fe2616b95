"""Finds the program that a command is about: torchrun in `nohup nice -n 5 env X=1 torchrun train.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple


class Wrapper(NamedTuple):
    """A program that only starts another."""

    valued: tuple[str, ...] = ()
    """Options that take the next word, without their dashes."""
    operands: int = 0
    """Number of words of its own before the program."""


TIMEOUT: Final = "timeout"
TIMEOUT_EXIT_CODE: Final = 124
"""The exit code of timeout where it has ended the program."""
WRAPPERS: Final = {
    "env": Wrapper(("u", "unset", "C", "chdir", "a", "argv0")),
    "nice": Wrapper(("n", "adjustment")),
    "nohup": Wrapper(),
    "setsid": Wrapper(),
    "exec": Wrapper(("a",)),
    "time": Wrapper(("f", "format", "o", "output")),
    TIMEOUT: Wrapper(("s", "signal", "k", "kill-after"), 1),
    "stdbuf": Wrapper(("i", "input", "o", "output", "e", "error")),
    "ionice": Wrapper(("c", "class", "n", "classdata")),
    "taskset": Wrapper((), 1),
    "numactl": Wrapper(
        ("N", "cpunodebind", "m", "membind", "C", "physcpubind", "i", "interleave", "p", "preferred", "P", "w")
    ),
    "chrt": Wrapper((), 1),
    "unbuffer": Wrapper(),
    "catchsegv": Wrapper(),
    "sudo": Wrapper(("u", "user", "g", "group", "D", "chdir", "p", "prompt", "h", "host", "C", "T", "R", "r", "t")),
}
_SETTING: Final = re.compile(r"[A-Za-z_]\w*=")


def wrappers_and_program(command: Sequence[str]) -> tuple[tuple[str, ...], Sequence[str]]:
    """Split a command into the names of its wrappers and the program's own command. Where that can't be told, all is the program's."""
    names: list[str] = []
    words = command
    while (name := Path(words[0]).name) in WRAPPERS and (rest := _without_wrapper(words[1:], WRAPPERS[name])):
        names.append(name)
        words = rest
    return tuple(names), words


def _without_wrapper(words: Sequence[str], wrapper: Wrapper) -> Sequence[str]:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            at += 1
            break
        if words[at].startswith(("-S", "--split-string")):
            # The program's words are within this one.
            return ()
        at += 2 if _takes_the_next(words[at], wrapper.valued) else 1
    at += wrapper.operands
    while at < len(words) and _SETTING.match(words[at]):
        at += 1
    return words[at:]


def _takes_the_next(option: str, valued: Sequence[str]) -> bool:
    if option.startswith("--"):
        return option[2:] in valued
    first = next((place for place, letter in enumerate(option[1:]) if letter in valued), None)
    return first == len(option) - 2
