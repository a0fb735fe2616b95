"""What launchers say of processes that ended, each on one line. What torchrun says in a table is read by exit_tables.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

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
_NOTICED: Final = " noticed that process rank "
"""mpirun only tells of the first."""


class _Form(NamedTuple):
    """literal: what the line is found by."""

    literal: str
    pattern: re.Pattern[str]
    said_by: str


UP_TO_THE_NEXT: Final = r"(?:(?!CalledProcessError: ).)*"
"""No further, so that a line full of them costs in proportion to its length."""
_PARTS: Final = {
    "pid": r"(?P<pid>\d+)",
    "local": r"(?P<local>\d+)",
    "code": r"(?P<code>-?\d+)",
    "failure": r"(?P<code>-?[1-9]\d*)",
    "number": r"(?P<number>\d+)",
    "rank": r"(?P<ranks>\d+)",
    "host": r"(?P<hosts>[\w.-]+)",
    "signal": rf"(?P<signal>{'|'.join(SIGNALS)})",
    "fatal": r"(?P<code>-(?:4|6|7|8|9|11)|13[2-9]|247)(?!\d| \(pid|,? (?:and|or|as|means?|is|when|if|for)\b)",
    "command": rf"CalledProcessError: (?!{OF_A_TOOL})Command {UP_TO_THE_NEXT}",
    "child": OF_A_CHILD,
}
_PART: Final = re.compile(r"\{([a-z]+)\}")
_SAID: Final = {
    "torchrun": (
        ("failed (exitcode: ", r"failed \(exitcode: {code}\)(?: local_rank: {local})? \(pid: {pid}\)"),
        (", forcefully exiting via ", r"shutdown process {pid} via \S+, forcefully exiting"),
        (" closing signal SIG", r"Sending process {pid} closing signal SIG\w+"),
        (" got signal: ", r"SignalException: Process {pid} got signal: {number}"),
    ),
    "mp.spawn": (
        (" via signal SIG", r"Terminating process {pid} via signal SIG\w+"),
        ("Exception: process ", r"\b(?:ProcessExited)?Exception: process {local} terminated with (?:signal {signal}|exit code {code})"),
        (" terminated with the following error:", r"-- Process {local} terminated with the following error:"),
    ),
    "srun": (
        ("srun: error: ", r"srun: error: (?P<hosts>\S+): tasks? (?P<ranks>[\d,-]+): (?:Exited with exit code {code}|{signal})"),
        (" CANCELLED AT ", r"\*\*\* (?:STEP|JOB) \S+(?: ON (?P<hosts>\S+))? CANCELLED AT \S+(?: (?P<error>[A-Z][^*]*?))? ?\*\*\*"),
        ("oom_kill event", r"(?P<error>Detected \d+ oom_kill events? in \S+)"),
        ("oom-kill event", r"(?P<error>Detected \d+ oom-kill event\(s\) in \S+)"),
    ),
    "mpirun": ((_NOTICED, r"noticed that process rank {rank} with PID {pid} on node (?P<hosts>\S+) exited on signal {number}"),),
    "deepspeed": (
        (" exits with return code = ", r"exits with return code = {code}"),
        ("Killing subprocess ", r"sigkill_handler\] Killing subprocess {pid}"),
    ),
    "mpiexec": (
        ("application called MPI_Abort(", r"application called MPI_Abort\((?:[^()]*, )?{failure}\) - process {rank}"),
        (" TERMINATED WITH THE EXIT STRING: ", r"APPLICATION TERMINATED WITH THE EXIT STRING: (?:(?!APPLICATION TERM).)*\(signal {number}\)"),
        ("KILLED BY SIGNAL: ", r"^=\s+KILLED BY SIGNAL: {number} \("),
    ),
    "horovodrun": ((" exit with status code ", r"^Process {rank} exit with status code {failure}\.$"),),
    "UCX": ((" Caught signal ", r"^\[?{host}:{pid} ?:\d+(?::\d+)?\] Caught signal {number} \("),),
    LIGHTNING: ((" terminated with code ", r"Child process with PID {pid} terminated with code {code}\. Forcefully"),),
    "composer": ((" crashed with exit code ", r"\bRank {rank} crashed with exit code {failure}\."),),
    "determined": (("failed with non-zero exit code: ", r"container failed with non-zero exit code: {failure} \(exit code \d+\)"),),
    # The --local_rank=N in it is no word on who failed: most releases of torch.distributed.launch print the last rank's command.
    "subprocess": (
        ("returned non-zero exit status ", r"{command}returned non-zero exit status {code}"),
        ("CalledProcessError: Command ", r"{command} died with <Signals\.{signal}"),
        (" exited with ", r"(?:Runtime|OS)Error: {child}"),
    ),
    "kubernetes": (
        (" restarting failed container", r"\bBack-off (?P<error>restarting failed container(?: [\w.=-]+)?)(?: in pod |.* pod=)?(?P<hosts>[a-z0-9][a-z0-9.-]*)?"),
        ("OOMKilled", r"(?:Reason:\s+|\breason: |^|(?<! as)(?<! or)[\s\"])(?P<error>OOMKilled)\b(?! (?:or|means|when|if|error)\b)"),
        (" exited with ", r"Pod: (?:[\w-]+\.)?(?P<hosts>[\w-]+) exited with code {failure}\b"),
        (" exitCode: ", r"Error pod {host} container \S+ exitCode: {failure}\b"),
        *(
            (status, rf"^(?:(?:[\w-]+ +)?(?P<hosts>[a-z0-9][a-z0-9.-]*) +)?\d+/\d+ +(?P<error>(?:Init:)?{status.strip()}) +\d")
            for status in ("CrashLoopBackOff", "     Error    ", " Init:Error ", "   Evicted   ")
        ),
        ("command terminated with exit code ", r"command terminated with exit code {code}"),
        (" replica(s) failed", r"\b\w+Job \S+ is (?P<error>(?:failed|restarting) because \d+ \w+ replica\(s\) failed)\."),
        ("BackoffLimitExceeded", r"(?P<error>BackoffLimitExceeded)\b.{0,80}reached the specified backoff limit"),
        ("Exit Code: ", r"^ +Exit Code: +{failure}\s*$"),
    ),
    # It describes a worker where that one is dead, or hangs and is taken for dead.
    RAY_TRAIN: (("distributed_context=DistributedContext(", r"^ *distributed_context=DistributedContext\(world_rank={rank}, "),),
    # Of each node one. What it ends itself, once another has failed, has 137.
    "SkyPilot": (
        (" failed with return code list:", r"return code list: *\[(?:-?\d+, ?)*?(?P<code>(?!0\b|137\b)-?\d+)"),
        (" failed with return code list:", r"return code list: *\[(?:0, ?)*(?P<code>137)(?:, ?(?:0|137))*\]"),
    ),
    "sacct": (
        (" FAILED ", r"^\d+(?:_\d+)? .* (?P<error>FAILED) +(?:{failure}:\d+|0:{number})\b"),
        *((state, rf"^\d+(?:_\d+)? .*(?P<error>{state})\S* +\d+:\d+\b") for state in (" OUT_OF_ME", " NODE_FAIL", " TIMEOUT ")),
    ),
    "seff": (
        ("State: ", r"^State: (?P<error>FAILED|OUT_OF_MEMORY|NODE_FAIL|TIMEOUT)\b(?: \(exit code (?:0|{failure})\))?"),
    ),
    "qacct": (("exit_status ", r"^exit_status +{failure}\b"),),
    "bsub": (
        ("Exited with exit code ", r"^Exited with exit code {failure}\.$"),
        ("Exited by signal ", r"^Exited by signal {number}\.$"),
    ),
    "systemd": (
        (": Main process exited, code=", r"exited, code=(?:killed|dumped), status={number}/"),
        (": Main process exited, code=", r"exited, code=exited, status={failure}/"),
    ),
    "HTCondor": (
        ("Abnormal termination (signal ", r"^\s*\(0\) Abnormal termination \(signal {number}\)"),
        ("Normal termination (return value ", r"^\s*\(1\) Normal termination \(return value {failure}\)"),
    ),
    "GitHub Actions": (("Process completed with exit code ", r"^(?:##\[error\]|Error: )Process completed with exit code {failure}\."),),
    "docker": ((" exited with code ", r"^(?:[Cc]ontainer )?(?:(?P<hosts>\w{1,99}?[-_][\w.-]{1,99})|\w{1,99}) exited with code {failure}(?: \(restarting\))?$"),),
    "multiprocessing": ((" stopped exitcode=", r"^<\w*Process.{0,200} stopped exitcode=(?:-{signal}|{failure})\b"),),
    SHELL: (
        (": line ", r": line \d+: +{pid} {signal}\b"),
        ("Terminated", r"^(?P<signal>Terminated)(?: +\(core dumped\))?\s*$"),
        (" Exit ", r"^\[\d+\][+-]? +Exit {failure} +\S"),
        (" killed ", r"^\[\d+\] +(?:[+-] +)?{pid} {signal} +\S"),
        ("Killed: ", r"^(?:\S+: line \d+: +\d+ )?Killed: {number}\b"),
        (" exited with ", r"\bexited with {fatal}\W*$"),
        (" rc=", r" rc={fatal}\W*$"),
        ("Command terminated by signal ", r"^Command terminated by signal {number}$"),
        ("Command exited with non-zero status ", r"^Command exited with non-zero status {failure}$"),
    ),
}  # fmt: skip
"""By what each launcher's line is found, and how it reads."""
_ITS_OWN_DOING: Final = frozenset(
    {", forcefully exiting via ", " closing signal SIG", " via signal SIG", "Killing subprocess "}
)
"""Lines on processes that the launcher itself ends."""
_FORMS: Final = tuple(
    _Form(literal, re.compile(_PART.sub(lambda part: _PARTS[part[1]], pattern)), said_by)
    for said_by, forms in _SAID.items()
    for literal, pattern in forms
)
_BY_LITERAL: Final = {
    literal: tuple(form for form in _FORMS if form.literal == literal) for literal in {form.literal for form in _FORMS}
}
_FATAL: Final = re.compile(
    r"(?<![A-Za-z])(?:(?:[Ee]xit(?:ed|s|ing)?|terminated|finished|failed)(?: with)?[ _-]?(?:code|status)|[Rr]eturn[ _-]?code)"
    r"['\"]?(?: is| was| of)?[ :=(]{0,12}" + _PARTS["fatal"]
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
            told_to=form.literal in _ITS_OWN_DOING,
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
