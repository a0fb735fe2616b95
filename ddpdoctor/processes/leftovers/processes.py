"""Judges which processes were left over by a run that is gone. Each fact that is missing is a doubt, and one doubt is enough. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.processes.jobs import ELASTIC_RUN, TrainingJob, setting
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.orphans import ProcessTree
from ddpdoctor.processes.leftovers.rank_stacks import why_not_waiting
from ddpdoctor.processes.same_facts import remembered
from ddpdoctor.processes.signs_of_life import gpu_at_work, not_known, signs_of_life
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind

MIN_AGE_SECONDS: Final = 10.0
"""Whoever is younger may still be starting, or on the way to another parent."""
STARTED_TOGETHER_SECONDS: Final = 60.0
"""Time between the first and the last of a job's ranks that torchrun starts, on however slow a host."""
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
GROUP_THREADS: Final = ("pt_gloo", "gloo_", "pt_nccl", "pt_tcpstore")
"""How the threads of a rank that has joined its job are named."""

_ATTENDED: Final = compile_lazily(r"ipykernel|jupyter|ipython|notebook|colab|debugpy|pydevd|\bi?pdb\b|\bgdb\b|code-server|\.vscode", re.IGNORECASE)  # fmt: skip
"""Somebody may come back to it: a notebook's kernel, a debugger."""
_DISPLAY_OR_SERVICE: Final = compile_lazily(r"Xorg|Xwayland|Xvnc|gnome-|kwin|plasma|mutter|weston|sddm|gdm|lightdm|compiz|nvidia-|nv-hostengine|dcgm|xrdp|steam|chrome|firefox", re.IGNORECASE)  # fmt: skip
LOOK: Final = ("ps", "-o", "pid,user,lstart,stat,args", "-p")
"""Shows the process whose pid comes next."""

T = TypeVar("T")

_KINDS: Final = {
    ProcessRole.RANK: LeftoverKind.RANK,
    ProcessRole.WORKER: LeftoverKind.WORKER,
    ProcessRole.HELPER: LeftoverKind.HELPER,
}


@remembered
def left_by_processes(processes: Maybe[Processes], gpus: Maybe[Gpus]) -> tuple[Leftover, ...]:
    """List the processes that may be left over, each with its children, and how sure that is; none where they are not known."""
    return tuple(_left_processes(processes, gpus)) if isinstance(processes, Processes) else ()


def _left_processes(processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Leftover]:
    tree = ProcessTree(processes, gpus)
    for process in processes.listed:
        if process.ours:
            continue
        if process.has_ended and not process.ended_threads:
            yield from _ended(process, tree)
        elif tree.lost_its_parent(process) and _is_suspect(process, tree):
            yield _leftover(process, tree)


def _is_suspect(process: Process, tree: ProcessTree) -> bool:
    """Whether it is worth a word: an orphan of a run. One that works and was perhaps started by hand is none."""
    busy = any(signs_of_life(process, tree.processes.watched))
    if process.role is ProcessRole.RANK:
        return bool(setting(process, ELASTIC_RUN)) or tree.lacks_its_launcher(process) or not busy
    if process.role in (ProcessRole.WORKER, ProcessRole.HELPER):
        return process.age >= MIN_AGE_SECONDS
    held = tree.held(process)
    # In a container NVML may tell pids of the host: a process that happens to have the same one here is another.
    holds_gpu = (isinstance(process.devices, tuple) and process.devices) or (held and not tree.processes.unseen)
    return (
        process.role is ProcessRole.OTHER
        and process.pid != 1
        and bool(holds_gpu)
        and not busy
        and not process.terminal
        and not process.unit.endswith(".service")
        and not _DISPLAY_OR_SERVICE.search(f"{process.name} {process.command}")
        and all(holder.kind == "compute" for _, holder in held)
    )


