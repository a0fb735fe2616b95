"""Makes facts out of what was read of one process: its settings, command, container, and what it did while it was watched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.processes import Process, ProcessRole, RankPlace, ThreadActivity
from ddpdoctor.knowledge.settings_agreement import must_agree
from ddpdoctor.probes.accelerate import requested_processes
from ddpdoctor.probes.environment import NAMES, for_facts, matters
from ddpdoctor.probes.proc import PAGE, TICKS, Proc, Spent, user_name, variables
from ddpdoctor.probes.processes.command_lines import command, command_of_others, is_accelerate
from ddpdoctor.probes.processes.open_files import OpenFiles
from ddpdoctor.probes.processes.process_tree import MARKING_THREADS, ObservedProcess
from ddpdoctor.probes.processes.tcp_sockets import listening_ports

MAX_SETTINGS = 500
TOO_MANY = Unknown(f"its environment has more than {MAX_SETTINGS} settings of training, as none has")
JOB_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "MV2_COMM_WORLD_", "SLURM_")
"""Beginnings of the names of settings that tell the job and the rank."""
JOB_NAMES = {
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
}
USER_NAMES = {
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR", "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME", "CC", "CXX", "INIT_METHOD", "DIST_INIT_METHOD", "DIST_URL",
}  # fmt: skip
"""Settings that nobody needs of another user's processes."""

