"""Labels at the start of a log's lines, by which launchers and collectors tell whose line it is. They may be stacked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple

from ddpdoctor.logs.parse.timestamps import COLLECTED, GLOG, SYSLOG, ahead_of, seconds_of
from ddpdoctor.logs.parse.tracebacks import HEADER


class Labelled(NamedTuple):
    """A line without its labels, and what they say. host: also the name of a pod or of a compose service. said_by: whose labels they are."""

    text: str
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    time: float | None = None
    said_by: str = ""
    logger: str = ""
    """What a logger that tags a program's whole output has put before a line that surely is of that output."""
    ahead: float | None = None
    """Seconds by which the clock of its time is before UTC, where it says its zone."""


class Style(NamedTuple):
    """Labels that only count where many lines of the file have them: "3: " may stand in any text."""

    numbers: bool = False
    """srun --label: "3: ", "03: "."""
    tasks: bool = False
    """The numbers are those of tasks that start several ranks each, as torchrun does: of nodes, and of no ranks."""
    several: bool = False
    """There is more than one such task."""
    places: bool = False
    """A pattern of somebody's own: "[node1:3]:", which may be a logger's module and line, too."""
    services: bool = False
    """docker compose: "worker-1  | "."""
    nodes: bool = False
    """DeepSpeed's pdsh: "node1: "."""
    brackets: bool = False
    """mpirun -l of MPICH and Intel MPI: "[3] "."""
    pods: bool = False
    """Loki, stern: "train-worker-3 "."""
    rounds: bool = False
    """A script's own "(rank 3) ", which may be a matrix's, too."""
    quoted: bool = False
    """A mail or an issue that quotes a log: "> "."""
    container: str = ""
    """stern's second word: the one container that all pods have."""


