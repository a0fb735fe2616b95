"""Labels at the start of a log's lines, by which launchers and collectors tell whose line it is. They may be stacked."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from string import ascii_uppercase
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


_LEVEL: Final = r"(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL)\b"
_QUOTE: Final = re.compile(r">(?: |$)")
_NUMBER: Final = re.compile(r" {0,6}(?P<task>\d{1,6}): ?")
_BRACKET: Final = re.compile(r"\[(?P<rank>\d{1,6})\](?! ?(?:[\w/.]{1,60}:\d+ )?(?:\(\w+\) )?NCCL ) ?")
"""Not NCCL's number of a GPU, before which a paste has cut off the host."""
_ROUND: Final = re.compile(r"\([Rr](?:ANK|ank)[ =:]?[ ]?(?P<rank>\d{1,6})\):? ")
_PLACE: Final = re.compile(r"\[(?P<host>[A-Za-z][\w.-]{0,252}):(?P<rank>\d{1,6})\]:")
_SERVICE: Final = re.compile(rf"(?!{_LEVEL})(?P<host>[A-Za-z][\w.-]{{0,80}}) +\| ?")
_NODE: Final = re.compile(r"(?P<host>[A-Za-z][\w-]{0,60}(?:\.[\w-]{1,60}){0,6}|\d{1,3}(?:\.\d{1,3}){3}): ")
_POD: Final = re.compile(
    r"(?!(?:epoch|step|iter|iteration|batch|fold|gpu|phase|stage|trial)-)(?P<host>[a-z][a-z0-9.-]{0,252}-[a-z0-9]{0,20}\d[a-z0-9]{0,20}) "
)
_CONTAINER: Final = re.compile(r"[a-z][a-z0-9-]{0,62} ")
_SURELY_BEHIND: Final = re.compile(
    rf'Traceback \(most recent call last\)|  File "[^"]+", line \d|\[rank\d|(?=\[){COLLECTED.pattern}\['
)
"""What a program begins a line with, and no message: before it stands a label."""


class _Label(NamedTuple):
    """A label, whose groups are named by what it tells.

    begins: characters with one of which it begins; "" for any. style: the kind that the file must have, for it to count.
    unless: what no label before it may have told.
    """

    begins: str
    pattern: str
    said_by: str = ""
    style: str = ""
    unless: tuple[str, ...] = ()


