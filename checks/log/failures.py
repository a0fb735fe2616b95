"""Verdicts on runs that had no illness: a mistake in the script, an end from outside, a crash that nothing explains."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from signal import Signals
from typing import Final

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import LONGEST_QUOTE, capital, clip, ranks_named, signal_name
from ddpdoctor.engine.registry import Catalogue, LogTraits, check, requires
from ddpdoctor.facts.log import Log, LogFrame, LoggedException, LogLine, SignMatch
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import ABORT, signal_of
from ddpdoctor.logs.analyze.error_meanings import ranks_that_raised
from ddpdoctor.logs.analyze.script_errors import (
    PROGRAM_FAILED_CAUSE,
    SERVER_UNREACHED_CAUSE,
    SERVER_UNREACHED_FIXES,
    fault_fixes,
    fault_words,
    is_of_a_program,
    meaning_of_words,
    missing_module_fixes,
    missing_program_fixes,
    missing_program_words,
    module_missing,
    said_of,
    server_unreached,
)
from ddpdoctor.logs.analyze.sightings import NO_LOG, lines, own_line, sightings, where
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.exceptions import short_name

THREAD: Final = "Current thread 0x"
OPENMP: Final = "OMP: Error #15: "
ONE_OPENMP: Final = Fix(
    "Install torch, numpy, scipy and the like from one source, all by pip or all by conda, into a new environment: each brings its "
    "OpenMP along. KMP_DUPLICATE_LIB_OK=TRUE only silences it, and results may be wrong"
)
HYDRA: Final = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace"
IN_A_CALL: Final = "Error in call to target "
MISTAKE: Final = "A mistake in the script or its arguments. No illness of the machine, its network or its packages is known to say this."
NOT_THERE: Final = "The Python that ran the script doesn't find that module: its package isn't installed there, or another environment was meant."
UNGUARDED: Final = "An attempt has been made to start a new process before"
"""Python's words in a process that is started by spawn; its traceback has the line of the script that starts another one."""
STARTS_ITSELF: Final = (
    "A process that is started afresh (spawn, forkserver) imports the script once more, and what stands in it outside of functions runs "
    "there, too: it would start processes without end."
)
GUARD: Final = ("if __name__ == '__main__':", "    main()")
WITHOUT_GUARD: Final = f"starts processes without the guard {GUARD[0].rstrip(':')}"
_SOURCE: Final = compile_lazily(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+)$')


@check("user-code-error", severity=FAIL, owner=Owner.USER, stands_for=(LogTopic.MISTAKE,))
def user_code_error(log: Log, catalogue: Catalogue) -> Iterator[Finding]:
    """The training script raised an ordinary Python exception.

    ## What breaks
    The rank that raised it ends; the others lose it, and say so by timeouts, closed connections and SIGTERM.

    ## Why
    A mistake in the script or its arguments: the traceback's last line of your own code is where it happened. No illness of
    the machine, its network or its packages is known to say this. Where a library raised it about itself, it may be used wrongly,
    or be at fault: then it is told as likely only, with the command that shows its version.

    ## Fix
    Mend that line. To see it without the other ranks' words, start one process alone: `python train.py ...`, or
    `torchrun --nproc-per-node=1 train.py ...`.
    """
    requires(log.files, NO_LOG)
    found = verdict_of(log, catalogue)
    if found.outcome is not RunOutcome.USER_ERROR or found.lead is None:
        return
    if found.raised is None:
        yield _without_traceback(log, found)
        return
    raised = found.raised
    alike = ranks_that_raised(raised, log)
    who = ranks_named(alike) if alike else "the script"
    raised_it = f"raised {said_of(raised)}"
    if raised.message.startswith(UNGUARDED):
        raised_it = WITHOUT_GUARD
    own, module = raised.own, module_missing(raised)
    at = f" ({own.path.rpartition('/')[2]}:{own.line})" if own else ""
    told = f"{clip(f'{who} {raised_it}', LONGEST_QUOTE - len(at))}{at}"
    yield Finding.of(
        capital(clip(f"{told}{_and_then(log, raised)}", LONGEST_QUOTE)),
        _traceback(log, raised),
        _what_to_do(log, raised, module),
        _how_it_ended(found),
        cause=_cause(log, raised, module),
        rank=found.lead.rank,
    )


