"""Patterns for torch's words when a GPU's memory runs out, and whether by its figures somebody else holds the most of it."""

from __future__ import annotations

from typing import Final, NamedTuple

_SMALL: Final = r"[\d.]+ (?:bytes|KiB|MiB)"


class _Card(NamedTuple):
    """GPUs with so many GiB, as regular expressions: how much of them is much less than the half, how much is a quarter or more, and how
    little is free where one is full."""

    total: str
    little: str
    much: str
    free: str


_CARDS: Final = tuple(
    _Card(
        f"{total} GiB",
        rf"(?:{_SMALL}|{little} GiB)",
        rf"{much}\.\d+ GiB",
        rf"(?:{_SMALL}|{free} GiB)" if free else _SMALL,
    )
    for total, little, much, free in (
        (r"3\.[5-9]\d*", r"1\.[0-6]\d*", r"[1-3]", ""),
        (r"5\.[5-9]\d*", r"(?:1\.\d+|2\.[0-3]\d*)", r"[2-5]", ""),
        (r"7\.[5-9]\d*", r"(?:[12]\.\d+|3\.[0-2]\d*)", r"[2-7]", ""),
        (r"[89]\.\d+", r"[1-3]\.\d+", r"[3-9]", ""),
        (r"1[0-4]\.\d+", r"[0-4]\.\d+", r"(?:[4-9]|1\d)", r"[01]\.\d+"),
        (r"1[5-9]\.\d+", r"[0-8]\.\d+", r"(?:[5-9]|1\d)", r"[0-2]\.\d+"),
        (r"2\d\.\d+", r"(?:1[0-2]|\d)\.\d+", r"(?:[6-9]|[12]\d)", r"[0-3]\.\d+"),
        (r"3\d\.\d+", r"1?\d\.\d+", r"(?:[89]|[1-3]\d)", r"[0-3]\.\d+"),
        (r"4\d\.\d+", r"[12]?\d\.\d+", r"[1-4]\d", r"[0-3]\.\d+"),
        (r"[5-8]\d\.\d+", r"[1-3]?\d\.\d+", r"(?:1[5-9]|[2-8]\d)", r"[0-3]\.\d+"),
        (r"9\d\.\d+", r"[1-5]?\d\.\d+", r"[2-9]\d", r"[0-3]\.\d+"),
        (r"1[0-4]\d\.\d+", r"[1-7]?\d\.\d+", r"(?:[3-9]\d|1\d\d)", r"[0-3]\.\d+"),
        (r"1[5-9]\d\.\d+", r"\d{1,2}\.\d+", r"(?:[4-9]\d|1\d\d)", r"[0-3]\.\d+"),
        (r"2\d\d\.\d+", r"(?:1[0-3])?\d{1,2}\.\d+", r"(?:[6-9]\d|[12]\d\d)", r"[0-3]\.\d+"),
    )
)


def _of_any(pattern: str) -> str:
    """The pattern for each kind of GPU: <total>, <little>, <much> and <free> stand for its amounts."""
    return "(?:" + "|".join(_for(card, pattern) for card in _CARDS) + ")"


def _for(card: _Card, pattern: str) -> str:
    for name, amount in card._asdict().items():
        pattern = pattern.replace(f"<{name}>", amount)
    return pattern


_LISTED: Final = r"Process \d+ has (\d+)\.\d+ GiB memory in use\."
ALIKE: Final = (
    rf"GPU 0 has a total .*(?:{_LISTED}.* has \1\.\d+ GiB memory in use\.|this process has (\d+)\.\d+ GiB memory in use\."
    r".*Process \d+ has \2\.\d+ GiB memory in use\.)"
)
"""Two that hold the same on the first GPU: a run's own ranks where none has chosen its GPU, else a job of others. To stand first in a
pattern, since it counts groups."""
BY_LIST: Final = _of_any(
    r"\b<total> of which (?=.*this process has)(?:(?=.*Process \d+ has <much> memory in use)"
    r"|<free> is free\.(?=.*this process has <little> memory in use)(?=.*Process \d+ has \d[\d.]* GiB memory))"
)
"""torch 2.1 and later list all processes of the GPU. In a container, where the driver knows the own one by another number, it
isn't told from others, so only where it is do they count. A small share is no reason for a full GPU."""
BY_FIGURES: Final = _of_any(
    r"(?:\b<total> total capacity; .{1,30} already allocated; <free> free; <little> reserved in total by PyTorch"
    rf"|\b<total> total capacity; <little> already allocated; <free> free; {_SMALL} cached"
    r"|\b<total> of which <free> is free. (?!.*this process has).*Of the allocated memory <little>"
    rf" is allocated by PyTorch, and (?:{_SMALL}|[0-3]\.\d+ GiB) is reserved)"
)
"""By the own share alone: older releases, and containers. Up to torch 1.3 "cached" is what lies idle of it, and comes on top."""
HELD_BY_OTHERS: Final = f"(?:{BY_LIST}|{BY_FIGURES})"
BY_NOBODY: Final = _of_any(
    r"\b<total> of which <free> is free. Including non-PyTorch memory, this process has <little> memory in use\."
    r" (?!Process \d)(?:Of the allocated memory <little> is allocated by PyTorch|(?!Of the allocated memory))"
)
"""The list has this process alone, and it holds little: whoever holds the rest is hidden from the driver's list. In a container the
driver may say that it holds nothing, while torch knows better."""
SURELY_BY_OTHERS: Final = rf"^(?!.*{ALIKE}).*{HELD_BY_OTHERS}"
OWN_DOING: Final = (
    rf"^(?!.*{ALIKE})(?!.*(?:{HELD_BY_OTHERS}|{BY_NOBODY})).*out of memory\."
    r" Tried to allocate (?P<wanted>[\d.]+ (?:bytes|[KMGT]iB)|more than 1EB)"
)
"""The process itself holds the memory that is missing, as far as the message says."""