_LABELS: Final = (
    # Behind the clock stand the host of journalctl -o short-iso, or Determined AI's container.
    _Label(
        "[0123456789",
        COLLECTED.pattern + r"(?:(?P<host>[A-Za-z0-9][\w.-]*(?= kernel: )|[0-9a-f]{8}(?= (?:\[rank=\d{1,6}\] )?\|\|(?: |$))) (?:(?:\[rank=(?P<rank>\d{1,6})\] )?\|\|(?: |$))?)?",
    ),
    _Label("[", r"\[rank(?P<rank>\d{1,6})\]: ?"),
    _Label("[", r"\[(?P<host>[\w.-]{1,253}):rank(?P<rank>\d{1,6})\]:? ?"),
    _Label("[", r"\[[A-Za-z][\w-]{0,40}?(?P<local_rank>\d{1,4})\]:", "torchrun"),
    _Label("[", r"\[(?:[\w.@-]*[,@])?\d+,(?P<rank>\d{1,6})\]<(?:stderr|stdout|stddiag)>:(?: (?=\S))?", "mpirun"),
    _Label("[", r"\[\d+,mpirank:(?P<rank>\d{1,6}),(?P<host>[\w-]{1,80})\]<(?:stderr|stdout)>:", "mpirun"),
    _Label("[", r"\[pod/(?P<host>[^\]/\s]{1,253})(?:/[^\]\s]{1,253})?\] ?", "kubernetes"),
    _Label("Rr", r"[Rr](?:ANK|ank)[ =](?P<rank>\d{1,6}) ?[|:] "),
    _Label("[", r"\[[Rr](?:ANK|ank)[ =:]? ?(?P<rank>\d{1,6})\]:? "),
    _Label(">", _QUOTE.pattern, style="quoted"),
    # vLLM counts its workers, in all or by the part of each layer that they hold, where nothing else is shared out; of Ray's nobody tells the rank.
    _Label("(", r"\((?P<worker>Worker_TP(?!\w* rank=)|[A-Za-z_][\w.:-]{0,80} rank=)(?P<rank>\d{1,6})(?:_EP\d{1,4})? pid=\d{1,9}(?:, ip=(?P<host>[\w.:\[\]]{2,60}))?\) ?", unless=("host",)),
    _Label("(", r"\((?P<process>(?:[A-Za-z_][\w.:-]{0,80}(?:\([^()\s]{0,80}\))? )?pid=\d{1,9}(?:, ip=[\w.:\[\]]{2,60})?)\) ?", "ray", unless=("host",)),
    _Label("(", _ROUND.pattern, style="rounds"),
    _Label("[", _PLACE.pattern, style="places", unless=("rank",)),
    _Label("[", _BRACKET.pattern, "mpirun", style="brackets", unless=("rank", "task")),
    # What a program puts before the lines of the processes whose output it shows, and who quotes one in Markdown; a bar alone is an exception group's.
    _Label(" \t|s`", r"[ \t]{0,99}\| (?=\[rank\d|\[[A-Za-z]\w{0,40}\d\]:|[IWEF]\d{4} )|(?:stderr|stdout)(?:: | [FP] )|`{1,9}(?=\[rank\d)"),
    _Label("", _NUMBER.pattern, "srun", style="numbers", unless=("rank", "task")),
    _Label("", _SERVICE.pattern, style="services", unless=("host", "process")),
    # Behind it stands torch's own label: no text begins so.
    _Label("", rf"(?!{_LEVEL}){_NODE.pattern}(?=\[rank\d{{1,6}}\]:)", unless=("host", "process")),
    _Label("", _NODE.pattern, style="nodes", unless=("host", "process")),
    _Label("", _POD.pattern, style="pods", unless=("host", "process")),
    _Label(ascii_uppercase, SYSLOG.pattern),
)  # fmt: skip


@lru_cache(256)
def _labels(style: Style) -> dict[str, list[tuple[re.Pattern[str], _Label]]]:
    """List the labels of a file of that style by the character that a line goes on with; "" is any other one."""
    container = rf"(?:{re.escape(style.container)} )?" if style.container else ""
    labels = [
        (re.compile(label.pattern + (container if label.style == "pods" else "")), label)
        for label in _LABELS
        if not label.style or getattr(style, label.style)
    ]
    return {
        first: [(pattern, label) for pattern, label in labels if not label.begins or (first and first in label.begins)]
        for first in {"", *"".join(label.begins for _, label in labels)}
    }


_HEADING: Final = re.compile(
    rf"(?:\[Rank |{re.escape(HEADER)}: \(RANK )(?P<rank>\d{{1,6}})(?:(?:, \d{{1,6}}){{0,4096}}\]:?|\))\s*$"
)
"""Ray Train's, above the error of a worker, or of several that are alike; and the first line of what torch.distributed.checkpoint shows of another
rank's."""
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
_IN_TEXT: Final = re.compile(
    r"\[(?:Rank[ :]|PG [^\]]* Rank |RankMon(?:itor)?Server(?:\d+@(?P<host>[\w.-]{1,253}))?:)(?P<rank>\d{1,6})\]"
    r"|\[(?P<node>[\w.-]{1,253})(?::\d{1,10} *(?::\d{1,10}){1,2}\] *Caught signal \d|\] \[workload:(?:(?P<workload>\d{1,6})|\?)\()"
)
"""torch's watchdog and Habana's libraries; NVRx's monitor of each rank; UCX's handler of signals, which may write into another's line; and what
stands in each of NVRx's lines since: a node, and a rank if it is one's."""
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
    told: dict[str, str] = {}
    time = ahead = None
    said_by = ""
    labels = _labels(style)
    for _ in range(_MAX_LABELS):
        for pattern, label in labels.get(line[:1]) or labels[""]:
            if told.keys().isdisjoint(label.unless) and (found := pattern.match(line)):
                line, said_by, words = line[found.end() :], said_by or label.said_by, found.groupdict()
                if time is None and "clock" in words:
                    time, ahead = seconds_of(found), ahead_of(found) if "zone" in words else None
                for name, word in words.items():
                    if word:
                        told.setdefault(name, word)
                break
        else:
            break
    process = "" if "worker" in told else told.get("process", "")
    host = told.get("host") or process
    number = told.get("rank") or (None if style.tasks else told.get("task"))
    if style.several and style.tasks and "task" in told:
        host = host or f"{TASK}{int(told['task'])}"
    rank = int(number) if number else None
    local_rank = int(told["local_rank"]) if "local_rank" in told else None
    logger = ""
    if line[:1] != " " or HEADER in line:
        line, logger, inner = _of_output(line)
        rank = inner if rank is None else rank
    if time is None and line[:2].strip("[")[:1] in tuple("IWEF") and (found := GLOG.match(line)):
        time = seconds_of(found)
    if found := _NCCL.match(line):
        host = host or found["host"]
    if rank is None and (found := _IN_TEXT.search(line, 0, 400)):
        number, named = found["rank"] or found["workload"], found["host"] or found["node"] or ""
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


