"""What a part came to, and the record that a whole run writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

SCHEMA = 1


class Outcome(str, Enum):
    """There is no fourth: what could not be tried says why."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible here"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a run.

    reason: why it failed, or isn't possible here.
    seen: what was observed, whatever came of it.
    differs: what is otherwise than the fixtures and the code say, also where the part passed.
    imports: how long it took, as a multiple of `python -c 'import torch'` in the same run.
    output: the commands and what they printed, where it failed.
    """

    part: str
    title: str
    outcome: Outcome
    reason: str = ""
    seen: dict[str, Any] = {}
    differs: tuple[str, ...] = ()
    imports: float = 0.0
    output: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.

    machine: GPU, driver, CUDA, torch, NCCL, kernel and the like, by name.
    rehearsal: it ran without a GPU, against stand-ins; it shows that the kit works and nothing of a GPU.
    """

    schema: int = SCHEMA
    date: str = ""
    ddpdoctor: str = ""
    rehearsal: bool = False
    machine: dict[str, Any] = {}
    rows: tuple[Row, ...] = ()

    def written_to(self, path: Path, cleaned: Callable[[str], str] = str) -> None:
        """Replace the file in one step, so that a reader finds the whole of what was done so far.

        Args:
            cleaned: what takes names of the machine out of a text; it leaves JSON what it is.
        """
        text = msgspec.json.format(msgspec.json.encode(self), indent=1).decode()
        whole = path.with_name(path.name + ".new")
        whole.write_text(cleaned(text) + "\n")
        whole.replace(path)


def read_record(path: Path) -> Record:
    """Read what an earlier run wrote.

    Raises:
        ValueError: it is no such file, or one of a later release.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path} can't be read as the record of a run: {error}") from None
    if record.schema != SCHEMA:
        raise ValueError(f"{path} has schema {record.schema}; this kit reads {SCHEMA}")
    return record


def changes(earlier: Record, later: Record) -> list[str]:
    """One line for each part whose outcome, reason or differences are others than in the earlier run."""
    before: Mapping[str, Row] = {row.part: row for row in earlier.rows}
    lines = []
    for row in later.rows:
        old = before.get(row.part)
        if old is None:
            lines.append(f"{row.part}: {_told(row)} (was not run before)")
        elif _told(old) != _told(row):
            lines.append(f"{row.part}: {_told(row)} (before: {_told(old)})")
        for difference in sorted({*row.differs} - {*(old.differs if old else ())}):
            lines.append(f"{row.part}: new difference: {difference}")
        for difference in sorted({*(old.differs if old else ())} - {*row.differs}):
            lines.append(f"{row.part}: no longer: {difference}")
    return lines


def _told(row: Row) -> str:
    return f"{row.outcome.value}: {row.reason}" if row.reason else row.outcome.value
