"""From what was read of one process to its facts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.processes import Process, ProcessRole, RankPlace, ThreadActivity
from ddpdoctor.knowledge.settings_agreement import PROTOCOL, must_agree
from ddpdoctor.probes.accelerate import asked_for
from ddpdoctor.probes.environment import NAMES, for_facts, matters
from ddpdoctor.probes.proc import PAGE, TICKS, Proc, Spent, user_name, variables
from ddpdoctor.probes.processes.command_lines import command, command_of_others, is_accelerate
from ddpdoctor.probes.processes.open_files import Files, files
from ddpdoctor.probes.processes.process_tree import GROUP_MARKS, OTHER_MARKS, SeenProcess
from ddpdoctor.probes.processes.tcp_sockets import listening_ports

MAX_SETTINGS = 500
TOO_MANY = Unknown(f"its environment has more than {MAX_SETTINGS} settings of training, as none has")
OF_THE_JOB = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "MV2_COMM_WORLD_", "SLURM_")
"""How the names begin of what tells the job and the rank."""
OF_THE_JOB_TOO = {
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
}
OF_THE_USER = {
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR", "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME", "CC", "CXX", "INIT_METHOD", "DIST_INIT_METHOD", "DIST_URL",
}  # fmt: skip
"""What nobody asks of another user's processes."""

