"""The words of `diagnose-log`: who failed first, what only followed, what is harmless, what could not be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import (
    capital,
    clip,
    clip_middle,
    human,
    listed,
    one_line,
    plural,
    ranks_named,
    signal_name,
    without_capital,
)
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogFile, LogFrame, LoggedException, LogLine, Noise, ProcessExit, SignMatch
from ddpdoctor.knowledge.frameworks import is_of_framework
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import endings
from ddpdoctor.logs.analyze.false_positives import good_news
from ddpdoctor.logs.analyze.related_lines import more_of
from ddpdoctor.logs.analyze.script_errors import module_missing, server_unreached
from ddpdoctor.logs.analyze.sightings import common_folder, phase_within, stack_lines, where
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, HostVerdict, LogJudgement
from ddpdoctor.logs.exceptions import is_cut, is_of_launcher, is_of_peers, short_name, with_slashes
from ddpdoctor.logs.launch_failures import gives_up

MAX_TEXT: Final = 300
"""Characters of a log's line that are shown."""
MAX_FILES: Final = 3
MAX_FRAMES: Final = 4
MAX_ENDS: Final = 2
_WORD: Final = re.compile(r"[A-Z][a-z']*(?: |$)")
_NAME: Final = re.compile(
    r"(?:Accelerate|Apex|Docker|Horovod|Hydra|Kubernetes|Lightning|Linux|Podman|Python|Slurm|Weights)\b"
)
_HOW: Final = {
    RunOutcome.EFFECTS_ONLY: "only what followed is told",
    RunOutcome.STOPPED: "it was ended from outside",
}
NOT_IN_A_LOG: Final = (
    "A log says nothing of a job that hangs (ddpdoctor jobs --hang looks at one that runs), nor of what a process that was killed "
    "could not say any more, and nothing that was written elsewhere"
)


def quoted(text: str) -> str:
    """Words of a log as they may be shown: on one line, without what steers a terminal, or a middle that nobody would read."""
    return clip_middle(one_line(text), MAX_TEXT)


def clock(time: float) -> str:
    """The log's own clock: 1700000000.5 is "22:13:20"."""
    seconds = int(time) % 86400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


# --- the first line ---------------------------------------------------------------------------------------------------------


def judged_as(judgement: LogJudgement) -> Verdict:
    """Never well where something could not be read to its end."""
    unread_part = bool(unread(judgement.log))
    return judgement.word if judgement.word is Verdict.FAIL or not unread_part else Verdict.UNKNOWN


def blamed(judgement: LogJudgement) -> Diagnosis | None:
    """The likeliest, where the log tells more than what followed."""
    followed_only = judgement.verdict.outcome is RunOutcome.EFFECTS_ONLY
    return judgement.opinions[0] if judgement.opinions and not followed_only else None


def headline(judgement: LogJudgement) -> str:
    """The whole in a sentence."""
    here = one_line(judgement.examination.snapshot.host) or "this host"
    return f"{_told(judgement)}{_of_attempts(judgement)}{f'; but the facts of {here} contradict it' if is_contradicted(judgement) else ''}"


def is_contradicted(judgement: LogJudgement) -> bool:
    """Whether the facts of a host speak against every suspicion: what they contradict comes last."""
    first = judgement.opinions[0].held if judgement.opinions else None
    return first is not None and first.standing is HostVerdict.CONTRADICTED


