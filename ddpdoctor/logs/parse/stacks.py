"""Puts the stacks together that Python's fault handler or py-spy has written into a log, line by line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from ddpdoctor.facts.log import LogFrame, LoggedStack, LogLine
from ddpdoctor.logs.exceptions import own_frame

LITERALS: Final = ("(most recent call first):", '): "MainThread"')
_HEADER: Final = re.compile(
    r"(?:(?P<current>Current thread|Stack)|Thread) ?(?:0x[0-9a-f]{1,16})?[^(\n]{0,80}\(most recent call first\):\s*$"
    r"|Thread (?:0x[0-9A-Fa-f]{1,16}|\d{1,10}) \([\w+]{1,20}\): \"MainThread\"\s*$"
)
_OF_FAULT_HANDLER: Final = re.compile(
    r'\s{0,8}File "(?P<path>[^"]{1,4096})", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.+)$'
)
_OF_PY_SPY: Final = re.compile(
    r"\s{2,8}(?P<function>[^\s()]{1,200}) \((?P<path>[^\s():]{1,1000}):(?P<line>\d{1,9})\)\s*$"
)
_REASON: Final = re.compile(
    r"(?:(?:Fatal Python error|Windows fatal exception): .{1,200}|Timeout \([\d:.]{1,20}\)!|Process \d{1,10}: .{1,200})$"
)
_NOT_TOLD: Final = re.compile(r"\s{0,8}(?:\.\.\.|<no Python frame>|<.{0,80}>)?\s*$")
MAX_FRAMES: Final = 100
"""As many as the fault handler writes of a thread."""
MAX_THREADS: Final = 64


def begins_stack(text: str) -> bool:
    """Whether the line is the first one of a thread's stack."""
    return bool(_HEADER.match(text))


def reason_in(texts: list[str]) -> str:
    """Tell why the stacks were written, by the lines before them, the nearest first: "Timeout (0:00:20)!"."""
    return next((text.strip() for text in texts if _REASON.match(text)), "")


@dataclass
class _Thread:
    current: bool
    frames: list[LogFrame] = field(default_factory=list)
    """The innermost first."""


class StackAssembler:
    """The stacks of one process's threads, from the first one's header on."""

    def __init__(self, began: LogLine, reason: str) -> None:
        self._began = began
        self._reason = reason
        self._threads: list[_Thread] = []
        self.add(began)

    def add(self, line: LogLine) -> bool:
        """Take the next line of the stream; return whether it is still one of theirs."""
        text = line.text
        if found := _HEADER.match(text):
            if len(self._threads) < MAX_THREADS:
                self._threads.append(_Thread(found["current"] is not None))
            return True
        if found := _OF_FAULT_HANDLER.match(text) or _OF_PY_SPY.match(text):
            frames = self._threads[-1].frames
            if len(frames) < MAX_FRAMES:
                number = int(found["line"]) if found["line"].isdigit() else 0
                frames.append(LogFrame(found["path"], number, found["function"].strip()))
            return True
        return bool(_NOT_TOLD.match(text))

    def stack(self) -> LoggedStack | None:
        """Return the stack of the thread that tells most: the one that failed, else the main thread."""
        with_frames = [thread for thread in self._threads if thread.frames]
        with_own = [with_frame for with_frame in with_frames if own_frame(with_frame.frames[::-1])]
        current = [thread for thread in with_own if thread.current]
        chosen = next(iter([*current, *with_own[::-1], *with_frames[::-1]]), None)
        if chosen is None:
            return None
        frames = tuple(reversed(chosen.frames))
        return LoggedStack(line=self._began, reason=self._reason, frames=frames, own=own_frame(frames))
