"""The surroundings of a smoke training: whether it could be started, and what it left behind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import clip, listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.processes.extra_contexts import of_running_jobs
from ddpdoctor.checks.smoke.abnormal_ends import require_started
from ddpdoctor.checks.smoke.fixes import ended_with, halted, smoke_command
from ddpdoctor.engine.registry import Subject, check, requires
from ddpdoctor.facts.smoke import Leftovers, RankEnding, RankRun, Smoke
from ddpdoctor.facts.snapshot import Driver, Gpus, Machine, Packages, Pci, Processes, TargetPython, Torch
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.installing import install_torch
from ddpdoctor.knowledge.nvidia import NO_GPU
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.shadowed_modules import another_name, torch_itself, why_in_the_way
from ddpdoctor.processes.gpu_holders import own_jobs, require_known_holders
from ddpdoctor.processes.job_words import Oddity
from ddpdoctor.smoke_training.analysis.failure_attribution import (
    NO_SMOKE,
    gpu_number,
    has_ended_early,
    ranks_not_started,
)
from ddpdoctor.smoke_training.analysis.failure_wording import describe_ending, strip_cpp_source

MISSING = re.compile(r"No module named '([\w.]+)'")


@check("smoke-not-started", severity=FAIL, owner=Owner.UNKNOWN)
def smoke_not_started(
    smoke: Smoke,
    target_python: Maybe[TargetPython],
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    pci: Maybe[Pci],
    machine: Maybe[Machine],
    packages: Maybe[Packages],
    torch: Maybe[Torch],
) -> Iterator[Finding]:
    """The ranks of the smoke training could not even be started.

    ## What breaks
    torchrun fails on this host in the same way: not a single rank gets so far as to run a line of the training script.

    ## Why
    The Python that was chosen has no torch, or one without `torch.distributed` (some builds for Jetson and macOS); or it is
    broken, is stopped by a limit, or can't write its temporary files. A file of yours in the working folder or on PYTHONPATH
    may have the name of a module that torch imports.

    ## Fix
    Install torch into that very Python, or name the right one with `--python`; activate its environment, so that it is
    found by itself.
    """
    requires(smoke.ranks or smoke.problem, NO_SMOKE)
    missing = ranks_not_started(smoke)
    if smoke.ranks and not missing:
        return
    words = smoke.problem or "no rank was ever heard of"
    some = len(missing) < len(smoke.ranks)
    where = f" on {listed(dict.fromkeys(run.host for run in missing), most=3)}" if some else ""
    who = (
        target_python
        if isinstance(target_python, TargetPython)
        else TargetPython(python=smoke.python or "python3", chosen_by="the plan of the run")
    )
    held = next((run for run in missing if run.process_state), None)
    why, fixes = halted(held, smoke) if held else ended_with(words)
    if not why and smoke.python:
        why = f"It is {who.python} that was to run them."
    yield Finding(
        summary=f"No rank could be started{where}: {words}",
        cause=why_in_the_way(torch) if isinstance(torch, Torch) and torch.in_the_way else why,
        evidence=(
            told(smoke, "problem", words),
            Evidence(f"Python: {who.python}", who.chosen_by),
            told(smoke, "engine", f"started by {smoke.engine}"),
        ),
        fixes=(*fixes, *(_in_the_way(torch, who) or _how_to_start(words, who, (driver, gpus, pci, machine, packages)))),
        rank=missing[0].rank if some else None,
        said=words,
    )


def _in_the_way(torch: Maybe[Torch], target_python: TargetPython) -> tuple[Fix, ...]:
    """Fixes where something else is found by torch's name, or by that of a module which torch needs."""
    if isinstance(torch, Unknown):
        return ()
    if torch.impostor:
        first, *others = torch_itself(torch, target_python)
        return Fix(f"`torch-shadowed` was found. {first.text}", first.commands), *others
    return (another_name(torch.in_the_way),) if torch.in_the_way else ()


