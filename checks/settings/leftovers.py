"""Settings left over from debugging, and pairs of settings that contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Owner, Severity
from ddpdoctor.base.text import quoted
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.settings.debugging_settings import LEFTOVERS, counting, on, there
from ddpdoctor.checks.settings.invalid import evidence_of, take_away
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.snapshot import Gpus, Pci
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.knowledge.launchers import number


@check("setting-dangerous", severity=WARN, owner=Owner.USER)
def setting_dangerous(environment: Environment, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> Iterator[Finding]:
    """A setting is left over from a search for a fault.

    ## What breaks
    Training runs, but slowly, or it hangs where it should have stopped.

    ## Why
    Switches such as CUDA_LAUNCH_BLOCKING or NCCL_P2P_DISABLE help to find a fault, and stay in start-up files and batch
    scripts long after. On hardware without NVLink or InfiniBand some of them do no harm, and aren't reported.

    ## Fix
    Unset it, unless you are looking for a fault right now.
    """
    undecided = False
    for leftover in LEFTOVERS:
        found = counting(leftover.name, environment)
        if found is None or not leftover.bad(found.value):
            continue
        harmful = there(leftover.only_with, gpus, pci)
        undecided |= harmful is None
        if not harmful:
            continue
        yield Finding.of(
            f"{found.name}={quoted(found.value)} {leftover.does}",
            evidence_of(found),
            take_away(found),
            severity=leftover.severity,
        )
    yield from one_log_for_all(environment)
    if undecided:
        for gpu in known(gpus).devices:
            known(gpu.nvlinks_active)
        known(pci)


def one_log_for_all(environment: Environment) -> Iterator[Finding]:
    found = environment.setting("NCCL_DEBUG_FILE")
    verbose = environment.get("NCCL_DEBUG").strip().upper() in ("WARN", "INFO", "TRACE", "ABORT")
    per_process = found is not None and ("%p" in found.value or found.value.startswith("/dev/"))
    if found and found.value and verbose and not per_process:
        yield Finding.of(
            f"NCCL_DEBUG_FILE={quoted(found.value)} has no %p in it: all ranks of a node overwrite one file",
            evidence_of(found),
            take_away(found),
            severity=INFO,
        )


@check("setting-conflict", severity=WARN, owner=Owner.USER)
def setting_conflict(environment: Environment, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """Two settings contradict each other.

    ## What breaks
    One of them has no effect, and it may not be the one you think; a few pairs stop the job.

    ## Why
    One comes from a start-up file or NCCL's configuration file, the other from the job script; or an old and a new name
    for the same thing are set to different values.

    ## Fix
    Keep one of the two.
    """
    for kept, lost, why, severity in conflicts(environment, gpus):
        where = f" in {lost.origin}"[-60:] if lost.origin != kept.origin else ""
        yield Finding.of(
            f"{kept.name}={quoted(kept.value)} and {lost.name}={quoted(lost.value)}{where}: {why}",
            evidence_of(kept, lost),
            # Which of the two is meant, only the user knows.
            take_away(lost, certain=False),
            severity=severity,
        )


Conflict = tuple[Setting, Setting, str, Severity]


def conflicts(environment: Environment, gpus: Maybe[Gpus]) -> Iterator[Conflict]:
    """Yield the setting that counts, the other, what comes of it, and how bad that is."""
    yield from file_against_environment(environment)
    yield from old_against_new(environment)
    yield from without_algorithm(environment)
    for first, second, clash, why, severity in PAIRS:
        one, other = environment.setting(first), environment.setting(second)
        if one and other and clash(one.value, other.value):
            yield one, other, why, severity
    hip = environment.setting("HIP_VISIBLE_DEVICES")
    cuda = environment.setting("CUDA_VISIBLE_DEVICES")
    if hip and cuda and hip.value.replace(" ", "") != cuda.value.replace(" ", "") and known(gpus).vendor == "amd":
        yield hip, cuda, "HIP reads both, and they don't agree", WARN


def file_against_environment(environment: Environment) -> Iterator[Conflict]:
    winners = {setting.name: setting for setting in environment.effective}
    for setting in environment.settings:
        winner = winners[setting.name]
        if setting.origin != winner.origin and setting.value != winner.value:
            yield winner, setting, "only the first counts", INFO


def old_against_new(environment: Environment) -> Iterator[Conflict]:
    for old in environment.effective:
        entry = known_settings().get(old.name)
        new = environment.setting(entry.replaced_by) if entry and entry.reader == "torch" else None
        if new and new.value != old.value:
            yield new, old, "torch takes the new name", WARN


SIMPLE_ONLY = {"nvls", "collnetdirect", "collnetchain"}


def without_algorithm(environment: Environment) -> Iterator[Conflict]:
    """NVLS and CollNet work with the protocol Simple only."""
    algorithm, protocol = environment.setting("NCCL_ALGO"), environment.setting("NCCL_PROTO")
    if not algorithm or not protocol or any(sign in algorithm.value + protocol.value for sign in "^:;"):
        return
    algorithms = words(algorithm.value)
    if algorithms and algorithms <= SIMPLE_ONLY and "simple" not in words(protocol.value):
        yield algorithm, protocol, "NCCL can use neither, since that algorithm takes the protocol Simple only", FAIL


def words(value: str) -> set[str]:
    return {word.strip().lower() for word in value.split(",") if word.strip()}


def both_on(first: str, second: str) -> bool:
    return on(first) and on(second)


def different_numbers(first: str, second: str) -> bool:
    return bool(number(first)) and bool(number(second)) and number(first) != number(second)


PAIRS: tuple[tuple[str, str, Callable[[str, str], bool], str, Severity], ...] = (
    ("NCCL_IB_DISABLE", "NCCL_NET", lambda disable, net: on(disable) and net.strip().upper() == "IB",
     "NCCL finds no network and stops", FAIL),
    ("NCCL_COMM_BLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING", both_on, "one asks for blocking communicators, the other against", WARN),
    ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD",
     lambda threads, sockets: (number(threads) or 0) * (number(sockets) or 0) > 64,
     "their product may be 64 at most; NCCL takes fewer", INFO),
    ("MKL_NUM_THREADS", "OMP_NUM_THREADS", different_numbers, "MKL uses its own number, everything else the other", INFO),
)  # fmt: skip