_NAMES: Final = {"places": _PLACE, "services": _SERVICE, "nodes": _NODE, "pods": _POD}
"""Kinds of labels that name hosts."""


class StyleFinder:
    """The search for the labels that a file has, by samples of its lines."""

    def __init__(self) -> None:
        self._lines = 0
        self._quoted = 0
        self._numbers = {"numbers": _Numbers(), "brackets": _Numbers(), "rounds": _Numbers()}
        self.are_tasks = False
        """Behind the numbers stands what only torchrun says, or torch's own label with another one."""
        self._names: dict[str, Counter[str]] = {kind: Counter() for kind in (*_NAMES, "containers")}
        self._sure: set[str] = set()
        """Names behind which stood what only a label stands before."""

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
            self._numbers["numbers"].add(int(found["task"]))
            inner = _LABEL_OF_TORCH.match(line, found.end())
            self.are_tasks |= inner is not None and inner["rank"] != str(int(found["task"]))
            line = line[found.end() :]  # srun's step may start ranks by a launcher that names the node
        for kind, pattern in (("brackets", _BRACKET), ("rounds", _ROUND)):
            if found := pattern.match(line):
                self._numbers[kind].add(int(found["rank"]))
                return
        for kind, pattern in _NAMES.items():
            if (found := pattern.match(line)) and len(self._names[kind]) < 4096:
                self._names[kind][found["host"]] += 1
                if len(self._sure) < 64 and not re.match(_LEVEL, line) and _SURELY_BEHIND.match(line, found.end()):
                    self._sure.add(found["host"])
                if kind == "pods" and not is_timed and (container := _CONTAINER.match(line, found.end())):
                    self._names["containers"][container[0][:-1]] += 1
                return

    def style(self) -> Style:
        """Tell the labels, as far as the lines so far show."""
        services, containers = self._names["services"], self._names["containers"]
        numbers = self._numbers["numbers"].are_ranks(self._lines)
        pods = self._most("pods")
        one = pods and len(containers) == 1 and containers.total() == self._names["pods"].total()
        return Style(
            quoted=self._quoted >= 4 and self._quoted * 10 >= self._lines * 8,
            numbers=numbers,
            tasks=numbers and self.are_tasks,
            several=self._numbers["numbers"].several,
            places=self._most("places") and not self._sure.isdisjoint(self._names["places"]),
            services=services.total() >= max(4, self._lines / 2, len(services) * 2 + 1),
            nodes=self._most("nodes"),
            brackets=self._numbers["brackets"].are_ranks(self._lines, mixed=True),
            rounds=self._numbers["rounds"].are_ranks(self._lines) or self._numbers["rounds"].begin_at_0(),
            pods=pods,
            container=next(iter(containers)) if one else "",
        )

    def _most(self, kind: str) -> bool:
        """Whether nearly all lines begin with one of a few names; with one alone only if that is surely a label."""
        names = self._names[kind]
        often = [name for name, times in names.items() if times >= 4]
        few = len(often) > 1 or not self._sure.isdisjoint(often)
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