_SURE: Final = re.compile(
    r"""
      \[rank(?P<rank>\d{1,6})\]:[ ]?
    | \[(?P<node>[\w.-]{1,253}):rank(?P<there>\d{1,6})\]:?[ ]?
    | \[(?P<role>[A-Za-z][\w-]{0,40}?)(?P<local>\d{1,4})\]:
    | \[(?:[\w.@-]*[,@])?\d+,(?P<mpi>\d{1,6})\]<(?:stderr|stdout|stddiag)>:(?:[ ](?=\S))?
    | \[\d+,mpirank:(?P<sagemaker>\d{1,6}),(?P<algo>[\w-]{1,80})\]<(?:stderr|stdout)>:
    | \[pod/(?P<pod>[^\]/\s]{1,253})(?:/[^\]\s]{1,253})?\][ ]?
    | [Rr](?:ANK|ank)[ =](?P<named>\d{1,6})[ ]?(?:\||:)[ ]
    | \[[Rr](?:ANK|ank)[ =:]?[ ]?(?P<inner>\d{1,6})\]:?[ ]
    """,
    re.VERBOSE,
)
_BAR: Final = re.compile(
    r"[ \t]*\|[ ](?=\[rank\d|\[[A-Za-z]\w{0,40}\d\]:|[IWEF]\d{4}[ ])|(?:stderr|stdout)(?::[ ]|[ ][FP][ ])"
)
"""What a program puts before the lines of the processes whose output it shows; a bar alone is an exception group's."""
_WORKER: Final = re.compile(
    r"""
      \((?P<worker>
        (?: (?:Worker_TP(?P<tensor>\d{1,4})(?:_EP\d{1,4})? | [A-Za-z_][\w.:-]{0,80}(?:\([^()\s]{0,80}\))?) [ ] (?:rank=(?P<rank>\d{1,6})[ ])? )?
        pid=\d{1,9}
        (?: ,[ ]ip=(?P<ip>[\w.:\[\]]{2,60}) )?
      )\)[ ]?
    """,
    re.VERBOSE,
)
"""Processes, as Ray and vLLM name them before each of their lines: of Ray's nobody tells the rank; vLLM counts its workers, in all or by the part
of each layer that they hold, where nothing else is shared out."""
_HEADING: Final = re.compile(r"\[Rank (?P<rank>\d{1,6})(?:, \d{1,6}){0,4096}\]:?\s*$")
"""Ray Train's, above the error of a worker, or of several that are alike."""
_POD: Final = re.compile(
    r"(?!(?:epoch|step|iter|iteration|batch|fold|gpu|phase|stage|trial)-)(?P<pod>[a-z][a-z0-9.-]{0,252}-[a-z0-9]{0,20}\d[a-z0-9]{0,20}) (?:(?P<container>[a-z][a-z0-9-]{0,62}) )?"
)
_QUOTE: Final = re.compile(r">(?: |$)")
_BRACKET: Final = re.compile(r"\[(?P<number>\d{1,6})\](?! ?(?:[\w/.]{1,60}:\d+ )?(?:\(\w+\) )?NCCL ) ?")
"""Not NCCL's number of a GPU, before which a paste has cut off the host."""
_PLACE: Final = re.compile(r"\[(?P<node>[A-Za-z][\w.-]{0,252}):(?P<rank>\d{1,6})\]:")
_SURE_PLACE: Final = re.compile(rf'{_PLACE.pattern}(?:Traceback \(most recent call last\)|  File "[^"]+", line \d)')
"""Before a traceback's lines no logger puts where it was called."""
_ROUND: Final = re.compile(r"\([Rr](?:ANK|ank)[ =:]?[ ]?(?P<number>\d{1,6})\):? ")
_NUMBER: Final = re.compile(r" {0,6}(?P<number>\d{1,6}): ?")
_SERVICE: Final = re.compile(
    r"(?!(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL)\b)(?P<service>[A-Za-z][\w.-]{0,80}) +\| ?"
)
_NODE: Final = re.compile(r"(?P<node>[A-Za-z][\w-]{0,60}(?:\.[\w-]{1,60}){0,6}|\d{1,3}(?:\.\d{1,3}){3}): ")
_LEVEL: Final = r"(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)\b"
_NODE_OF_RANK: Final = re.compile(rf"(?!{_LEVEL}){_NODE.pattern}(?=\[rank\d{{1,6}}\]:)")
"""Behind it stands torch's own label: no text begins so."""
_SURE_NODE: Final = re.compile(
    rf"(?!{_LEVEL}){_NODE.pattern}"
    rf'(?:Traceback \(most recent call last\)|  File "[^"]+", line \d|\[rank\d|(?=\[){COLLECTED.pattern}\[)'
)
"""Behind it stands what a program begins a line with, and no message does."""
_DETERMINED: Final = re.compile(r"(?P<container>[0-9a-f]{8}) (?:\[rank=(?P<rank>\d{1,6})\] )?\|\|(?: |$)")
"""Determined AI's container, behind its timestamp."""
_ROOT_CAUSE: Final = "Root Cause (first observed failure):"
_CLOCK: Final = r"(?:\d\d(?:\d\d)?-\d\d(?:-\d\d)?[ T])?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_BRACKETED: Final = r"\[(?!rank\d)[^\[\] ]{1,60}\]"
_NAMED: Final = rf"(?:{_CLOCK}|[\w./@#<>-]{{1,60}}(?::[\w<>]{{1,60}}){{0,2}})"
_OF_OUTPUT: Final = re.compile(
    rf'{re.escape(HEADER)}|\ {{0,4}}File\ "[^"]{{1,4096}}",\ line\ \d|{re.escape(_ROOT_CAUSE)}'
)
_LOGGED: Final = re.compile(
    rf"""
      (?P<logger>
        (?: {_BRACKETED}(?:[ ]?[:|-])?[ ]? | {_NAMED}[ ]{{0,8}}[:|-]?[ ] ){{0,3}}
        [\[(]? (?:INFO|ERROR|CRITICAL|FATAL)\b [\])]?
        (?: :[\w.]{{1,60}}:
        | (?:[ ]{{0,8}}[:|-])? (?: (?:[ ]{{0,8}}{_BRACKETED} | [ ]{{1,8}}{_NAMED}) (?:[ ]?[\]:|-]{{1,2}})? ){{0,3}} (?:[ ]{{0,8}}(?=T|\[rank)|[ ]?)
        )
      )
      (?: \[rank(?P<rank>\d{{1,6}})\]:[ ]? | (?={_OF_OUTPUT.pattern}) )
    """,
    re.VERBOSE,
)
"""A logger's level and names, right before what is no message of anybody's, but a line of a program's output. Warnings are left out: what
they show was caught."""
_GLUED: Final = re.compile(rf"[^\"'`\s>#|*_](?:\[rank(?P<rank>\d{{1,6}})\]:[ ]?)?(?={re.escape(HEADER)}:?\s*$)")
"""Behind a line that wasn't ended: a progress bar."""
_NCCL: Final = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):(?P<tid>\d+) (?:\[(?P<gpu>\d+)\] )?(?:[\w/.]{1,60}:\d+ )?(?:\(\w+\) )?(?:NCCL|NET/|transport/)"
)
_KERNEL: Final = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*) (?=kernel: )")
"""journalctl -o short-iso, behind its timestamp."""
_IN_TEXT: Final = re.compile(
    r"\[Rank[ :](?P<rank>\d{1,6})\]|\[PG [^\]]* Rank (?P<pg>\d{1,6})\]"
    r"|\[RankMon(?:itor)?Server(?:\d+@(?P<host>[\w.-]{1,253}))?:(?P<monitored>\d{1,6})\]"
    r"|\[(?P<crashed>[\w.-]{1,253}):\d{1,10} *(?::\d{1,10}){1,2}\] *Caught signal \d"
    r"|\[(?P<node>[\w.-]{1,253})\] \[workload:(?:(?P<workload>\d{1,6})|\?)\("
)
"""The third is UCX's handler of signals, which may write into another's line. The others behind are how NVRx's monitor of each rank calls itself, and what stands in each of its lines since: a node, and a rank if it is one's."""
_MAX_LABELS: Final = 5
TASK: Final = "task "
"""Before the number of an srun task, in the place of the host that it runs on."""
_LABEL_OF_TORCH: Final = re.compile(r"\[rank(?P<rank>\d{1,6})\]:")
OF_TORCHRUN: Final = (
    b"torch/distributed/run.py:", b"torch/distributed/elastic/multiprocessing/api.py:", b"torch.distributed.run:",
    b"torch.distributed.elastic.multiprocessing.api:", b"(first observed failure):", b"[default0]:",
    b"] [workload:",
)  # fmt: skip
"""Its own lines, tables and labels, and no frames of a traceback; NVRx's launcher is one, too, and writes the node's number before them."""


