"""What the stacks of a made-up job's ranks show when it rests, where no recorder is on.

    hang = stacks_of(job, random.Random(7))

The job is one of group_jobs. Over gloo a rank stands in the call that isn't done, or in a backward whose buckets aren't. Over NCCL it
stands where it waits for its GPU, or where it can launch nothing more.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.hang import Frame, Hang, WatchedRank
from tests.support.group_jobs import Fault, Job, Op
from tests.support.hangs import TORCH, Stack, backward, collective, hang, own, rank

WATCHED_SECONDS: Final = 30.0
CALLED: Final = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
    "batch": "batch_isend_irecv",
}
"""What a script calls for what a recorder names otherwise."""
SYNCHRONIZE: Final = Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1219)


def stacks_of(job: Job, chance: random.Random, here: Iterable[int] | None = None) -> Hang:
    """Two looks at the ranks of a host. here: these; None for all."""
    waits = own("train_step", 52), (SYNCHRONIZE, *own("train_step", 53))
    device = chance.choice(waits)
    spins = chance.random() < 0.7
    faults = {fault.rank: fault for fault in job.faults if fault.rank in job.faulty}
    busy = chance.choice((
        {"waits_in": "hrtimer_nanosleep"}, {"waits_in": "wait_woken"}, {"state": "R", "waits_in": "", "cores": 1.0},
    ))  # fmt: skip
    ranks = [
        _rank(job, number, faults.get(number), device, spins=spins, busy=busy)
        for number in (range(job.world) if here is None else here)
    ]
    groups = {op.group.name for op in job.plan.program(0) if op.group}
    return hang(*ranks, world_size=job.world, backend=job.backend, groups=len(groups), between=WATCHED_SECONDS)


def _rank(
    job: Job, number: int, fault: Fault | None, device: Stack, *, spins: bool, busy: dict[str, object]
) -> WatchedRank:
    kind = fault.kind if fault else ""
    if fault and fault.ends_process:
        return rank(number, gone="no such process")
    if kind == "holds the GIL" or (fault and fault.branch == "stays"):
        return rank(number, own("lookup", 71), between=WATCHED_SECONDS, **busy)
    more = {"between": WATCHED_SECONDS, "state": "T" if kind == "stops" else "S"}
    stack = _stack(job, number, device)
    if job.backend == "nccl" and spins and not kind:
        # It asks the GPU again and again whether it is done.
        more |= {"state": "R", "waits_in": "", "cores": 1.0}
    return rank(number, stack, **more)


def _stack(job: Job, number: int, device: Stack) -> Stack:
    """Where the processor stands. A rank has called all that stands before `at` in its program."""
    one = job.ranks[number]
    following = one.program[one.at] if one.at < len(one.program) else None
    last = one.calls[-1] if one.calls else None
    if job.backend == "gloo":
        blocked = last is not None and len(one.calls) - 1 not in one.done and not last.later
        return _called(last) if blocked and last else backward() if following else collective("barrier", 99)
    return _called(following) if following and not following.sync else device


def _called(op: Op) -> Stack:
    assert op.group
    name = CALLED.get(op.name, op.name)
    return collective(name, 100 + 10 * len(op.group.purpose) + op.size)
