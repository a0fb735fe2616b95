"""What launchers say of processes that ended, each on one line. What torchrun says in a table is read by exit_tables.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.log import LogLine, ProcessExit
from ddpdoctor.knowledge.hostlist import HostlistError, expand
from ddpdoctor.logs.exceptions import OF_A_CHILD, OF_A_TOOL
from ddpdoctor.logs.launch_failures import TERMINATIONS
from ddpdoctor.logs.parse.mentions import mentioned

SIGNALS: Final = {
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "Illegal instruction": 4, "Trace/breakpoint trap": 5, "Aborted": 6, "Bus error": 7,
    "Floating point exception": 8, "Killed": 9, "killed": 9, "Segmentation fault": 11, "Broken pipe": 13, "Terminated": 15, "Out Of Memory": 9,
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9,
    "SIGSEGV": 11, "SIGPIPE": 13, "SIGTERM": 15,
}  # fmt: skip
"""As shells, srun and Python name them."""
LIGHTNING: Final = "lightning"
"""It labels the line with the rank that ended."""
RAY_TRAIN: Final = "Ray Train"
SHELL: Final = "shell"
ANYBODY: Final = "the log"
"""Who tells of a code that no launcher's form has."""
NOTICED: Final = " noticed that process rank "
"""mpirun only tells of the first."""
SIGNALLED: Final = "KILLED BY SIGNAL: "
"""Hydra's, which stands below who it was."""


class _Form(NamedTuple):
    """literal: what the line is found by."""

    literal: str
    pattern: re.Pattern[str]
    said_by: str


_FATAL_CODE: Final = r"(?P<code>-(?:4|6|7|8|9|11)|13[2-9]|247)(?!\d| \(pid|,? (?:and|or|as|means?|is|when|if|for)\b)"
PARTS: Final = {
    "SIGNAL": rf"(?P<signal>{'|'.join(SIGNALS)})",
    "FATAL": _FATAL_CODE,
    "COMMAND_NOT_OF_A_TOOL": rf"(?:CalledProcessError: |^)(?!{OF_A_TOOL})Command (?:(?!CalledProcessError: ).)*",
    "OF_A_CHILD": OF_A_CHILD,
}
"""Parts of the patterns of `exits.signs.toml` beside its own. A command goes no further than to the next one, so that a line full of them
costs in proportion to its length."""
_ITS_OWN_DOING: Final = frozenset(
    {", forcefully exiting via ", " closing signal SIG", " via signal SIG", "Killing subprocess "}
)
"""Lines on processes that the launcher itself ends."""
_FORMS: Final = tuple(
    _Form(sign.text, re.compile(sign.pattern), said_by)
    for said_by, signs in read_table(__name__, "exits.json", dict[str, tuple[LogSign, ...]]).items()
    for sign in signs
)
_BY_LITERAL: Final = grouped(_FORMS, lambda form: form.literal)
_FATAL: Final = re.compile(
    r"(?<![A-Za-z])(?:(?:[Ee]xit(?:ed|s|ing)?|terminated|finished|failed)(?: with)?[ _-]?(?:code|status)|[Rr]eturn[ _-]?code)"
    r"['\"]?(?: is| was| of)?[ :=(]{0,12}" + _FATAL_CODE
)
"""That a process ended by a signal, in the words of whoever started it: no run that goes well has such a code."""
_OF_ANYBODY: Final = _Form("", _FATAL, ANYBODY)
OF_A_LOADER: Final = "DataLoader worker"
_CODES: Final = (
    *(f"{end}{between}{word}" for end in ("xit", "ed") for between in (" ", " with ") for word in ("code", "status")),
    *("xitcode", "xit_code", "xit_status", "returncode", "eturn code"),
)
LITERALS: Final = (*_BY_LITERAL, *_CODES)


def exits_said(literal: str, line: LogLine) -> Iterator[ProcessExit]:
    """Parse the ends of processes in a line that has that literal text in it."""
    for form in _BY_LITERAL.get(literal, ()):
        # A word may stand in any sentence, too.
        if (found := form.pattern.search(line.text)) and not (literal.isalpha() and mentioned(line.text, literal)):
            yield from _exits(form, found.groupdict(), line)
    if literal in _CODES and (found := _FATAL.search(line.text)) and not _is_known(line.text):
        yield from _exits(_OF_ANYBODY, found.groupdict(), line)


def _is_known(text: str) -> bool:
    """Whether a launcher's own form has that line, torch tells of a child of a rank's own, or pip of a program that it started, in its frame."""
    return (
        OF_A_LOADER in text
        or text.lstrip().startswith("│")
        or any(form.literal in text and form.pattern.search(text) for form in _FORMS)
        or mentioned(text, "code")
    )


def _exits(form: _Form, words: dict[str, str | None], line: LogLine) -> Iterator[ProcessExit]:
    code = words.get("code")
    number, signal = words.get("number"), words.get("signal")
    exit_code = int(code) if code else -int(number) if number else -SIGNALS[signal] if signal else None
    local, pid = words.get("local"), words.get("pid")
    hosts = _expanded(words.get("hosts") or "") or [words.get("hosts") or line.host]
    # "0-2,4" is written out as what stands between a list of hosts' brackets.
    ranks: list[int | None] = [int(rank) for rank in _expanded(f"[{words['ranks']}]")] if words.get("ranks") else []
    ranks = ranks or [line.rank if form.said_by == LIGHTNING else None]
    for place, rank in enumerate(ranks):
        yield ProcessExit(
            line=line,
            said_by=form.said_by,
            exit_code=exit_code,
            rank=rank,
            local_rank=int(local) if local else None,
            # srun names the tasks of several hosts together: which is whose it doesn't say.
            host=hosts[place] if len(hosts) == len(ranks) else hosts[0] if len(hosts) == 1 else "",
            pid=int(pid) if pid and int(pid) else None,
            time=line.time,
            first=form.literal == NOTICED and exit_code is not None and -exit_code not in TERMINATIONS,
            told_to=form.literal in _ITS_OWN_DOING,
            error=(words.get("error") or "").strip() or (f"Signal {number or signal}" if number or signal else ""),
        )


def _expanded(text: str) -> tuple[str, ...]:
    """Write a list of hosts out; nothing where it is none."""
    try:
        return expand(text)[:10_000]
    except HostlistError:
        return ()