def _how_to_start(
    words: str,
    target_python: TargetPython,
    host: tuple[Maybe[Driver], Maybe[Gpus], Maybe[Pci], Maybe[Machine], Maybe[Packages]],
) -> tuple[Fix, ...]:
    by_hand = Fix(
        "See what the same says when it is started by hand",
        (in_target_python(target_python, "-c", "import torch.distributed.run"),),
    )
    missing = MISSING.search(words)
    module = missing[1].partition(".")[0] if missing else ""
    if module == "torch":
        driver, gpus, pci, machine, packages = host
        if all(isinstance(group, Unknown) for group in (driver, gpus, pci)):
            install = Fix("Install torch into that Python", (pip_install(target_python, "torch"),))
        else:
            install = install_torch(target_python, driver, gpus, pci, machine, packages)
        other = Fix("Or name the Python in which training runs with `--python`, if it is another one")
        return install, other
    if module:
        return Fix(f"Install {module} into that Python", (pip_install(target_python, module),)), by_hand
    check_it = Fix(
        "See what is wrong with that Python", (f"ddpdoctor check --python {shlex.quote(target_python.python)}",)
    )
    return check_it, by_hand


@check("smoke-ended-early", severity=FAIL, owner=Owner.UNKNOWN)
def smoke_ended_early(smoke: Smoke) -> Iterator[Finding]:
    """The smoke training ended with what had started its ranks, and by no fault of theirs.

    ## What breaks
    torch's engine, which is torchrun's, or the process that the ranks are forked from was ended, or failed: all ranks end
    with it, wherever they are. Your own training would end like that, without a word of any rank.

    ## Why
    Mostly the kernel kills such a process: the memory of the host, the container or the job has run out, or a limit of CPU
    time is used up. Else somebody did: a scheduler, an administrator, a script.

    ## Fix
    Look into the kernel's log for a process that was killed, and at `ulimit -t`. Then run `ddpdoctor smoke` again: if it
    passes, it was ended from outside.
    """
    require_started(smoke)
    if not has_ended_early(smoke):
        return
    why, fixes = ended_with(smoke.problem)
    were = [rank for rank in smoke.ranks if rank.ending is not RankEnding.FINISHED]
    yield Finding(
        summary=f"The training ended early: {smoke.problem}",
        cause=" ".join(filter(None, ("All ranks end with it, and none failed by itself.", why))),
        evidence=(
            told(smoke, "problem", smoke.problem),
            *(told(smoke, "ranks", f"{ranks_named([run.rank])} {describe_ending(run)}") for run in were[:4]),
            told(smoke, "engine", f"started by {smoke.engine}"),
        ),
        fixes=(*fixes, Fix("Run it once more: if it passes, it was ended from outside", (smoke_command(smoke),))),
        said=smoke.problem,
    )


@check("smoke-scaling-failed", severity=FAIL, owner=Owner.UNKNOWN, judges=(Subject.TRAINING_SPEED,))
def smoke_scaling_failed(smoke: Smoke) -> Iterator[Finding]:
    """The smoke training passed, and fails when its speed is measured.

    ## What breaks
    The same DDP training, with a larger model and for longer, doesn't come to its end at one of the numbers of ranks that
    `--scaling` tries. Your own training, which is larger still, may fail at the same place.

    ## Why
    The first training is small, and passed. What the measurement has more of is load: memory of the GPU and of the host,
    large messages between the ranks, power and heat. At fewer ranks than the training had, the rank's own words tell.

    ## Fix
    Mend what the rank's own words say. Where it was killed without a word, look for want of memory; where it hung in an
    all_reduce of many bytes, test the way between the GPUs: `NCCL_P2P_DISABLE=1`. Then run
    `ddpdoctor smoke --scaling` again.
    """
    requires(smoke.ranks, NO_SMOKE)
    requires(smoke.scaling.speeds, "--scaling was not asked for, or could not be measured")
    failed = next((speed for speed in smoke.scaling.speeds if speed.failed and speed.way == "DDP"), None)
    if failed is None:
        return
    yield Finding(
        summary=f"The training passed; scaling failed at {plural(failed.ranks, 'rank')}: {strip_cpp_source(failed.problem)}",
        evidence=(told(smoke, "scaling", f"{plural(failed.ranks, 'rank')}: {failed.problem}"),),
        fixes=(
            Fix(
                "Run that number of ranks by itself",
                (smoke_command(msgspec.structs.replace(smoke, world_size=failed.ranks), "--scaling -v"),),
            ),
            Fix(
                "See whether this host has what it needs",
                (f"ddpdoctor check --nproc {failed.ranks} --python {shlex.quote(smoke.python or 'python3')}",),
            ),
        ),
        said=failed.problem,
    )


