"""Holders of the GPUs that a job would use here: the dead, others, or nobody."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import capital, human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.processes.full_gpus import memory_of_others
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, Subject, check, leave_untested, requires
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, Environment, Machine, Processes
from ddpdoctor.knowledge.nvidia import nvidia_gpus
from ddpdoctor.knowledge.privileges import by_root, on_the_host
from ddpdoctor.processes.gpu_holders import (
    HeldGpu,
    LeftOnGpus,
    for_this_job,
    held_by_nobody,
    holdings,
    is_in_this_job,
    left_on_gpus,
    own_jobs,
    require_known_holders,
    unowned,
)
from ddpdoctor.processes.gpu_holders_words import (
    end_it,
    evidence_of,
    gpus_named,
    holders_named,
    may_be_started_by_hand,
    owner_of,
    why_left,
)
from ddpdoctor.processes.job_words import Oddity
from ddpdoctor.processes.jobs import jobs_of
from ddpdoctor.report.reported_leftovers import LeftoverKind

MUCH_OF_MEMORY = 0.1
"""Of a GPU's memory. Below, batches that fitted still fit."""
NEARLY_ALL_OF_MEMORY = 0.9
"""With less left, not even a small model starts."""


_MUCH: Final = re.compile(r"Process (\d+) has [\d.]+ GiB")


