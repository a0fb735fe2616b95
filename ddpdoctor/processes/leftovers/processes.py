"""Which processes were left over by a run that is gone. Each fact that is missing is a doubt, and one doubt is enough. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.text import plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.processes.jobs import ELASTIC_RUN, TrainingJob, setting
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.orphans import ProcessTree
from ddpdoctor.processes.leftovers.rank_stacks import not_waiting
from ddpdoctor.processes.same_facts import remembered
from ddpdoctor.processes.signs_of_life import gpu_at_work, not_known, signs_of_life
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind

LEAST_AGE: Final = 10.0
"""Seconds. Whoever is younger may still be starting, or on the way to another parent."""
STARTED_TOGETHER: Final = 60.0
"""Seconds between the first and the last of a job's ranks that torchrun starts, on however slow a host."""
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
PROCESS_GROUP: Final = ("pt_gloo", "gloo_", "pt_nccl", "pt_tcpstore")
"""How the threads of a rank that has joined its job are named."""

_ATTENDED: Final = re.compile(r"ipykernel|jupyter|ipython|notebook|colab|debugpy|pydevd|\bi?pdb\b|\bgdb\b|code-server|\.vscode", re.IGNORECASE)  # fmt: skip
"""Somebody may come back to it: a notebook's kernel, a debugger."""
_DISPLAY_OR_SERVICE: Final = re.compile(r"Xorg|Xwayland|Xvnc|gnome-|kwin|plasma|mutter|weston|sddm|gdm|lightdm|compiz|nvidia-|nv-hostengine|dcgm|xrdp|steam|chrome|firefox", re.IGNORECASE)  # fmt: skip

_KINDS: Final = {
    ProcessRole.RANK: LeftoverKind.RANK,
    ProcessRole.WORKER: LeftoverKind.WORKER,
    ProcessRole.HELPER: LeftoverKind.HELPER,
}


def left_processes(processes: Processes, gpus: Maybe[Gpus]) -> Iterator[Leftover]:
    """Those that may be left over, each with its children, and how sure that is."""
    scene = ProcessTree(processes, gpus)
    for process in processes.listed:
        if process.ours:
            continue
        if process.state == "Z" and not process.ended_threads:
            yield from _ended(process, scene)
        elif scene.lost_its_parent(process) and _thought_dead(process, scene):
            yield _leftover(process, scene)


def _thought_dead(process: Process, scene: ProcessTree) -> bool:
    """Whether it is worth a word: an orphan of a run. One that works and was perhaps started by hand is none."""
    busy = any(signs_of_life(process, scene.processes.watched))
    if process.role is ProcessRole.RANK:
        return bool(setting(process, ELASTIC_RUN)) or scene.lost(process) or not busy
    if process.role in (ProcessRole.WORKER, ProcessRole.HELPER):
        return process.age >= LEAST_AGE
    return (
        process.role is ProcessRole.OTHER
        and process.pid != 1
        and _holds_gpu(process, scene)
        and not busy
        and not process.terminal
        and not process.unit.endswith(".service")
        and not _DISPLAY_OR_SERVICE.search(f"{process.name} {process.command}")
        and all(holder.kind == "compute" for _, holder in scene.held(process))
    )


def _holds_gpu(process: Process, scene: ProcessTree) -> bool:
    touches = isinstance(process.devices, tuple) and bool(process.devices)
    # In a container NVML may tell pids of the host: a process that happens to have the same one here is another.
    return touches or (bool(scene.held(process)) and not scene.processes.unseen)


def _leftover(process: Process, scene: ProcessTree) -> Leftover:
    children = tuple(scene.descendants(process))
    foreign = tuple(_foreign(process, scene))
    doubts = foreign or tuple(dict.fromkeys(_doubts(process, children, scene)))
    certainty = Certainty.NOT_OURS if foreign else Certainty.DOUBT if doubts else Certainty.PROVEN
    all_of_it = (process, *children)
    job = scene.job(process)
    held = [(gpu, holder) for one in all_of_it for gpu, holder in scene.held(one)]
    return Leftover(
        kind=_KINDS.get(process.role, LeftoverKind.HOLDER),
        certainty=certainty,
        what=_what(process),
        why=_why(process, scene),
        doubts=doubts,
        command=_command(process, certainty),
        then=_then(process, children, scene) if certainty is Certainty.DOUBT else "",
        owner=process.user or str(process.uid),
        age=process.age,
        identity=process.identity,
        children=tuple(child.identity for child in children),
        mates=tuple(rank.identity for rank in job.ranks if rank.pid != process.pid) if job else (),
        memory=sum(one.memory for one in all_of_it),
        gpus=tuple(sorted({gpu.index for gpu, _ in held})),
        gpu_memory=sum(holder.memory for _, holder in held if isinstance(holder.memory, int)),
        ports=tuple(sorted({port for one in all_of_it if isinstance(one.listens, tuple) for port in one.listens})),
        lacks_its_launcher=scene.lost(process),
        segments=tuple(
            sorted({path for one in all_of_it if isinstance(one.shared_memory, tuple) for path in one.shared_memory})
        ),
    )


