"""How the parts of a judged log are worded: its lines and places, who failed first, of what, and how a process ended."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import capital, clip_middle, one_line, ranks_named, signal_name, without_capital
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogFile, LogFrame, LoggedException, LogLine, Noise, ProcessExit
from ddpdoctor.knowledge.frameworks import is_of_framework
from ddpdoctor.logs.analyze.false_positives import good_news
from ddpdoctor.logs.analyze.related_lines import more_of
from ddpdoctor.logs.analyze.script_errors import said_of
from ddpdoctor.logs.analyze.sightings import phase_within, where
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, LogJudgement
from ddpdoctor.logs.exceptions import is_cut, short_name, with_slashes

MAX_TEXT: Final = 300
"""Characters of a log's line that are shown."""
MAX_FRAMES: Final = 4
_WORD: Final = re.compile(r"[A-Z][a-z']*(?: |$)")
_NAME: Final = re.compile(
    r"(?:Accelerate|Apex|Docker|Horovod|Hydra|Kubernetes|Lightning|Linux|Podman|Python|Slurm|Weights)\b"
)


def quoted(text: str) -> str:
    """Words of a log as they may be shown: on one line, without what steers a terminal, or a middle that nobody would read."""
    return clip_middle(one_line(text), MAX_TEXT)


def within(summary: str) -> str:
    """Put a text within a sentence; names and abbreviations stay as they are."""
    return without_capital(summary) if _WORD.match(summary) and not _NAME.match(summary) else summary


def clock(time: float) -> str:
    """The log's own clock: 1700000000.5 is "22:13:20"."""
    seconds = int(time) % 86400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def place(log: Log, line: LogLine) -> str:
    """ "run.log:412"; with several files of one folder its name within that."""
    return one_line(where(log, msgspec.structs.replace(line, rank=None, host="")))


def file_name(file: LogFile) -> str:
    """Name a file as a person calls it."""
    return "standard input" if file.name == "-" else one_line(file.name)


def unread(log: Log) -> list[str]:
    """A sentence on each file that could not be read, or not whole."""
    return [f"{file_name(file)}: {one_line(file.problem)}" for file in log.files if file.problem]


def named(opinion: Diagnosis) -> str:
    """Word what is wrong, without who said so."""
    title = opinion.check.title.removesuffix(".")
    summary = opinion.finding.summary
    return title if summary.startswith(f"{title}, says ") else summary


# --- the first failure ------------------------------------------------------------------------------------------------------


def first_rank_and_host(verdict: LogVerdict) -> tuple[int | None, str]:
    """Of the one that failed first: by its line, else by its launcher's word."""
    of_line = (verdict.lead.rank, verdict.lead.host) if verdict.lead else (None, "")
    if verdict.exited is None:
        return of_line
    rank, host = of_line
    return verdict.exited.rank if rank is None else rank, host or verdict.exited.host


def who_first(log: Log, verdict: LogVerdict) -> str:
    """ "Rank 3 on node7 failed first, at 02:13:07", "Ranks 0-7 failed alike"; where no label tells who, the place in the log."""
    lead, exited = verdict.lead, verdict.exited
    if lead is None:
        return "It failed"
    rank, host = first_rank_and_host(verdict)
    on = f" on {one_line(host)}" if host else ""
    at = f", at {clock(lead.time + log.ahead)}" if lead.time is not None and not lead.lent else ""
    if many := _failed_alike(verdict):
        on = on if _all_there(log, verdict, host) else ""
        return f"{many}{on} {'tell of it' if verdict.notices else 'failed'} alike{at}"
    if rank is not None:
        return f"Rank {rank}{on} {'tells of it' if verdict.notices else 'failed'} first{at}"
    at = at or f" ({place(log, lead)})"
    local = exited.local_rank if exited and exited.local_rank is not None else lead.local_rank
    if local is not None:
        return f"Local rank {local}{on} failed first{at}"
    is_last = log.ended and verdict.elsewhere and verdict.elsewhere[-1].attempt < verdict.attempt
    return f"The last run failed{on}{at}" if is_last else f"The first failure{on}{at}"


def _failed_alike(verdict: LogVerdict) -> str:
    """ "Ranks 0-7", "All 4 ranks"; "" where one failed first, as far as is known."""
    if verdict.alike or not verdict.all_alike:
        return capital(ranks_named(verdict.alike)) if verdict.alike else ""
    return "Both ranks" if verdict.all_alike == 2 else f"All {verdict.all_alike} ranks"


def _all_there(log: Log, verdict: LogVerdict, host: str) -> bool:
    """Whether all who failed alike are on that host: each of them is said to be, or the log knows of no other one."""
    said = {(raised.line.rank, raised.line.host) for raised in log.raised}
    said |= {(ended.rank, ended.host) for ended in log.exited}
    there = {rank for rank, named in said if named == host}
    others = {*log.hosts, *(named for _, named in said)} - {host, ""}
    return not others or (bool(verdict.alike) and there.issuperset(verdict.alike))


