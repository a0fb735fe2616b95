"""Judges which processes of a host have lost what started them: adopted by an init, or below a subreaper. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.processes.jobs import ELASTIC_RUN, TrainingJob, ancestors, jobs_of, setting

INIT_PROGRAMS: Final = frozenset(
    {"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runit", "pause", "sleep", "tail"}
)
"""Programs that are a system's or a container's first process, adopt orphans, and start no rank themselves."""
INTERPRETERS: Final = ("python", "pypy", "ipython", "jupyter", "conda", "ray", "java", "node", "perl", "ruby", "bash", "sh", "dash", "zsh", "ksh", "fish", "tcsh", "csh", "ash", "busybox")  # fmt: skip
"""Programs that may have started a rank themselves, also as a container's first process."""
SHELLS: Final = frozenset({"bash", "sh", "dash", "zsh", "ksh", "fish", "tcsh", "csh", "ash", "busybox"})
"""Give the programs of a pipeline the process group of its first one."""
STEP_LAUNCHERS: Final = ("slurm", "srun", "mpi", "orte", "prte", "prun", "hydra", "jsrun", "aprun", "palsd")
"""Beginnings of the names of launchers that start torchrun, or ranks that know nothing of it."""
SPAWNED: Final = "from multiprocessing.spawn import spawn_main"
_PYTHON_COMMAND: Final = compile_lazily(r"(?:\S*/)?(?:python|pypy)[\d.]*t? \S")
"""A command line as Python was given it, and no title that a program has written there."""


class ProcessTree:
    """All processes that are listed, and the GPUs that they hold."""

    def __init__(self, processes: Processes, gpus: Maybe[Gpus]) -> None:
        self.processes = processes
        self.all_gpus: Sequence[Gpu] | Unknown = gpus if isinstance(gpus, Unknown) else gpus.answering
        self._children: dict[int, list[Process]] = {}
        for process in processes.listed:
            if process.pid != process.parent:
                self._children.setdefault(process.parent, []).append(process)
        self._held: dict[int, list[tuple[Gpu, GpuHolder]]] = {}
        for gpu in () if isinstance(self.all_gpus, Unknown) else self.all_gpus:
            for holder in () if isinstance(gpu.holders, Unknown) else gpu.holders:
                self._held.setdefault(holder.pid, []).append((gpu, holder))
        self._jobs: dict[int, TrainingJob] = {rank.pid: job for job in jobs_of(processes) for rank in job.ranks}
        ours = [process for process in processes.listed if process.ours]
        self.own: Process | None = max(ours, key=lambda process: process.start, default=None)
        """ddpdoctor itself, or one that it started."""

    def parent(self, process: Process) -> Process | None:
        return self.processes.get(process.parent)

    def job(self, rank: Process) -> TrainingJob | None:
        return self._jobs.get(rank.pid)

    def held(self, process: Process) -> Sequence[tuple[Gpu, GpuHolder]]:
        """List the GPUs on which NVML lists a process."""
        return self._held.get(process.pid, ())

    def descendants(self, process: Process) -> Iterator[Process]:
        """Yield its children before theirs."""
        waiting, seen = [process], {process.pid}
        while waiting:
            for child in self._children.get(waiting.pop(0).pid, ()):
                if child.pid not in seen:
                    seen.add(child.pid)
                    waiting.append(child)
                    yield child

    def is_adopted(self, process: Process) -> bool:
        """Whether its parent is one that adopts orphans; whether it may also have started it, `why_not_adopted` says."""
        parent = self.parent(process)
        if parent is None:
            return process.parent == 1
        # systemd --user is the first process of a user's session; a container's init is seen from outside here.
        user_manager = parent.name == "systemd" and parent.parent == 1
        init_of_a_container = parent.pid_inside == 1 and parent.name in INIT_PROGRAMS
        return parent.role is ProcessRole.OTHER and (parent.pid == 1 or user_manager or init_of_a_container)

    def lacks_its_launcher(self, process: Process) -> bool:
        """Whether who started it is gone, though its parent is no init: a subreaper adopted it (slurmstepd, a container's shim, Ray,
        a supervisor), which nothing in /proc tells. It lacks the launcher that it must have had."""
        parent = self.parent(process)
        if parent is None or self.is_adopted(process):
            return False
        if process.group and parent.group and process.group not in (process.pid, parent.group):
            # What a process starts has its group, or one of its own; slurmstepd gives all ranks that of the first.
            first = self.processes.get(process.group)
            beside = first is not None and first.role is ProcessRole.RANK and first.parent == process.parent
            return not beside and not _is_shell(parent)
        if SPAWNED in process.command:
            return not _may_start_ranks(parent)
        if process.forked or process.role is ProcessRole.WORKER:
            return _of_another_program(process, parent)
        return (
            process.role is ProcessRole.RANK and bool(setting(process, ELASTIC_RUN)) and self._lacks_torchrun(process)
        )

    def _lacks_torchrun(self, rank: Process) -> bool:
        """Whether torchrun, which started the rank, is gone. A shell adopts nobody: a rank in one was started there, but for that which torchrun had started."""
        top = self._outermost(rank)
        parent = self.parent(top)
        if parent is None or self.is_adopted(top) or _is_shell(parent):
            return False
        return not any(_may_be_torchrun(ancestor, rank) for ancestor in ancestors(top, self.processes))

    def _outermost(self, rank: Process) -> Process:
        """Return the rank, or the shell in which torchrun had started it: `torchrun --no-python ./train.sh`."""
        top = rank
        for parent in ancestors(rank, self.processes):
            if self.is_adopted(top) or not _wraps(parent, top):
                break
            top = parent
        return top

    def lost_its_parent(self, process: Process) -> bool:
        """Whether what started it is gone, by whatever sign."""
        return (
            self.is_adopted(process)
            or self.lacks_its_launcher(process)
            or (process.role is ProcessRole.RANK and self.is_adopted(self._outermost(process)))
        )

    def why_not_adopted(self, process: Process) -> Iterator[str]:
        """Say why its parent may have started it after all, so that it is no orphan."""
        parent = self.parent(process)
        if parent is not None and self.lacks_its_launcher(process):
            yield (
                f"its parent, {parent.name} (pid {parent.pid}), is not known to be an init: it may have adopted it as an orphan, or"
                " have started it"
            )
        elif parent is not None and not self.is_adopted(process):
            yield f"{parent.name} (pid {parent.pid}), which started it, is still there, and may have more to do"
        elif parent is None:
            yield "its parent can't be looked into"
        elif parent.start > process.start:
            yield f"its parent, {parent.name} (pid {parent.pid}), is younger than itself"
        elif parent.name in INIT_PROGRAMS:
            return
        elif isinstance(parent.executable, Unknown):
            yield f"its parent, {parent.name} (pid {parent.pid}), may have started it: it can't be looked into"
        elif _file_name(parent.executable).startswith(INTERPRETERS):
            yield f"its parent, {parent.name} (pid {parent.pid}), may have started it"


