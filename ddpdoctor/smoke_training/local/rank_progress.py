"""The state of one rank as far as it is known, and the end of what a process has printed."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.facts.burn_in import MAX_WINDOWS, PaceWindow
from ddpdoctor.facts.smoke import CollectiveCall, Stage
from ddpdoctor.probes.target_python.asking import last_lines
from ddpdoctor.smoke_training.analysis.rank_position import place_in_stage

MAX_OUTPUT_BYTES: Final = 64 * 1024
"""Bytes from the end of what a process printed."""

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Bytes from the beginning of what it printed since it was asked for its stack."""

WARNING: Final = re.compile(r"^\S.*: \w*Warning: ")
"""The line that `warnings` prints; the line of source behind it is indented."""
FAULTHANDLER_LINE: Final = re.compile(
    r'Extension modules: |(Current t|T)hread 0x|File ".*", line \d+ in |<no Python frame>|\.\.\.$'
)
"""Lines of faulthandler, which say where a process was, and not why it ended."""
ERROR_WORDS: Final = re.compile(r"what\(\): |terminate called |\b\w*(Error|Exception)\b")


class OutputTail:
    """The last output of one process. Between `expect_answer` and `end_answer` new output is kept apart, since the stack is among it."""

    def __init__(self) -> None:
        self.output = b""
        self.answer: bytes | None = None

    def add_output(self, text: bytes) -> None:
        if self.answer is None:
            self.output = (self.output + text)[-MAX_OUTPUT_BYTES:]
        else:
            self.answer = (self.answer + text)[:MAX_ANSWER_BYTES]

    def expect_answer(self) -> None:
        """Keep apart what comes from now on."""
        self.answer = b""

    def end_answer(self, before: bytes) -> None:
        """Take output together again. before: what the process had printed by itself when it began to answer."""
        self.answer = None
        self.add_output(before)


class RankProgress(OutputTail):
    """One rank, as far as it is known. Moments are by time.monotonic() of this process."""

    def __init__(self, rank: int, local_rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.local_rank = local_rank
        self.pid = 0
        self.done: dict[str, Stage] = {}
        self.stage = ""
        """The last that it began."""
        self.since = 0.0
        """The moment when it began that stage, or ended it."""
        self.step = ""
        self.steps = 0
        self.calls = ""
        self.called: list[CollectiveCall] = []
        self.heard_at = 0.0
        """The moment when it began its stage, or its last step since."""
        self.windows: list[PaceWindow] = []
        self._told = 0
        self._merged = 1
        """Windows that are told for each that is kept."""
        self.device = "cpu"
        self.words = ""
        self.wrong = False
        self.culprits: tuple[int, ...] = ()
        self.memory = 0
        self.contexts: tuple[int, ...] = ()
        self.finished_at: float | None = None
        """The moment when it said that it is through. Its process goes on until all of the host's ranks are."""
        self.failed_at: float | None = None
        self.gone_at: float | None = None
        """The moment when its connection ended, or its parent saw its end."""
        self.exit_code: int | None = None
        """Negative: the signal's number."""
        self.stack: tuple[str, ...] = ()
        self.stack_source = ""
        self.process_state = ""

    def add_window(self, window: PaceWindow) -> None:
        """Take in a window of the burn-in. Those that are kept are equally long, and the same on all ranks, which tell of as many."""
        self._told += 1
        if self._told % self._merged != 1 % self._merged:
            began = self.windows[-2].at if len(self.windows) > 1 else 0.0
            self.windows[-1] = merge_windows(began, self.windows[-1], window)
        else:
            self.windows.append(window)
        if len(self.windows) == MAX_WINDOWS and self._told % self._merged == 0:
            ends = [0.0, *(window.at for window in self.windows)]
            self.windows = [
                merge_windows(ends[place], *self.windows[place : place + 2]) for place in range(0, MAX_WINDOWS, 2)
            ]
            self._merged *= 2

    @property
    def over(self) -> bool:
        """Whether nothing more is waited for."""
        return self.finished_at is not None or self.failed_at is not None or self.gone_at is not None

    @property
    def has_vanished(self) -> bool:
        """Whether it is gone, and has said neither that it is through nor why it is not."""
        return self.gone_at is not None and self.finished_at is None and self.failed_at is None

    @property
    def position(self) -> tuple[int, int, int]:
        """The place to which it has come: the number of stages that are over, and its place in the present one."""
        if self.stage in self.done:
            return len(self.done), 0, 0
        return len(self.done), *place_in_stage(self.stage, self.step, self.steps, self.calls, self.called)


def merge_windows(began: float, first: PaceWindow, second: PaceWindow) -> PaceWindow:
    """One window in place of two. began: the first one's beginning."""
    long = max(second.at - began, 1e-9)
    share = min(1.0, max(0.0, (first.at - began) / long))
    known = min(first.waited, second.waited) >= 0
    return PaceWindow(
        at=second.at,
        steps=round(first.steps * share + second.steps * (1 - share), 3),
        own=round(first.own * share + second.own * (1 - share), 6),
        waited=round(first.waited * share + second.waited * (1 - share), 3) if known else -1.0,
        memory=second.memory,
    )


def last_line(output: bytes) -> str:
    """The last line that isn't blank, of at most 300 characters."""
    lines = [line.strip() for line in last_lines(output, 40).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def last_words(output: bytes) -> str:
    """The last line that says why a process ended, as far as one can be told: no warning, nothing of faulthandler's."""
    lines: list[str] = []
    warned = False
    for line in last_lines(output, 200).splitlines():
        source = warned and line[:1] == " "
        warned = WARNING.search(line) is not None
        if line.strip() and not source and not warned and not FAULTHANDLER_LINE.match(line.strip()):
            lines.append(line.strip())
    last = lines[-1] if lines else ""
    return next((line for line in reversed(lines[-40:]) if ERROR_WORDS.search(line)), last)[:300]
