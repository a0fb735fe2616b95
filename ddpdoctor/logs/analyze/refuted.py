"""Words elsewhere in a log by which a sign turns out to be about something else, or got over. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.log import Log, LoggedException, LogLine, SignMatch

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
_UNPACKED: Final = re.compile(r"/pip-install-[^/]+/([\w.-]+?)(?:-[0-9a-f]{16,})?/")
_SCALE: Final = re.compile(r"to (\d[\d.e-]*)$")
_LOSS: Final = re.compile(r"(?i)\bloss\w*[\"']?\W{1,4}\d")


@cache
def good_news(catalogue: Catalogue) -> frozenset[str]:
    """Texts of signs that refute others: they need no word that they are harmless."""
    return frozenset(sign.text for check in catalogue.checks for sign in check.log_signs if sign.refutes)


def without_misread(seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """The sightings without those of which their own check says that they are about something else."""
    return [match for match in seen if not _is_misread(match, log, catalogue.get(match.slug))]


def _is_misread(seen: SignMatch, log: Log, check: Check | None) -> bool:
    return check is not None and check.log.refuted is not None and check.log.refuted(seen, log)


def with_checks_revisions(seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """The sightings as each check leaves them that holds its own against the others."""
    for check in _that_revise(catalogue):
        if check.log.revises:
            seen = check.log.revises(seen, log, check.slug)
    return list(seen)


@cache
def _that_revise(catalogue: Catalogue) -> tuple[Check, ...]:
    return tuple(check for check in catalogue.checks if check.log.revises)


def recovered(log: Log, catalogue: Catalogue) -> list[LoggedException]:
    """Exceptions of which their own checks say that the log shows them to have been got over."""
    own: dict[str, list[SignMatch]] = {}
    for sighting in log.sightings:
        own.setdefault(sighting.slug, []).append(sighting)
    known = ((catalogue.get(slug), seen) for slug, seen in own.items())
    return [
        raised for check, seen in known if check and check.log.recovered for raised in check.log.recovered(seen, log)
    ]


def without_refuted(seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> list[SignMatch]:
    """The sightings without those that other lines speak against."""
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
    """What builds without torch raised, of a package that was then installed, by another try, or that a training did without.
    build: signs of such builds, and of what was installed."""
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
    """pip unpacks it into a folder that is called after it: /tmp/pip-install-x7/flash-attn_0f3c.../setup.py."""
    installed = {_plain(each.rpartition("-")[0]) for each in done.words.get("packages", "").split()}
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
    raised = next((each for each in log.raised if each.line.order == one.line.order), None)
    return raised is not None and bool(raised.frames) and raised.own == raised.frames[-1]


def _is_built_for_it(one: SignMatch, seen: Sequence[SignMatch]) -> bool:
    """Whether the kernel for which dkms has built the driver is the one that runs: then its files are missing here, as in a container."""
    kernel = one.words.get("kernel", "")
    missed = [match.line for match in seen if match.sign == NO_MODULE and may_be_of_one(match.line, one.line)]
    return one.sign == BUILT and any(line.text.rstrip().endswith(f"/{kernel}") for line in missed)