def unlabelled(line: str, style: Style = Style()) -> Labelled:  # noqa: B008 (immutable)
    """Take the labels off a line."""
    rank = local_rank = time = task = ahead = None
    host = said_by = logger = ""
    for _ in range(_MAX_LABELS):
        first = line[:1]
        if first in ("[", "(", "R", "r") and (found := _SURE.match(line)):
            line = line[found.end() :]
            number = (
                found["rank"]
                or found["mpi"]
                or found["named"]
                or found["inner"]
                or found["sagemaker"]
                or found["there"]
            )
            if number:
                rank = int(number) if rank is None else rank
                said_by = said_by or ("mpirun" if found["mpi"] or found["sagemaker"] else "")
                host = host or found["algo"] or found["node"] or ""
            elif found["local"]:
                local_rank, said_by = int(found["local"]), said_by or "torchrun"
            else:
                host, said_by = host or found["pod"], said_by or "kubernetes"
            continue
        if style.quoted and first == ">" and (found := _QUOTE.match(line)):
            line = line[found.end() :]
            continue
        if first == "(" and (not host or names_process(host)) and (found := _WORKER.match(line)):
            line = line[found.end() :]
            if number := found["rank"] or found["tensor"]:
                rank, host = int(number) if rank is None else rank, found["ip"] or ""
            else:
                host, said_by = host or found["worker"], said_by or "ray"
            continue
        if style.rounds and first == "(" and (found := _ROUND.match(line)):
            line, rank = line[found.end() :], int(found["number"]) if rank is None else rank
            continue
        if style.places and first == "[" and rank is None and (found := _PLACE.match(line)):
            line, rank, host = line[found.end() :], int(found["rank"]), host or found["node"]
            continue
        if style.brackets and first == "[" and rank is None and task is None and (found := _BRACKET.match(line)):
            line, rank, said_by = line[found.end() :], int(found["number"]), said_by or "mpirun"
            continue
        if first in (" ", "\t", "|", "s") and (found := _BAR.match(line)):
            line = line[found.end() :]
            continue
        if (first.isdigit() or first == "[") and (found := COLLECTED.match(line)):
            line = line[found.end() :]
            if time is None:
                time, ahead = seconds_of(found), ahead_of(found)
            if found := _KERNEL.match(line):
                line, host = line[found.end() :], host or found["host"]
            elif found := _DETERMINED.match(line):
                line, host = line[found.end() :], host or found["container"]
                rank = int(found["rank"]) if rank is None and found["rank"] else rank
            continue
        if style.numbers and rank is None and task is None and (found := _NUMBER.match(line)):
            line, task, said_by = line[found.end() :], int(found["number"]), said_by or "srun"
            continue
        if style.services and not host and (found := _SERVICE.match(line)):
            line, host = line[found.end() :], found["service"]
            continue
        if not host and (found := (_NODE if style.nodes else _NODE_OF_RANK).match(line)):
            line, host = line[found.end() :], found["node"]
            continue
        if style.pods and not host and (found := _POD.match(line)):
            one = bool(style.container) and found["container"] == style.container
            line, host = line[found.end() if one else found.end("pod") + 1 :], found["pod"]
            continue
        if first.isupper() and (found := SYSLOG.match(line)):
            line, time, host = line[found.end() :], seconds_of(found), host or found["host"]
            continue
        break
    if style.tasks:
        host = host or (f"{TASK}{task}" if style.several and task is not None else "")
    elif rank is None:
        rank = task
    if line[:1] != " " or HEADER in line:
        line, logger, inner = _of_output(line)
        rank = inner if rank is None else rank
    if time is None and line[:2].strip("[")[:1] in tuple("IWEF") and (found := GLOG.match(line)):
        time = seconds_of(found)
    if found := _NCCL.match(line):
        host = host or found["host"]
    if rank is None and (found := _IN_TEXT.search(line, 0, 400)):
        number = found["rank"] or found["pg"] or found["monitored"] or found["workload"]
        named = found["host"] or found["crashed"] or found["node"] or ""
        rank, host = int(number) if number else None, named if host.startswith(TASK) and named else host or named
    return Labelled(line, rank, local_rank, host, time, said_by, logger, ahead)


