"""What torch says when a GPU's memory runs out, and whether by its figures somebody else holds the most of it."""

from __future__ import annotations

from typing import Final

LITTLE: Final = r"(?:[\d.]+ (?:bytes|KiB|MiB)|[0-3]\.\d+ GiB)"
"""So little is free that the GPU is full."""

_SHARES: Final = (
    (r"1[0-4]", r"[0-4]"),
    (r"1[5-9]", r"[0-8]"),
    (r"2\d", r"(?:1[0-2]|\d)"),
    (r"3\d", r"1?\d"),
    (r"4\d", r"[12]?\d"),
    (r"[5-8]\d", r"[1-3]?\d"),
    (r"9\d", r"[1-5]?\d"),
    (r"1[0-4]\d", r"[1-7]?\d"),
    (r"1[5-9]\d", r"\d{1,2}"),
    (r"2\d\d", r"(?:1[0-3])?\d{1,2}"),
)
"""A GPU's GiB, and what is much less than that."""


def _little_own(total_until_own: str) -> str:
    return "|".join(
        rf"{total}\.\d+ GiB{total_until_own}(?:[\d.]+ (?:bytes|KiB|MiB)|{own}\.\d+ GiB)" for total, own in _SHARES
    )


BY_LIST: Final = r"Process \d+ has \d[\d.]* GiB memory in use\.(?=.*this process has)|this process has .*Process \d+ has \d[\d.]* GiB memory"
"""torch 2.1 and later list all processes of the GPU. In a container, where the driver knows the own one by another number, it
isn't told from others, so only where it is do they count."""
BY_FIGURES: Final = (
    rf"\b(?:{_little_own(rf' total capacity; .{{1,30}} already allocated; {LITTLE} free; ')}) reserved in total by PyTorch"
    rf"|\b(?:{_little_own(rf' of which {LITTLE} is free. (?!.*this process has).*Of the allocated memory ')})"
    rf" is allocated by PyTorch, and (?:[\d.]+ (?:bytes|KiB|MiB)|[0-3]\.\d+ GiB) is reserved"
)
"""By the own share alone: older releases, and containers."""
HELD_BY_OTHERS: Final = f"(?:{BY_LIST}|{BY_FIGURES})"
BY_NOBODY: Final = (
    rf"\b(?:{_little_own(rf' of which {LITTLE} is free. Including non-PyTorch memory, this process has ')})"
    r" memory in use\. (?!Process \d)"
)
"""The list has this process alone, and it holds little: whoever holds the rest is hidden from the driver's list."""
OWN_DOING: Final = rf"^(?!.*(?:{HELD_BY_OTHERS}|{BY_NOBODY})).*out of memory\. Tried to allocate (?P<wanted>[\d.]+ (?:bytes|[KMGT]iB)|more than 1EB)"
"""The process itself holds the memory that is missing, as far as the message says."""
