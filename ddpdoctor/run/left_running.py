"""Names what a command that has ended has left running: its ranks, what they hold, and how to end them. In the diagnosis's process."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.base.text import human, listed, one_line, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, ProcessRole
from ddpdoctor.probes.proc import MAX_ENVIRON, Proc
from ddpdoctor.probes.processes import command_lines as commands
from ddpdoctor.probes.processes.description import Describer
from ddpdoctor.probes.processes.open_files import read_open_files
from ddpdoctor.probes.processes.process_tree import ObservedProcess, ObservedTree, place_by_settings
from ddpdoctor.probes.processes.roles import DATA_WORKER
from ddpdoctor.processes.leftovers.orphans import SHELLS

SETTLING_SECONDS: Final = 2.0
"""For ranks that lose their launcher, or each other, to end by themselves."""
PAUSE_SECONDS: Final = 0.1
MAX_ROWS: Final = 8


class EndedJob(NamedTuple):
    """A command that has ended, and where to look for what it has left."""

    name: str
    failed: bool
    supervisor: int
    """The pid whose descendants are looked at."""
    besides: Collection[int]
    """Pids that are not looked at, nor what is below them."""
    outputs: Set[tuple[int, int]]
    """Device and inode of where the command's output went."""
    many: str
    """The words of `one_of_many`."""


def name_left_running(job: EndedJob, environ: Mapping[str, str]) -> None:
    """Print what goes on; nothing where nothing does."""
    until = time.monotonic() + SETTLING_SECONDS
    while True:
        family = _family(job)
        training = _training(family, job, environ)
        # A shell may be about to start one, as pyenv's.
        if not training and not any(process.stat.name in SHELLS for process in family.by_pid.values()):
            return
        if time.monotonic() > until:
            break
        time.sleep(PAUSE_SECONDS)
    if training:
        _say(job, _described(training))


def _training(family: ObservedTree, job: EndedJob, environ: Mapping[str, str]) -> list[ObservedProcess]:
    """The ranks, launchers and scripts among those that live, a parent before its children. After a command that didn't fail, a Python
    counts only if it trains: it may be a service that was to stay."""
    outside = place_by_settings(environ)
    named: set[int] = set()
    for process in family.by_pid.values():
        if not _counts(process, failed=job.failed, inherited=process.place == outside):
            continue
        above = [up for up in family.ancestors(process) if up.stat.pid in family.by_pid]
        if process.stat.name == DATA_WORKER and any(up.is_python for up in above):
            continue
        named |= {process.stat.pid, *(up.stat.pid for up in above if _starts_others(up))}
    return sorted(
        (family.by_pid[pid] for pid in named),
        key=lambda process: (len(list(family.ancestors(process))), process.stat.pid),
    )


def _family(job: EndedJob) -> ObservedTree:
    """The processes that the command has started and that live."""
    proc = Proc()
    stats = {pid: stat for pid in proc.pids() if not isinstance(stat := proc.stat(pid), Unknown)}
    below = ObservedTree({pid: ObservedProcess(stat) for pid, stat in stats.items() if pid not in job.besides})
    found = {}
    for descendant in below.descendants(job.supervisor):
        if descendant.stat.ended:
            continue
        pid = descendant.stat.pid
        words, executable = proc.words(pid), proc.link(f"{pid}/exe")
        known_words = () if isinstance(words, Unknown) else words
        found[pid] = ObservedProcess(
            descendant.stat, known_words, executable, proc.whole(f"{pid}/environ", MAX_ENVIRON)
        )
    return ObservedTree(found)


def _counts(process: ObservedProcess, *, failed: bool, inherited: bool) -> bool:
    if process.is_inquiry or commands.is_tool(process.words) or commands.is_helper(process.words):
        return False
    if process.is_launcher or (process.place is not None and not inherited):
        return True
    return process.is_python and (failed or _trains(process))