def _of_output(line: str) -> tuple[str, str, int | None]:
    """Return a line of a program's output without what a logger that tags it, or a line that wasn't ended, has put
    before it; what the logger has; and the rank whose label stands behind that."""
    rank = None
    if line.startswith(HEADER) or not (HEADER in line or 'File "' in line or "[rank" in line or _ROOT_CAUSE in line):
        return line, "", None
    if found := _LOGGED.match(line):
        rank = int(found["rank"]) if found["rank"] else None
        # Behind a rank's label anything may stand: of a message the level tells how it is meant.
        if rank is None or _OF_OUTPUT.match(line, found.end()):
            return line[found.end() :], found["logger"], rank
    elif HEADER in line and (found := _GLUED.search(line)):
        return line[found.end() :], "", int(found["rank"]) if found["rank"] else None
    return line, "", rank


def names_process(host: str) -> bool:
    """Whether what a line has for its host is one process, as Ray labels its own."""
    return "pid=" in host


def rank_of_heading(text: str) -> int | None:
    """The first rank whose error stands below a line, if the line is nothing but the heading of one."""
    found = _HEADING.match(text)
    return int(found["rank"]) if found else None


def unended_before(line: str) -> str:
    """Return the line that wasn't ended before a traceback that begins on it; else nothing."""
    found = _GLUED.search(line) if HEADER in line else None
    return line[: found.start() + 1] if found else ""


def tags_output(logger: str) -> bool:
    """Whether it surely tags whatever a program writes: what it logs as an error may be one that the program has caught."""
    return "INFO" in logger or "stderr" in logger


