"""zombies: who holds a GPU, and what is ended."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any

from tests.gpu.kit import FailedError, Kit, NotPossibleError, Training, environ_of, marked, part

PROVEN_AFTER = 12.0
"""Seconds of age from which an orphan may be proven to be one."""


def orphaned(job: Training) -> list[int]:
    """The ranks of a training whose launcher was killed: they go on by themselves."""
    job.until_it_trains()
    pids = job.pids()
    job.kill_launcher()
    return pids


def leftovers_of(report: dict[str, Any], pids: list[int]) -> list[dict[str, Any]]:
    return [leftover for leftover in report["leftovers"] if leftover["pid"] in pids]


def alive(kit: Kit, pid: int) -> bool:
    ran = kit.run(["cat", f"/proc/{pid}/stat"])
    return ran.code == 0 and ran.stdout.rpartition(")")[2].split()[0] != "Z"


def used(gpu: int) -> int:
    """Bytes of that GPU's memory, as NVML has it."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu)).used)
    finally:
        pynvml.nvmlShutdown()


def ended_among_innocents(kit: Kit) -> None:
    """An orphaned training whose ranks all wait in collectives is proven to be left over; one that sleeps in user code is not."""
    # On a single GPU NCCL takes no two ranks; gloo does, and they hold the GPU all the same.
    backend = {"GPU_KIT_BACKEND": "gloo"} if kit.machine.gpus == 1 else {}
    before = used(0)
    with (
        kit.training(1) as innocent,
        kit.training(1, fault="sleep_in_user_code@4") as doubtful,
        kit.training(2, fault="apart@4", settings=backend) as job,
    ):
        innocent.until_it_trains()
        job.wait_for("rank-1.fault")
        doubtful.wait_for("rank-0.fault")
        held = used(0) - before
        dead, (asleep,) = orphaned(job), orphaned(doubtful)
        time.sleep(PROVEN_AFTER)
        report = kit.report("zombies")
        kit.keep("zombies.json", json.dumps(report, indent=1))
        found = {leftover["pid"]: leftover for leftover in leftovers_of(report, [*dead, asleep])}
        kit.saw("found", list(found.values()))
        kit.hold(found.keys() == {*dead, asleep}, f"the orphans are {dead} and {asleep}; named are {list(found)}")
        kit.hold(not leftovers_of(report, innocent.pids()), "a training that lives is called left over")
        for pid, one in found.items():
            if not kit.machine.rehearsal and not one["gpu_memory"]:
                kit.differs.append(f"the orphan {pid} holds GPU memory, and none is told: gpus {one['gpus']}")
        killed = kit.report("zombies", "--kill", "--yes", *map(str, (*dead, asleep)))
        kit.saw("freed", killed["freed"])
        kit.saw("fates", {leftover["pid"]: leftover.get("fate") for leftover in leftovers_of(killed, [*dead, asleep])})
        kit.hold(alive(kit, asleep), "--kill ended what is in doubt")
        kit.hold(all(alive(kit, pid) for pid in innocent.pids()), "--kill ended a rank of a training that lives")
        after = used(0) - before
        kit.saw("memory held before and after --kill, MiB", [held >> 20, after >> 20])
        doubts = {doubt for pid in dead for doubt in found[pid]["doubts"]}
        if doubts:
            raise NotPossibleError(f"nothing is proven here, and so ended: {'; '.join(sorted(doubts))}")
        kit.hold(not any(alive(kit, pid) for pid in dead), "--kill left what it had proven")
        kit.hold(
            kit.machine.rehearsal or after < held, f"no GPU memory came back: {held >> 20}, then {after >> 20} MiB"
        )


@part(
    "zombies",
    "a killed launcher's ranks in an all_reduce: named, what is proven is ended and its GPU memory free again, others live on",
    45,
)
def zombies(kit: Kit) -> None:
    ended_among_innocents(kit)


@part("zombies-own-pids", "the same below a first process of their own, as in a container", 45)
def zombies_own_pids(kit: Kit) -> None:
    kit.needs_root("to make a pid namespace")
    for program in ("unshare", "nsenter", "setsid"):
        kit.needs_program(program)
    from tests.support.own_pids import own_pids

    with ExitStack() as stack:
        try:
            host = stack.enter_context(own_pids())
        except (AssertionError, OSError, ValueError) as error:
            raise NotPossibleError(f"no pid namespace can be made here: {error!r}") from None
        kit.prefix = host.prefix
        ended_among_innocents(kit)


