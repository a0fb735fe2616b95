"""Parses the few shell statements that a settings file may hold. A fix's command gets into the file as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# What shlex.quote gives, and nothing that a shell would expand.
_VALUE = r"""(?:'[^'\n\r\0]*'|"'"|[A-Za-z0-9_@%+=:,./-])*"""
_EXPORT = re.compile(rf"export((?: +{_NAME}={_VALUE})+)")
_ASSIGNMENT = re.compile(rf"(?<! ) +({_NAME})=({_VALUE})")
_UNSET = re.compile(rf"unset((?: +{_NAME})+)")
_LIMIT = re.compile(r"ulimit (-[nul]) (?:\d+|unlimited|\$\(ulimit -H[nul]\))")
_FOLDER = re.compile(rf"mkdir -p ({_VALUE}) && export ({_NAME})=\1(?![^ ;])")
_COMMENT = re.compile(r"\s*(?:#.*)?")


class Line(msgspec.Struct, frozen=True):
    """One statement. key: what it sets, a variable or `ulimit -n`: of two with one key, the later wins."""

    key: str
    text: str


def lines_of(command: str) -> tuple[Line, ...]:
    """Split a fix's command into statements: `export`s and `unset`s of plain values, also of a folder that is made for it, and
    `ulimit`s; empty where it is anything else."""
    found: list[Line] = []
    rest = command
    while statement := _statement(rest):
        found += _statements(statement)
        rest = rest[statement.end() :].lstrip(" ")
        if not rest:
            return tuple(found)
        if rest[0] != ";":
            break
        rest = rest[1:].lstrip(" ")
    return ()


def keys_of_line(line: str) -> set[str]:
    """The keys that a line of a settings file sets; a comment may stand behind it."""
    statement = _statement(line)
    if statement is None or not _COMMENT.fullmatch(line, statement.end()):
        return set()
    return {line.key for line in _statements(statement)}


def _statement(text: str) -> re.Match[str] | None:
    return _EXPORT.match(text) or _UNSET.match(text) or _LIMIT.match(text) or _FOLDER.match(text)


def _statements(found: re.Match[str]) -> Iterator[Line]:
    if found.re is _EXPORT:
        for name, value in _ASSIGNMENT.findall(found[1]):
            yield Line(name, f"export {name}={value}")
    elif found.re is _UNSET:
        for name in found[1].split():
            yield Line(name, f"unset {name}")
    elif found.re is _FOLDER:
        yield Line(found[2], found[0])
    else:
        yield Line(f"ulimit {found[1]}", found[0])
