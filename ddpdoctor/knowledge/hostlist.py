"""Slurm's lists of hosts: "node[01-03,07],gpu-a[1-2]b"."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MOST_HOSTS = 65_536
"""More than any cluster has; a range of a billion hosts is a slip or an attack, and isn't written out."""

MOST_CHARACTERS = 1 << 20


class HostlistError(ValueError):
    """What is wrong with the list, in a sentence."""


def expand(text: str) -> tuple[str, ...]:
    """The hosts, in the list's own order, repeated ones too; as `scontrol show hostnames` writes them.

    Raises HostlistError where the brackets or ranges make no sense, or there are more than MOST_HOSTS.
    """
    if len(text) > MOST_CHARACTERS:
        raise HostlistError(f"the list of hosts is longer than {MOST_CHARACTERS} characters")
    hosts: list[str] = []
    for word in _words(text):
        hosts.extend(_hosts(word, MOST_HOSTS - len(hosts)))
    return tuple(hosts)


def _hosts(word: str, most: int) -> Iterator[str]:
    """The hosts of one word of the list, the last brackets counting fastest."""
    parts: list[tuple[str, ...]] = []
    many = 1
    for part in re.split(r"(\[[^\[\]]*\])", word):
        parts.append(_numbers(part[1:-1]) if part.startswith("[") else (part,))
        many *= len(parts[-1])
        if many > most:
            raise HostlistError(f"the list names more than {MOST_HOSTS} hosts")
    return map("".join, itertools.product(*parts))


def _words(text: str) -> list[str]:
    """The list's parts: split at commas outside of brackets."""
    words = [word.strip() for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\]]", text)]
    if "[" in words or "]" in words:
        raise HostlistError(f"a bracket too many or too few in {text[:80]!r}")
    return [word for word in words if word]


def _numbers(text: str) -> tuple[str, ...]:
    """What stands between brackets, "01-03,07", written out. The first number of a range gives the width."""
    found: list[str] = []
    for part in text.split(","):
        matched = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if not matched:
            raise HostlistError(f"[{text[:40]}] is not a list of numbers and ranges")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first:
            raise HostlistError(f"the range {part} runs backwards")
        if len(found) + last - first >= MOST_HOSTS:
            raise HostlistError(f"[{text[:40]}] names more than {MOST_HOSTS} hosts")
        found.extend(f"{number:0{len(matched[1])}}" for number in range(first, last + 1))
    return tuple(found)
