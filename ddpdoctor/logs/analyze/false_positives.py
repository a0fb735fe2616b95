"""Signs that turn out to be about something else, or got over: what elsewhere in the log speaks against them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.log import LastWords, Log, LoggedException, LogLine, SignMatch
from ddpdoctor.logs.analyze.exceptions import with_slashes

CLOSED: Final = "NET/IB : Unable to open device"
INVALID_USAGE: Final = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library"
USES_IB: Final = "NCCL INFO Using network IB"
NO_MODULE: Final = "modprobe: FATAL: Module nvidia not found in directory"
BUILT: Final = ": installed"
IN_USE: Final = "Kernel driver in use: nouveau"
NVIDIAS: Final = "Kernel driver in use: nvidia"
TAKEN_BACK: Final = ": this job is "
COMPLETED: Final = "Job completed successfully"
BY_RAY: Final = "killed due to memory pressure (OOM)"
RAYS_END: Final = "Training completed after "
INSTALLED: Final = "Successfully installed "
ASKS: Final = "nslookup: can't resolve '"
NO_MODULE_NAMED: Final = "No module named '"
SCALE: Final = "reducing loss scale to"
COLLAPSED: Final = 0.1
_UNPACKED: Final = compile_lazily(r"/pip-install-[^/]+/([\w.-]+?)(?:-[0-9a-f]{16,})?/")
_SCALE: Final = compile_lazily(r"to (\d[\d.e-]*)$")
_LOSS: Final = compile_lazily(r"(?i)\bloss\w*[\"']?\W{1,4}\d")


@cache
def good_news(catalogue: Catalogue) -> frozenset[str]:
    """Collect texts of signs that refute others: they need no word that they are harmless."""
    return frozenset(sign.text for check in catalogue.checks for sign in check.log_signs if sign.refutes)


def without_misread(seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """Drop sightings of which their own check says that they are about something else."""
    return [match for match in seen if not _is_misread(match, log, catalogue.get(match.slug))]


def _is_misread(seen: SignMatch, log: Log, check: Check | None) -> bool:
    return check is not None and check.log.refuted is not None and check.log.refuted(seen, log)


def with_checks_revisions(seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """Let each check revise the sightings that holds its own against the others."""
    for check in _that_revise(catalogue):
        if check.log.revises:
            seen = check.log.revises(seen, log, check.slug)
    return list(seen)


@cache
def _that_revise(catalogue: Catalogue) -> tuple[Check, ...]:
    return tuple(check for check in catalogue.checks if check.log.revises)


def recovered(log: Log, catalogue: Catalogue) -> list[LoggedException]:
    """List exceptions of which their own checks say that the log shows them to have been got over."""
    own: dict[str, list[SignMatch]] = {}
    for sighting in log.sightings:
        own.setdefault(sighting.slug, []).append(sighting)
    known = ((catalogue.get(slug), seen) for slug, seen in own.items())
    return [
        raised for check, seen in known if check and check.log.recovered for raised in check.log.recovered(seen, log)
    ]


def without_refuted(seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """Drop sightings that other lines speak against."""
    left = [
        match
        for match in seen
        if not _is_refuted(match, log.sightings, catalogue) and not _is_built_for_it(match, seen)
    ]
    return [match for match in left if not (_goes_on(match, log) or _was_met(match, log))]


def _is_refuted(one: SignMatch, every: Sequence[SignMatch], catalogue: Catalogue) -> bool:
    check = catalogue.get(one.slug)
    refuting = [sign for sign in check.log_signs if one.sign in sign.refutes] if check else []
    return any(
        match.sign == sign.text
        and match.slug == one.slug
        and may_be_of_one(match.line, one.line)
        and (not sign.refutes_earlier or match.line.order > one.line.order)
        for sign in refuting
        for match in every
    )


def builds_tried_again(build: Sequence[SignMatch], log: Log) -> list[LoggedException]:
    """List what builds without torch raised, of a package that was then installed, by another try, or that a training
    did without. build: signs of such builds, and of what was installed."""
    done = [match for match in build if match.sign == INSTALLED]
    lines = {match.line.order for match in build if match.role is not SignRole.NOISE}
    failed = [raised for raised in log.raised if raised.line.order in lines]
    return [
        raised
        for raised in failed
        if _trains_behind(raised.line, log) or any(_is_of_package(raised, match) for match in done)
    ]


def _trains_behind(line: LogLine, log: Log) -> bool:
    """Whether steps follow whose loss is a number."""
    steps = log.steps
    if steps is None or SCALE in steps.text or not _LOSS.search(steps.text):
        return False
    return steps.file == line.file and steps.order > line.order


def _is_of_package(raised: LoggedException, done: SignMatch) -> bool:
    """Whether the exception is of a package that was installed: pip unpacks it into a folder that is called after it,
    /tmp/pip-install-x7/flash-attn_0f3c.../setup.py."""
    installed = {_plain(package.rpartition("-")[0]) for package in done.words.get("packages", "").split()}
    folders = {found[1] for frame in raised.frames if (found := _UNPACKED.search(_plain(frame.path)))}
    return may_be_of_one(raised.line, done.line) and done.line.order > raised.line.order and bool(installed & folders)


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")


def may_be_of_one(one: LogLine, other: LogLine) -> bool:
    """Whether nothing says that they are of two ranks or hosts."""
    ranks, hosts = {one.rank, other.rank} - {None}, {one.host, other.host} - {""}
    return one.file == other.file and len(ranks) < 2 and len(hosts) < 2


def _goes_on(one: SignMatch, log: Log) -> bool:
    """Whether, behind a loss scale that fell below 1, steps go on whose loss is a number: where the loss is a sum, that is how it goes."""
    scale = _SCALE.search(one.words.get("scale", "")) if one.sign == SCALE else None
    return scale is not None and float(scale[1]) >= COLLAPSED and _trains_behind(one.line, log)


def _was_met(one: SignMatch, log: Log) -> bool:
    """Whether a pod that asked for its master's address got it: torchrun tells of ranks that it has started."""
    ended = [
        process_exit
        for process_exit in log.exited
        if process_exit.said_by == "torchrun" and process_exit.line.order > one.line.order
    ]
    return one.sign == ASKS and any(
        may_be_of_one(msgspec.structs.replace(process_exit.line, rank=None), one.line) for process_exit in ended
    )