_HEX = r"[0-9a-f]"
_CONTAINER = re.compile(rf"(?<!{_HEX})({_HEX}{{64}})(?!{_HEX})")
_POD = compile_lazily(r"/(?:[^/]*-)?pod([0-9a-f][0-9a-f_-]{30,40})")
_NAMED = re.compile(
    r"/lxc(?:\.payload)?[./]([^/]+)|/machine\.slice/(?:systemd-nspawn@|machine-)([^/]+?)\.(?:service|scope)"
)
_SLURM = re.compile(r"/(job_\d+)(?:/|$)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


class Describer:
    """Makes facts out of what was seen. What several processes share is read once: settings, tables of sockets."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._environments: dict[tuple[bytes, bool], tuple[Setting, ...] | Unknown] = {}
        self._settings: dict[tuple[str, str], tuple[Setting, ...]] = {}
        self._ports: dict[str, Mapping[int, int]] = {}

    def describe(
        self,
        process: ObservedProcess,
        role: ProcessRole,
        place: RankPlace | None,
        opened: OpenFiles | None,
        *,
        ours: bool,
    ) -> Process:
        """Describe a process, but for what it did between two looks.

        opened: what it has open; None where it was not looked into. ours: ddpdoctor itself, one that it started, or one of its ancestors.
        """
        opened = opened or OpenFiles()
        proc, stat, pid = self._proc, process.stat, process.pid
        status = proc.status(pid)
        uid = _first_number(status.get("Uid", ""))
        own = uid == os.geteuid()
        inside = status.get("NSpid", "").split()
        waits_in = proc.text(f"{pid}/wchan", 256).strip()
        container, unit = container_and_unit(proc.text(f"{pid}/cgroup"))
        return Process(
            pid=pid,
            start=stat.start,
            parent=stat.parent,
            group=stat.group,
            session=stat.session,
            terminal=stat.terminal != 0,
            uid=uid,
            user=user_name(uid),
            name=legible(stat.name),
            command=command(process.words) if own else command_of_others(process.words),
            executable=legible(process.executable) if isinstance(process.executable, str) else process.executable,
            state=stat.state,
            age=round(stat.age, 2),
            cpu_seconds=stat.cpu / TICKS,
            memory=stat.resident * PAGE,
            waits_in="" if waits_in == "0" else waits_in,
            tracer=_first_number(status.get("TracerPid", "")),
            threads=stat.threads,
            marks=process.marks,
            ended_threads=stat.ended and stat.threads > 1,
            role=role,
            place=place,
            settings=self._known_settings(process.environ, own=own)
            if isinstance(process.environ, bytes)
            else process.environ,
            has_torch=opened.shared_memory if isinstance(opened.shared_memory, Unknown) else opened.runtime == "torch",
            devices=opened.devices,
            listens=self._listens(pid, opened),
            shared_memory=opened.shared_memory,
            writes_to=opened.writes_to,
            asked_for=requested_processes(pid, uid, process.words, process.variables)
            if role is ProcessRole.LAUNCHER and is_accelerate(process.words)
            else None,
            pid_inside=int(inside[-1]) if len(inside) > 1 and inside[-1].isdecimal() else 0,
            pid_namespace=proc.target(f"{pid}/ns/pid"),
            network_namespace=proc.target(f"{pid}/ns/net"),
            container=container,
            unit=unit,
            ours=ours,
        )

    def _known_settings(self, environ: bytes, *, own: bool) -> tuple[Setting, ...] | Unknown:
        """By name. Ranks have most of their settings in common, their workers all, so each is judged once."""
        if (environ, own) not in self._environments:
            wanted = matters if own else tells_of_job
            chosen = [variable for variable in variables(environ).items() if wanted(variable[0])]
            self._environments[environ, own] = TOO_MANY if len(chosen) > MAX_SETTINGS else self._redacted(chosen)
        return self._environments[environ, own]

    def _redacted(self, chosen: Iterable[tuple[str, str]]) -> tuple[Setting, ...]:
        found: list[Setting] = []
        for variable in chosen:
            if variable not in self._settings:
                self._settings[variable] = tuple(for_facts([Setting(*variable)]))
            found.extend(self._settings[variable])
        return tuple(sorted(found, key=lambda setting: setting.name))

    def _listens(self, pid: int, opened: OpenFiles) -> tuple[int, ...] | Unknown:
        if isinstance(opened.sockets, Unknown):
            return opened.sockets
        ports = self.ports_of(pid) if opened.sockets else {}
        return tuple(sorted({ports[inode] for inode in opened.sockets if inode in ports}))

    def ports_of(self, pid: int) -> Mapping[int, int]:
        """Inode to port of all that listen in that process's network namespace."""
        network = self._proc.target(f"{pid}/ns/net")
        if network not in self._ports:
            self._ports[network] = listening_ports(self._proc, f"{pid}/net")
        return self._ports[network]


def with_activity(
    process: Process, before: Spent | Unknown, after: Spent | Unknown, seconds: float, proc: Proc
) -> Process:
    """Add to the process what it did in those seconds."""
    for spent in (before, after):
        if isinstance(spent, Unknown):
            return msgspec.structs.replace(process, recent_cpu=spent, recent_bytes=spent, recent_switches=spent)
    assert isinstance(before, Spent)
    assert isinstance(after, Spent)
    moved = before.transferred if isinstance(before.transferred, Unknown) else after.transferred
    if isinstance(moved, int) and isinstance(before.transferred, int):
        moved = max(0, moved - before.transferred)
    # Threads that have ended meanwhile take their share with them, but for what the process has used in all.
    cpu = max(after.cpu - before.cpu, after.process_cpu - before.process_cpu, 0.0)
    return msgspec.structs.replace(
        process,
        recent_cpu=round(cpu / seconds, 3),
        recent_bytes=moved,
        recent_switches=max(0, after.switches - before.switches),
        recent_threads=tuple(_marked_threads(process.pid, before, after, seconds, proc)),
    )


def _marked_threads(pid: int, before: Spent, after: Spent, seconds: float, proc: Proc) -> Iterator[ThreadActivity]:
    """The threads of process groups that woke up meanwhile. Names are asked of those alone: a rank may have hundreds of threads."""
    for thread, (cpu, switches) in after.threads.items():
        cpu_before, switches_before = before.threads.get(thread, (0.0, 0))
        if thread == pid or switches <= switches_before:
            continue
        name = proc.thread_name(pid, thread)
        if name.startswith(MARKING_THREADS):
            cores = round(max(0.0, cpu - cpu_before) / seconds, 4)
            yield ThreadActivity(name=legible(name), switches=switches - switches_before, cpu=cores)


def _first_number(text: str) -> int:
    first = text.split()[0] if text.split() else ""
    return int(first) if first.isdecimal() else 0


def tells_of_job(name: str) -> bool:
    """Whether a variable of that name tells which rank of which job another user's process is, or has to be alike on all ranks."""
    if name in USER_NAMES:
        return False
    return name in NAMES or name in JOB_NAMES or name.startswith(JOB_PREFIXES) or must_agree(name)


def container_and_unit(cgroup: str) -> tuple[str, str]:
    """Find container and unit in the content of /proc/PID/cgroup, "" where there is none."""
    paths = list(_paths(cgroup))
    container = next(filter(None, map(_container, paths)), "")
    job = next((found[1] for path in paths if (found := _SLURM.search(path))), "")
    units = (found for path in paths for found in _UNIT.findall(path) if not _CONTAINER.search(found))
    return container, job or next(iter(units), "")


def _paths(cgroup: str) -> Iterator[str]:
    """systemd's own hierarchy first: it names units where the others have none."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()]
    rows = [fields for fields in lines if len(fields) == 3]
    for fields in sorted(rows, key=lambda fields: fields[1] not in ("", "name=systemd")):
        yield fields[2]


def _container(path: str) -> str:
    # The last: a container in a container has both in its path.
    if found := _CONTAINER.findall(path):
        return str(found[-1])[:12]
    if "kubepods" in path and (pod := _POD.search(path)):
        return pod[1].replace("_", "-")[:12]
    named = _NAMED.search(path)
    return (named[1] or named[2])[:12] if named else ""