def _told(judgement: LogJudgement) -> str:
    log, verdict = judgement.log, judgement.verdict
    if judgement.stops_without_a_word:
        return f"{nothing(log)}, but it stops before what good runs go on with{_first_new(judgement)}"
    if verdict.outcome is RunOutcome.NOTHING:
        return f"{_last_went_on(verdict) or nothing(log)}{_survived(log, verdict)}"
    if verdict.outcome is RunOutcome.EFFECTS_ONLY:
        said = "This log tells" if len(log.files) == 1 else "These logs tell"
        told = f"{said} what followed, and not what failed first"
        if verdict.silent:
            told = f"{capital(ranks_named(verdict.silent))} {_how_silent(log, verdict, judgement.catalogue)}"
        fits = judgement.opinions[0] if judgement.opinions else None
        told = f"{told}; perhaps: {_within(named(fits))}" if fits else told
        return (
            f"{told}; before that it says: {clip(quoted(verdict.said[0].text))}"
            if verdict.said
            else f"{told}{_first_new(judgement)}"
        )
    if verdict.outcome is RunOutcome.UNRECOGNISED:
        adds = "".join(
            f"; it adds: {clip(quoted(log_line.text))}"
            for log_line in more(judgement)[:1]
            if not gives_up(log_line.text)
        )
        if verdict.raised and is_cut(verdict.raised) and verdict.said:
            adds = f"; before that it says: {clip(quoted(verdict.said[-1].text))}"
        return f"{who_first(log, verdict)}: {clip(first_words(verdict))}{adds}; no sign that is known here says why"
    if verdict.outcome is RunOutcome.USER_ERROR and verdict.raised:
        perhaps = "" if all(opinion.suspect.sure for opinion in judgement.opinions[:1]) else "perhaps "
        words = clip(first_words(verdict))
        kind = (
            "at a server that can't be reached"
            if server_unreached(verdict.raised)
            else "of an ordinary error in the script"
        )
        return f"{who_first(log, verdict)}, {perhaps}{kind}: {words}"
    first = blamed(judgement)
    summary = named(first) if first else first_words(verdict)
    doubt = doubtful(judgement)
    if verdict.ended_well:
        return f"Nothing says that the run failed{f'; {doubt}' if doubt else ', and yet'}: {_within(summary)}"
    if doubt:
        return f"{who_first(log, verdict)}; {doubt}: {_within(summary)}"
    if verdict.outcome is RunOutcome.STOPPED or verdict.lead is None:
        return summary
    new = _first_new(judgement) if verdict.outcome is RunOutcome.USER_ERROR and judgement.new_before_it else ""
    return f"{who_first(log, verdict)}: {_within(summary)}{new}"


def _first_new(judgement: LogJudgement) -> str:
    """ "; new in this run: lane 3 is degraded"."""
    found = judgement.comparison.new_errors if judgement.comparison else ()
    return f"; new in this run: {clip(quoted(found[0].text))}" if found else ""


def doubtful(judgement: LogJudgement) -> str:
    """ "perhaps", "most likely", where neither the log nor a host's facts prove what the first suspicion says; else ""."""
    first = blamed(judgement)
    if (
        judgement.verdict.outcome is not RunOutcome.ILLNESS
        or first is None
        or first.suspect.sure
        or _is_confirmed(first)
    ):
        return ""
    return "most likely" if len(judgement.opinions) > 1 else "perhaps"


def _is_confirmed(opinion: Diagnosis) -> bool:
    return opinion.held is not None and opinion.held.standing is HostVerdict.CONFIRMED


def title(judgement: LogJudgement, first: Diagnosis) -> str:
    """The first suspicion's own line, no surer than the headline."""
    doubt = doubtful(judgement)
    return f"{capital(doubt)}: {_within(named(first))}" if doubt else named(first)


def named(opinion: Diagnosis) -> str:
    """Word what is wrong, without who said so."""
    title = opinion.check.title.removesuffix(".")
    summary = opinion.finding.summary
    return title if summary.startswith(f"{title}, says ") else summary


def nothing(log: Log) -> str:
    """That nothing was found, which is not to say that all is well."""
    if any(file.problem for file in log.files):
        return "What could be read speaks of no failure"
    return f"Nothing in {'this log' if len(log.files) == 1 else 'these logs'} speaks of a failure"


def _how_silent(log: Log, verdict: LogVerdict, catalogue: Catalogue) -> str:
    """A rank of which there is not a word has not fallen silent; where the others counted who came, it never did."""
    if any(last_words.rank in verdict.silent for last_words in log.last):
        return "fell silent, and the others tell only what followed"
    one_rank = len(verdict.silent) == 1
    counted = any(effect.words.get("came") for effect in verdict.effects)
    if counted and {effect.slug for effect in verdict.effects} == {catalogue.slug_for(LogTopic.MISSING_NODE)}:
        return f"never came, and the others waited for {'it' if one_rank else 'them'} in vain"
    return f"{'says' if one_rank else 'say'} nothing at all, and the others tell only what followed"