def _foreign(process: Process, scene: ProcessTree) -> Iterator[str]:
    """Why it isn't the caller's to end."""
    if process.uid != scene.processes.uid:
        yield f"it is {process.user or process.uid}'s"
    if process.pid_namespace and scene.processes.pid_namespace not in ("", process.pid_namespace):
        yield "it runs in another container"
    elif scene.own and process.container != scene.own.container:
        yield f"it runs in container {process.container}" if process.container else "it runs outside of this container"


def _doubts(process: Process, children: Sequence[Process], scene: ProcessTree) -> Iterator[str]:
    """Why it is not certain that it is a leftover."""
    yield from (spared.words for spared in scene.processes.spared if spared.uid == process.uid)
    yield from scene.not_adopted(process)
    yield from _of_itself(process, scene)
    if process.age < LEAST_AGE:
        yield f"it is only {process.age:.0f} s old"
    if process.role is ProcessRole.RANK:
        yield from _of_a_rank(process, scene)
    elif process.role is ProcessRole.WORKER:
        yield from _of_a_worker(process, scene)
    else:
        yield "what it is for is not known"
    for child in children:
        yield from (f"its child {child.name} (pid {child.pid}): {text}" for text in _of_a_child(child, process, scene))


def _of_itself(process: Process, scene: ProcessTree) -> Iterator[str]:
    """What holds for any process that is to be ended: it is idle, nobody attends to it, and nothing about it is unknown."""
    watched = scene.processes.watched
    yield from signs_of_life(process, watched)
    yield from not_known(process, watched)
    yield from gpu_at_work(process, [gpu for gpu, _ in scene.held(process)], scene.all_gpus)
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
    if any(holder.kind != "compute" or gpu.mps_server for gpu, holder in scene.held(process)):
        yield "it draws, or it works through MPS"
    if not process.pid_namespace or not scene.processes.pid_namespace:
        yield "in which container it runs can't be told"
    elif scene.own is None:
        yield "in which container ddpdoctor itself runs can't be told"
    if process.pid_inside not in (0, process.pid):
        yield f"it calls itself pid {process.pid_inside}: it runs in a container"
    if isinstance(process.executable, str) and "python" not in process.executable.rpartition("/")[2]:
        yield f"it is no Python: {process.executable}"


def _of_a_rank(process: Process, scene: ProcessTree) -> Iterator[str]:
    place = process.place
    if not setting(process, ELASTIC_RUN):
        yield "nothing tells that a launcher had started it: it may have been started by hand"
    elif process.session != process.pid and scene.adopted(process):
        yield "it doesn't lead a session of its own, as torchrun's ranks do"
    if not any(mark.startswith(PROCESS_GROUP) for mark in process.marks):
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
    job = scene.job(process)
    if job is None:
        yield "which job it belongs to is not known"
        return
    yield from _of_the_missing(process, job, scene)
    for rank in job.ranks:
        named = "it" if rank.pid == process.pid else f"rank {_number(rank)} of its job (pid {rank.pid})"
        if stands := not_waiting(rank, named, scene.processes.watched):
            yield stands
        if rank.pid != process.pid:
            yield from (f"{named}: {text}" for text in _alive(rank, scene))


def _missing(process: Process, job: TrainingJob) -> tuple[int, ...]:
    """Ranks of this host that are none of those which were surely started with it: other runs may have met at the same place."""
    place = process.place
    if place is None or place.local_rank is None or place.local_world_size is None:
        return ()
    first = place.rank - place.local_rank
    mates = {
        one.place.rank
        for one in job.ranks
        if one.place
        and (one.uid, one.pid_namespace, one.container) == (process.uid, process.pid_namespace, process.container)
        and abs(one.age - process.age) < STARTED_TOGETHER
    }
    return tuple(rank for rank in range(first, first + place.local_world_size) if rank not in mates)


def _of_the_missing(process: Process, job: TrainingJob, scene: ProcessTree) -> Iterator[str]:
    """Why the ranks of its job that no process is may still run somewhere, and it only waits for them."""
    missing = _missing(process, job)
    if not missing:
        return
    named = f"{ranks_named(missing)} of its job"
    if scene.processes.unseen:
        yield f"{named} may run where that can't be seen: {scene.processes.unseen}"
    if setting(process, AGENT_STORE) != "True":
        # Else it was torchrun's own store that they met at, and with torchrun that is gone.
        yield f"{named} may run on another host, as {_are(missing)} not on this one"
    for one in scene.processes.listed:
        hidden = isinstance(one.settings, Unknown) and one.uid == process.uid and one.state not in ("Z", "X")
        if hidden and (
            one.role is ProcessRole.RANK or (one.role is ProcessRole.OTHER and one.name.startswith(("python", "pt_")))
        ):
            yield f"{one.name} (pid {one.pid}), which can't be looked into, may be {named}"


