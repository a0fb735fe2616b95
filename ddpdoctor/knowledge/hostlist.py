"""Slurm's lists of hosts: "node[01-03,07],gpu-a[1-2]b"; and what the files with such lists are called that we write."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

PASSING_NODES: Final = "passing_nodes.txt"
FAILING_NODES: Final = "failing_nodes.txt"

MAX_HOSTS = 65_536
"""More than any cluster has; a range of a billion hosts is a slip or an attack, and isn't written out."""

MAX_CHARACTERS = 1 << 20


class HostlistError(ValueError):
    """Says in a sentence what is wrong with the list."""


def expand(text: str) -> tuple[str, ...]:
    """List the hosts in the list's own order, repeated ones too; as `scontrol show hostnames` writes them.

    Raises:
        HostlistError: the brackets or ranges make no sense, or there are more than MAX_HOSTS.
    """
    if len(text) > MAX_CHARACTERS:
        raise HostlistError(f"the list of hosts is longer than {MAX_CHARACTERS} characters")
    hosts: list[str] = []
    for word in _words(text):
        hosts.extend(_hosts(word, MAX_HOSTS - len(hosts)))
    return tuple(hosts)


def _hosts(word: str, most: int) -> Iterator[str]:
    """List the hosts of one word of the list, the last brackets counting fastest.

    Raises:
        HostlistError: there are too many.
    """
    parts: list[tuple[str, ...]] = []
    many = 1
    for part in re.split(r"(\[[^\[\]]*\])", word):
        parts.append(_numbers(part[1:-1]) if part.startswith("[") else (part,))
        many *= len(parts[-1])
        if many > most:
            raise HostlistError(f"the list names more than {MAX_HOSTS} hosts")
    return map("".join, itertools.product(*parts))


def _words(text: str) -> list[str]:
    """Split the list at commas outside of brackets.

    Raises:
        HostlistError: a bracket is missing.
    """
    words = [word.strip() for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\]]", text)]
    if "[" in words or "]" in words:
        raise HostlistError(f"a bracket too many or too few in {text[:80]!r}")
    return [word for word in words if word]


def _numbers(text: str) -> tuple[str, ...]:
    """Write out what stands between brackets, "01-03,07". The first number of a range gives the width.

    Raises:
        HostlistError: it is no list of numbers and ranges, or too long a one.
    """
    found: list[str] = []
    for part in text.split(","):
        matched = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if not matched:
            raise HostlistError(f"[{text[:40]}] is not a list of numbers and ranges")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            raise HostlistError(f"the range {part} runs backwards")
        if len(found) + last - first >= MAX_HOSTS:
            raise HostlistError(f"[{text[:40]}] names more than {MAX_HOSTS} hosts")
        found.extend(f"{number:0{len(matched[1])}}" for number in range(first, last + 1))
    return tuple(found)


_NUMBERED = re.compile(r"([^.]*?)([0-9]{1,18})([^0-9.]*(?:\..*)?)", re.DOTALL)
"""A host's name with its last number before the first dot: the domain is the same for all."""


def fold(hosts: Iterable[str]) -> str:
    """Write the hosts as a list, each once: "node[001-064,077],login". `expand` gives the same hosts.

    Args:
        hosts: names without commas, brackets and blanks at their ends; "" is none.
    """
    numbers: dict[tuple[str, str], list[str]] = {}
    folded: dict[str, None] = {}
    for host in sorted({*hosts} - {""}):
        if matched := _NUMBERED.fullmatch(host):
            numbers.setdefault((matched[1], matched[3]), []).append(matched[2])
        else:
            folded[host] = None
    ranges = (f"{prefix}{_in_brackets(several)}{suffix}" for (prefix, suffix), several in numbers.items())
    return ",".join((*folded, *ranges))


def _in_brackets(numbers: list[str]) -> str:
    """Numbers in ranges, between brackets unless it is one."""
    if len(numbers) == 1:
        return numbers[0]
    padded = {len(number) for number in numbers if number != str(int(number))}
    ranges: list[list[str]] = []
    # "9" and "10" are in a row, "09" and "10", too; "08", "9" and "10" aren't.
    for text in sorted(numbers, key=lambda number: (len(number) in padded and len(number), int(number))):
        if ranges and text == f"{int(ranges[-1][-1]) + 1:0{len(ranges[-1][0])}}":
            ranges[-1][1:] = [text]
        else:
            ranges.append([text])
    return f"[{','.join('-'.join(ends) for ends in ranges)}]"