def _last_went_on(verdict: LogVerdict) -> str:
    """Say of several attempts that the last one did not fail; "" where there was but one."""
    failed = sum(log_verdict.outcome is not RunOutcome.NOTHING for log_verdict in verdict.elsewhere)
    before = f"; before it {'one' if failed == 1 else failed} failed" if failed else ""
    return (
        f"The last of {len(verdict.elsewhere) + 1} attempts speaks of no failure{before}" if verdict.elsewhere else ""
    )


def _of_attempts(judgement: LogJudgement) -> str:
    """ "; that was the last of 3 attempts"."""
    verdict = judgement.verdict
    if not verdict.elsewhere or verdict.outcome is RunOutcome.NOTHING:
        return ""
    count = len(verdict.elsewhere) + 1
    if all(log_verdict.attempt < verdict.attempt for log_verdict in verdict.elsewhere):
        return f"; that was the last of {count} attempts"
    first = all(log_verdict.attempt > verdict.attempt for log_verdict in verdict.elsewhere)
    which = f"the first of {count} attempts" if first else f"attempt {verdict.attempt}, from 0, of {count}"
    return f"; that was {which}, and those behind it name no cause"


def other_attempts(judgement: LogJudgement) -> list[tuple[str, LogLine | None]]:
    """ "Attempt 0: rank 3 failed first: KeyError: 'lr'", with the line."""
    found: list[tuple[str, LogLine | None]] = []
    for log_verdict in judgement.verdict.elsewhere:
        words = "nothing speaks of a failure"
        if log_verdict.lead:
            who = _HOW.get(log_verdict.outcome) or _within(who_first(judgement.log, log_verdict))
            words = f"{who}: {clip(first_words(log_verdict))}"
        found.append((f"Attempt {log_verdict.attempt}: {words}", log_verdict.lead))
    return found


def _survived(log: Log, verdict: LogVerdict) -> str:
    """ "; one line speaks of an error, and the run went on: run.log:17"."""
    some = verdict.survived
    if not some:
        return ""
    many = (
        "one line speaks of an error, and the run went on"
        if len(some) == 1
        else "errors are spoken of, and the run went on"
    )
    return f"; {many}: {listed([place(log, line) for line in some], 3)}"


def who_first(log: Log, verdict: LogVerdict) -> str:
    """ "Rank 3 on node7 failed first, at 02:13:07"; where no label tells who, the place in the log."""
    lead, exited = verdict.lead, verdict.exited
    if lead is None:
        return "It failed"
    rank = exited.rank if lead.rank is None and exited else lead.rank
    host = lead.host or (exited.host if exited else "")
    on = f" on {one_line(host)}" if host else ""
    at = f", at {clock(lead.time + log.ahead)}" if lead.time is not None and not lead.lent else ""
    if rank is None:
        local = exited.local_rank if exited and exited.local_rank is not None else lead.local_rank
        who = "The first failure" if local is None else f"Local rank {local}"
        failed = "" if local is None else " failed first"
        return f"{who}{on}{failed}{at or f' ({place(log, lead)})'}"
    return f"Rank {rank}{on} failed first{at}"


def first_words(verdict: LogVerdict) -> str:
    """Quote the lead itself."""
    if verdict.raised and is_cut(verdict.raised):
        return "; ".join(["the log breaks off within a traceback", *last_calls(verdict.raised)[-1:]])
    if verdict.raised:
        return quoted(f"{verdict.raised.exception}: {verdict.raised.message}".removesuffix(": "))
    if verdict.exited and verdict.lead == verdict.exited.line:
        return how_it_ended(verdict.exited)
    return quoted(verdict.lead.text) if verdict.lead else ""


def more(judgement: LogJudgement) -> tuple[LogLine, ...]:
    """Find the lines beside an error that no sign knows that say more of it."""
    verdict = judgement.verdict
    return (
        more_of(verdict.lead, verdict.raised, judgement.log)
        if verdict.outcome is RunOutcome.UNRECOGNISED and verdict.exited is None
        else ()
    )


def _within(summary: str) -> str:
    """Put a text within a sentence; names and abbreviations stay as they are."""
    return without_capital(summary) if _WORD.match(summary) and not _NAME.match(summary) else summary


