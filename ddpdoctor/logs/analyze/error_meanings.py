"""What the words of torch, and of libraries around it, say of the script: why a training comes to what an exception's message says, and what
mends it. The meanings are written in `checks/log/failures.meanings.toml`, beside the check that shows them."""

from __future__ import annotations

import re
import shlex
from functools import cache
from signal import Signals
from typing import Literal

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.log import Log, LogFrame, LoggedException
from ddpdoctor.logs.exceptions import is_alike, with_slashes

RanksThatRaise = Literal["", "one of several", "some", "others than 0", "of one host"]


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a library's words about its own state say of the script.

    begins: a pattern of what the message begins with. exception: of exceptions of that name alone. code, file: patterns of the line that raised
    it, and of its file's path. ranks: which ones raised it, as far as the log shows; docs/contributing/log-signs.md says what each word
    stands for. cause, fixes: the names of the pattern's groups stand in braces. source: where the words come from.
    """

    begins: str = ""
    exception: str = ""
    code: str = ""
    file: str = ""
    ranks: RanksThatRaise = ""
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


def meaning_of(raised: LoggedException, log: Log) -> Meaning | None:
    """Return what an exception means, where a library's source tells that."""
    last = raised.frames[-1] if raised.frames else LogFrame("", 0, "", "")
    for meaning in packaged_meanings():
        if meaning.exception not in ("", raised.exception):
            continue
        if not (_pattern(meaning.code).search(last.code) and _pattern(meaning.file).search(with_slashes(last.path))):
            continue
        found = _pattern(meaning.begins).match(raised.message)
        if found and (not meaning.ranks or meaning.ranks in _spread_of(raised, log)):
            return _with_words(meaning, found.groupdict(""))
    return None


def ranks_that_raised(raised: LoggedException, log: Log) -> set[int]:
    """Return the ranks whose lines show that mistake: none where lines have no labels."""
    return {other.line.rank for other in log.raised if other.line.rank is not None and is_alike(other, raised)}


def _spread_of(raised: LoggedException, log: Log) -> set[RanksThatRaise]:
    """Tell which ranks raised it, beside those that the log shows to have come through, or to have been ended before they failed."""
    failed = [ended for ended in log.exited if not ended.told_to and ended.exit_code != -Signals.SIGTERM]
    placed = [ended for ended in failed if ended.rank is not None and ended.local_rank is not None]
    said = sum(other.times for other in log.raised if is_alike(other, raised))
    of_launcher = {ended.rank for ended in failed if ended.rank is not None}
    ranks = ranks_that_raised(raised, log) or (of_launcher if said <= len(of_launcher) else set())
    size = max(log.world_size or 1, *(rank + 1 for rank in log.ranks), len({ended.pid for ended in log.exited}))
    spared = {last.rank for last in log.last} - ranks - {None}
    was_ended = len(failed) < len(log.exited)
    # torchrun names those that failed: on its first node, where both counts are the same, rank 0 is among the others then.
    if was_ended and any(ended.rank == ended.local_rank for ended in placed):
        spared |= {0} - {ended.rank for ended in failed}
    hosts = {raised.line.host, *(ended.host for ended in placed if ended.rank in ranks)} - {""}
    elsewhere = {last.line.host for last in log.last if last.rank in spared} - hosts - {""}
    is_of_several_hosts = bool(elsewhere) or any(ended.rank != ended.local_rank for ended in placed)
    spread: dict[RanksThatRaise, bool] = {
        "one of several": size > 1,
        "some": bool(ranks and (spared or (was_ended and len(ranks) < size))),
        "others than 0": 0 in spared and len(ranks) >= min(2, size - 1),
        "of one host": len(hosts) == 1 and is_of_several_hosts,
    }
    return {name for name, holds in spread.items() if holds}


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
