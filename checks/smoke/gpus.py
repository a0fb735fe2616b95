"""Whether a smoke training ran on the GPUs that the host has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.smoke.fixes import on_one_host, smoke_command
from ddpdoctor.engine.registry import Subject, check, requires
from ddpdoctor.facts.snapshot import Environment, Gpus, Machine, Smoke, Torch
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.gpu_assignment import lacks_nccl
from ddpdoctor.smoke_training.analysis.failure_attribution import NO_SMOKE

HIDES = re.compile(r"\b(\w+_VISIBLE_DEVICES) hides")


@check("smoke-not-on-gpus", severity=WARN, owner=Owner.USER, judges=(Subject.TRAINING_PLAN,))
def smoke_not_on_gpus(
    smoke: Smoke, gpus: Maybe[Gpus], environment: Maybe[Environment], machine: Maybe[Machine], torch: Maybe[Torch]
) -> Iterator[Finding]:
    """The smoke training leaves out GPUs that are there, or may be.

    ## What breaks
    What passed on the CPU says nothing of GPUs, NVLink or NCCL: your own training may still fail on them, or run on the CPU
    as well, a hundred times slower. Where some GPUs of a host don't answer, a job that counts on all of them doesn't start.

    ## Why
    The driver doesn't answer, or not for every GPU: its library is missing in the container, it doesn't fit the kernel
    module, a GPU has fallen off the bus. Or `CUDA_VISIBLE_DEVICES` hides them; or torch was built without NCCL, as mostly for
    Jetson. Of several hosts one without a usable GPU is
    enough: NCCL needs a GPU for every rank, so that all go to the CPU.

    ## Fix
    Mend what `ddpdoctor check --select gpu,driver,container` finds on that host, or show the GPUs to the job. If the CPU is
    what you train on, say so with `--backend gloo`.
    """
    if not smoke.ranks and smoke.backend == "nccl" and not smoke.problem:
        if lacks_nccl(torch):
            yield _cannot_run(smoke, smoke.gpus_passed_over, "Between the ranks of this torch there is gloo alone.")
        elif not visible_gpus(known(gpus), environment):
            yield _no_gpus(smoke, known(gpus), machine)
        return
    requires(smoke.ranks, NO_SMOKE)
    requires(smoke.backend == "nccl" or smoke.gpus_passed_over, "the smoke training was not meant for GPUs")
    if not smoke.gpus_passed_over:
        return
    cpu = smoke.backend != "nccl"
    what = "The training ran on the CPU, and no GPU was tested" if cpu else "Not all GPUs were tested"
    yield Finding.of(
        f"{what}: {smoke.gpus_passed_over}",
        _evidence(smoke),
        _to_the_gpus(smoke),
        _on_the_cpu(smoke) if cpu else None,
        cause="What passed on the CPU says nothing of GPUs, the links between them and NCCL."
        if cpu
        else "A job that counts on all GPUs of the host fails, or runs with fewer.",
    )


def _no_gpus(smoke: Smoke, gpus: Gpus, machine: Maybe[Machine]) -> Finding:
    """NCCL was asked for, and there is nothing that it could run on."""
    # ROCm's own way to an AMD GPU under WSL is nothing that is looked for.
    requires(gpus.devices or not (isinstance(machine, Machine) and machine.wsl), "GPUs under WSL may be unseen")
    usable = Evidence(f"GPUs that ranks may use: 0 of {len(gpus.devices)}", "NVML, PCI bus")
    why = smoke.gpus_passed_over or "this host has no GPU"
    return _cannot_run(smoke, why, "NCCL moves data between GPUs: each rank needs one of its own.", usable)


def _cannot_run(smoke: Smoke, why: str, cause: str, *more: Evidence) -> Finding:
    ranks = plural(smoke.world_size, "rank")
    return Finding.of(
        f"{ranks} {'is' if smoke.world_size == 1 else 'are'} to run over NCCL, but {why}",
        _evidence(smoke),
        more,
        _to_the_gpus(smoke) if smoke.gpus_passed_over else (),
        _on_the_cpu(smoke),
        cause=cause,
        severity=FAIL,
    )


def _evidence(smoke: Smoke) -> tuple[Evidence, ...]:
    if smoke.gpus_passed_over:
        return (told(smoke, "gpus_passed_over", smoke.gpus_passed_over),)
    return (told(smoke, "chosen", f"the plan: {smoke.chosen}"),)


def _to_the_gpus(smoke: Smoke) -> tuple[Fix, ...]:
    if "without NCCL" in smoke.gpus_passed_over:
        return (Fix("See what your own script can do on the GPUs without NCCL", ("ddpdoctor explain nccl-not-built",)),)
    where = "each of these hosts" if smoke.nnodes > 1 else "this host"
    hiding = HIDES.search(smoke.gpus_passed_over)
    if hiding and not re.search(r"answers?\b|asked", smoke.gpus_passed_over):
        return (
            Fix(
                f"Show the ranks the GPUs of {where}, if they aren't hidden on purpose",
                (f"unset {shlex.quote(hiding[1])}",),
            ),
        )
    return (Fix(f"See what is wrong with the GPUs of {where}", ("ddpdoctor check --select gpu,driver,container",)),)


def _on_the_cpu(smoke: Smoke) -> Fix:
    text = "Train on the CPU, if that is what you mean to: it tests all but the GPUs"
    if smoke.ranks and not on_one_host(smoke):
        return Fix(f"{text}; give --backend gloo on the first node")
    gloo = Smoke(world_size=smoke.world_size, backend="gloo", python=smoke.python)
    return Fix(text, (smoke_command(gloo),))