def place(log: Log, line: LogLine) -> str:
    """ "run.log:412"; with several files of one folder its name within that."""
    return one_line(where(log, msgspec.structs.replace(line, rank=None, host="")))


# --- what was read ----------------------------------------------------------------------------------------------------------


def rows(log: Log) -> list[tuple[str, str]]:
    """(label, text): which files, and what they tell of the run."""
    found = [("log" if len(log.files) == 1 else "logs", name_files(log.files))]
    found += [("", one_line(note)) for note in log.notes]
    run = []
    if log.launcher:
        run.append(log.launcher)
    size = log.world_size or len(log.ranks)
    if size:
        silent = log.world_size and len(log.ranks) < log.world_size and log.ranks
        seen = "" if log.world_size else " named in it"
        run.append(plural(size, "rank") + (f", of which {len(log.ranks)} speak" if silent else seen))
    if log.hosts:
        run.append(listed(map(one_line, log.hosts), 4))
    found.append(("run", ", ".join(run)))
    return [(label, text) for label, text in found if text]


def name_files(files: Sequence[LogFile]) -> str:
    """Say in a line which files were read: names, sizes, lines."""
    read = [file for file in files if file.bytes]
    size = human(sum(log_file.bytes for log_file in read))
    lines = sum(log_file.lines for log_file in read)
    folder = common_folder(tuple(files))
    within = [log_file for log_file in read if folder and log_file.name.startswith(folder)]
    names = listed(
        [
            *(file_name(log_file) for log_file in read if log_file not in within),
            *([f"{plural(len(within), 'file')} in {one_line(folder)}"] if within else []),
        ],
        MAX_FILES,
    )
    return f"{names} ({size}, {lines:,} {'line' if lines == 1 else 'lines'})" if read else "nothing"


def file_name(file: LogFile) -> str:
    """Name a file as a person calls it."""
    return "standard input" if file.name == "-" else one_line(file.name)


def unread(log: Log) -> list[str]:
    """A sentence on each file that could not be read, or not whole."""
    return [f"{file_name(file)}: {one_line(file.problem)}" for file in log.files if file.problem]


def only_counted(log: Log) -> str:
    """On what was left out to keep the memory constant; "" where nothing was."""
    return (
        f"{plural(log.more, 'further message')} of the kinds that are told here were only counted" if log.more else ""
    )


# --- the first failure ------------------------------------------------------------------------------------------------------


def last_calls(raised: LoggedException) -> list[str]:
    """Its own innermost call, what the framework was at, and the last calls, each as "train.py:41 in main: loss.backward()". Of a
    framework's own loop none is shown but the innermost."""
    telling = [
        frame for frame in raised.frames[:-1] if frame is raised.own or not is_of_framework(with_slashes(frame.path))
    ]
    frames = [*telling, *raised.frames[-1:]][-MAX_FRAMES:]
    if raised.own and raised.own not in frames:
        frames = [raised.own, *frames]
    found = [_shown(frame) for frame in frames]
    phase = phase_within(raised.frames)
    if phase:
        found.insert(found.index(_shown(raised.own)) + 1 if raised.own else 0, f"... {phase}")
    return [quoted(call) for call in found]


def stacks(judgement: LogJudgement) -> list[tuple[str, Evidence]]:
    """Why a process's stack was written, and where it stood; those that the findings show are left out, and of the same places one is told."""
    log = judgement.log
    shown = {evidence for opinion in judgement.opinions for evidence in opinion.finding.evidence}
    found: dict[str, tuple[str, Evidence]] = {}
    for stack in log.stacks:
        (evidence,) = stack_lines(log, stack)
        if evidence not in shown and stack.frames:
            found.setdefault(f"{stack.line.rank} {evidence.text}", (quoted(stack.reason), evidence))
    return list(found.values())


def _shown(frame: LogFrame) -> str:
    within = f" in {frame.function}" if frame.function else ""
    return f"{frame.path}:{frame.line}{within}: {frame.code}".removesuffix(": ")