@part("zombies-at-work", "orphaned ranks that still train are shown and not ended", 30, beside=True)
def zombies_at_work(kit: Kit) -> None:
    with kit.training(1) as job:
        pids = orphaned(job)
        time.sleep(PROVEN_AFTER)
        report = kit.report("zombies")
        found = leftovers_of(report, pids)
        kit.saw("found", found)
        kit.hold(
            [leftover["pid"] for leftover in found] == pids,
            f"orphans are {pids}, named are {[leftover['pid'] for leftover in found]}",
        )
        kit.report("zombies", "--kill", "--yes", *map(str, pids))  # and nobody else's
        kit.hold(all(alive(kit, pid) for pid in pids), "--kill ended what still works")


@part("zombies-endless-kernel", "an orphan whose kernel never ends", 35, beside=True)
def zombies_endless_kernel(kit: Kit) -> None:
    with kit.training(1, fault="endless_kernel@4") as job:
        job.wait_for("rank-0.fault")
        pids = orphaned(job)
        time.sleep(PROVEN_AFTER)
        report = kit.report("zombies")
        kit.keep("zombies.json", json.dumps(report, indent=1))
        found = leftovers_of(report, pids)
        kit.saw("found", found)
        kit.hold([leftover["pid"] for leftover in found] == pids, "the orphan is not named")
        kit.saw("after --kill", kit.report("zombies", "--kill", "--yes", *map(str, pids))["leftovers"])
        kit.saw("alive after --kill", [pid for pid in pids if alive(kit, pid)])


@part("extra-contexts", "two ranks and a DataLoader worker with contexts: what jobs tells of each", 25)
def extra_contexts(kit: Kit) -> None:
    # On a single GPU both ranks share it, over gloo.
    settings = {"GPU_KIT_WORKER": "1", **({"GPU_KIT_BACKEND": "gloo"} if kit.machine.gpus == 1 else {})}
    with kit.training(2, settings=settings) as job:
        job.until_it_trains()
        pids = job.pids()
        worker = int(job.wait_for("rank-1.worker"))
        if not kit.machine.rehearsal:
            kit.saw("GPU memory in use, MiB", [used(gpu) >> 20 for gpu in range(kit.machine.gpus)])
        report = kit.report("jobs")
    (found,) = [job for job in report["jobs"] if pids[0] in [rank["process"]["pid"] for rank in job["ranks"]]] or [None]
    kit.hold(found is not None, "jobs does not show the training")
    assert found
    kit.saw("ranks", {rank["rank"]: {"gpus": rank["gpus"], "remarks": rank["remarks"]} for rank in found["ranks"]})
    told = json.dumps(report["findings"])
    slugs = [finding["slug"] for finding in report["findings"]]
    kit.saw(
        "findings",
        [f"{finding['slug']}: {finding['summary']}" for finding in report["findings"] if str(pids[0]) in told],
    )
    workers = {worker["pid"]: worker for rank in found["ranks"] for worker in rank["workers"]}
    kit.hold(worker in workers, f"the DataLoader worker {worker} is not among {list(workers)}")
    if kit.machine.rehearsal:
        return
    kit.saw("worker", workers[worker])
    held = [any(isinstance(gpu["memory"], int) and gpu["memory"] for gpu in rank["gpus"]) for rank in found["ranks"]]
    kit.compare("each rank's GPU memory is told", True, all(held))
    if kit.machine.gpus == 1:
        kit.compare("two ranks on one GPU are named", True, "duplicate-gpu" in slugs or "missing-set-device" in slugs)


@part("nothing-left", "the kit itself has left nothing on this machine", 1)
def nothing_left(kit: Kit) -> None:
    own = str(kit.folder.parent)
    others = [pid for pid in marked(str(kit.folder.parent.parent)) if own not in environ_of(pid)]
    if others:
        raise FailedError(f"processes of earlier parts live: {others}")
    if not kit.machine.rehearsal:
        kit.saw("GPU memory in use, MiB", [used(gpu) >> 20 for gpu in range(kit.machine.gpus)])