def _alive(other: Process, scene: ProcessTree) -> Iterator[str]:
    """Why that rank of the same job may still train, and with it all others."""
    watched = scene.processes.watched
    for process in (other, *scene.descendants(other)):
        yield from signs_of_life(process, watched)
        yield from not_known(process, watched)
        yield from gpu_at_work(process, [gpu for gpu, _ in scene.held(process)], scene.all_gpus)
    if not scene.adopted(other):
        yield "it still has its parent"
    if other.tracer or other.terminal:
        yield "somebody looks at it"


def _of_a_worker(process: Process, scene: ProcessTree) -> Iterator[str]:
    if not process.name.startswith("pt_data_worker"):
        yield "its name is not that of a DataLoader's worker"
    for other in scene.processes.listed:
        fed = other.role in (ProcessRole.RANK, ProcessRole.LAUNCHER, ProcessRole.OTHER) and not other.ours
        if fed and other.group == process.group and other.pid != process.parent:
            yield f"{other.name} (pid {other.pid}) of its group still runs, and may be fed by it"


def _of_a_child(child: Process, process: Process, scene: ProcessTree) -> Iterator[str]:
    if child.role not in (ProcessRole.WORKER, ProcessRole.HELPER):
        yield "what it is for is not known"
    if child.uid != process.uid or child.pid_namespace != process.pid_namespace or child.container != process.container:
        yield "it is another user's or container's"
    if child.start < process.start:
        yield "it is older than its parent"
    if child.state == "Z":
        return
    yield from _of_itself(child, scene)


def _ended(process: Process, scene: ProcessTree) -> Iterator[Leftover]:
    """A zombie: it has ended, and is listed until its parent asks how."""
    parent = scene.parent(process)
    if parent is None:
        return
    named = f"{parent.name} (pid {parent.pid})"
    foreign = tuple(_foreign(process, scene))
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


def _number(rank: Process) -> str:
    return str(rank.place.rank) if rank.place else "?"


def _what(process: Process) -> str:
    place = process.place
    if process.role is ProcessRole.RANK and place:
        what = f"rank {place.rank}" + (f" of {place.world_size}" if place.world_size else "")
    else:
        what = process.role.value if process.role is not ProcessRole.OTHER else process.name or "process"
    return f"{what} (pid {process.pid})" + (f": {process.command}" if process.command else "")


def _why(process: Process, scene: ProcessTree) -> str:
    watched = scene.processes.watched
    may_go_on = process.role is ProcessRole.RANK and not_waiting(process, "it", watched)
    idle = "" if may_go_on or any(signs_of_life(process, watched)) else ", and it does nothing"
    if process.role is ProcessRole.WORKER:
        return f"the rank that it loaded data for is gone{idle}"
    if process.role is ProcessRole.HELPER:
        return f"the rank that it helped is gone{idle}"
    if process.role is ProcessRole.RANK and setting(process, ELASTIC_RUN):
        job = scene.job(process)
        missing = _missing(process, job) if job else ()
        gone = f", as {_are(missing)} {ranks_named(missing)}" if missing else ""
        if scene.lost(process):
            return f"torchrun, which started it by its settings, is none of its parents{gone}{idle}"
        return f"torchrun, which started it, is gone{gone}{idle}"
    return f"whoever started it is gone{idle}"


def _are(numbers: Sequence[int]) -> str:
    return "is" if len(numbers) == 1 else "are"


def _command(process: Process, certainty: Certainty) -> str:
    if certainty is Certainty.PROVEN:
        return shlex.join(["ddpdoctor", "zombies", "--kill", str(process.pid)])
    look = ["ps", "-o", "pid,user,lstart,stat,args", "-p", str(process.pid)]
    return shlex.join(look) if certainty is Certainty.DOUBT else ""


def _then(process: Process, children: Sequence[Process], scene: ProcessTree) -> str:
    """Nobody is told to kill what was seen at work, or whose job was."""
    watched = scene.processes.watched
    job = scene.job(process)
    mates = job.ranks if job else ()
    alive = any(any(signs_of_life(one, watched)) for one in (process, *children, *mates))
    elsewhere = any(isinstance(mate.stack, tuple) and not_waiting(mate, "it", watched) for mate in mates)
    return "" if alive or elsewhere else shlex.join(["kill", str(process.pid)])


@remembered
def left_by_processes(processes: Maybe[Processes], gpus: Maybe[Gpus]) -> tuple[Leftover, ...]:
    """The same, worked out once; none where the processes are not known."""
    return tuple(left_processes(processes, gpus)) if isinstance(processes, Processes) else ()