@check("smoke-leftovers", severity=WARN, owner=Owner.USER, judges=(Subject.OWN_HOST,))
def smoke_leftovers(smoke: Smoke) -> Iterator[Finding]:
    """The smoke training left something behind that could not be removed.

    ## What breaks
    A process that is left holds memory, a GPU or a port; what is left in /dev/shm takes memory of the host. The next run
    may fail for it.

    ## Why
    A process inside a system call, mostly in a driver or a network file system, ends only when that call returns. Files
    stay where a process that would remove them was killed.

    Of files in /dev/shm that appeared during a training over NCCL, and that no process of the training was seen to have,
    only the names look like NCCL's or torch's: another job of yours, perhaps in another container with this /dev/shm
    (`--ipc=host`), may need them.

    ## Fix
    End the process (`kill -9`); if it stays, what it waits for must be mended, or the host restarted. Remove the files that
    were the training's; of the others see with `fuser`, on the host itself, who uses them.
    """
    requires(smoke.ranks or smoke.problem, NO_SMOKE)
    left = smoke.leftovers
    if smoke.backend != "nccl":
        # gloo makes no files in /dev/shm: what appears there, unseen with its processes, isn't its own.
        left = msgspec.structs.replace(left, unclaimed=())
    found = [
        plural(len(left.processes), "process", "processes") if left.processes else "",
        plural(len(left.ports), "listening port") if left.ports else "",
        f"{plural(len(left.shared_memory), 'file')} in /dev/shm" if left.shared_memory else "",
        plural(len(left.files), "other file") if left.files else "",
    ]
    if not any(found) and not left.unclaimed:
        return
    few = plural(len(left.unclaimed), "file")
    yield Finding.of(
        f"The smoke training left {listed(filter(None, found))} behind"
        if any(found)
        else f"{few} in /dev/shm appeared during the smoke training and may belong to another job",
        (
            told(smoke, "leftovers", f"{what}: {clip(str(item), 200)}")
            for what, items in (
                ("process", left.processes),
                ("port", left.ports),
                ("in /dev/shm", left.shared_memory),
                ("in /dev/shm, may belong to another job", left.unclaimed),
                ("file", left.files),
            )
            for item in items[:8]
        ),
        _remove(left),
        cause=_why_left(left),
    )


def _why_left(left: Leftovers) -> str:
    """The reasons for what was found, and for nothing else."""
    reasons = (
        (left.processes, "A process inside a system call, mostly of a driver or a network file system, ends only when that"
         " call returns."),
        (left.ports, "A port stays open while any process holds it, also one that the training's own has started."),
        (left.shared_memory or left.files, "Files stay where a process that would remove them was killed."),
        (left.unclaimed, "No process of the training was seen to have what appeared in /dev/shm: only the names look like"
         " NCCL's or torch's. Another job of yours, perhaps in another container with this /dev/shm (--ipc=host), may need"
         " it."),
    )  # fmt: skip
    return " ".join(why for found, why in reasons if found)


def _remove(left: Leftovers) -> Iterator[Fix]:
    pids = [pid for process in left.processes if (pid := process.partition(" ")[0]).isdigit()]
    if pids:
        yield Fix("End what is left", (f"kill -9 {' '.join(pids)}",))
        yield Fix("If one stays, see where in the kernel it waits", (f"cat /proc/{pids[0]}/wchan",))
    if left.ports:
        yield Fix("See who listens there", tuple(f"ss -ltnp 'sport = :{port}'" for port in left.ports[:4]))
    files = [*_shared(left.shared_memory), *left.files]
    if files:
        yield Fix("Remove the files", (f"rm -r -- {shlex.join(files[:16])}",))
    if left.unclaimed:
        names = shlex.join(_shared(left.unclaimed)[:16])
        yield Fix("See, on the host and as root, who uses what may belong to another job", (f"sudo fuser -v {names}",))
    if not (pids or left.ports or files or left.unclaimed):
        yield Fix("See which processes are left", ("ps -ef",))


