r"""Log signs as people write them: TOML files, an array of tables for each slug.

    [parts]
    SECONDS = '(?P<seconds>\d+) s'

    [[store-timeout]]
    text = 'Timed out after '
    pattern = 'Timed out after {SECONDS}'
    why = "nothing else says so"
    source = "torch 2.13.0: TCPStore.cpp"

The fields are those of `LogSign`; what is left out has its default. `text` and `near` may be lists: a sign for each. A pattern may be
a list: one of them has to fit. `{NAME}` in a pattern is replaced by that part, `{TEXT}` by the sign's own text. `shared = 'name'` takes the
signs of that name from another file, with what stands beside it in place of theirs. What exceptions mean (`*.meanings.toml`) is written in
the same way, with fields of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ddpdoctor.base.log_signs import LogSign

PARTS: Final = "parts"
SIGN: Final = "sign"
OWN_TEXT: Final = "{TEXT}"
_PART: Final = re.compile(r"\{[A-Z][A-Z0-9_]*\}")

PATTERNS: Final = ("pattern", "begins", "code", "file")
"""The fields that are regular expressions, whatever a file's tables tell of."""

Table = dict[str, Any]
T = TypeVar("T")


class SignFileError(ValueError):
    """A file of log signs that can't be read: which, where, and why."""


def read_tables(text: str, name: str) -> dict[str, Any]:
    """Read the TOML of a file.

    Args:
        text: what the file says.
        name: what errors call it.

    Raises:
        SignFileError: it is none, or this Python can't read any.
    """
    try:
        return msgspec.toml.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise SignFileError(f"{name}: {error}") from error
    except ImportError as error:
        raise SignFileError(f"{name}: is read by Python 3.11 and later") from error


def parse_sign_tables(
    content: Mapping[str, Any], name: str, parts: Mapping[str, str] | None = None, noun: str = SIGN
) -> dict[str, list[Table]]:
    """Take a file's content as lists of tables, one for each key, with the parts of patterns put in.

    Args:
        content: of the file, as `read_tables` gives it.
        name: what errors call it.
        parts: parts of patterns beside the file's own.
        noun: what errors call a table.

    Raises:
        SignFileError: it holds something else than lists of tables.
    """
    try:
        known = {**(parts or {}), **msgspec.convert(content.get(PARTS, {}), dict[str, str])}
        rest = {key: value for key, value in content.items() if key != PARTS}
        tables = msgspec.convert(rest, dict[str, list[Table]])
    except ValueError as error:
        raise SignFileError(f"{name}: {error}") from error
    return {
        key: [_with_parts(table, known, f"{name}: {key}, {noun} {number}") for number, table in enumerate(listed, 1)]
        for key, listed in tables.items()
    }


def make_signs(
    content: Mapping[str, Any],
    name: str,
    shared: Mapping[str, list[Table]] | None = None,
    parts: Mapping[str, str] | None = None,
) -> dict[str, tuple[LogSign, ...]]:
    """Make the log signs of a file, by slug.

    Args:
        content: of the file, as `read_tables` gives it.
        name: what errors call it.
        shared: the signs that `shared` may name, as `parse_sign_tables` gives them.
        parts: parts of patterns beside the file's own.

    What is wrong is a `SignFileError`, which says in which sign, and how.
    """
    return make_rows(content, name, lambda table, place: _signs_of_table(table, place, shared or {}), parts)


def make_rows(
    content: Mapping[str, Any],
    name: str,
    make: Callable[[Table, str], Iterable[T]],
    parts: Mapping[str, str] | None = None,
    noun: str = SIGN,
) -> dict[str, tuple[T, ...]]:
    """Make what the tables of a file stand for, by their key.

    Args:
        content: of the file, as `read_tables` gives it.
        name: what errors call it.
        make: makes what a table stands for; the second argument is what errors call its place.
        parts: parts of patterns beside the file's own.
        noun: what errors call a table.
    """
    return {
        key: tuple(
            row for number, table in enumerate(tables, 1) for row in make(table, f"{name}: {key}, {noun} {number}")
        )
        for key, tables in parse_sign_tables(content, name, parts, noun).items()
    }


def make_row(table: Table, kind: type[T], place: str) -> T:
    """Make the one thing of that kind that a table stands for.

    Raises:
        SignFileError: a field is missing or wrong, or no regular expression.
    """
    try:
        row = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise SignFileError(f"{place}: {error}") from error
    for field in PATTERNS:
        try:
            re.compile(getattr(row, field, ""))
        except re.error as error:
            raise SignFileError(f"{place}: its {field} is no regular expression: {error}") from error
    return row


def _with_parts(table: Table, parts: Mapping[str, str], place: str) -> Table:
    known = {OWN_TEXT: OWN_TEXT, **{f"{{{name}}}": part for name, part in parts.items()}}
    filled = dict(table)
    for field in PATTERNS:
        pattern = table.get(field)
        if isinstance(pattern, list) and all(isinstance(alternative, str) for alternative in pattern):
            pattern = "|".join(pattern)
        if isinstance(pattern, str):
            if missing := [part for part in _PART.findall(pattern) if part not in known]:
                raise SignFileError(f"{place}: its {field} has {missing[0]}, which [{PARTS}] hasn't")
            filled[field] = _PART.sub(lambda part: known[part[0]], pattern)
    return filled


def _signs_of_table(table: Table, place: str, shared: Mapping[str, list[Table]]) -> list[LogSign]:
    if "shared" not in table:
        return _expand(table, place)
    beside = {field: value for field, value in table.items() if field != "shared"}
    if table["shared"] not in shared:
        raise SignFileError(f"{place}: there are no shared signs called {table['shared']!r}")
    return [sign for base in shared[table["shared"]] for sign in _expand({**base, **beside}, place)]


def _expand(table: Table, place: str) -> list[LogSign]:
    """Make a sign for each text, and each of what must be near.

    Raises:
        SignFileError: a field is missing or wrong.
    """
    texts, nears = (
        value if isinstance(value, list) else [value] for value in (table.get("text", ""), table.get("near", ""))
    )
    signs = [make_row({**table, "text": text, "near": near}, LogSign, place) for near in nears for text in texts]
    if not all(sign.text for sign in signs):
        raise SignFileError(f"{place}: it has no text")
    return [
        msgspec.structs.replace(sign, pattern=sign.pattern.replace(OWN_TEXT, re.escape(sign.text))) for sign in signs
    ]
