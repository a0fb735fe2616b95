"""How the holders of GPUs are named in a finding, and what to do about those that are dead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.findings import Evidence, Fix
from ddpdoctor.knowledge.gpu_holders import ENDED, Held, LeftOnGpus
from ddpdoctor.knowledge.leftovers import Certainty, Kind, Leftover
from ddpdoctor.knowledge.root import by_root
from ddpdoctor.wording import listed, plural, spans

MOST = 8
"""Lines of evidence."""


def gpus_named(held: Iterable[Held]) -> str:
    """ "GPU 3", "GPUs 0-7"."""
    numbers = {one.gpu.index for one in held}
    return f"GPU{'' if len(numbers) == 1 else 's'} {listed(spans(numbers))}"


def holders_named(held: Sequence[Held]) -> str:
    """ "pid 4711 (rank 3)", "8 processes"."""
    pids = {one.holder.pid: one.process for one in held}
    if len(pids) > 2:
        return plural(len(pids), "process", "processes")
    return " and ".join(named(pid, process) for pid, process in pids.items())


def named(pid: int, process: Process | None) -> str:
    """ "pid 4711 (rank 3)", "pid 4711 (python)"."""
    if process is None:
        return f"pid {pid}" if pid else "a hidden process"
    what = f"rank {process.place.rank}" if process.place else process.name or process.role.value
    return f"pid {pid} ({what})"


def age(seconds: float) -> str:
    """ "40 s", "3 h", "2 days"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def evidence_of(held: Sequence[Held]) -> tuple[Evidence, ...]:
    """A line for each context: who, whose, how old, and how much."""
    lines = [
        Evidence(f"GPU {one.gpu.index}: {_described(one.process, one.holder.pid)} holds {one.amount}", "NVML, /proc")
        for one in held[:MOST]
    ]
    if len(held) > MOST:
        lines.append(Evidence(f"and {len(held) - MOST} more", "NVML, /proc"))
    return tuple(lines)


def _described(process: Process | None, pid: int) -> str:
    if process is None:
        return named(pid, process)
    started = f", for {age(process.age)}" if process.age else ""
    state = ", state Z" if process.state in ENDED else ""
    command = f", {process.command[:80]}" if process.command else ""
    return f"{named(pid, process)} of {process.user or process.uid}{started}{state}{command}"


def why_left(leftover: Leftover) -> str:
    """Why it is thought dead, and what speaks against it."""
    doubts = "" if leftover.proven else f" It is not certain: {listed(leftover.doubts, 3)}."
    return f"{leftover.why[:1].upper()}{leftover.why[1:]}.{doubts}"


def end_it(one: LeftOnGpus, processes: Processes) -> tuple[Fix, ...]:
    """What ends a leftover that holds GPUs."""
    if one.leftover.kind is not Kind.ENDED:
        return (end_leftover(one.leftover),)
    process = processes.get(one.leftover.pid)
    parent = process.parent if process else 1
    return (
        Fix(
            "See whether its parent, which has not taken note of its end, can be ended: then it goes, too",
            (f"ps -o pid,user,lstart,args -p {parent}",),
        ),
        by_root(
            "If it stays, reset that GPU while nobody else uses it",
            tuple(f"sudo nvidia-smi --gpu-reset -i {index}" for index in sorted({held.gpu.index for held in one.held})),
        ),
    )


def end_leftover(leftover: Leftover) -> Fix:
    """What ends a leftover process: ddpdoctor only where it is proven to be one, and the caller's."""
    if leftover.proven:
        return Fix(
            "End it: `ddpdoctor zombies` looks again whether it is left over, asks, and touches nothing else",
            (f"ddpdoctor zombies --kill {leftover.pid}",),
        )
    look = f"ps -o pid,ppid,user,lstart,stat,args -p {leftover.pid}"
    if leftover.certainty is Certainty.NOT_OURS:
        return Fix(f"It is not yours to end: ask {leftover.owner or 'its owner'}", ("ddpdoctor zombies", look))
    return Fix("See whether it is still needed, and end it if it isn't", (look, f"kill {leftover.pid}"))
