"""Puts the tracebacks of one stream together, line by line."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ddpdoctor.facts.log import LogFrame, LoggedException, LogLine
from ddpdoctor.logs.exceptions import RAISED_WITHIN, is_of_library

HEADER: Final = "Traceback (most recent call last)"
FRAME: Final = 'File "'
"""What a frame is found by that no header stands before: the log begins within its traceback."""
IN_A_TABLE: Final = r"[ \t]+(?P<name>time|host|rank|exitcode|error_file|traceback|msg) *:(?: |$)"
"""A row of torchrun's table."""
_ROW: Final = re.compile(IN_A_TABLE)
"""No message: a table without its borders stands right behind the exception."""
_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]{1,4096})", line (?P<line>\d{1,9})(?:, in (?P<function>.*))?$')
_EXCEPTION: Final = re.compile(r"(?!nccl[A-Z])(?P<name>[A-Za-z_][\w.]*(?:\.<locals>\.\w+)*)(?:: ?(?P<message>.*))?$")
"""Not NCCL's own name of an error, which torch writes below its exception."""
_TWICE: Final = re.compile(r"(\w{1,60}(?:Error|Exception|Interrupt|Exit))\1$")
"""Of two processes that wrote at the same moment."""
_IN_JSON: Final = re.compile(
    r'(?:\s+"message": "|ErrorMessage "(?:.{1,300}? )?)(?P<name>(?:[A-Za-z_]\w*\.)*\w+(?:Error|Exception)): (?P<message>.*?)"?,?$'
)
"""As torch's error handler logs that of a rank, and SageMaker tells that of the script that it ran."""
_MARKS: Final = re.compile(r"^(?:  )*[+|]-*(?: |$)")
"""What an exception group puts before its lines."""
_BOX: Final = ("╭", "│", "╰")
"""What rich draws around a traceback; the exception stands behind it."""
_IN_A_BOX: Final = re.compile(r"│ (?P<path>\S[^│]*?\.py):(?P<line>\d{1,9}) in (?P<function>\S+) *│?$")
_CODE_IN_A_BOX: Final = re.compile(r"│ +❱ +(?P<line>\d{1,9}) (?P<code>.*)")
_CHAINS: Final = ("During handling of the above exception", "The above exception was the direct cause")
_OF_AN_ERROR: Final = re.compile(r"(?:\w\.|^)\w*(?:Error|Exception|Interrupt|Exit)$")
"""The name of an exception that is one even where no header announces it."""
_EXCEPTIONS_BY_FORM: Final = re.compile(r"\.\w|^[A-Z]\w*(?:Warning|Expired|Failed|Failure|Iteration|Group)$")
"""Python puts the module before the name of any class that is neither its own nor the script's."""
_OF_A_MODULE: Final = re.compile(r"(?:[a-z_]\w*\.)+(?:[A-Z]\w*(?<!Warning)|error)$")
"""The name of a module's class: what else may stand behind a frame that no header stands before is none."""
_ASSERTED: Final = re.compile(
    r"assert (?:(?<![\w.])(?:len|isinstance|issubclass|hasattr|callable)\(|(?![\w\])]\().)+, ?\(?(?P<quote>['\"])(?P<words>[^'\"\\]+)(?P=quote)\)?$"
)
"""An assertion with the words that it fails with, where the log breaks off right behind it: what its condition calls, but for Python's
own questions, may have raised something else."""
_NESTED: Final = re.compile(r"(?P<name>(?:\w+\.)*\w+(?:Error|Exception|Failed|Interrupt)): (?P<message>\S.*)$")
"""The exception that another one's message ends with, as torch.compile's does: "backend='inductor' raised:"."""
_BELOW: Final = re.compile(
    r"Search for `|CUDA kernel errors might|For debugging consider|Compile with `|Device-side assertion|Exception raised from "
    r"|frame #\d|<omitting python frames>|C\+\+ CapturedTraceback|#\d+ |nccl[A-Z]\w+: |Last error:|(?: {2,}|\t)\S|terminate called|  what\(\)"
)
_PLACE_ALONE: Final = re.compile(r"\S+\.(?:cc|cpp|cuh?|h)(?:\(\d+\)|:\d+:?| \d+)$")
"""A place in C++, behind which spconv and others write what is wrong on a line of its own."""
_ADVICE: Final = re.compile(
    r"(?:HINT|Hint|Reason|Caused by|full_key): \S|\[Errno \d+\] |All the data files must have the same columns, "
)
_ON_ONE_LINE: Final = "(most recent call last):\\n"
"""Of a traceback that is whole within a string."""
_RAISES: Final = re.compile(r"raise (?P<name>[A-Za-z_][\w.]*(?:Error|Exception))\(")
MAX_FRAMES: Final = 40
"""Of a traceback that are kept; half of them the outermost."""
_GIVE_UP: Final = 4000
"""Lines of its stream after which a traceback is left as it is: something else was written into it."""


