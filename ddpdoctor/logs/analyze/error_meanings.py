"""What the words of torch, and of libraries around it, say of the script: why a training comes to what an exception's message says, and what
mends it. The meanings are written in `checks/log/failures.meanings.toml`, beside the check that shows them."""

from __future__ import annotations

import re
import shlex
from functools import cache

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.log import LogFrame, LoggedException
from ddpdoctor.logs.exceptions import with_slashes


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a library's words about its own state say of the script.

    begins: a pattern of what the message begins with. exception: of exceptions of that name alone. code, file: patterns of the line that raised
    it, and of its file's path. cause, fixes: the names of the pattern's groups stand in braces. source: where the words come from.
    """

    begins: str = ""
    exception: str = ""
    code: str = ""
    file: str = ""
    cause: str
    fixes: tuple[Fix, ...]
    source: str


@cache
def packaged_meanings() -> tuple[Meaning, ...]:
    """All meanings, the first that fits before others: what the file says, as `python -m tests.regenerate` writes it."""
    return read_table(__name__, "error_meanings.json", dict[str, tuple[Meaning, ...]])["meaning"]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def meaning_of(raised: LoggedException) -> Meaning | None:
    """Return what an exception means, where a library's source tells that."""
    last = raised.frames[-1] if raised.frames else LogFrame("", 0, "", "")
    for meaning in packaged_meanings():
        if meaning.exception not in ("", raised.exception):
            continue
        if not (_pattern(meaning.code).search(last.code) and _pattern(meaning.file).search(with_slashes(last.path))):
            continue
        if found := _pattern(meaning.begins).match(raised.message):
            return _with_words(meaning, found.groupdict(""))
    return None


def _with_words(meaning: Meaning, words: dict[str, str]) -> Meaning:
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    fixes = tuple(
        msgspec.structs.replace(
            fix, text=_filled(fix.text, words), commands=tuple(_filled(command, quoted) for command in fix.commands)
        )
        for fix in meaning.fixes
    )
    return msgspec.structs.replace(meaning, cause=_filled(meaning.cause, words), fixes=fixes)


def _filled(text: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text