def own_errors(verdict: LogVerdict) -> list[tuple[str, LogLine]]:
    """ "Rank 3 raised its own: IndexError: list index out of range", with the line; not of ranks that were all interrupted."""
    found = []
    for raised in verdict.others if verdict.outcome is not RunOutcome.STOPPED else ():
        said = quoted(f"{raised.exception}: {raised.message}".removesuffix(": "))
        found.append((f"Rank {raised.line.rank} raised its own: {said}", raised.line))
    return found


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
    return f"{one_line(exited.said_by)} says {_who_ended(exited, *alike)} {how}{error}"


def ended_before(judgement: LogJudgement) -> list[list[ProcessExit]]:
    """List processes that ended by themselves, where only what followed is known; together those of one line."""
    verdict = judgement.verdict
    if verdict.outcome is not RunOutcome.EFFECTS_ONLY or verdict.exited:
        return []
    whole = judgement.examination.snapshot.log
    log = judgement.log if isinstance(whole, Unknown) else whole
    together: dict[object, list[ProcessExit]] = {}
    for number, process_exit in enumerate(endings(log)):
        if process_exit.exit_code is not None and not process_exit.told_to:
            of_several = process_exit.rank is not None and process_exit.pid is None
            key = (process_exit.line.file, process_exit.line.number, process_exit.exit_code) if of_several else number
            together.setdefault(key, []).append(process_exit)
    return list(together.values())[:MAX_ENDS]


def _who_ended(exited: ProcessExit, *alike: ProcessExit) -> str:
    if alike:
        return f"that {ranks_named(ended.rank for ended in (exited, *alike) if ended.rank is not None)}"
    pid = f"pid {exited.pid}" if exited.pid is not None else ""
    if exited.rank is not None or exited.local_rank is not None:
        who = f"rank {exited.rank}" if exited.rank is not None else f"local rank {exited.local_rank}"
        return f"that {who}{f' ({pid})' if pid else ''}"
    return f"that {pid}" if pid else "that a process"


# --- the end ----------------------------------------------------------------------------------------------------------------


def outcome(judgement: LogJudgement) -> str:
    """The last line's sentence."""
    verdict = judgement.verdict
    if verdict.outcome is RunOutcome.ILLNESS:
        if verdict.ended_well:
            return "A warning; nothing in it says that the run failed"
        first = blamed(judgement)
        if is_contradicted(judgement):
            return "The log's words and the facts of the host contradict each other"
        others = len(judgement.opinions) - 1
        if first and first.suspect.sure and others:
            return f"The log names the likeliest cause, and {'another one' if others == 1 else f'{others} others'}"
        if first and first.suspect.sure:
            return "The log names the cause"
        if first and _is_confirmed(first):
            return "The log doesn't prove it alone; the facts of the host do"
        if cause := judgement.cause_in_script:
            return f"The log doesn't prove it alone; {cause.finding.place} does"
        several = len(judgement.opinions) > 1
        return (
            f"The log alone can't decide between these {len(judgement.opinions)}"
            if several
            else "The log alone can't prove it"
        )
    if verdict.outcome is RunOutcome.USER_ERROR:
        if verdict.raised and (module := module_missing(verdict.raised)):
            return f"The Python that ran the script doesn't find {module}; nothing else speaks of an illness"
        if verdict.raised and server_unreached(verdict.raised):
            return "A server that the script asks doesn't answer; nothing speaks of a mistake in the script"
        if judgement.new_before_it:
            return "The script ended itself, and doesn't say why; what is new in this run may be the reason"
        return "An ordinary error of the script; nothing speaks of an illness of the machine or its packages"
    if verdict.outcome is RunOutcome.EFFECTS_ONLY and (cause := judgement.cause_in_script):
        return f"The log doesn't name the cause; {cause.finding.place} does"
    if judgement.stops_without_a_word:
        return "No verdict: it stops earlier than good runs, and doesn't say why"
    return {
        RunOutcome.STOPPED: "The run was ended from outside",
        RunOutcome.UNRECOGNISED: "No verdict: something failed that is not known here",
        RunOutcome.EFFECTS_ONLY: "No verdict: the cause is not in what was read",
        RunOutcome.NOTHING: _last_went_on(verdict) or nothing(judgement.log),
    }[verdict.outcome]


MAX_NAME: Final = 40
"""Characters."""
MAX_ERROR: Final = 90
"""Characters."""
MAX_NOISE_NAMES: Final = 3
_DIGITS: Final = re.compile(r"\d+")