def _without_traceback(log: Log, found: LogVerdict) -> Finding:
    lead, exited = found.lead, found.exited
    assert lead is not None
    if absent := missing_program_words(lead.text):
        return Finding.of(
            capital(clip(absent, LONGEST_QUOTE)),
            Evidence(lead.text.strip(), where(log, lead)),
            missing_program_fixes([lead.text, *(error.text for error in log.errors)]),
            cause="The shell, or what starts the job, can't start that program: the command hasn't run.",
            rank=lead.rank,
        )
    seen = sightings(log, "user-code-error")
    if seen and seen[0].sign == UNGUARDED:
        return Finding.of(
            capital(f"the script {WITHOUT_GUARD}"),
            lines(log, seen, most=1),
            Fix("Put what the script does into a function, and call it behind a guard", GUARD),
            _how_it_ended(found),
            cause=STARTS_ITSELF,
            rank=lead.rank,
        )
    if seen:
        before = _said_with(seen[0])
        first = {match.sign: match for match in reversed(seen)}
        said = lines(log, [match for match in seen if match is first[match.sign]] if HYDRA in first else seen[:1])
        if seen[0].beside in before:
            said = (Evidence(seen[0].line.text.strip(), where(log, seen[0].line)),)
        launcher = seen[0].words.get("launcher", "")
        text = _whole(seen[0])
        meaning = meaning_of_words(text, lead, log)
        what = (
            f"The command line of {launcher} is refused: {text.partition(': error: ')[2]}"
            if launcher
            else f"The script ended itself: {text}"
        )
        return Finding.of(
            what,
            (Evidence(line.text.strip(), where(log, line)) for line in before),
            said,
            meaning.fixes if meaning else _what_to_mend(before, launcher),
            _how_it_ended(found),
            cause=meaning.cause if meaning else MISTAKE,
            rank=lead.rank,
        )
    who = f"rank {lead.rank}" if lead.rank is not None else "a rank"
    code = f" with exit code {exited.exit_code}" if exited else ""
    words = exited.error if exited else ""
    return Finding.of(
        capital(clip(f"{who} ended itself{code}{f': {words}' if words else ', without a traceback'}", LONGEST_QUOTE)),
        (Evidence(line.text.strip(), where(log, line)) for line in (*found.said, lead)),
        Fix(
            f"Look for {'these words' if words else 'sys.exit(), exit() or os._exit()'} in the script, and at the last lines of {who}"
        ),
        rank=lead.rank,
    )


_OF_HYDRA: Final = compile_lazily(r"Error executing job with overrides: |\s*$")


def _whole(seen: SignMatch) -> str:
    """Its line, with the next one where it announces that; of hydra's last line those before it, which say what went wrong."""
    text = seen.line.text.strip()
    if seen.sign == HYDRA and (told := [line.text for line in seen.before if not _OF_HYDRA.match(line.text)]):
        return " ".join(map(str.strip, told))
    below = seen.after[0].text.strip() if text.endswith(":") and seen.after else ""
    return f"{text} {below}".rstrip()


def _said_with(seen: SignMatch) -> list[LogLine]:
    """The lines before it that are of the same message."""
    if seen.sign == HYDRA:
        return list(seen.before)
    found: list[LogLine] = []
    for line in reversed(seen.before):
        if line.text.startswith("usage: ") or _SOURCE.match(line.text):
            return [line, *found]
        if not line.text[:1].isspace():
            break
        found.insert(0, line)
    return []


