"""torchrun's table of the ranks that failed, and mpirun's few lines or wrapped sentence, put together from the lines of one stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.log import LogLine, ProcessExit
from ddpdoctor.logs.parse.exits import NOTICED, SIGNALLED, exits_said
from ddpdoctor.logs.parse.timestamps import COLLECTED, seconds_of
from ddpdoctor.logs.parse.tracebacks import IN_A_TABLE

BEGINNINGS: Final = (
    "(first observed failure):",
    "Failures:",
    "Root Cause:",
    "Process name: [[",
    "Process name: [prterun-",
    "MPI_ABORT was invoked on rank ",
    " (local_rank: ",
    NOTICED,
    " RUNNING AT ",
)
_OF_OLD: Final = ("Root Cause:", "Other Failures:")
"""Titles of torch 1.9, which other texts may have, too."""
_FIELD: Final = re.compile(rf"(?=  \S){IN_A_TABLE}(?P<value>.*)$")
_MESSAGE: Final = re.compile(r'\s+"message": "(?P<said>[A-Za-z_][\w.]*(?::.*)?)",?$')
"""Of an error file, which torch 1.9 put into its table as it was."""
_EXCEPTION: Final = re.compile(r"  (?!File |During |The above)[A-Za-z_][\w.]*(?::|\s*$)")
_ENTRY: Final = re.compile(r"\[\d+\]:$")
_BORDER: Final = re.compile(r"[=*]{8,}\s*$")
_SECTION: Final = re.compile(r"-{8,}\s*$")
_RANK: Final = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_CODE: Final = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)(?:\s+\((?P<signal>SIG\w+)\))?")
_MPI: Final = re.compile(
    r"\s*(?:Process name: \[(?:\[[^\]]*\]|prterun-[^\],]*),(?P<rank>\d+)\]|MPI_ABORT was invoked on rank (?P<aborts>\d+)\b)"
)
_SENTENCE: Final = re.compile(
    r"\w{1,20} noticed that process rank \d+ (?!.{0,300}\bon signal \d)|=\s+(?:RANK \d+ )?PID \d+ RUNNING AT "
)
"""One that goes on below: Open MPI breaks it where the line is full, Hydra puts how it ended behind who it was."""
_MAX_LINES_OF_SENTENCE: Final = 2
_MPI_CODE: Final = re.compile(r"\s*(?:Exit code: +|with errorcode )(?P<code>-?\d+)")
_ALIGNED: Final = "  rank      : "
_MAX_LINES: Final = 2000
_FAILED: Final = " FAILED"
"""Behind the script's name in the title of a table, which torch 1.9 put between asterisks."""
_NO_TRACEBACK: Final = "To enable traceback see"


def begins(line: LogLine) -> bool:
    """Whether a table begins here, or one of whose beginning the log lacks."""
    text = line.text.strip()
    return (
        text in ("Failures:", *_OF_OLD)
        or text.startswith("Root Cause (first observed failure):")
        or bool(_MPI.match(line.text) or _SENTENCE.match(line.text))
        or is_cut(line)
    )


def is_cut(line: LogLine) -> bool:
    """Whether it is a line of an entry, as only torchrun aligns it."""
    return line.text.startswith(_ALIGNED) and bool(_RANK.match(line.text, len(_ALIGNED)))