def is_of_own_script(one: SignMatch, log: Log) -> bool:
    """Whether it is a script of the user's, and no package, that misses a module which is called as compiled ones are."""
    if one.sign != NO_MODULE_NAMED:
        return False
    raised = next((exception for exception in log.raised if exception.line.order == one.line.order), None)
    return raised is not None and bool(raised.frames) and raised.own == raised.frames[-1]


def _is_built_for_it(one: SignMatch, seen: Sequence[SignMatch]) -> bool:
    """Whether the kernel for which dkms has built the driver is the one that runs: then its files are missing here, as in a container."""
    kernel = one.words.get("kernel", "")
    missed = [match.line for match in seen if match.sign == NO_MODULE and may_be_of_one(match.line, one.line)]
    return one.sign == BUILT and any(line.text.rstrip().endswith(f"/{kernel}") for line in missed)


# --- what is said over and over while a rank waits ----------------------------------------------------------------------


SHOULD_DUMP: Final = 'Failed to check the "should dump" flag on TCPStore'
_DONE: Final = compile_lazily(
    r"(?i)\b(?:(?:training|run|job|all) (?:is |was )?"
    r"(?:finished|done|completed?)|final (?:model|weights)|finished training|done training)\b"
    r"(?!.{0,300}\b(?:epoch|step|iter|iteration|eval\w*|checkpoint)\b)"
)
"""The last words of one who came to the end: whoever is a little slower then finds no store any more."""
STILL_WAITING: Final[dict[str, int]] = {
    "Waiting in store based barrier to initialize process group for": 1,
    "has failed to send a keep-alive heartbeat to the rendezvous": 3,
    SHOULD_DUMP: 4,
}
"""Texts of signs, and how often it must have been said to count. A healthy run in which a rank comes late says them, too, and goes on; or
one whose first node, or rank, is done before the others, once or for each of the others, or each second until they are."""