def _of_attempt_before(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Beside the sign of this illness torchrun has killed ranks of an attempt before."""
    held = sorted({pid for match in seen for pid in _MUCH.findall(match.line.text)}, key=int)
    who = f": {'process' if len(held) == 1 else 'processes'} {listed(held, 4)}" if held else ""
    return Particulars(
        f"Ranks of an attempt before, which torchrun killed, seem to hold the GPU still{who}",
        cause="They didn't end when torchrun told them to, so it killed them, and started new ones while the driver had not taken"
        " their memory back: a thread that hangs in the driver keeps a killed process from ending.",
    )


@check(
    "zombie-gpu-process",
    severity=FAIL,
    owner=Owner.NODE,
    log=LogTraits(particulars=_of_attempt_before),
    stands_for=(Oddity.ORPHANED, Oddity.BY_HAND, LeftoverKind.HOLDER),
)
def zombie_gpu_process(gpus: Gpus, processes: Processes) -> Iterator[Finding]:
    """A process that is dead, or left over from a run that ended, still holds a GPU.

    ## What breaks
    The next run dies with "CUDA out of memory", on some ranks only, or shares the GPU with ranks that nobody waits for.

    ## Why
    torchrun was killed with SIGKILL, or its terminal closed, and its ranks went on without it. Or a process has ended (state
    Z), but a thread of it hangs in the driver, so that the driver can't take its memory back; a Z alone holds none.

    ## Fix
    `ddpdoctor zombies` shows what is left over and why, and ends only what is proven to be. What hangs in the driver ends with
    a reset of that GPU (`sudo nvidia-smi --gpu-reset -i N`, once nobody uses it), or a reboot.
    """
    nvidia_gpus(gpus)
    # Beside a running job, it is gpu0-extra-contexts that tells why the GPU has more contexts than ranks.
    yield from (left_finding(left, processes) for left in left_on_gpus(gpus, processes) if not left.beside)
    require_known_holders(gpus.devices)
    _all_seen(holdings(gpus, processes), processes)


def left_finding(left: LeftOnGpus, processes: Processes) -> Finding:
    """Say what is left over on GPUs; of what is beside a running job it is only certain that it is in the way."""
    first, held, one = left.leftovers[0], left.held, len({held_gpu.holder.pid for held_gpu in left.held}) == 1
    hand = not left.beside and may_be_started_by_hand(left.leftovers, processes)
    ended = first.kind is LeftoverKind.ENDED
    if ended:
        state = f"{'has' if one else 'have'} ended, and still"
    elif first.proven:
        state = f"{'is' if one else 'are'} left over, and"
    elif hand:
        state = f"{'was' if one else 'were'} perhaps started by hand, and without a launcher"
    else:
        state = "may be left over, and"
    beside = " beside a running job" if left.beside else ""
    return Finding.of(
        f"{capital(holders_named(held))} {state} {_holds(held)} on {gpus_named(held)}{beside}",
        evidence_of(held),
        end_it(left.leftovers, held, processes),
        cause=why_left(first),
        severity=FAIL if first.fails or (ended and not left.beside) else INFO if hand else WARN,
    )


def _holds(held: Sequence[HeldGpu]) -> str:
    """ "hold 31.2 GiB"."""
    verb = "holds" if len({held_gpu.holder.pid for held_gpu in held}) == 1 else "hold"
    total = sum(held_gpu.memory for held_gpu in held)
    return f"{verb} {human(total) if total else 'memory'}"


def _all_seen(held: Iterable[HeldGpu], processes: Processes) -> None:
    """Raises:
    NotKnown: somebody holds a GPU whom this user can't see.
    """
    unseen = [held_gpu for held_gpu in held if held_gpu.process is None]
    if unseen and (processes.unseen or any(not held_gpu.holder.pid for held_gpu in unseen)):
        who = plural(len(unseen), "process", "processes")
        why = processes.unseen or "NVML doesn't tell its pid"
        leave_untested(f"{who} on {gpus_named(unseen)} can't be seen from here: {why}")


@check(
    "gpu-memory-held-by-others",
    severity=WARN,
    owner=Owner.UNKNOWN,
    log=LogTraits(particulars=memory_of_others),
    judges=(Subject.NEXT_JOB,),
)
def gpu_memory_held_by_others(
    gpus: Gpus, processes: Processes, environment: Maybe[Environment], plan: Plan
) -> Iterator[Finding]:
    """Other jobs' or other users' processes hold much of a GPU that this job would use.

    ## What breaks
    "CUDA out of memory" at a batch size that fits elsewhere, on some ranks only; or all ranks wait at every step for the one
    that shares its GPU.

    ## Why
    Somebody else trains here, a notebook kernel keeps its model, or another job of your own still runs. On a host without a
    scheduler every job takes GPU 0 first.

    ## Fix
    Take the free GPUs by CUDA_VISIBLE_DEVICES, ask the owner, or wait. Don't end what isn't yours.
    """
    nvidia_gpus(gpus)
    ours = for_this_job(gpus, environment)
    requires(ours, "no whole GPU is visible (only MIG slices, or none)")
    indices = {gpu.index for gpu in ours}
    dead = _dead_pids(gpus, processes)
    held = [
        holding
        for holding in holdings(gpus, processes)
        if holding.gpu.index in indices
        and holding.holder.pid not in dead
        and (not is_in_this_job(holding.process, processes, environment) if holding.process else processes.unseen)
    ]
    full = [
        gpu
        for gpu in ours
        if _share(sum(held_gpu.memory for held_gpu in held if held_gpu.gpu == gpu), gpu) >= MUCH_OF_MEMORY
    ]
    free = [gpu for gpu in ours if gpu not in full and _used(gpu) < MUCH_OF_MEMORY]
    if full:
        yield _held([held_gpu for held_gpu in held if held_gpu.gpu in full], full, free, processes, plan)
    for held_gpu in held:
        known(held_gpu.gpu.memory_total)
    known(environment)
    require_known_holders(ours)


def _held(
    held: Sequence[HeldGpu], full: Sequence[Gpu], free: Sequence[Gpu], processes: Processes, plan: Plan
) -> Finding:
    most = max(_share(sum(held_gpu.memory for held_gpu in held if held_gpu.gpu == gpu), gpu) for gpu in full)
    pids = ",".join(str(pid) for pid in sorted({held_gpu.holder.pid for held_gpu in held if held_gpu.process})[:16])
    choose = ",".join(str(gpu.index) for gpu in free)
    guessed = plan.source.startswith("the number of GPUs")
    enough = bool(free) and (guessed or len(free) >= plan.nproc)
    use_free = Fix(f"Use the {plural(len(free), 'free GPU')}", (f"export CUDA_VISIBLE_DEVICES={choose}",))
    return Finding.of(
        f"{capital(holders_named(held))} {owner_of(held, processes)} {_holds(held)} on {gpus_named(held)}, "
        f"{f'{most:.0%} of it' if len(full) == 1 else f'up to {most:.0%} of one'}",
        evidence_of(held),
        use_free if enough else None,
        Fix(
            "See what runs there; it is at work as far as can be told, so end it only if it is yours and not needed",
            ("ddpdoctor jobs", *((f"ps -o pid,user,lstart,args -p {pids}",) if pids else ())),
        ),
        cause=f"Some of it is hidden from here: {processes.unseen}."
        if any(not held_gpu.process for held_gpu in held)
        else "",
        severity=_how_bad(most, enough=enough),
    )


def _dead_pids(gpus: Gpus, processes: Processes) -> set[int]:
    return {held_gpu.holder.pid for left in left_on_gpus(gpus, processes) for held_gpu in left.held}


def _how_bad(most: float, *, enough: bool) -> Severity:
    """A neighbour at work beside enough GPUs that are free is no illness."""
    if enough:
        return INFO
    return FAIL if most >= NEARLY_ALL_OF_MEMORY else WARN


def _share(size: int, gpu: Gpu) -> float:
    return size / gpu.memory_total if isinstance(gpu.memory_total, int) and gpu.memory_total else 0.0


def _used(gpu: Gpu) -> float:
    return _share(gpu.memory_used, gpu) if isinstance(gpu.memory_used, int) else 1.0


@check("gpu-memory-unowned", severity=WARN, owner=Owner.NODE, stands_for=(LeftoverKind.MEMORY,))
def gpu_memory_unowned(
    gpus: Gpus,
    processes: Maybe[Processes],
    environment: Maybe[Environment],
    container: Maybe[Container],
    machine: Machine,
) -> Iterator[Finding]:
    """A GPU's memory is in use, and no process is listed that holds it.

    ## What breaks
    "CUDA out of memory" on a GPU that looks free: `nvidia-smi` shows memory in use above an empty list of processes.

    ## Why
    The process is in another container or virtual machine, and is hidden from here; or it was killed while a thread of it
    hung in the driver, which then can't take the memory back; or the driver itself has lost track after an error (Xid).

    ## Fix
    On the host, as root, `fuser -v /dev/nvidiaN` shows who has the device open, containers' processes too. If nobody has,
    `sudo nvidia-smi --gpu-reset -i N` gives the memory back, or a reboot.
    """
    nvidia_gpus(gpus)
    requires(not machine.wsl, "under WSL the driver tells what Windows uses as well, and not whose it is")
    ours = for_this_job(gpus, environment)
    requires(ours, "no whole GPU is visible (only MIG slices, or none)")
    rest = {gpu.index: unowned(gpu) for gpu in ours}
    bad = [(gpu, size) for gpu in ours if isinstance(size := rest[gpu.index], int) and size]
    if bad:
        yield _unowned(bad, processes, container)
    if gone := [held_gpu for held_gpu in held_by_nobody(gpus, known(processes)) if held_gpu.gpu in ours]:
        yield _gone(gone)
    for size in rest.values():
        known(size)
    known(environment)


def _unowned(bad: Sequence[tuple[Gpu, int]], processes: Maybe[Processes], container: Maybe[Container]) -> Finding:
    worst, size = max(bad, key=lambda lost_on: _share(lost_on[1], lost_on[0]))
    hidden = processes.reason if isinstance(processes, Unknown) else processes.unseen
    numbers = [gpu.index for gpu, _ in bad]
    nodes = shlex.join(f"/dev/nvidia{number}" for number in numbers[:8])
    who = by_root("See who has the device open", (f"sudo fuser -v {nodes}",))
    reset = by_root(
        "If nobody has, give the memory back, while no one else uses that GPU",
        tuple(f"sudo nvidia-smi --gpu-reset -i {number}" for number in numbers[:8]),
    )
    share = _share(size, worst)
    return Finding.of(
        f"{human(size)} ({share:.0%}) of GPU {worst.index} are in use, and no process"
        f"{' that can be seen from here' if hidden else ''} holds them"
        + (f"; {plural(len(bad) - 1, 'more GPU')} alike" if len(bad) > 1 else ""),
        (Evidence(f"GPU {gpu.index}: {_account(gpu, lost)}", "NVML") for gpu, lost in bad[:8]),
        on_the_host(who, container),
        on_the_host(reset, container),
        cause=f"It may well be a process that is hidden from here: {hidden}."
        if hidden
        else "All processes of this host can be seen from here: mostly it is what a killed process has left in the driver.",
        severity=INFO if share < MUCH_OF_MEMORY else FAIL if share >= NEARLY_ALL_OF_MEMORY else WARN,
    )


def _gone(held: Sequence[HeldGpu]) -> Finding:
    one = len({held_gpu.holder.pid for held_gpu in held}) == 1
    return Finding.of(
        f"{capital(holders_named(held))} {_holds(held)} on {gpus_named(held)} by the driver's account, and "
        f"{'is' if one else 'are'} no {'process' if one else 'processes'} of this host",
        evidence_of(held),
        Fix("See whether it is still so", ("ddpdoctor check --select gpu-memory-unowned",)),
        by_root(
            "If it is, give the memory back, while no one else uses that GPU",
            tuple(
                f"sudo nvidia-smi --gpu-reset -i {index}" for index in sorted({held_gpu.gpu.index for held_gpu in held})
            ),
        ),
        cause="The process has just ended; or it was killed, and the driver could not take its memory back.",
    )


def _account(gpu: Gpu, lost: int) -> str:
    used = human(gpu.memory_used) if isinstance(gpu.memory_used, int) else "?"
    holders = () if isinstance(gpu.holders, Unknown) else gpu.holders
    held = sum(holder.memory for holder in holders if isinstance(holder.memory, int))
    return (
        f"{used} in use, {plural(len(holders), 'process', 'processes')} with {human(held)}: {human(lost)} are nobody's"
    )


@check("mixed-jobs-on-gpu", severity=WARN, owner=Owner.UNKNOWN)
def mixed_jobs_on_gpu(gpus: Gpus, processes: Processes) -> Iterator[Finding]:
    """Ranks of two jobs use the same GPU.

    ## What breaks
    Both take turns on the GPU, and each of their ranks waits at every step for the one that is slowed down. One of them may run
    out of memory when the other grows.

    ## Why
    Both were started without CUDA_VISIBLE_DEVICES and took the GPUs from 0 on; or a run was started again while the one before
    still ran.

    ## Fix
    Give each job its own GPUs by CUDA_VISIBLE_DEVICES, or end the one that you don't want.
    """
    nvidia_gpus(gpus)
    held = holdings(gpus, processes)
    dead = _dead_pids(gpus, processes)
    jobs = [(job, ranks) for job in jobs_of(processes) if (ranks := {rank.pid for rank in job.ranks} - dead)]
    mine = {job.name for job in own_jobs(processes)}
    mixed = []
    for gpu in gpus.answering:
        if gpu.mig_enabled is True or gpu.mps_server:
            continue
        here = [
            held_gpu
            for held_gpu in held
            if held_gpu.gpu == gpu and held_gpu.process and held_gpu.holder.kind != "graphics"
        ]
        there = [job for job, ranks in jobs if any(held_gpu.holder.pid in ranks for held_gpu in here)]
        if len(there) > 1 and any(job.name in mine for job in there):
            pids = {pid for job, ranks in jobs if job in there for pid in ranks}
            mixed.append((gpu, there, [held_gpu for held_gpu in here if held_gpu.holder.pid in pids]))
    if mixed:
        names = list(dict.fromkeys(job.name for _, there, _ in mixed for job in there))
        on = [context for _, _, contexts in mixed for context in contexts]
        yield Finding.of(
            f"Jobs {listed(names, 3)} share {gpus_named(on)}: each slows the other down",
            evidence_of(on),
            Fix("See both jobs, and which GPUs each of them has", ("ddpdoctor jobs",)),
            Fix("Start each job with GPUs of its own, as in", ("export CUDA_VISIBLE_DEVICES=0,1,2,3",))
            if len(gpus.answering) > 4
            else Fix("Start one after the other, or give each its own GPU by CUDA_VISIBLE_DEVICES"),
        )
    require_known_holders(gpus.devices)
