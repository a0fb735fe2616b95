"""What launchers say of processes that ended, each on one line. What torchrun says in a table is read by exit_tables.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ddpdoctor.facts.log import LogLine, ProcessExit
from ddpdoctor.knowledge.hostlist import HostlistError, expand
from ddpdoctor.logs.analyze.endings import TERMINATIONS
from ddpdoctor.logs.analyze.exceptions import OF_A_CHILD, OF_A_TOOL
from ddpdoctor.logs.match.mentions import mentioned

SIGNALS: Final = {
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "Illegal instruction": 4, "Trace/breakpoint trap": 5, "Aborted": 6, "Bus error": 7,
    "Floating point exception": 8, "Killed": 9, "Segmentation fault": 11, "Broken pipe": 13, "Terminated": 15, "Out Of Memory": 9,
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9,
    "SIGSEGV": 11, "SIGPIPE": 13, "SIGTERM": 15,
}  # fmt: skip
"""As shells, srun and Python name them."""
_NAMES: Final = "|".join(SIGNALS)
LIGHTNING: Final = "lightning"
"""It labels the line with the rank that ended."""
_NOTICED: Final = " noticed that process rank "
"""mpirun only tells of the first."""


class _Form(NamedTuple):
    """literal: what the line is found by. told_to: the launcher ended the process itself."""

    literal: str
    pattern: re.Pattern[str]
    said_by: str
    told_to: bool = False

    @property
    def a_word(self) -> bool:
        """It may stand in any sentence, too."""
        return self.literal.isalpha()


UP_TO_THE_NEXT: Final = r"(?:(?!CalledProcessError: ).)*"
"""No further, so that a line full of them costs in proportion to its length."""
_FORMS: Final = tuple(
    _Form(literal, re.compile(pattern), said_by, told_to)
    for literal, pattern, said_by, told_to in (
        (
            "failed (exitcode: ",
            r"failed \(exitcode: (?P<code>-?\d+)\)(?: local_rank: (?P<local>\d+))? \(pid: (?P<pid>\d+)\)",
            "torchrun",
            False,
        ),
        (" closing signal SIG", r"Sending process (?P<pid>\d+) closing signal (?P<by>SIG\w+)", "torchrun", True),
        (" via signal SIG", r"Terminating process (?P<pid>\d+) via signal (?P<by>SIG\w+)", "mp.spawn", True),
        (
            "Exception: process ",
            rf"\b(?:ProcessExited)?Exception: process (?P<local>\d+) terminated with (?:signal (?P<signal>{_NAMES})|exit code (?P<code>\d+))",
            "mp.spawn",
            False,
        ),
        (
            " terminated with the following error:",
            r"-- Process (?P<local>\d+) terminated with the following error:",
            "mp.spawn",
            False,
        ),
        (
            "srun: error: ",
            rf"srun: error: (?P<hosts>\S+): tasks? (?P<ranks>[\d,-]+): "
            rf"(?:Exited with exit code (?P<code>\d+)|(?P<signal>{_NAMES}))",
            "srun",
            False,
        ),
        (
            " CANCELLED AT ",
            r"\*\*\* (?:STEP|JOB) \S+(?: ON (?P<hosts>\S+))? CANCELLED AT \S+(?: (?P<error>[A-Z][^*]*?))? ?\*\*\*",
            "srun",
            False,
        ),
        ("oom_kill event", r"(?P<error>Detected \d+ oom_kill events? in \S+)", "srun", False),
        ("oom-kill event", r"(?P<error>Detected \d+ oom-kill event\(s\) in \S+)", "srun", False),
        (
            _NOTICED,
            r"noticed that process rank (?P<ranks>\d+) with PID (?P<pid>\d+) on node (?P<hosts>\S+) exited on signal (?P<number>\d+)",
            "mpirun",
            False,
        ),
        (" exits with return code = ", r"exits with return code = (?P<code>-?\d+)", "deepspeed", False),
        ("Killing subprocess ", r"sigkill_handler\] Killing subprocess (?P<pid>\d+)", "deepspeed", True),
        (
            "application called MPI_Abort(",
            r"application called MPI_Abort\((?:[^()]*, )?(?P<code>-?[1-9]\d*)\) - process (?P<ranks>\d+)",
            "mpiexec",
            False,
        ),
        (
            " TERMINATED WITH THE EXIT STRING: ",
            r"APPLICATION TERMINATED WITH THE EXIT STRING: (?:(?!APPLICATION TERM).)*\(signal (?P<number>\d+)\)",
            "mpiexec",
            False,
        ),
        (
            "KILLED BY SIGNAL: ",
            r"^=\s+KILLED BY SIGNAL: (?P<number>\d+) \(",
            "mpiexec",
            False,
        ),
        (
            " Caught signal ",
            r"^\[?(?P<hosts>[\w.-]+):(?P<pid>\d+) ?:\d+(?::\d+)?\] Caught signal (?P<number>\d+) \(",
            "UCX",
            False,
        ),
        (
            " terminated with code ",
            r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)\. Forcefully",
            LIGHTNING,
            False,
        ),
        (" crashed with exit code ", r"\bRank (?P<ranks>\d+) crashed with exit code (?P<code>-?[1-9]\d*)\.", "composer", False),
        (
            "failed with non-zero exit code: ",
            r"container failed with non-zero exit code: (?P<code>[1-9]\d*) \(exit code \d+\)",
            "determined",
            False,
        ),
        (
            " restarting failed container",
            r"\bBack-off (?P<error>restarting failed container(?: [\w.=-]+)?)(?: in pod |.* pod=)?(?P<hosts>[a-z0-9][a-z0-9.-]*)?",
            "kubernetes",
            False,
        ),
        # The --local_rank=N in it is no word on who failed: most releases of torch.distributed.launch print the last rank's command.
        (
            "returned non-zero exit status ",
            rf"CalledProcessError: (?!{OF_A_TOOL})Command {UP_TO_THE_NEXT}returned non-zero exit status (?P<code>\d+)",
            "subprocess",
            False,
        ),
        ("CalledProcessError: Command ", rf"CalledProcessError: (?!{OF_A_TOOL})Command {UP_TO_THE_NEXT} died with <Signals\.(?P<signal>{_NAMES})", "subprocess", False),
        ("OOMKilled", r"(?:Reason:\s+|\breason: |^|(?<! as)(?<! or)[\s\"])(?P<error>OOMKilled)\b(?! (?:or|means|when|if|error)\b)", "kubernetes", False),
        (
            " exited with ",
            rf"(?:Runtime|OS)Error: {OF_A_CHILD}",
            "subprocess",
            False,
        ),
        (
            " exited with ",
            r"Pod: (?:[\w-]+\.)?(?P<hosts>[\w-]+) exited with code (?P<code>[1-9]\d{0,2})\b",
            "kubernetes",
            False,
        ),
        (" exitCode: ", r"Error pod (?P<hosts>[\w.-]+) container \S+ exitCode: (?P<code>[1-9]\d{0,2})\b", "kubernetes", False),
        *(
            (
                status,
                rf"^(?:(?:[\w-]+ +)?(?P<hosts>[a-z0-9][a-z0-9.-]*) +)?\d+/\d+ +(?P<error>(?:Init:)?{status.strip()}) +\d",
                "kubernetes",
                False,
            )
            for status in ("CrashLoopBackOff", "     Error    ", " Init:Error ")
        ),
        ("command terminated with exit code ", r"command terminated with exit code (?P<code>\d+)", "kubernetes", False),
        (": line ", rf": line \d+: +(?P<pid>\d+) (?P<signal>{_NAMES})\b", "shell", False),
        (" got signal: ", r"SignalException: Process (?P<pid>\d+) got signal: (?P<number>\d+)", "torchrun", False),
    )
)  # fmt: skip
_BY_LITERAL: Final = {
    literal: tuple(form for form in _FORMS if form.literal == literal) for literal in {form.literal for form in _FORMS}
}
LITERALS: Final = tuple(_BY_LITERAL)


def exits_said(literal: str, line: LogLine) -> Iterator[ProcessExit]:
    """Parse the ends of processes in a line that has that literal text in it."""
    for form in _BY_LITERAL.get(literal, ()):
        if (found := form.pattern.search(line.text)) and not (form.a_word and mentioned(line.text, literal)):
            yield from _exits(form, found.groupdict(), line)


def _exits(form: _Form, words: dict[str, str | None], line: LogLine) -> Iterator[ProcessExit]:
    code = words.get("code")
    number, signal = words.get("number"), words.get("signal")
    exit_code = int(code) if code else -int(number) if number else -SIGNALS[signal] if signal else None
    local, pid = words.get("local"), words.get("pid")
    hosts = _hosts(words.get("hosts") or "") or [line.host]
    ranks: list[int | None] = [*_numbers(words.get("ranks") or "")] or [
        line.rank if form.said_by == LIGHTNING else None
    ]
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
            first=form.literal == _NOTICED and exit_code is not None and -exit_code not in TERMINATIONS,
            told_to=form.told_to,
            error=(words.get("error") or "").strip() or (f"Signal {number or signal}" if number or signal else ""),
        )


def _numbers(text: str) -> list[int]:
    """Write "0-2,4" out; nothing where it is no list of ranks."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or int(last or first) - int(first) > 10_000:
            return []
        found.extend(range(int(first), int(last or first) + 1))
    return found[:10_000]


def _hosts(text: str) -> list[str]:
    try:
        return list(expand(text))[:10_000] if text else []
    except HostlistError:
        return [text]
