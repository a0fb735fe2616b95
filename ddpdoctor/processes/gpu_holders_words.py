"""Names the holders of GPUs in a finding, and says what to do about those that are dead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.base.findings import Evidence, Fix
from ddpdoctor.base.text import capital, listed, plural, ranks_named, spans
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.processes.gpu_holders import HeldGpu
from ddpdoctor.processes.job_words import age, places
from ddpdoctor.processes.jobs import is_started_by_hand
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind

MAX_LINES = 8
"""Of evidence."""


def gpus_named(held: Iterable[HeldGpu]) -> str:
    """Name the GPUs: "GPU 3", "GPUs 0-7"."""
    numbers = {held_gpu.gpu.index for held_gpu in held}
    return f"GPU{'' if len(numbers) == 1 else 's'} {listed(spans(numbers))}"


def holders_named(held: Sequence[HeldGpu]) -> str:
    """Name the holders: "pid 4711 (rank 3)", "8 processes"."""
    pids = {held_gpu.holder.pid: held_gpu.process for held_gpu in held}
    if len(pids) > 2:
        ranks = places(process for process in pids.values() if process)
        named_ranks = f" ({ranks_named(ranks)})" if len(ranks) == len(pids) else ""
        return f"{plural(len(pids), 'process', 'processes')}{named_ranks}"
    return " and ".join(named(pid, process) for pid, process in pids.items())


def named(pid: int, process: Process | None) -> str:
    """Name a process: "pid 4711 (rank 3)", "pid 4711 (python)"."""
    if process is None:
        return f"pid {pid}" if pid else "a hidden process"
    what = f"rank {process.place.rank}" if process.place else process.name or process.role.value
    return f"pid {pid} ({what})"


def evidence_of(held: Sequence[HeldGpu]) -> tuple[Evidence, ...]:
    """Write a line for each context: how much, who, whose, how old; and its command, which ranks of one job have in common."""
    lines: list[Evidence] = []
    told: set[str] = set()
    for held_gpu in held[:MAX_LINES]:
        command = held_gpu.process.command[:80] if held_gpu.process else ""
        more = f": {command}" if command and command not in told else ""
        told.add(command)
        lines.append(
            Evidence(f"GPU {held_gpu.gpu.index}: {held_gpu.amount}, {_described(held_gpu)}{more}", "NVML, /proc")
        )
    if len(held) > MAX_LINES:
        lines.append(Evidence(f"and {len(held) - MAX_LINES} more", "NVML, /proc"))
    return tuple(lines)


def _described(held: HeldGpu) -> str:
    process = held.process
    if process is None:
        return named(held.holder.pid, process)
    old = f", {age(process.age)} old" if process.age else ""
    state = ", state Z" if process.has_ended else ""
    return f"{named(process.pid, process)} of {process.user or process.uid}{old}{state}"


def owner_of(held: Sequence[HeldGpu], processes: Processes) -> str:
    """Say whose they are: "of yours", "of bob and eve", "that can't be seen from here"."""
    users = sorted({held_gpu.process.user or str(held_gpu.process.uid) for held_gpu in held if held_gpu.process})
    if not users:
        return "that can't be seen from here"
    own = all(held_gpu.process and held_gpu.process.uid == processes.uid for held_gpu in held)
    return "of yours" if own else f"of {listed(users, 3)}"


def may_be_started_by_hand(leftovers: Iterable[Leftover], processes: Processes) -> bool:
    """Whether all of them are ranks without any launcher's marks: whoever starts those with nohup leaves none behind that
    would be missing."""
    found = [processes.get(leftover.pid) if leftover.kind is LeftoverKind.RANK else None for leftover in leftovers]
    return all(process is not None and is_started_by_hand(process) for process in found)


def why_left(leftover: Leftover) -> str:
    """Say why it is thought dead, and what speaks against it."""
    why = f"{capital(leftover.why)}."
    if leftover.proven or leftover.kind is LeftoverKind.ENDED:
        return why
    if leftover.certainty is Certainty.NOT_OURS:
        return f"{why} It is left alone: {listed(leftover.doubts, 3)}."
    return f"{why} That it may go is not certain: {'; '.join(leftover.doubts[:3])}."


def end_it(leftovers: Sequence[Leftover], held: Sequence[HeldGpu], processes: Processes) -> tuple[Fix, ...]:
    """Prescribe what ends leftovers of one sort that hold GPUs."""
    if leftovers[0].kind is not LeftoverKind.ENDED:
        return (end_leftovers(leftovers),)
    ended = [processes.get(leftover.pid) for leftover in leftovers]
    parents = sorted({process.parent for process in ended if process})
    return (
        Fix(
            "See whether its parent, which has not taken note of its end, can be ended: then it goes, too",
            (f"ps -o pid,user,lstart,args -p {','.join(map(str, parents))}",),
        ),
        by_root(
            "If it stays, reset that GPU while nobody else uses it",
            tuple(
                f"sudo nvidia-smi --gpu-reset -i {index}" for index in sorted({held_gpu.gpu.index for held_gpu in held})
            ),
        ),
    )


def end_leftovers(leftovers: Sequence[Leftover]) -> Fix:
    """Prescribe what ends leftover processes of one sort: ddpdoctor only where they are proven to be that, and the caller's."""
    first, pids = leftovers[0], [str(leftover.pid) for leftover in leftovers]
    it, them = ("it is", "it") if len(pids) == 1 else ("they are", "them")
    if first.proven:
        return Fix(
            f"End {them}: `ddpdoctor zombies` looks again whether {it} left over, asks, and touches nothing else",
            (f"ddpdoctor zombies --kill {' '.join(pids)}",),
            appliable=True,
        )
    look = f"ps -o pid,ppid,user,lstart,stat,args -p {','.join(pids)}"
    if first.certainty is Certainty.NOT_OURS:
        return Fix(f"Ask {first.owner or 'the owner'} to end {them}, if nothing speaks against it", (look,))
    return Fix(
        f"See what speaks against it, and whether {it} still needed: only you can tell",
        (f"ddpdoctor zombies {' '.join(pids)}", look),
    )
