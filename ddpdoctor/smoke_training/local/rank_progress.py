"""What is known of one rank, and what a process has printed."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.facts.smoke import CollectiveCall, Stage
from ddpdoctor.probes.target_python.asking import last_lines
from ddpdoctor.smoke_training.analysis.rank_position import place_in_stage

MOST_KEPT: Final = 64 * 1024
"""Bytes of what a process printed, from its end."""

MOST_ANSWERED: Final = 256 * 1024
"""Bytes of what it printed since it was asked where it is, from their beginning."""

WARNING: Final = re.compile(r"^\S.*: \w*Warning: ")
"""What `warnings` prints; the line of source behind it is indented."""
TRAILER: Final = re.compile(
    r'Extension modules: |(Current t|T)hread 0x|File ".*", line \d+ in |<no Python frame>|\.\.\.$'
)
"""Lines of faulthandler, which say where a process was, and not why it ended."""
OWN_REASON: Final = re.compile(r"what\(\): |terminate called |\b\w*(Error|Exception)\b")


class OutputTail:
    """All that one process prints. Between `ask` and `answered` it is kept apart: its answer is among it."""

    def __init__(self) -> None:
        self.output = b""
        self.answer: bytes | None = None

    def print(self, text: bytes) -> None:
        if self.answer is None:
            self.output = (self.output + text)[-MOST_KEPT:]
        else:
            self.answer = (self.answer + text)[:MOST_ANSWERED]

    def ask(self) -> None:
        """From now on an answer may come."""
        self.answer = b""

    def answered(self, before: bytes) -> None:
        """before: what it had printed by itself when it began to answer."""
        self.answer = None
        self.print(before)


class RankProgress(OutputTail):
    """One rank, as far as it has been heard of. Times are the doctor's own (time.monotonic())."""

    def __init__(self, rank: int, local_rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.local_rank = local_rank
        self.pid = 0
        self.done: dict[str, Stage] = {}
        self.stage = ""
        """The last that it began."""
        self.since = 0.0
        """When it began that stage, or ended it."""
        self.step = ""
        self.steps = 0
        self.calls = ""
        self.called: list[CollectiveCall] = []
        self.device = "cpu"
        self.words = ""
        self.wrong = False
        self.culprits: tuple[int, ...] = ()
        self.missing = ""
        self.memory = 0
        self.contexts: tuple[int, ...] = ()
        self.finished_at: float | None = None
        """It has said that it is through. Its process goes on until all of the host's ranks are."""
        self.failed_at: float | None = None
        self.gone_at: float | None = None
        """Its connection has ended, or its parent has seen its end."""
        self.exit_code: int | None = None
        """Negative: the signal's number."""
        self.stack: tuple[str, ...] = ()
        self.stack_source = ""
        self.process_state = ""

    @property
    def over(self) -> bool:
        """Nothing more is waited for."""
        return self.finished_at is not None or self.failed_at is not None or self.gone_at is not None

    @property
    def speechless(self) -> bool:
        """Gone, and it has said neither that it is through nor why it is not."""
        return self.gone_at is not None and self.finished_at is None and self.failed_at is None

    @property
    def position(self) -> tuple[int, int, int]:
        """How far it has come: stages that are over, and its place in the present one."""
        if self.stage in self.done:
            return len(self.done), 0, 0
        return len(self.done), *place_in_stage(self.stage, self.step, self.steps, self.calls, self.called)

    def seconds_in_stage(self, now: float) -> float:
        """Since it began the stage that it is in, or ended the last one."""
        return max(0.0, now - self.since)


def last_line(output: bytes) -> str:
    """The last line with something in it."""
    lines = [line.strip() for line in last_lines(output, 40).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def last_words(output: bytes) -> str:
    """The last line that says why a process ended, as far as one can be told: no warning, nothing of faulthandler's."""
    lines: list[str] = []
    warned = False
    for line in last_lines(output, 200).splitlines():
        source = warned and line[:1] == " "
        warned = WARNING.search(line) is not None
        if line.strip() and not source and not warned and not TRAILER.match(line.strip()):
            lines.append(line.strip())
    last = lines[-1] if lines else ""
    return next((line for line in reversed(lines[-40:]) if OWN_REASON.search(line)), last)[:300]