class ExitTable:
    """A table of torchrun's, from its first line on."""

    def __init__(self, began: LogLine, before: Sequence[str] = ()) -> None:
        """before: the lines before it."""
        self._first = began.text.strip().startswith("Root Cause")
        self._fields: dict[str, str] = {}
        self._line = began
        self._last_words = ""
        self._lines = 0
        found = _MPI.match(began.text)
        self._mpi = found["rank"] or found["aborts"] if found else ""
        self._said = began.text if _SENTENCE.match(began.text) else ""
        self._aborts = bool(found and found["aborts"])
        self._of_old = began.text.strip() in _OF_OLD
        self._told = False
        """Whether an entry was given that is the first failure's."""
        self.over = False
        self._is_cut = is_cut(began)
        titles = [title for text in before if (title := text.strip(" *")).endswith(f".py{_FAILED}")]
        self._script = titles[-1].removesuffix(_FAILED) if titles else ""
        for text in (*before, began.text) if self._is_cut else ():
            if field := _FIELD.match(text):
                self._fields[field["name"]] = field["value"].strip()

    @property
    def rank(self) -> int | None:
        """The rank of the entry that the lines are about."""
        found = _RANK.match(self._fields.get("rank", ""))
        return int(found["rank"]) if found else None

    @property
    def host(self) -> str:
        return self._fields.get("host", "")

    def add(self, line: LogLine) -> ProcessExit | None:
        """Take the next line of the stream; return an entry once it is whole."""
        self._lines += 1
        if self._said:
            return self._sentence(line)
        if self._mpi:
            return self._mpi_code(line)
        text = line.text
        if self._lines == 1 and self._of_old and not _ENTRY.match(text):
            self.over = True
            return None
        if found := _FIELD.match(text):
            if found["name"] == "exitcode":
                self._line = line
            self._fields[found["name"]] = found["value"].strip()
            return None
        if _ENTRY.match(text) or _SECTION.match(text) or _BORDER.match(text):
            # The last entry before that border is of the first failure.
            self._first |= self._is_cut and text.startswith("=")
            done = self._entry()
            self.over = bool(_BORDER.match(text))
            return done
        if "(first observed failure)" in text:
            self._first = True
        elif "traceback" in self._fields and _EXCEPTION.match(text):
            self._last_words = text.strip()[:500]
        elif "msg" in self._fields and not self._last_words and (found := _MESSAGE.match(text)):
            self._last_words = found["said"][:500]
        if self._lines > _MAX_LINES:
            self.over = True
        return None

    def rest(self) -> ProcessExit | None:
        """Return the entry that the log breaks off in; of the one that failed first it is told even where its exit
        code is missing."""
        if self._mpi:
            return self._of_mpirun(self._line)
        return self._entry(is_cut=self._first and not self._told)

    def _sentence(self, line: LogLine) -> ProcessExit | None:
        self._said = f"{self._said} {line.text.strip()}"
        whole = msgspec.structs.replace(self._line, text=self._said)
        ended = next((end for literal in (NOTICED, SIGNALLED) for end in exits_said(literal, whole)), None)
        self.over = ended is not None or self._lines >= _MAX_LINES_OF_SENTENCE
        return ended

    def _mpi_code(self, line: LogLine) -> ProcessExit | None:
        found = _MPI_CODE.match(line.text)
        self.over = bool(found) or self._lines > 4
        return self._of_mpirun(self._line if self._aborts else line, int(found["code"])) if found else None

    def _of_mpirun(self, line: LogLine, code: int = 0) -> ProcessExit:
        return ProcessExit(
            line=line,
            said_by="mpirun",
            exit_code=code or None,
            rank=int(self._mpi),
            first=True,
            time=None if line.lent else line.time,
        )

    def _entry(self, *, is_cut: bool = False) -> ProcessExit | None:
        fields, self._fields = self._fields, {}
        said, self._last_words = self._last_words, ""
        rank, code = _RANK.match(fields.get("rank", "")), _CODE.match(fields.get("exitcode", ""))
        if not (rank and code) and not is_cut:
            return None
        number, local = (int(rank["rank"]), int(rank["local"])) if rank else (None, None)
        self._told |= self._first
        moment = COLLECTED.match(fields.get("time", ""))
        traceback = fields.get("traceback", "") or fields.get("msg", "").strip('"{').removeprefix("<NONE>")
        if traceback.startswith(_NO_TRACEBACK):
            traceback = ""
        return ProcessExit(
            line=msgspec.structs.replace(self._line, rank=number, local_rank=local) if rank else self._line,
            said_by="torchrun",
            exit_code=int(code["code"]) if code else None,
            rank=number,
            local_rank=local,
            host=fields.get("host", ""),
            pid=int(code["pid"]) if code else None,
            time=seconds_of(moment) if moment else None,
            first=self._first,
            error=said or traceback,
            script=self._script,
        )