def _shared(names: Sequence[str]) -> list[str]:
    return [f"/dev/shm/{name.removeprefix('/dev/shm/')}" for name in names]


@check(
    "gpu0-extra-contexts",
    severity=FAIL,
    owner=Owner.USER,
    stands_for=(Oddity.EXTRA_CONTEXT, Oddity.ORPHANED, Oddity.BY_HAND),
    judges=(Subject.RUNNING_JOB,),
)
def gpu0_extra_contexts(smoke: Smoke, gpus: Maybe[Gpus], processes: Maybe[Processes]) -> Iterator[Finding]:
    """Ranks hold a context on a GPU that isn't theirs, mostly on GPU 0.

    ## What breaks
    Each such context takes some 300 to 500 MB. GPU 0 runs out of memory with a model that fits on all others, and
    `nvidia-smi` shows every rank on it.

    ## Why
    A rank touched `cuda:0`: `torch.load()` without `map_location` restores tensors where they were saved (much memory), and
    before `torch.cuda.set_device(local_rank)` every call means GPU 0 (a bare context). Or a rank of an old run is still there.
    In the smoke training itself none of these happens, so that something else in that Python does it: sitecustomize.py, a
    .pth file, a library that is loaded at the start.

    ## Fix
    `torch.cuda.set_device(local_rank)` first of all, and `torch.load(path, map_location="cpu")`. `ddpdoctor zombies` ends what
    an old run left.
    """
    if isinstance(gpus, Gpus) and isinstance(processes, Processes):
        yield from of_running_jobs(gpus, processes)
    if not smoke.ranks:
        requires(known(gpus).devices and known(gpus).vendor != "amd", NO_GPU)
        requires(own_jobs(known(processes)), f"{NO_SMOKE}, and no training job runs on this host")
        require_known_holders(known(gpus).answering)
        return
    requires(smoke.backend == "nccl", "the smoke training ran on the CPU")
    silent = [rank.rank for rank in smoke.ranks if gpu_number(rank) not in rank.contexts]
    requires(len(silent) < len(smoke.ranks), "no rank has told on which GPUs it holds a context")
    known_ranks = [rank for rank in smoke.ranks if rank.rank not in silent]
    extra = [(rank, gpu) for rank in known_ranks for gpu in rank.contexts if gpu != gpu_number(rank)]
    if extra:
        yield _on_others(smoke, extra)
    requires(
        not silent,
        f"{ranks_named(silent)} didn't tell on which GPUs {'it holds' if len(silent) == 1 else 'they hold'} a context",
    )


def _on_others(smoke: Smoke, extra: Sequence[tuple[RankRun, int]]) -> Finding:
    """The finding on ranks with contexts on GPUs that aren't theirs."""
    ranks = dict.fromkeys(run.rank for run, _ in extra)
    gpus = sorted({number for _, number in extra})
    whose = "aren't their own" if len(ranks) > 1 else "isn't its own"
    return Finding.of(
        f"{ranks_named(ranks)} {'hold' if len(ranks) > 1 else 'holds'} a context on {listed(f'cuda:{gpu}' for gpu in gpus)},"
        f" which {whose}",
        (
            told(smoke, "ranks", f"rank {run.rank} (pid {run.pid}), whose GPU is {run.device}, is on cuda:{gpu}, too")
            for run, gpu in extra[:16]
        ),
        Fix("Call torch.cuda.set_device(local_rank) before anything else that touches CUDA"),
        Fix('Load checkpoints with torch.load(path, map_location="cpu")'),
        Fix(
            "See what that Python loads at its start",
            (
                f"{shlex.quote(smoke.python or 'python')} -X importtime -c pass 2>&1 | grep -iE 'torch|cuda|cupy|custom'",
            ),
        ),
        rank=next(iter(ranks)) if len(ranks) == 1 else None,
    )