def _what_to_mend(before: Sequence[LogLine], launcher: str) -> Fix:
    if any(line.text.startswith(IN_A_CALL) for line in before):
        return Fix(
            "Let hydra show in which line of that class or function it was raised", ("export HYDRA_FULL_ERROR=1",)
        )
    if launcher:
        return Fix(
            "Mend the command line: these are its options, and the script comes behind them",
            (f"{shlex.quote(launcher)} --help",),
        )
    place = next((found for line in before if (found := _SOURCE.match(line.text))), None)
    if place is None:
        return Fix("Mend the script or its arguments, as these lines say")
    code = next((line.text.strip() for line in before if line.text.strip() and not _SOURCE.match(line.text)), "")
    return _where_to_look(LogFrame(place["path"], int(place["line"]), "", code))


def _how_it_ended(found: LogVerdict) -> tuple[Fix, ...]:
    if found.others:
        who = ranks_named(
            sorted({exception.line.rank for exception in found.others if exception.line.rank is not None})
        )
        return (Fix(f"Look at what {who} raised, too: that doesn't only tell of a lost rank"),)
    if not found.effects:
        return ()
    return (Fix("Leave the other ranks' errors aside: they only lost this rank"),)


def _traceback(log: Log, raised: LoggedException) -> tuple[Evidence, ...]:
    ended = _ended_as(log, raised)
    said = (raised.line, *((raised.reason,) if raised.reason else ()), *((ended.line,) if ended else ()))
    return (*own_line(log, raised), *(Evidence(line.text.strip(), where(log, line)) for line in said))


def _ended_as(log: Log, raised: LoggedException) -> LoggedException | None:
    """The last exception of the chain that one began."""
    last = raised
    for exception in log.raised:
        if last.chained and exception.line.stream == last.line.stream and exception.line.order > last.line.order:
            last = exception
    return None if last is raised else last


def _and_then(log: Log, raised: LoggedException) -> str:
    """The exception that the script itself made of it, in its own words."""
    ended = _ended_as(log, raised)
    if ended is None or not ended.message or not ended.frames or ended.frames[-1] != ended.own:
        return ""
    return f", and of it {short_name(ended.exception)}: {ended.message}"


def _cause(log: Log, raised: LoggedException, module: str) -> str:
    if raised.message.startswith(UNGUARDED):
        return STARTS_ITSELF
    if is_of_a_program(raised):
        return PROGRAM_FAILED_CAUSE
    return NOT_THERE if module else SERVER_UNREACHED_CAUSE if server_unreached(raised) else fault_words(raised, log)


def _what_to_do(log: Log, raised: LoggedException, module: str) -> tuple[Fix, ...]:
    if module:
        return missing_module_fixes(module, log)
    if raised.message.startswith(UNGUARDED):
        own = raised.own
        place = f": of {own.path} all from the imports on, line {own.line} with it" if own else ""
        return (Fix(f"Put what the script does into a function, and call it behind a guard{place}", GUARD),)
    if server_unreached(raised):
        return (*SERVER_UNREACHED_FIXES, _where_to_look(raised.own))
    fixes = fault_fixes(raised, log)
    return (*fixes, _where_to_look(raised.own)) if raised.own or not fixes else fixes


def _where_to_look(own: LogFrame | None) -> Fix:
    if own is None:
        return Fix(
            "No line of your own code is in what was read: look for the whole traceback in the ranks' own logs, or start one process alone",
            ("torchrun --nproc-per-node=1 train.py ...",),
        )
    code = f", which says: {own.code}" if own.code else ""
    return Fix(f"Look at {own.path}, line {own.line}{code}")


OF_GLIBC: Final = ("double free or corruption", "free()", "malloc", "realloc()", "corrupted ", "munmap_chunk()")
"""How the C library's words on a heap that was overwritten begin."""
ABORTED: Final = "Aborted"
SIGABRT: Final = "SIGABRT"
WATCHDOG: Final = "watchdog thread terminated with exception"
"""NCCL's watchdog then ends its process by SIGABRT; what the exception is follows on the same line."""
MAX_LINES_TO_ABORT: Final = 60
"""Lines behind an exception, its message and other threads' stacks among them, within which an abort is of its process's end."""