def is_frame(text: str) -> bool:
    """Whether the line is a frame of a traceback, and no syntax error's place."""
    found = _FRAME.match(_plain(text))
    return bool(found and found["function"])


class Assembler:
    """A traceback that is put together, from its header on; or, where the log lacks it, from a frame on."""

    def __init__(self, began: LogLine, announced: str = "") -> None:
        """announced: the line before it, where that announces it."""
        self.began = began
        self._announced = announced
        self._headless = is_frame(began.text)
        self._indent = max(_width(_plain(began.text)) - 2 * self._headless, 0)
        self._latest = began
        """Its last line so far."""
        self._ends_in_frame = False
        self._others = 0
        """Lines that are not its own, since its last one."""
        self._frames: list[LogFrame] = []
        self._own: LogFrame | None = None
        self._lines = 0
        self.given_up = _ON_ONE_LINE in began.text
        if self._headless:
            self.add(began)

    def add(self, line: LogLine) -> LoggedException | None:
        """Take the next line of the stream; return the exception once its line has come."""
        self._lines += 1
        text = _plain(line.text)
        if found := _FRAME.match(text):
            self._keep(LogFrame(found["path"], int(found["line"]), found["function"] or ""))
            self._own_line(line, ends_in_frame=True)
            return None
        if self._lines > _GIVE_UP:
            self.given_up = True
            return None
        if not text.strip() or _ROW.match(text):
            return None
        if text.lstrip().startswith(_BOX):
            self._in_a_box(text.strip())
            self._own_line(line)
            return None
        # Where a paste has lost its indentation, the code stands right behind its frame.
        if _width(text) > self._indent or (self._ends_in_frame and self._latest.text.startswith(FRAME)):
            if not self._others:
                self._code(text)
                self._own_line(line)
            return None
        found = _EXCEPTION.match(text.strip())
        if found and self._is_exception(found["name"]):
            return self._raised(found["name"], found["message"] or "", line)
        # Hooks of some trackers print neither the header nor the exception's name.
        raises = _RAISES.match(self._frames[-1].code) if self._headless and self._frames else None
        if raises and line.number == self._latest.number + 1:
            return self._raised(raises["name"], text, line)
        self._others += 1
        self.given_up = self._headless
        return None

    def may_go_on(self, text: str) -> bool:
        """Whether the line is like one that follows a frame: its code, the next frame, or an exception."""
        plain = _plain(text)
        return _width(plain) > self._indent or bool(_EXCEPTION.match(plain))

    def rest(self) -> LoggedException | None:
        """Return what there is of a traceback that never came to its exception; nothing of a header in whose place
        something else was written."""
        if self.given_up or (not self._frames and self._others):
            return None
        asserted = (
            None if self._ends_in_frame or self._others or not self._frames else _ASSERTED.match(self._frames[-1].code)
        )
        return self._raised(*(("AssertionError", asserted["words"]) if asserted else ("", "")), self._latest)

    def _is_exception(self, name: str) -> bool:
        """Whether it may be the name of an exception, and none that a logger or another process has written into the traceback, nor what is left
        of a line that was broken at a width, nor a heading. Of the script's own any will do that the last call raises by its name or by a variable."""
        code, short = self._frames[-1].code if self._frames else "", name.rpartition(".")[2]
        raised = (
            bool(re.search(rf"\braise (?:[\w.]+\.)?(?:{re.escape(short)}\b|[a-z_]\w*$)", code)) and short[0].isupper()
        )
        by_form = bool((_OF_A_MODULE.match if self._headless else _EXCEPTIONS_BY_FORM.search)(name))
        return raised or by_form or bool(_OF_AN_ERROR.search(name))

    def _own_line(self, line: LogLine, *, ends_in_frame: bool = False) -> None:
        self._latest, self._ends_in_frame, self._others = line, ends_in_frame, 0

    def _keep(self, frame: LogFrame) -> None:
        self._frames.append(frame)
        if not is_of_library(frame.path):
            self._own = frame
        if len(self._frames) > MAX_FRAMES:
            del self._frames[MAX_FRAMES // 2]

    def _in_a_box(self, text: str) -> None:
        if found := _IN_A_BOX.match(text):
            self._keep(LogFrame(found["path"], int(found["line"]), found["function"]))
        elif found := _CODE_IN_A_BOX.match(text):
            self._code(found["code"].strip("│ "))

    def _code(self, text: str) -> None:
        stripped = text.strip()
        if not self._frames or self._frames[-1].code or not stripped.strip("^~ "):
            return
        last = self._frames[-1]
        with_code = LogFrame(last.path, last.line, last.function, stripped[:300])
        self._frames[-1] = with_code
        if self._own is last:
            self._own = with_code

    def _raised(self, name: str, message: str, line: LogLine) -> LoggedException:
        name = _TWICE.sub(r"\1", name)
        while name and message.startswith(name):
            # Of several processes that wrote at the same moment, one's words stand behind the names of all.
            message = message[len(name) :].removeprefix(":").lstrip()
        return LoggedException(
            exception=name,
            message=message.strip(),
            line=line,
            began=self.began,
            frames=tuple(self._frames),
            own=self._own,
            announced=self._announced,
        )


def bare(line: LogLine, *, is_uncaught: bool) -> LoggedException | None:
    """Return the exception of a line, of whose traceback nothing is in the log: torchrun's; that of a rank, which torch's error handler logs
    as JSON, or SageMaker quotes; or one that surely nobody has caught."""
    found = _IN_JSON.match(line.text)
    if found is None:
        found = _EXCEPTION.match(line.text)
        if not found or not (is_uncaught or found["name"].endswith("ChildFailedError")):
            return None
    return LoggedException(exception=found["name"], message=(found["message"] or "").strip(), line=line, began=line)


def chains(text: str) -> bool:
    """Whether a line says that the exception before it led to the one after it."""
    return text.strip(" |").startswith(_CHAINS)


def goes_on_below(line: LogLine) -> bool:
    """Whether a line behind an exception surely belongs to its message: what torch adds to CUDA's errors, C++ stacks, or what is indented."""
    return _BELOW.match(line.text) is not None


def is_advice(text: str) -> bool:
    """Whether a line behind an exception says by itself that it tells what to do about it, or why."""
    return _ADVICE.match(text) is not None


def begins_below(raised: LoggedException, line: LogLine) -> bool:
    """Whether the message of that exception begins with this line, which stands behind it."""
    text = line.text.strip()
    if _PLACE_ALONE.match(raised.message) and line.number == raised.line.number + 1:
        return not _BELOW.match(line.text) and HEADER not in text
    nothing_yet = not raised.message and raised.line.text.rstrip().endswith(":")
    # What isn't indented may be of anything else; transformers says so which library is missing.
    mine = (line.text[:1].isspace() and not _ROW.match(line.text)) or " requires the " in text
    return nothing_yet and mine and HEADER not in text and text[:1].isalpha()


def nested_in(raised: LoggedException, line: LogLine) -> dict[str, object] | None:
    """Return what to amend of an exception that says that something raised it, where this line, right behind it, shows what."""
    found = _NESTED.match(line.text) if raised.message.endswith(RAISED_WITHIN) else None
    if not found or line.number != raised.line.number + 1:
        return None
    joined = msgspec.structs.replace(raised.line, text=f"{raised.line.text.rstrip()} {line.text.strip()}")
    return {"exception": found["name"], "message": found["message"], "line": joined, "below": 1}


def _plain(text: str) -> str:
    return _MARKS.sub("", text) if text.lstrip()[:1] in ("+", "|") else text


def _width(text: str) -> int:
    return len(text) - len(text.lstrip(" "))