def _leftover(process: Process, tree: ProcessTree) -> Leftover:
    children = tuple(tree.descendants(process))
    foreign = tuple(_foreign(process, tree))
    doubts = foreign or tuple(dict.fromkeys(_doubts(process, children, tree)))
    certainty = Certainty.NOT_OURS if foreign else Certainty.DOUBT if doubts else Certainty.PROVEN
    family = (process, *children)
    job = tree.job(process)
    pid = str(process.pid)
    held = [(gpu, holder) for member in family for gpu, holder in tree.held(member)]
    return Leftover(
        kind=_KINDS.get(process.role, LeftoverKind.HOLDER),
        certainty=certainty,
        what=_what(process),
        why=_why(process, tree),
        doubts=doubts,
        command="" if foreign else shlex.join([*LOOK, pid] if doubts else ["ddpdoctor", "zombies", "--kill", pid]),
        then=_then(process, children, tree) if certainty is Certainty.DOUBT else "",
        owner=process.user or str(process.uid),
        age=process.age,
        identity=process.identity,
        children=tuple(child.identity for child in children),
        mates=tuple(rank.identity for rank in job.ranks if rank.pid != process.pid) if job else (),
        memory=sum(member.memory for member in family),
        gpus=tuple(sorted({gpu.index for gpu, _ in held})),
        gpu_memory=sum(holder.memory for _, holder in held if isinstance(holder.memory, int)),
        ports=tuple(sorted({port for member in family for port in _known(member.listens)})),
        lacks_its_launcher=tree.lacks_its_launcher(process),
        segments=tuple(sorted({path for member in family for path in _known(member.shared_memory)})),
    )


def _known(fact: Maybe[tuple[T, ...]]) -> tuple[T, ...]:
    return () if isinstance(fact, Unknown) else fact


def _foreign(process: Process, tree: ProcessTree) -> Iterator[str]:
    """Say why it isn't the caller's to end."""
    if process.uid != tree.processes.uid:
        yield f"it is {process.user or process.uid}'s"
    if process.pid_namespace and tree.processes.pid_namespace not in ("", process.pid_namespace):
        yield "it runs in another container"
    elif tree.own and process.container != tree.own.container:
        yield f"it runs in container {process.container}" if process.container else "it runs outside of this container"


def _doubts(process: Process, children: Sequence[Process], tree: ProcessTree) -> Iterator[str]:
    """Say why it is not certain that it is a leftover."""
    yield from (spared.words for spared in tree.processes.spared if spared.uid == process.uid)
    yield from tree.why_not_adopted(process)
    yield from _doubts_of_any(process, tree)
    if process.age < MIN_AGE_SECONDS:
        yield f"it is only {process.age:.0f} s old"
    if process.role is ProcessRole.RANK:
        yield from _doubts_of_rank(process, tree)
    elif process.role is ProcessRole.WORKER:
        yield from _doubts_of_worker(process, tree)
    else:
        yield "what it is for is not known"
    for child in children:
        yield from (
            f"its child {child.name} (pid {child.pid}): {text}" for text in _doubts_of_child(child, process, tree)
        )


def _doubts_of_any(process: Process, tree: ProcessTree) -> Iterator[str]:
    """Say what speaks against ending whatever process: it isn't idle, somebody attends to it, or something about it is unknown."""
    yield from _activity(process, tree)
    if process.state not in ("S", "I") and process.state not in "RDTt":
        yield f"its state {process.state} tells nothing"
    if process.ended_threads:
        yield "its main thread has ended, and others go on"
    if process.terminal:
        yield "it has a terminal, in front of which somebody may sit"
    if process.tracer:
        yield f"a debugger (pid {process.tracer}) looks at it"
    if _ATTENDED.search(f"{process.name} {process.command}"):
        yield "it is a notebook's or a debugger's, to which somebody may come back"
    if _DISPLAY_OR_SERVICE.search(f"{process.name} {process.command}"):
        yield "it is a display's or a service's"
    if any(holder.kind != "compute" or gpu.mps_server for gpu, holder in tree.held(process)):
        yield "it draws, or it works through MPS"
    if not process.pid_namespace or not tree.processes.pid_namespace:
        yield "in which container it runs can't be told"
    elif tree.own is None:
        yield "in which container ddpdoctor itself runs can't be told"
    if process.pid_inside not in (0, process.pid):
        yield f"it calls itself pid {process.pid_inside}: it runs in a container"
    if isinstance(process.executable, str) and "python" not in process.executable.rpartition("/")[2]:
        yield f"it is no Python: {process.executable}"