def _wraps(parent: Process, child: Process) -> bool:
    """Whether the parent is what torchrun started in place of a rank: it has the same run in its settings. A shell with such
    settings in which somebody sits has a terminal."""
    return (
        parent.role is ProcessRole.OTHER
        and not parent.ours
        and not parent.terminal
        and bool(setting(child, ELASTIC_RUN))
        and all(setting(parent, name) == setting(child, name) for name in (ELASTIC_RUN, "RANK"))
        and parent.session == child.session
        and parent.start <= child.start
    )


def _is_shell(process: Process) -> bool:
    """Whether it is a shell. A script that is run by its path has the script's name."""
    program = "" if isinstance(process.executable, Unknown) else _file_name(process.executable)
    return process.name in SHELLS or program in SHELLS


def _may_be_torchrun(above: Process, rank: Process) -> bool:
    """Whether that ancestor may be what started the rank: torchrun, or a script that calls it."""
    if above.role is ProcessRole.LAUNCHER:
        return not above.name.startswith(STEP_LAUNCHERS)
    return above.role is ProcessRole.RANK or _may_start_ranks(above)


def _may_start_ranks(process: Process) -> bool:
    """Whether it is a Python with torch in it, as far as can be told: who calls elastic_launch() or mp.spawn() has that."""
    python = isinstance(process.executable, Unknown) or _file_name(process.executable).startswith(("python", "pypy"))
    return python and process.has_torch is not False and bool(_PYTHON_COMMAND.match(process.command))


def _of_another_program(child: Process, parent: Process) -> bool:
    """Whether a process that was forked can't have been forked from its parent: both have the command line that they were started
    with, and it isn't the same."""
    if isinstance(parent.executable, str) and not _file_name(parent.executable).startswith(("python", "pypy")):
        return True
    return (
        bool(_PYTHON_COMMAND.match(child.command))
        and bool(_PYTHON_COMMAND.match(parent.command))
        and child.command != parent.command
    )


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]