@lru_cache(256)
def without(logger: str) -> re.Pattern[str]:
    """Make what finds the same logger's prefix before other lines: with another clock, or without its last blank."""
    named = logger.rstrip(" ")
    words = re.sub(r"\d+", r"\\d+", re.escape(named))
    return re.compile(rf"^{words}(?:{logger[len(named) :]}|$)")


def process_of(text: str) -> tuple[str, int] | None:
    """Read host and PID of the process, where NCCL writes them at the start of the line."""
    found = _NCCL.match(text)
    return (found["host"], int(found["pid"])) if found else None


class _Numbers:
    """Numbers at the start of lines, that may be ranks."""

    def __init__(self) -> None:
        self._of: Counter[int] = Counter()
        self._latest = 0
        self._falls = 0
        """How often a number followed a greater one."""

    def add(self, number: int) -> None:
        self._of[number] += 1
        self._falls += number < self._latest
        self._latest = number

    @property
    def several(self) -> bool:
        """Whether there is more than one of them."""
        return len(self._of) > 1

    def begin_at_0(self) -> bool:
        """Whether there are several, one of them 0, and hardly any is missing."""
        return self.several and self._of[0] > 1 and max(self._of) < 2 * len(self._of)

    def are_ranks(self, lines: int, *, mixed: bool = False) -> bool:
        """Whether the numbers of so many lines are ranks. mixed: only if they are in no order; epochs are in theirs."""
        numbers, total = self._of, self._of.total()
        if total < 4 or total * 2 < lines:
            return False
        fall = self._falls * 5 >= len(numbers) > 1
        dense = max(numbers) < 4 * len(numbers) + 4 and (fall or not mixed)
        # Where rank 0 alone reports, the one that fails may have any number.
        of_rank_0 = numbers[0] * 2 > total and total * 10 >= lines * 8
        # Steps and numbered lists come in their order, once; ranks recur in any, and the first to speak may have any number.
        recur = total >= max(4 * len(numbers), lines * 0.9) and fall
        return (dense or of_rank_0 or recur) and max(numbers.values()) > 1


class StyleFinder:
    """The search for the labels that a file has, by samples of its lines."""

    def __init__(self) -> None:
        self._lines = 0
        self._quoted = 0
        self._numbers = _Numbers()
        self.are_tasks = False
        """Behind the numbers stands what only torchrun says, or torch's own label with another one."""
        self._brackets = _Numbers()
        self._rounds = _Numbers()
        self._places = 0
        self._sure_places = False
        self._services: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._sure_nodes: set[str] = set()
        """Behind which stood what only a label stands before."""
        self._pods: Counter[str] = Counter()
        self._containers: Counter[str] = Counter()

    def add(self, line: str) -> None:
        """One line of the file."""
        quoted = _QUOTE.match(line)
        if quoted:
            line = line[quoted.end() :]
        is_timed = False
        for _ in range(2):
            if found := COLLECTED.match(line):
                line, is_timed = line[found.end() :], True
        if not line.strip():
            return
        self._lines += 1
        self._quoted += quoted is not None
        if found := _NUMBER.match(line):
            self._numbers.add(int(found["number"]))
            inner = _LABEL_OF_TORCH.match(line, found.end())
            self.are_tasks |= inner is not None and inner["rank"] != str(int(found["number"]))
            line = line[found.end() :]  # srun's step may start ranks by a launcher that names the node
        elif found := _BRACKET.match(line):
            self._brackets.add(int(found["number"]))
            return
        elif _PLACE.match(line):
            self._places += 1
            self._sure_places |= bool(_SURE_PLACE.match(line))
            return
        elif found := _ROUND.match(line):
            self._rounds.add(int(found["number"]))
            return
        if (found := _SERVICE.match(line)) and len(self._services) < 4096:
            self._services[found["service"]] += 1
        elif (found := _NODE.match(line)) and len(self._nodes) < 4096:
            self._nodes[found["node"]] += 1
            if len(self._sure_nodes) < 64 and _SURE_NODE.match(line):
                self._sure_nodes.add(found["node"])
        elif (found := _POD.match(line)) and len(self._pods) < 4096:
            self._pods[found["pod"]] += 1
            if found["container"] and not is_timed and len(self._containers) < 64:
                self._containers[found["container"]] += 1

    def style(self) -> Style:
        """Tell the labels, as far as the lines so far show."""
        services = self._services.total() >= 4 and self._services.total() * 2 >= self._lines
        numbers = self._numbers.are_ranks(self._lines)
        pods = self._most(self._pods)
        one = pods and len(self._containers) == 1 and self._containers.total() == self._pods.total()
        return Style(
            quoted=self._quoted >= 4 and self._quoted * 10 >= self._lines * 8,
            numbers=numbers,
            tasks=numbers and self.are_tasks,
            several=self._numbers.several,
            places=self._sure_places and self._places >= 4 and self._places * 10 >= self._lines * 8,
            services=services and len(self._services) * 2 < self._services.total(),
            nodes=self._most(self._nodes, self._sure_nodes),
            brackets=self._brackets.are_ranks(self._lines, mixed=True),
            rounds=self._rounds.are_ranks(self._lines) or self._rounds.begin_at_0(),
            pods=pods,
            container=next(iter(self._containers)) if one else "",
        )

    def _most(self, names: Counter[str], sure: Collection[str] = ()) -> bool:
        """Whether nearly all lines begin with one of a few names; with one alone only if that is surely a label."""
        often = [name for name, times in names.items() if times >= 4]
        few = len(often) > 1 or any(name in sure for name in often)
        return few and sum(names[name] for name in often) * 10 >= self._lines * 8