def first_words(verdict: LogVerdict) -> str:
    """Quote the lead itself."""
    if verdict.raised and is_cut(verdict.raised):
        return "; ".join(["the log breaks off within a traceback", *last_calls(verdict.raised)[-1:]])
    if verdict.raised:
        return quoted(exception_line(verdict.raised))
    if verdict.exited and verdict.lead == verdict.exited.line:
        return how_it_ended(verdict.exited)
    return quoted(verdict.lead.text) if verdict.lead else ""


def more(judgement: LogJudgement) -> tuple[LogLine, ...]:
    """Find the lines beside an error that no sign knows that say more of it."""
    verdict = judgement.verdict
    if verdict.outcome is not RunOutcome.UNRECOGNISED or verdict.exited:
        return ()
    return more_of(verdict.lead, verdict.raised, judgement.log)


def exception_line(raised: LoggedException) -> str:
    """ "KeyError: 'lr'", as Python prints it; of an assertion that says nothing what it asserts."""
    return f"{raised.exception.removesuffix(short_name(raised.exception))}{said_of(raised)}"


def last_calls(raised: LoggedException) -> list[str]:
    """Its own innermost call, what the framework was at, and the last calls, each as "train.py:41 in main: loss.backward()". Of a
    framework's own loop none is shown but the innermost."""
    own, outer = raised.own, raised.frames[:-1]
    telling = [frame for frame in outer if frame is own or not is_of_framework(with_slashes(frame.path))]
    frames = [*telling, *raised.frames[-1:]][-MAX_FRAMES:]
    if own and own not in frames:
        frames = [own, *frames]
    calls = [_call(frame) for frame in frames]
    if phase := phase_within(raised.frames):
        calls.insert(frames.index(own) + 1 if own else 0, f"... {phase}")
    return [quoted(call) for call in calls]


def _call(frame: LogFrame) -> str:
    function = f" in {frame.function}" if frame.function else ""
    return f"{frame.path}:{frame.line}{function}: {frame.code}".removesuffix(": ")


def how_it_ended(exited: ProcessExit, *alike: ProcessExit) -> str:
    """ "torchrun says that local rank 3 (pid 26026) was killed by SIGKILL". alike: those of which the same line says the same."""
    code = exited.exit_code
    if code is None:
        how = "ended"
    elif code < 0 or 128 < code < 160:
        how = f"{'were' if alike else 'was'} killed by {signal_name(code if code < 0 else code - 128)}"
    else:
        how = f"ended with exit code {code}"
    error = f": {quoted(exited.error)}" if exited.error else ""
    return f"{one_line(exited.said_by)} says that {_who_ended(exited, *alike)} {how}{error}"


def _who_ended(exited: ProcessExit, *alike: ProcessExit) -> str:
    if alike:
        return ranks_named(ended.rank for ended in (exited, *alike) if ended.rank is not None)
    pid = f"pid {exited.pid}" if exited.pid is not None else ""
    if exited.rank is None and exited.local_rank is None:
        return pid or "a process"
    who = f"rank {exited.rank}" if exited.rank is not None else f"local rank {exited.local_rank}"
    return f"{who} ({pid})" if pid else who


# --- what is no cause -------------------------------------------------------------------------------------------------------


def own_errors(verdict: LogVerdict) -> list[tuple[str, LogLine]]:
    """ "Rank 3 raised its own: IndexError: list index out of range", with the line; not of ranks that were all interrupted."""
    others = verdict.others if verdict.outcome is not RunOutcome.STOPPED else ()
    return [
        (f"Rank {raised.line.rank} raised its own: {quoted(exception_line(raised))}", raised.line) for raised in others
    ]


def noise(log: Log, catalogue: Catalogue) -> list[Noise]:
    """Messages that healthy runs print, too, the most frequent first: the engine's own, and illnesses' noise."""
    known = [seen for seen in log.sightings if seen.role is SignRole.NOISE and seen.sign not in good_news(catalogue)]
    kinds = grouped((seen for seen in known if not seen.quoted), lambda seen: (seen.slug, seen.sign))
    signs = [
        Noise(text, _why(catalogue, slug, text), sum(match.times for match in seen), seen[0].line)
        for (slug, text), seen in kinds.items()
    ]
    return sorted([*log.noise, *signs], key=lambda message: -message.times)


def _why(catalogue: Catalogue, slug: str, text: str) -> str:
    known = catalogue.get(slug)
    signs = catalogue.signs_of(known) if known else ()
    return next((sign.why for sign in signs if sign.text == text and sign.role is SignRole.NOISE), "")