_HEX = r"[0-9a-f]"
_CONTAINER = re.compile(rf"(?<!{_HEX})({_HEX}{{64}})(?!{_HEX})")
_POD = re.compile(r"/(?:[^/]*-)?pod([0-9a-f][0-9a-f_-]{30,40})")
_NAMED = re.compile(
    r"/lxc(?:\.payload)?[./]([^/]+)|/machine\.slice/(?:systemd-nspawn@|machine-)([^/]+?)\.(?:service|scope)"
)
_SLURM = re.compile(r"/(job_\d+)(?:/|$)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


class Describer:
    """Makes facts out of what was seen. What several processes share is judged once: settings, tables of sockets."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._environments: dict[tuple[bytes, bool], tuple[Setting, ...] | Unknown] = {}
        self._settings: dict[tuple[str, str], tuple[Setting, ...]] = {}
        self._ports: dict[str, Mapping[int, int]] = {}

    def process(
        self, one: SeenProcess, role: ProcessRole, place: RankPlace | None, opened: Files | None, *, ours: bool
    ) -> Process:
        """All but what it did between two looks. opened: None where it was not looked into."""
        opened = opened or Files()
        proc, stat, pid = self._proc, one.stat, one.stat.pid
        status = proc.status(pid)
        uid = _first_number(status.get("Uid", ""))
        own = uid == os.geteuid()
        inside = status.get("NSpid", "").split()
        cgroup = proc.read(f"{pid}/cgroup")
        container, unit = contained(cgroup) if isinstance(cgroup, bytes) else ("", "")
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
            command=command(one.words) if own else command_of_others(one.words),
            executable=legible(one.executable) if isinstance(one.executable, str) else one.executable,
            state=stat.state,
            age=round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / TICKS), 2),
            cpu_seconds=stat.cpu / TICKS,
            memory=stat.resident * PAGE,
            waits_in=self._waits_in(pid),
            tracer=_first_number(status.get("TracerPid", "")),
            threads=stat.threads,
            marks=one.marks,
            ended_threads=stat.ended and stat.threads > 1,
            role=role,
            place=place,
            settings=self._known_settings(one.environ, own=own) if isinstance(one.environ, bytes) else one.environ,
            has_torch=opened.shared_memory
            if isinstance(opened.shared_memory, Unknown)
            else opened.programme == "torch",
            devices=opened.devices,
            listens=self._listens(pid, opened),
            shared_memory=opened.shared_memory,
            writes_to=opened.writes_to,
            asked_for=asked_for(pid, uid, one.words, one.variables)
            if role is ProcessRole.LAUNCHER and is_accelerate(one.words)
            else None,
            pid_inside=int(inside[-1]) if len(inside) > 1 and inside[-1].isdecimal() else 0,
            pid_namespace=self._link(f"{pid}/ns/pid"),
            network_namespace=self._link(f"{pid}/ns/net"),
            container=container,
            unit=unit,
            ours=ours,
        )

    def files(self, pid: int, *, maps: bool) -> Files:
        return files(self._proc, pid, maps=maps)

    def _known_settings(self, environ: bytes, *, own: bool) -> tuple[Setting, ...] | Unknown:
        """By name. Ranks have most of their settings in common, their workers all, so each is judged once."""
        if (environ, own) not in self._environments:
            wanted = matters if own else tells_of_job
            chosen = [one for one in variables(environ).items() if wanted(one[0])]
            self._environments[environ, own] = TOO_MANY if len(chosen) > MAX_SETTINGS else self._judged(chosen)
        return self._environments[environ, own]

    def _judged(self, chosen: Iterable[tuple[str, str]]) -> tuple[Setting, ...]:
        found: list[Setting] = []
        for one in chosen:
            if one not in self._settings:
                self._settings[one] = tuple(for_facts([Setting(*one)]))
            found.extend(self._settings[one])
        return tuple(sorted(found, key=lambda one: one.name))

    def _listens(self, pid: int, opened: Files) -> tuple[int, ...] | Unknown:
        if isinstance(opened.sockets, Unknown):
            return opened.sockets
        ports = self.ports_of(pid) if opened.sockets else {}
        return tuple(sorted({ports[inode] for inode in opened.sockets if inode in ports}))

    def ports_of(self, pid: int) -> Mapping[int, int]:
        """Inode to port of all that listen in that process's network namespace."""
        network = self._link(f"{pid}/ns/net")
        if network not in self._ports:
            self._ports[network] = listening_ports(self._proc, pid)
        return self._ports[network]

    def _waits_in(self, pid: int) -> str:
        name = self._proc.read(f"{pid}/wchan", 256)
        text = "" if isinstance(name, Unknown) else name.decode("utf-8", "replace").strip()
        return "" if text == "0" else text

    def _link(self, file: str) -> str:
        link = self._proc.link(file)
        return "" if isinstance(link, Unknown) else link


def watched(one: Process, before: Spent | Unknown, after: Spent | Unknown, seconds: float, proc: Proc) -> Process:
    """The process with what it did in those seconds."""
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        why = before if isinstance(before, Unknown) else after
        assert isinstance(why, Unknown)
        return msgspec.structs.replace(one, recent_cpu=why, recent_bytes=why, recent_switches=why)
    moved: int | Unknown
    if isinstance(before.transferred, Unknown) or isinstance(after.transferred, Unknown):
        moved = after.transferred if isinstance(after.transferred, Unknown) else before.transferred
    else:
        moved = max(0, after.transferred - before.transferred)
    # Threads that have ended meanwhile take their share with them, but for what the process has used in all.
    cpu = max(after.cpu - before.cpu, after.process_cpu - before.process_cpu, 0.0)
    return msgspec.structs.replace(
        one,
        recent_cpu=round(cpu / seconds, 3),
        recent_bytes=moved,
        recent_switches=max(0, after.switches - before.switches),
        recent_threads=tuple(_marked_threads(one.pid, before, after, seconds, proc)),
    )


def _marked_threads(pid: int, before: Spent, after: Spent, seconds: float, proc: Proc) -> Iterator[ThreadActivity]:
    """The threads of process groups that woke up meanwhile. Names are asked of those alone: a rank may have hundreds of threads."""
    for thread, (cpu, switches) in after.threads.items():
        cpu_before, switches_before = before.threads.get(thread, (0.0, 0))
        if thread == pid or switches <= switches_before:
            continue
        name = proc.thread_name(pid, thread)
        if name.startswith(GROUP_MARKS + OTHER_MARKS):
            cores = round(max(0.0, cpu - cpu_before) / seconds, 4)
            yield ThreadActivity(name=legible(name), switches=switches - switches_before, cpu=cores)


def _first_number(text: str) -> int:
    first = text.split()[0] if text.split() else ""
    return int(first) if first.isdecimal() else 0


def tells_of_job(name: str) -> bool:
    """Whether a variable of that name tells which rank of which job another user's process is, or has to be alike on all ranks."""
    if name in OF_THE_USER:
        return False
    return (
        name in NAMES or name in OF_THE_JOB_TOO or name.startswith(OF_THE_JOB) or must_agree(name) or name in PROTOCOL
    )


def contained(cgroup: bytes) -> tuple[str, str]:
    """Container and unit by the content of /proc/PID/cgroup, "" where there is none."""
    paths = list(_paths(cgroup.decode("utf-8", "replace")))
    container = next((one for path in paths if (one := _container(path))), "")
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