def followed(log: Log, verdict: LogVerdict) -> list[tuple[str, LogLine]]:
    """Word what ranks say that fell with another, and what their launcher says of them; each kind once, with its first line."""
    kinds: dict[str, list[SignMatch]] = {}
    for effect in verdict.effects:
        kinds.setdefault(effect.sign, []).append(effect)
    found = [
        (
            f'"{quoted(sign)}" {_said_by([match.line for match in matches], sum(match.times for match in matches))}',
            matches[0].line,
        )
        for sign, matches in kinds.items()
    ]
    raised: dict[str, list[LoggedException]] = {}
    for error in _lost(log, verdict):
        raised.setdefault(f"{error.exception}: {_DIGITS.sub('', error.message)[:MAX_NAME]}", []).append(error)
    found += [
        (
            f'"{clip(quoted(f"{short_name(errors[0].exception)}: {errors[0].message}"), MAX_ERROR)}" '
            + _said_by([error.line for error in errors], sum(error.times for error in errors)),
            errors[0].line,
        )
        for errors in raised.values()
    ]
    ended = [process_exit for process_exit in log.exited if process_exit.told_to]
    if ended:
        ranks = sorted({process_exit.rank for process_exit in ended if process_exit.rank is not None})
        whose = ranks_named(ranks) if ranks else plural(len(ended), "process", "processes")
        found.append((f"{one_line(ended[0].said_by)} ended {whose}", ended[0].line))
    return found


def _lost(log: Log, verdict: LogVerdict) -> list[LoggedException]:
    """Exceptions of ranks that only lost another one, or of the launcher for them, as far as no sign tells of them."""
    told = {(effect.line.file, effect.line.number) for effect in verdict.effects}
    return [
        raised
        for raised in log.raised
        if raised != verdict.raised
        and not is_cut(raised)
        and (is_of_peers(raised) or is_of_launcher(raised))
        and (raised.line.file, raised.line.number) not in told
    ]


def fell_with_it(log: Log, verdict: LogVerdict) -> int:
    """Count the ranks that fell with the first; 0 where nothing tells which that was."""
    if verdict.outcome is RunOutcome.EFFECTS_ONLY:
        return 0
    first = verdict.lead.rank if verdict.lead else None
    ranks = {effect.line.rank for effect in verdict.effects} | {raised.line.rank for raised in _lost(log, verdict)}
    ranks |= {process_exit.rank for process_exit in log.exited if process_exit.told_to}
    return len(ranks - {None, first})


def _said_by(lines: Iterable[LogLine], times: int) -> str:
    ranks = {line.rank for line in lines if line.rank is not None}
    if ranks:
        return f"({ranks_named(ranks)})" if len(ranks) <= 2 else f"({len(ranks)} ranks)"
    return f"({times}x)"


def noise(log: Log, catalogue: Catalogue) -> list[Noise]:
    """Messages that healthy runs print, too, the most frequent first: the engine's own, and illnesses' noise."""
    kinds: dict[tuple[str, str], list[SignMatch]] = {}
    for sighting in log.sightings:
        if sighting.role is SignRole.NOISE and not sighting.quoted and sighting.sign not in good_news(catalogue):
            kinds.setdefault((sighting.slug, sighting.sign), []).append(sighting)
    signs = [
        Noise(text, _why(catalogue, slug, text), sum(match.times for match in seen), seen[0].line)
        for (slug, text), seen in kinds.items()
    ]
    return sorted([*log.noise, *signs], key=lambda message: -message.times)


def _why(catalogue: Catalogue, slug: str, text: str) -> str:
    known = catalogue.get(slug)
    signs = catalogue.signs_of(known) if known else ()
    return next((sign.why for sign in signs if sign.text == text and sign.role is SignRole.NOISE), "")


def harmless(log: Log, catalogue: Catalogue) -> str:
    """All of it in one line; "" where there is none."""
    found = noise(log, catalogue)
    names = [f'"{clip(quoted(message.text), MAX_NAME)}" ({message.times}x)' for message in found]
    many = plural(len(found), "message")
    return f"{many} that healthy runs print, too: {listed(names, MAX_NOISE_NAMES)}" if found else ""