def _activity(process: Process, tree: ProcessTree) -> Iterator[str]:
    """Say what a process, or a GPU for it, was seen to do, or may have done unseen."""
    watched = tree.processes.watched
    yield from signs_of_life(process, watched)
    yield from not_known(process, watched)
    yield from gpu_at_work(process, [gpu for gpu, _ in tree.held(process)], tree.all_gpus)


def _doubts_of_rank(process: Process, tree: ProcessTree) -> Iterator[str]:
    place = process.place
    if not setting(process, ELASTIC_RUN):
        yield "nothing tells that a launcher had started it: it may have been started by hand"
    elif process.session != process.pid and tree.is_adopted(process):
        yield "it doesn't lead a session of its own, as torchrun's ranks do"
    if not any(mark.startswith(GROUP_THREADS) for mark in process.marks):
        yield "it has no process group's threads, so whether it ever was a rank is not certain"
    if place is None or place.world_size is None or place.local_world_size is None or place.local_rank is None:
        yield (
            "how many ranks of its job run on this host isn't told (LOCAL_WORLD_SIZE)"
            if place and place.world_size
            else "how many ranks its job has is not known"
        )
    elif process.forked:
        yield "which rank it is can only be guessed"
    elif place.world_size != place.local_world_size:
        yield f"{plural(place.world_size - place.local_world_size, 'rank')} of its job are on other hosts, and may still work with it"
    job = tree.job(process)
    if job is None:
        yield "which job it belongs to is not known"
        return
    yield from _doubts_of_missing(process, job, tree)
    for rank in job.ranks:
        number = rank.place.rank if rank.place else "?"
        named = "it" if rank.pid == process.pid else f"rank {number} of its job (pid {rank.pid})"
        if stands := why_not_waiting(rank, named, tree.processes.watched):
            yield stands
        if rank.pid != process.pid:
            yield from (f"{named}: {text}" for text in _why_alive(rank, tree))


def _missing(process: Process, job: TrainingJob) -> tuple[int, ...]:
    """List ranks of this host that are none of those which were surely started with it: other runs may have met at the same place."""
    place = process.place
    if place is None or place.local_rank is None or place.local_world_size is None:
        return ()
    first = place.rank - place.local_rank
    mates = {
        rank.place.rank
        for rank in job.ranks
        if rank.place
        and (rank.uid, rank.pid_namespace, rank.container) == (process.uid, process.pid_namespace, process.container)
        and abs(rank.age - process.age) < STARTED_TOGETHER_SECONDS
    }
    return tuple(rank for rank in range(first, first + place.local_world_size) if rank not in mates)


def _doubts_of_missing(process: Process, job: TrainingJob, tree: ProcessTree) -> Iterator[str]:
    """Say why the ranks of its job that no process is may still run somewhere, and it only waits for them."""
    missing = _missing(process, job)
    if not missing:
        return
    named = f"{ranks_named(missing)} of its job"
    if tree.processes.unseen:
        yield f"{named} may run where that can't be seen: {tree.processes.unseen}"
    if setting(process, AGENT_STORE) != "True":
        # Else it was torchrun's own store that they met at, and with torchrun that is gone.
        are = "is" if len(missing) == 1 else "are"
        yield f"{named} may run on another host, as {are} not on this one"
    for other in tree.processes.listed:
        hidden = isinstance(other.settings, Unknown) and other.uid == process.uid and not other.has_ended
        python = other.role is ProcessRole.OTHER and other.name.startswith(("python", "pt_"))
        if hidden and (other.role is ProcessRole.RANK or python):
            yield f"{other.name} (pid {other.pid}), which can't be looked into, may be {named}"