def _without_aborts_that_follow(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Drop a shell's, Python's or torchrun's word on an abort behind what its process lost, waited for or raised: C++
    ends it so, and what a process takes down at its end may. slug: of the check that tells of crashes."""
    effects = [match.line for match in seen if match.role is SignRole.EFFECT]
    ends = [raised.line for raised in log.raised]
    of_watchdogs = [match.line for match in seen if match.slug != slug and WATCHDOG in match.line.text]
    seen = [
        match
        for match in seen
        if match.slug != slug
        or SIGABRT not in match.sign
        or not any(_is_before(line, match.line) for line in of_watchdogs)
    ]
    return [
        match
        for match in seen
        if match.slug != slug
        or ABORTED not in match.line.text
        or not (
            any(_is_before(line, match.line) for line in effects)
            or any(_is_before(line, match.line) and _is_right_before(line, match.line) for line in ends)
        )
    ]


def _is_before(line: LogLine, abort: LogLine) -> bool:
    same = line.rank == abort.rank or None in (line.rank, abort.rank)
    return same and line.order < abort.order


def _is_right_before(line: LogLine, abort: LogLine) -> bool:
    return line.file == abort.file and abort.number - line.number <= MAX_LINES_TO_ABORT


@check(
    "process-crashed",
    severity=FAIL,
    owner=Owner.UNKNOWN,
    stands_for=(Signals.SIGILL, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGSEGV),
    log=LogTraits(revises=_without_aborts_that_follow),
)
def process_crashed(log: Log, catalogue: Catalogue) -> Iterator[Finding]:
    """A process crashed in compiled code, without a Python exception.

    ## What breaks
    The rank is gone at once, by SIGSEGV, SIGABRT, SIGILL or the like; the others lose it in their next collective.

    ## Why
    A bug or a mismatch in compiled code: an extension built for another torch, two copies of a library in one process, a
    library's own bug, or a bad index in a kernel on the CPU. Python doesn't see it, so there is no traceback.

    ## Fix
    Let Python show where each thread stood: `export PYTHONFAULTHANDLER=1` before the next run (`ddpdoctor run -- ...` sets it
    by itself). `ddpdoctor check` finds extensions and libraries that don't go together.
    """
    seen = sightings(log, "process-crashed")
    found = verdict_of(log, catalogue)
    suspect = next((suspect for suspect in found.suspects if suspect.slug == "process-crashed"), None)
    if suspect is None or found.lead is None:
        return
    stack = next((match for match in seen if match.sign == THREAD), None)
    who = f"rank {found.lead.rank}" if found.lead.rank is not None else "a process"
    on = f" on {found.lead.host}" if found.lead.host else ""
    signal = signal_of(found.exited) if found.exited else 0
    how = f" ({signal_name(signal)})" if signal else ""
    handler = Fix("Run it again so that Python shows where each thread stood", ("export PYTHONFAULTHANDLER=1",))
    twice = any(sighting.sign == OPENMP for sighting in suspect.sightings)
    heap = any(match.sign.startswith(OF_GLIBC) for match in suspect.sightings)
    told = (
        ()
        if stack is None
        else tuple(Evidence(line.text.strip(), where(log, line)) for line in stack.after if line.text.strip())
    )
    yield Finding.of(
        capital(
            f"{who}{on} ended itself: two packages brought an OpenMP of their own"
            if twice
            else f"{who}{on} was aborted by the C library (SIGABRT): compiled code had overwritten the memory that it hands out (the heap)"
            if heap
            else f"{who}{on} was aborted from within (SIGABRT), as NCCL's watchdog, a failed assertion or a C++ exception does it"
            if signal == ABORT
            else f"{who}{on} crashed in compiled code{how}, without a Python exception"
        ),
        lines(log, seen or suspect.sightings),
        told,
        (ONE_OPENMP,)
        if twice
        else (
            *(
                (handler,)
                if stack is None
                else (Fix("Look at the stack that the fault handler printed: the crash was in its first line's call"),)
            ),
            Fix("Look for extensions and libraries that don't go together", ("ddpdoctor check --select torch,apex",)),
        ),
        rank=found.lead.rank,
    )
