"""smoke: the training itself, and what it says of a rank with a fault."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tests.gpu.kit import Kit, part

NEED_GPUS = {"sync_batchnorm", "model split", "p2p", "apex"}
"""Stages that say "not tested" on the CPU."""
NEED_TWO = {"sampler", "parameters", "model split", "p2p"}
"""Those that say so for one rank on one GPU."""
FAULT_SECONDS = 12.0
"""What a stage of a faulty run may take: a hang costs it whole."""


def trained(kit: Kit, *arguments: str) -> dict[str, Any]:
    """The report of a run with that machine's backend; everything that could be run here must have passed."""
    report = kit.report("smoke", "--backend", kit.machine.backend, *arguments, seconds=150)
    kit.keep("smoke.json", json.dumps(report, indent=1))
    report_of_run = report["smoke"]
    kit.saw("chosen", report_of_run["chosen"])
    kit.saw("seconds", report_of_run["seconds"])
    for rank in report_of_run["ranks"][:1]:
        kit.saw("stages", {stage["name"]: f"{stage['state']} {stage['words']}".strip() for stage in rank["stages"]})
    kit.saw(
        "findings",
        [f"{finding['severity']}: {finding['slug']}: {finding['summary']}" for finding in report["findings"]],
    )
    kit.saw("not tested", [f"{skipped['slug']}: {skipped.get('reason', '')}" for skipped in report["not_tested"]])
    failed = [finding["summary"] for finding in report["findings"] if finding["severity"] == "fail"]
    kit.hold(report["verdict"] in ("ok", "warn") and not failed, f"{report['verdict']}: {'; '.join(failed)}")
    kit.hold(not any(report_of_run["leftovers"].values()), f"something stayed behind: {report_of_run['leftovers']}")
    return report


@part("smoke", "smoke trains with NCCL, one rank", 25)
def smoke(kit: Kit) -> None:
    report = trained(kit, "--nproc", "1")
    told = {stage["name"]: stage["state"] for stage in report["smoke"]["ranks"][0]["stages"]}
    kit.saw(
        "tested here and never without a GPU", sorted(NEED_GPUS & {name for name in told if told[name] == "passed"})
    )
    for stage in told:
        expected = "not tested" if stage in NEED_TWO | (NEED_GPUS if kit.machine.rehearsal else set()) else "passed"
        several = kit.machine.gpus > 1 and stage in NEED_GPUS & NEED_TWO
        if stage != "apex" and not several:  # An Apex is there, or isn't.
            kit.compare(f"the stage {stage}", expected, told[stage])


@part("smoke-amp", "AMP: the stage's float16 with a GradScaler passes", 12, beside=True)
def smoke_amp(kit: Kit) -> None:
    report = trained(kit, "--nproc", "1", "--stages", "amp")
    told = {stage["name"]: stage for stage in report["smoke"]["ranks"][0]["stages"]}["amp"]
    kit.hold(told["state"] == "passed", f"the stage is {told['state']}: {told['words']}")
    kit.hold(kit.machine.rehearsal or "float16 with GradScaler" in told["words"], f"it was {told['words']}")


@part("smoke-all", "smoke trains with NCCL, one rank a GPU", 30)
def smoke_all(kit: Kit) -> None:
    kit.needs_gpus(2)
    report = trained(kit, "--nproc", str(kit.machine.ranks))
    told = {stage["name"]: stage["state"] for stage in report["smoke"]["ranks"][0]["stages"]}
    for stage in () if kit.machine.rehearsal else ("sync_batchnorm", "p2p"):
        kit.compare(f"the stage {stage}", "passed", told.get(stage))


@part("smoke-more-ranks", "more ranks than GPUs with NCCL: explained, and nothing is started", 5, beside=True)
def smoke_more_ranks(kit: Kit) -> None:
    kit.needs_gpu_itself("it is about NCCL")
    report = kit.report("smoke", "--nproc", str(kit.machine.gpus + 1))
    kit.saw("findings", [finding["slug"] for finding in report["findings"]])
    kit.hold(
        "duplicate-gpu" in [finding["slug"] for finding in report["findings"]],
        "duplicate-gpu is not among the findings",
    )


class Fault(NamedTuple):
    """endings: one of these is right. words: what the rank must be told to have said, in lower case."""

    function: str
    title: str
    endings: tuple[str, ...]
    words: str = ""
    beside: bool = True


FAULTS = (
    Fault("illegal_access", "an illegal memory access", ("raised", "killed"), "illegal memory access", False),
    Fault("endless_kernel", "a kernel that never ends", ("hung",), beside=False),
    Fault("out_of_memory", "too little GPU memory", ("raised",), "out of memory"),
    Fault("hold_gil", "a rank that holds the GIL", ("hung",)),
    Fault("stop", "a rank that was stopped (SIGSTOP)", ("hung",)),
    Fault("kill", "a rank that was killed (SIGKILL)", ("killed",)),
    Fault("leave", "a rank that exits", ("exited",)),
    Fault("fail", "a rank with an exception", ("raised",), "a fault of the kit"),
)


def fails(fault: Fault) -> Callable[[Kit], None]:
    def work(kit: Kit) -> None:
        from ddpdoctor.smoke_training import training_order as orders
        from ddpdoctor.smoke_training.analysis.failure_attribution import attribute_failure
        from ddpdoctor.smoke_training.local.rank_runner import RankRunner

        ranks = kit.machine.ranks
        order = orders.TrainingOrder(
            nproc=ranks,
            world_size=ranks,
            backend=kit.machine.backend,
            seconds=FAULT_SECONDS,
            stages=("import", "device", "rendezvous", "process group", "all_reduce", "training", "shutdown"),
            fault=orders.Fault(ranks - 1, "training", f"tests.gpu.faults:{fault.function}", "call"),
        )
        ran = asyncio.run(RankRunner(order, sys.executable, kit.environ(), lambda monitor: None).run())
        kit.keep("ranks.json", msgspec.json.format(msgspec.json.encode(ran.ranks)))
        culprit = next(rank for rank in ran.ranks if rank.rank == ranks - 1)
        kit.saw("rank", msgspec.to_builtins(culprit))
        kit.saw("ended after", round(culprit.ended_after or 0.0, 1))
        blamed = attribute_failure(ran.ranks)
        named = ([culprit.rank for culprit in blamed.culprits], blamed.stage) if blamed else None
        kit.hold(named == ([ranks - 1], "training"), f"named was {named}, not rank {ranks - 1} in training")
        kit.hold(culprit.ending.value in fault.endings, f"it is said to have {culprit.ending.value}: {culprit.words}")
        said = f"{culprit.words} {culprit.last_line}".lower()
        kit.hold(fault.words in said, f"its words are not told: {said!r}")
        left = ran.leftovers
        kit.hold(not (left.processes or left.ports or left.files), f"something stayed behind: {left}")

    return work


for fault in FAULTS:
    name = f"smoke-{fault.function.replace('_', '-')}"
    part(name, f"smoke names {fault.title}", 20 if "hung" in fault.endings else 10, beside=fault.beside)(fails(fault))