# --- what a collector that nobody knows has put before every line -------------------------------------------------------


_MAX_PREFIX: Final = 80
"""Characters of a prefix."""
_FRAME_BEGINS: Final = '  File "'
_SUMMARY: Final = re.compile(r"(?P<own>\S(?:.*\S)?) {2,}\| *$")
_GREP_PREFIX: Final = re.compile(r"(?P<name>[\w./+@=-]+\.(?:log|txt|out|err|[oe]\d+))[-:](?:\d+[-:])?$")
_PREFIX_ENDS: Final = re.compile(r"[\s\])}>:|#]+")
_NO_PREFIX: Final = re.compile(r"\W*$|E +$|.*\b(?:WARN|WARNING|DEBUG)\b| *\d+\t")
"""Indentation, quotation and comments; pytest's own; a logger's level that says it was caught; a listing by cat -n."""


def prefix_before(header: str, below: str, style: Style, above: str = "") -> re.Pattern[str] | None:
    """Find what stands before the first line of a traceback, and in the same way before its first frame, which is the
    line below: as a pattern, since there may be numbers and clocks in it. None where there is no such thing; nor
    where a summary shows, behind the prefix that the line above has, too, a part of the traceback of which that line
    tells."""
    at = header.find(HEADER)
    if not 0 < at <= _MAX_PREFIX or unlabelled(below, style).text.lstrip().startswith(_FRAME_BEGINS.strip()):
        return None  # It has labels, or is indented.
    ends = [found.end() for found in _PREFIX_ENDS.finditer(header, 0, at)]
    for end in (*ends, at):
        prefix = header[:end]
        if unlabelled(header[end:], style).text.startswith(HEADER) and not _NO_PREFIX.match(prefix):
            if (sums_up := _SUMMARY.match(prefix)) and above.startswith(sums_up["own"]) and "|" not in above:
                return None
            pattern = re.compile(_prefix_pattern(prefix))
            found = pattern.match(below)
            is_frame = found and unlabelled(below[found.end() :], style).text.startswith(_FRAME_BEGINS)
            return pattern if is_frame else None
    return None


def _prefix_pattern(prefix: str) -> str:
    """Make the pattern that matches it with whatever numbers; grep's before a hit, and before the lines around one."""
    if found := _GREP_PREFIX.match(prefix):
        return rf"{re.escape(found['name'])}(?:[-:]\d+[-:]|[-:])"
    return re.sub(r"\d+", r"\\d+", re.escape(prefix))
