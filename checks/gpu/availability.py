"""The GPUs against the plan: are there enough, alike, free, and may several ranks use them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.checks.gpu.sharing import whole_gpus_for_ranks
from ddpdoctor.engine.log_traits import LogTraits, Particulars
from ddpdoctor.engine.registry import Subject, check, leave_untested, requires
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Environment, Machine, Processes, Smoke, Torch
from ddpdoctor.facts.visible import VisibleGpu, selector, visible_gpus
from ddpdoctor.knowledge.evidence import planned, torch_version
from ddpdoctor.knowledge.gpu_assignment import on_the_cpu, on_the_gpus, one_gpu_each, one_gpu_for_all
from ddpdoctor.knowledge.nvidia import called, nvidia_gpus
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.processes.gpu_holders import is_all_owned

ORDINAL: Final = "invalid device ordinal"
ONLY_HAS: Final = "ut your machine only has: "


def _whole(visible: tuple[VisibleGpu, ...]) -> tuple[Gpu, ...]:
    """Those that are visible as whole GPUs, not as MIG slices."""
    return tuple(shown.gpu for shown in visible if shown.slice is None and shown.gpu.mig_enabled is not True)


_NUMBER: Final = compile_lazily(r"cuda:(\d+)|set_device\((\d+)\)|device(?:_ids?)?\s*=\s*\[?(\d+)")


def _which_number(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Where no ranks are told of, the number of a GPU in the script, or in its options, is too high, and not the number of ranks."""
    if (
        log.launcher
        or len(log.ranks) > 1
        or (log.world_size or 1) > 1
        or not any(part in match.sign for match in seen for part in (ORDINAL, ONLY_HAS))
    ):
        return Particulars()
    codes = [frame.code for raised in log.raised for frame in raised.frames]
    named = next((found for found in map(_NUMBER.search, codes) if found), None)
    which = f" ({named[0]})" if named else ""
    return Particulars(
        summary=f"A GPU is asked for by a number{which} that this process doesn't see",
        cause="CUDA numbers the GPUs that CUDA_VISIBLE_DEVICES shows from 0 on, whatever their numbers on the host are. The number stands in the script, "
        "in its options or in its settings, and was made for a host with more GPUs; or several ranks were started, more than there are GPUs.",
        fixes=(
            Fix("See how many GPUs it sees, in the same shell", ("echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L",)),
            Fix("Take a number that is there: cuda:0 for a single process, cuda:LOCAL_RANK for each rank of several"),
        ),
    )


@check("nproc-exceeds-gpus", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_which_number))
def nproc_exceeds_gpus(
    gpus: Gpus, plan: Plan, environment: Maybe[Environment], torch: Maybe[Torch], smoke: Maybe[Smoke]
) -> Iterator[Finding]:
    """More ranks are planned than there are visible GPUs.

    ## What breaks
    The ranks past the last GPU die with "invalid device ordinal", or two ranks land on one GPU, which NCCL refuses
    ("Duplicate GPU detected"). The others wait for them.

    ## Why
    `--nproc-per-node` comes from a recipe for a bigger machine, or CUDA_VISIBLE_DEVICES hides some GPUs.

    ## Fix
    `torchrun --nproc-per-node=gpu` takes as many as there are; or list more GPUs in CUDA_VISIBLE_DEVICES.
    """
    # Where the bus shows a GPU that the driver doesn't, the driver's checks say so.
    if not gpus.devices and gpus.vendor is None and plan.source == "--nproc" and not on_the_cpu(smoke):
        yield from (lacking := tuple(_ranks_without_gpu(plan, environment, known(torch))))
        if lacking:
            return
    seen, counted = whole_gpus_for_ranks(gpus, environment, torch, smoke)
    visible = counted or len(seen)
    requires(not (visible == 1 and one_gpu_each(environment)), "Slurm gives each rank a GPU of its own")
    requires(not one_gpu_for_all(seen, plan), "one GPU is visible to all ranks: see duplicate-gpu")
    requires(not on_the_gpus(smoke), "a training over NCCL: see duplicate-gpu")
    if plan.nproc <= visible:
        if not counted:
            known(environment)  # it may hide some
        return
    name = selector(gpus, environment)
    shown = "" if isinstance(environment, Unknown) or name is None else f" ({name}={environment.get(name)})"
    source = "torch.cuda.device_count()" if counted else "NVML and the environment"
    yield Finding.of(
        f"{plan.nproc} ranks are planned, but only {plural(visible, 'GPU')} can be seen{shown}",
        planned(plan),
        Evidence(f"visible GPUs: {visible} of {len(gpus.devices)}{shown}", source),
        Fix(f"Start only as many ranks as there are GPUs: `torchrun --nproc-per-node={visible}`"),
        Fix(f"Or show the program all GPUs, if {name} hides them by mistake", (f"unset {name}",)) if shown else None,
    )