def without_waits_that_ended(seen: Iterable[SignMatch], last: Iterable[LastWords]) -> list[SignMatch]:
    """Drop waits that are not the last words of who waited."""
    every, words = list(seen), list(last)
    ends = {word.rank: word.line.text for word in words}
    if all(match.sign == SHOULD_DUMP for match in every) and any(_DONE.search(word.line.text) for word in words):
        return []
    return [
        match
        for match in every
        if match.sign not in STILL_WAITING
        or (match.sign in ends.get(match.line.rank, "") and match.times >= STILL_WAITING[match.sign])
    ]


# --- files of which each rank has one of its own ------------------------------------------------------------------------


PART: Final = "part"
"""The word of a sign that is the number in a file's name."""


def without_parts_that_all_lack(seen: Iterable[SignMatch]) -> list[SignMatch]:
    """Drop files that are numbered otherwise than the rank that lacks them; and all where rank 0 lacks its own: then
    the folder isn't there, or another one was meant."""
    every = list(seen)
    nobody_has = any(_part_number(match) == 0 for match in every)
    return [match for match in every if PART not in match.words or (not nobody_has and _may_be_own(match))]


def _part_number(one: SignMatch) -> int | None:
    return int(one.words[PART]) if PART in one.words else None


def _may_be_own(one: SignMatch) -> bool:
    return one.line.rank is None or one.line.rank == _part_number(one)


# --- NCCL's refusals ----------------------------------------------------------------------------------------------------


INVALID_USAGE_BEGINS: Final = "ncclInvalidUsage: "
"""How the words of torch's begin that two ranks on one GPU may be behind."""
LAST_ERROR: Final = "Last error:"
"""What torch puts, on a line of its own, before NCCL's own word on it."""
DUPLICATE_GPU: Final = "Duplicate GPU"
LINES_TO_NCCLS_WORD: Final = 2
"""Lines to NCCL's own word."""


def names_another_refusal(refused: SignMatch, log: Log) -> bool:
    """Whether a sign that guesses at two ranks on one GPU has NCCL's last error right below, and that is something else."""
    if (
        not refused.sign.startswith(INVALID_USAGE_BEGINS)
        or len(refused.after) < LINES_TO_NCCLS_WORD
        or refused.after[0].text.strip() != LAST_ERROR
    ):
        return False
    told = refused.after[1]
    # Where lines bear no rank, the next one but one is another's, if NCCL's own word is empty.
    right_below = refused.line.rank is not None or told.number - refused.line.number == LINES_TO_NCCLS_WORD
    return right_below and bool(told.text.strip()) and DUPLICATE_GPU not in told.text


# --- worker processes whose end their own traceback explains ------------------------------------------------------------


MAX_LINES_TO_PARENT: Final = 400
"""Lines from a worker's traceback to its parent's word on its end; several workers may write theirs between."""


def is_end_told(seen: SignMatch, log: Log) -> bool:
    """Whether it is the end of a worker that no signal ended, and that raised something as it was started."""
    started = [
        raised for raised in log.raised if any(_spawns_worker(frame.path, frame.function) for frame in raised.frames)
    ]
    return any(_explains_end(raised, seen) for raised in started)


def _spawns_worker(path: str, function: str) -> bool:
    return function == "spawn_main" and with_slashes(path).endswith("multiprocessing/spawn.py")


def _explains_end(raised: LoggedException, seen: SignMatch) -> bool:
    if seen.words.get("signal") or raised.line.file != seen.line.file:
        return False
    return 0 < seen.line.number - raised.line.number <= MAX_LINES_TO_PARENT


# --- aborts that follow from what was said before -----------------------------------------------------------------------


ABORTED: Final = "Aborted"
SIGABRT: Final = "SIGABRT"
WATCHDOG: Final = "watchdog thread terminated with exception"
"""NCCL's watchdog then ends its process by SIGABRT; what the exception is follows on the same line."""
MAX_LINES_TO_ABORT: Final = 60
"""Lines behind an exception, its message and other threads' stacks among them, within which an abort is of its process's end."""


def without_aborts_that_follow(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
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
