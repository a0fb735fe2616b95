"""The sets of logs from elsewhere: what the truth is, as readers wrote it down who had seen no sign, and what `diagnose-log` said the first time.

fixtures/log_truth/NAME.jsonl has a row for each text: where it stands, the truth, and a judge's verdict. The texts are not kept. The table in
docs/accuracy.md is made of them by `python -m tests.regenerate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(__file__).parent.parent / "fixtures" / "log_truth"


class AnswerVerdict(Enum):
    """What an answer is worth beside the truth."""

    RIGHT = "right"
    IN_THREE = "in_three"
    SHOWN = "shown"
    UNKNOWN = "unknown"
    WRONG = "wrong"
    FINE = "fine"


class RankVerdict(Enum):
    """The same of the rank or host that failed first; NONE where the text tells none."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_TOLD = "not told"
    NONE = "na"


class TruthRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, its truth, and what was said of it.

    Args:
        where: repository and thread or file.
        cause: the truth, in the reader's words; "" of a run that ended well, or of a log that stops without a word of failure.
        kind: what it is about.
        stated: whether the text alone tells it.
        verdict: of the first cause that was named.
        sure: whether that was said without "perhaps".
        rank: of the rank or host that was said to have failed first.
        heals: whether a fix that was given would have mended it.
    """

    where: str
    cause: str
    kind: str
    stated: bool
    verdict: AnswerVerdict
    sure: bool
    rank: RankVerdict
    heals: bool


def truth_sets() -> dict[str, list[TruthRow]]:
    """Each set's rows, by its name, in the order of their numbers."""
    decode = msgspec.json.Decoder(TruthRow).decode_lines
    files = sorted(FOLDER.glob("*.jsonl"), key=lambda file: file.name)
    return {file.stem.partition("-")[2]: decode(file.read_bytes()) for file in files}


def _share(rows: Sequence[TruthRow], counts: Callable[[TruthRow], bool]) -> str:
    found = sum(map(counts, rows))
    return f"{found} of {len(rows)} ({100 * found / len(rows):.0f} %)" if rows else ""


def table() -> str:
    """The figures of all sets that are kept."""
    sets = truth_sets()
    failed = {name: [row for row in rows if row.cause] for name, rows in sets.items()}
    well = {name: [row for row in rows if not row.cause] for name, rows in sets.items()}
    stated = {name: [row for row in rows if row.stated] for name, rows in failed.items()}

    def line(words: str, of: dict[str, list[TruthRow]], counts: Callable[[TruthRow], bool]) -> str:
        return " | ".join((f"| {words}", *(_share(rows, counts) for rows in of.values()))) + " |"

    def line_of(words: str, verdict: AnswerVerdict) -> str:
        return line(words, stated, lambda row: row.verdict is verdict)

    ranks = {name: [row for row in rows if row.rank is not RankVerdict.NONE] for name, rows in failed.items()}
    return "\n".join((
        " | ".join(("| ", *(f"{name}, {len(rows)} texts" for name, rows in failed.items()))) + " |",
        "|---" * (1 + len(sets)) + "|",
        line_of("where the text states the cause: right first", AnswerVerdict.RIGHT),
        line_of("... second or third", AnswerVerdict.IN_THREE),
        line_of("... unknown, and the line that is shown as the first failure states it", AnswerVerdict.SHOWN),
        line_of("... unknown", AnswerVerdict.UNKNOWN),
        line_of("... wrong", AnswerVerdict.WRONG),
        line("of all: wrong, and told as sure", failed, lambda row: row.verdict is AnswerVerdict.WRONG and row.sure),
        line('of all: "nothing speaks of a failure"', failed, lambda row: row.verdict is AnswerVerdict.FINE),
        line("where the text tells which rank or host: right", ranks, lambda row: row.rank is RankVerdict.RIGHT),
        line("... wrong", ranks, lambda row: row.rank is RankVerdict.WRONG),
        line("a fix that would have healed it", failed, lambda row: row.heals),
        line("logs of runs that ended well, or stop without a word: no alarm", well, lambda row: row.verdict is AnswerVerdict.RIGHT),
    ))  # fmt: skip