def _trains(process: ObservedProcess) -> bool:
    opened = read_open_files(Proc(), process.stat.pid, maps=True)
    return opened.runtime == "torch" or bool(isinstance(opened.devices, tuple) and opened.devices)


def _starts_others(process: ObservedProcess) -> bool:
    """Whether a process is a script that would go on with its next command once the rank is gone."""
    return process.stat.name in SHELLS or (process.is_python and not commands.is_tool(process.words))


def _described(seen: list[ObservedProcess]) -> list[Process]:
    proc = Proc()
    describer = Describer(proc)
    return [
        describer.describe(
            process,
            ProcessRole.OTHER,
            process.place,
            read_open_files(proc, process.stat.pid, maps=False),
            ours=False,
        )
        for process in seen
    ]


def _say(job: EndedJob, processes: list[Process]) -> None:
    count = plural(len(processes), "process", "processes")
    goes, it, end = ("goes", "it is", "it") if len(processes) == 1 else ("go", "they are", "them")
    kill = _kill(processes)
    if job.many:
        pids = listed((process.pid for process in processes), MAX_ROWS)
        print(
            f"ddpdoctor, {job.many} on {socket.gethostname()}: {job.name} has ended, and {count} that it started {goes} on"
            f" (pid {pids}); to end {end}: {kill}"
        )
        return
    print(f"ddpdoctor: {job.name} has ended, and {count} that it started {goes} on:")
    memory = _gpu_memory(processes)
    for process in processes[:MAX_ROWS]:
        rank = f", rank {process.place.rank}" if process.place else ""
        print(f"  pid {process.pid}{rank}: {one_line(process.command or process.name)}")
        if held := list(_held(process, memory.get(process.pid, {}), job.outputs)):
            print(f"      holds {listed(held)}")
    if more := processes[MAX_ROWS:]:
        print(f"  and {len(more)} more")
    print(f"Unless {it} meant to go on, end {end}, and see whether anything is left:")
    print(f"  {kill}")
    print("  ddpdoctor zombies")


def _kill(processes: list[Process]) -> str:
    others = os.geteuid() and any(process.uid != os.geteuid() for process in processes)
    return shlex.join([*(["sudo"] if others else []), "kill", *(str(process.pid) for process in processes)])


def _held(process: Process, memory: Mapping[int, int], outputs: Set[tuple[int, int]]) -> Iterator[str]:
    if isinstance(process.listens, tuple) and process.listens:
        yield f"port{'' if len(process.listens) == 1 else 's'} {listed(process.listens)}"
    for index, size in memory.items():
        yield f"{human(size)} of GPU {index}" if size else f"GPU {index}"
    if not memory and isinstance(process.devices, tuple):
        yield from (f"/dev/nvidia{number}" for number in process.devices)
    if outputs & _opened(process.pid):
        yield "this output: what it still prints comes after this"


def _opened(pid: int) -> frozenset[tuple[int, int]]:
    found = set()
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            status = path.stat()
            found.add((status.st_dev, status.st_ino))
    except OSError:
        # It has ended, has closed something meanwhile, or may not be looked into.
        pass
    return frozenset(found)


def _gpu_memory(processes: list[Process]) -> dict[int, dict[int, int]]:
    """Bytes by pid and GPU, 0 where NVML doesn't say. It is asked where one of them has a GPU open."""
    if not any(isinstance(process.devices, tuple) and process.devices for process in processes):
        return {}
    from ddpdoctor.probes.session import collect_facts, start_probes

    gpus = collect_facts(start_probes(None, quick=True), {"gpus"}).gpus
    found: dict[int, dict[int, int]] = {}
    for gpu in gpus.devices if isinstance(gpus, Gpus) else ():
        for holder in () if isinstance(gpu.holders, Unknown) else gpu.holders:
            size = holder.memory if isinstance(holder.memory, int) else 0
            found.setdefault(holder.pid, {})[gpu.index] = size
    return found