def _ranks_without_gpu(plan: Plan, environment: Maybe[Environment], torch: Torch) -> Iterator[Finding]:
    """Ranks that were asked for on a host without any GPU, by a torch that was installed for GPUs."""
    hidden = not isinstance(environment, Unknown) and any(
        name in environment and environment.get(name) in ("", "-1")
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    )
    if hidden or not (torch.cuda or torch.hip):
        return
    built_for = "CUDA" if torch.cuda else "ROCm"
    yield Finding.of(
        f"No GPU was found, and torch is built for {built_for}: {plural(plan.nproc, 'rank')} would have to run on the CPU",
        planned(plan),
        Evidence("GPUs found: none", "NVML, PCI"),
        torch_version(torch),
        Fix("See whether the system shows any GPU", ("ls /dev/nvidia* /dev/kfd; lspci | grep -iE '3d|vga|display'",)),
        Fix("If training is meant for the CPU, say so", ("export CUDA_VISIBLE_DEVICES=",)),
        cause="This host has no GPU, or the job, container or virtual machine was given none.",
        severity=WARN,
    )


@check("mig-multi-instance", severity=FAIL, owner=Owner.USER, judges=(Subject.TRAINING_PLAN,))
def mig_multi_instance(
    gpus: Gpus, plan: Plan, environment: Maybe[Environment], smoke: Maybe[Smoke]
) -> Iterator[Finding]:
    """Several ranks are planned on MIG slices.

    ## What breaks
    Rank 0 gets a slice; rank 1 dies with "invalid device ordinal", or NCCL refuses with "Duplicate GPU detected".

    ## Why
    A CUDA process sees a single MIG slice, whatever CUDA_VISIBLE_DEVICES lists, and slices of one GPU can't reach each
    other. NCCL's support for them is new (2026) and experimental: it needs NCCL_MULTI_RANK_GPU_ENABLE=1.

    ## Fix
    One rank on one slice; or switch MIG off for training on whole GPUs (`sudo nvidia-smi -mig 0`, which ends
    everybody's slices); or, for a test, one process per slice with gloo.
    """
    nvidia_gpus(gpus)
    requires(not on_the_cpu(smoke), "the ranks run on the CPU")
    visible = visible_gpus(gpus, environment)
    slices = [(shown.gpu.index, shown.slice.uuid) for shown in visible if shown.slice is not None]
    requires(slices, "MIG is off, or no slice of it is visible")
    if plan.nproc <= max(1, len(_whole(visible))):
        return
    guessed = plan.source.startswith("the number of GPUs")
    if guessed and isinstance(environment, Unknown):
        leave_untested(environment.reason)
    allowed = value_of(environment, "NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    sliced = sorted({index for index, _ in slices})
    summary = f"{plural(len(slices), 'MIG slice')} here: each is good for a job of one rank, but no job can span them"
    if not guessed:
        where = f"{plan.nproc} ranks on MIG slices (GPU {listed(sliced)})"
        summary = f"{where}: a process sees one slice, and NCCL can't connect them"
    yield Finding.of(
        summary,
        planned(plan),
        Evidence(f"MIG slices: {listed((f'{uuid} on GPU {index}' for index, uuid in slices), 3)}", "NVML"),
        Fix(
            "Run one rank on one slice: this, then `torchrun --nproc-per-node=1`",
            (f"export CUDA_VISIBLE_DEVICES={shlex.quote(slices[0][1])}",),
        ),
        by_root(
            "Or switch MIG off to have the whole GPU, while no process uses it: that ends everybody's slices of it",
            tuple(f"sudo nvidia-smi -i {index} -mig 0" for index in sliced),
        ),
        severity=INFO if guessed else WARN if allowed else None,
    )


@check("compute-mode-exclusive", severity=FAIL, owner=Owner.NODE, judges=(Subject.NEXT_JOB,))
def compute_mode_exclusive(gpus: Gpus, plan: Plan, environment: Maybe[Environment]) -> Iterator[Finding]:
    """A GPU's compute mode keeps ranks out.

    ## What breaks
    A rank stops with "all CUDA-capable devices are busy or unavailable" although there is memory enough.

    ## Why
    In the mode EXCLUSIVE_PROCESS a GPU takes one process: a second rank, or somebody else's notebook, is refused. In
    the mode PROHIBITED it takes none. One rank per GPU is fine with EXCLUSIVE_PROCESS, and so are several under CUDA's
    Multi-Process Service (MPS), whose server is then the one process.

    ## Fix
    `sudo nvidia-smi -i N -c DEFAULT`, or at most one rank per GPU, on GPUs that nobody else uses.
    """
    devices = nvidia_gpus(gpus)
    whole = _whole(visible_gpus(gpus, environment))
    requires(whole, "no whole GPU is visible (only MIG slices, or none)")
    asked = tuple(gpu for gpu in whole if not isinstance(gpu.compute_mode, Unknown))
    if not asked:
        leave_untested("the compute mode of the visible GPUs is not reported")
    prohibited = tuple(gpu for gpu in asked if gpu.compute_mode == "prohibited")
    # Under MPS the mode is as recommended: its server is the one process, and lets the ranks in.
    mps = not isinstance(environment, Unknown) and "CUDA_MPS_PIPE_DIRECTORY" in environment
    alone = tuple(gpu for gpu in asked if str(gpu.compute_mode).startswith("exclusive"))
    exclusive = tuple(gpu for gpu in alone if not mps and not gpu.mps_server)
    taken = tuple(gpu for gpu in exclusive if known_or(gpu.processes, 0) > 0)
    free = len(whole) - len(prohibited) - len(taken)
    if prohibited:
        yield _closed(
            prohibited, devices, f"{called(prohibited)} can't be used: compute mode PROHIBITED lets no process in"
        )
    if taken and plan.nproc > free:
        why = f"{called(taken)} can't be used: compute mode EXCLUSIVE_PROCESS, and another process is in"
        yield _closed(taken, devices, why, taken=True)
    elif exclusive and plan.nproc > len(whole):
        where = f"{plural(len(whole), 'GPU')} in compute mode EXCLUSIVE_PROCESS"
        yield _closed(exclusive, devices, f"{plan.nproc} ranks on {where}, which lets one process in")
    if len(asked) < len(whole):
        leave_untested("the compute mode of some visible GPUs is not reported")
    untold = [gpu.processes for gpu in exclusive if isinstance(gpu.processes, Unknown)]
    if untold and plan.nproc > free - len(untold):
        known(untold[0])


def _closed(bad: tuple[Gpu, ...], devices: tuple[Gpu, ...], summary: str, *, taken: bool = False) -> Finding:
    look = "nvidia-smi --query-compute-apps=gpu_uuid,pid,name --format=csv"
    chosen = ",".join(str(gpu.index) for gpu in bad)
    left = [gpu for gpu in devices if gpu not in bad]
    return Finding.of(
        summary,
        (Evidence(f"GPU {gpu.index}: compute mode {gpu.compute_mode}{_processes(gpu)}", "NVML") for gpu in bad),
        Fix("See which process has it", (look,)) if taken else None,
        by_root("Set the compute mode back", (f"sudo nvidia-smi -i {chosen} -c DEFAULT",)),
        Fix("Or use only the other GPUs", (_choose(left),)) if left else None,
    )


def _processes(gpu: Gpu) -> str:
    return "" if isinstance(gpu.processes, Unknown) else f", {plural(gpu.processes, 'process', 'processes')}"


@check("gpu-heterogeneous", severity=WARN, owner=Owner.NODE)
def gpu_heterogeneous(gpus: Gpus, plan: Plan, environment: Maybe[Environment]) -> Iterator[Finding]:
    """The GPUs of one job are not alike.

    ## What breaks
    Every step takes as long as the slowest GPU, and the batch has to fit the smallest memory: the first to run out of
    memory takes the others down.

    ## Why
    Ranks take the GPUs in order, and a small one (for the display, say) is among them. CUDA counts the fastest first
    unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set, so that its numbers may differ from those of nvidia-smi.

    ## Fix
    Choose GPUs of one kind by their UUIDs (`nvidia-smi -L`) in CUDA_VISIBLE_DEVICES.
    """
    nvidia_gpus(gpus)
    visible = _whole(visible_gpus(gpus, environment))
    requires(len(visible) > 1 and plan.nproc > 1, "no more than one GPU in the job")
    best = max(visible, key=_strength)
    alike = [gpu for gpu in visible if _alike(gpu, best)]
    ordered = value_of(environment, "CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = selector(gpus, environment) is not None
    first = (visible if ordered or chosen else sorted(visible, key=lambda gpu: gpu not in alike))[: plan.nproc]
    if all(_alike(gpu, first[0]) for gpu in first):
        return
    yield Finding.of(
        f"The GPUs of this job differ: {listed((_described(kind) for kind in _kinds(first)), most=3)}",
        planned(plan),
        (Evidence(f"GPU {gpu.index}: {_described(gpu)}", "NVML") for gpu in visible[:8]),
        Fix(
            f"Use only the {best.name}: this, then `torchrun --nproc-per-node={len(alike)}`",
            ("export CUDA_VISIBLE_DEVICES=" + shlex.quote(",".join(gpu.uuid for gpu in alike)),),
        ),
    )


def _strength(gpu: Gpu) -> tuple[int, tuple[int, ...]]:
    """Sort key of the GPU that one would rather train on: memory first (in steps of 4 GiB), then generation."""
    return round(_memory(gpu) / 4 / 1024**3), known_or(gpu.compute_capability, ())


def _memory(gpu: Gpu) -> int:
    return known_or(gpu.memory_total, 0)


def _alike(gpu: Gpu, peer: Gpu) -> bool:
    """Same model, and the same memory (where both tell it) but for what ECC or the firmware keeps."""
    mine, theirs = _memory(gpu), _memory(peer)
    return gpu.name == peer.name and (not mine or not theirs or abs(mine - theirs) <= 0.05 * max(mine, theirs))


def _kinds(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    kinds: list[Gpu] = []
    for gpu in gpus:
        if not any(_alike(gpu, kind) for kind in kinds):
            kinds.append(gpu)
    return tuple(kinds)


def _described(gpu: Gpu) -> str:
    return f"{gpu.name} ({human(_memory(gpu))})"


@check("gpu-memory-in-use", severity=WARN, owner=Owner.UNKNOWN, judges=(Subject.NEXT_JOB,))
def gpu_memory_in_use(
    gpus: Gpus, plan: Plan, environment: Maybe[Environment], processes: Maybe[Processes], machine: Maybe[Machine]
) -> Iterator[Finding]:
    """Something else holds much of a GPU's memory.

    ## What breaks
    "CUDA out of memory" at a batch size that fitted yesterday, on some ranks only.

    ## Why
    Another job or a notebook uses the GPU, or ranks of a run that was killed still live. Processes in other containers
    hold memory too, and can't be seen from here.

    ## Fix
    `nvidia-smi` shows who; stop what is yours, or choose free GPUs by CUDA_VISIBLE_DEVICES.
    """
    devices = nvidia_gpus(gpus)
    visible = _whole(visible_gpus(gpus, environment))
    requires(visible, "no whole GPU is visible (only MIG slices, or none)")
    asked = tuple(gpu for gpu in visible if not gpu.integrated and _share(gpu) is not None)
    if not asked:
        leave_untested("the memory in use on the visible GPUs is not reported")
    # Where it is known who holds what, gpu-memory-held-by-others, zombie-gpu-process and gpu-memory-unowned name them.
    looked_at = isinstance(processes, Processes) and isinstance(machine, Machine) and not machine.wsl
    named = tuple(gpu for gpu in asked if looked_at and is_all_owned(gpu))
    full = tuple(gpu for gpu in asked if (_share(gpu) or 0.0) >= 0.1 and gpu not in named)
    if not full:
        if len(asked) < sum(not gpu.integrated for gpu in visible):
            leave_untested("the memory in use on some visible GPUs is not reported")
        return
    worst = max(full, key=lambda gpu: _share(gpu) or 0.0)
    free = [gpu for gpu in asked if gpu not in full]
    unseen = all(gpu.processes == 0 for gpu in full)
    share = _share(worst) or 0.0
    much = f"up to {share:.0%} (GPU {worst.index})" if len(full) > 1 else f"{share:.0%} of it"
    enough = len(free) >= plan.nproc or (free and len(devices) > 1)
    yield Finding.of(
        f"Memory is already in use on {called(full)}: {much}",
        (
            Evidence(
                f"GPU {gpu.index}: {human(known(gpu.memory_used))} of {human(_memory(gpu))} in use{_processes(gpu)}",
                "NVML",
            )
            for gpu in full[:8]
        ),
        Fix(
            "See which process holds it, and end it if it is yours",
            ("nvidia-smi", "fuser -v /dev/nvidia*" if unseen else "ps -fu $USER"),
        ),
        Fix("Or use only the free GPUs", (_choose(free),)) if enough else None,
        cause="NVML lists no process there: it runs in another container, or a killed one is still ending."
        if unseen
        else "",
        severity=None if share >= 0.5 else INFO,
    )


def _choose(free: list[Gpu]) -> str:
    return "export CUDA_VISIBLE_DEVICES=" + ",".join(str(gpu.index) for gpu in free)


def _share(gpu: Gpu) -> float | None:
    used, total = known_or(gpu.memory_used, None), known_or(gpu.memory_total, None)
    return None if used is None or not total else used / total