def _why_alive(other: Process, tree: ProcessTree) -> Iterator[str]:
    """Say why that rank of the same job may still train, and with it all others."""
    for process in (other, *tree.descendants(other)):
        yield from _activity(process, tree)
    if not tree.is_adopted(other):
        yield "it still has its parent"
    if other.tracer or other.terminal:
        yield "somebody looks at it"


def _doubts_of_worker(process: Process, tree: ProcessTree) -> Iterator[str]:
    if not process.name.startswith("pt_data_worker"):
        yield "its name is not that of a DataLoader's worker"
    for other in tree.processes.listed:
        fed = other.role in (ProcessRole.RANK, ProcessRole.LAUNCHER, ProcessRole.OTHER) and not other.ours
        if fed and other.group == process.group and other.pid != process.parent:
            yield f"{other.name} (pid {other.pid}) of its group still runs, and may be fed by it"


def _doubts_of_child(child: Process, process: Process, tree: ProcessTree) -> Iterator[str]:
    if child.role not in (ProcessRole.WORKER, ProcessRole.HELPER):
        yield "what it is for is not known"
    if child.uid != process.uid or child.pid_namespace != process.pid_namespace or child.container != process.container:
        yield "it is another user's or container's"
    if child.start < process.start:
        yield "it is older than its parent"
    if child.has_ended:
        return
    yield from _doubts_of_any(child, tree)


def _ended(process: Process, tree: ProcessTree) -> Iterator[Leftover]:
    """Judge a zombie: it has ended, and is listed until its parent asks how."""
    parent = tree.parent(process)
    if parent is None:
        return
    named = f"{parent.name} (pid {parent.pid})"
    foreign = tuple(_foreign(process, tree))
    yield Leftover(
        kind=LeftoverKind.ENDED,
        certainty=Certainty.NOT_OURS if foreign else Certainty.DOUBT,
        what=_what(process),
        why=f"it has ended, and its parent {named} has not collected it",
        doubts=foreign or (f"it can't be killed, since it is dead: it goes when {named} collects it, or ends itself",),
        command=shlex.join(["kill", "-s", "CHLD", str(parent.pid)]) if not foreign else "",
        owner=process.user or str(process.uid),
        age=process.age,
        identity=process.identity,
    )


def _what(process: Process) -> str:
    place = process.place
    if process.role is ProcessRole.RANK and place:
        what = f"rank {place.rank}" + (f" of {place.world_size}" if place.world_size else "")
    else:
        what = process.role.value if process.role is not ProcessRole.OTHER else process.name or "process"
    return f"{what} (pid {process.pid})" + (f": {process.command}" if process.command else "")


def _why(process: Process, tree: ProcessTree) -> str:
    watched = tree.processes.watched
    may_go_on = process.role is ProcessRole.RANK and why_not_waiting(process, "it", watched)
    idle = "" if may_go_on or any(signs_of_life(process, watched)) else ", and it does nothing"
    if process.role is ProcessRole.WORKER:
        return f"the rank that it loaded data for is gone{idle}"
    if process.role is ProcessRole.HELPER:
        return f"the rank that it helped is gone{idle}"
    if process.role is ProcessRole.RANK and setting(process, ELASTIC_RUN):
        job = tree.job(process)
        missing = _missing(process, job) if job else ()
        gone = f", as {'is' if len(missing) == 1 else 'are'} {ranks_named(missing)}" if missing else ""
        if tree.lacks_its_launcher(process):
            return f"torchrun, which started it by its settings, is none of its parents{gone}{idle}"
        return f"torchrun, which started it, is gone{gone}{idle}"
    return f"whoever started it is gone{idle}"


def _then(process: Process, children: Sequence[Process], tree: ProcessTree) -> str:
    """Word the command that ends it after a look; "" where it, or its job, was seen at work."""
    watched = tree.processes.watched
    job = tree.job(process)
    mates = job.ranks if job else ()
    alive = any(any(signs_of_life(member, watched)) for member in (process, *children, *mates))
    elsewhere = any(isinstance(mate.stack, tuple) and why_not_waiting(mate, "it", watched) for mate in mates)
    return "" if alive or elsewhere else shlex.join(["kill", str(process.pid)])
