"""Looks at the processes of this host: at all of them cheaply, at those that may matter to training closely, and twice."""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes, Role
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.probes.proc import PAGE, TICKS, Proc, Spent
from ddpdoctor.probes.process_details import Files, SettingsReader, contained, files, listening_ports
from ddpdoctor.probes.process_roles import GROUP_MARKS, OTHER_MARKS, Family, Roles, Seen, roles
from ddpdoctor.redaction import legible, redact_text

BETWEEN = 0.25
"""Seconds between the two looks."""
LONGEST_COMMAND = 1000
MAIN_ENDED = "Z"


def probe(context: Context) -> Processes | Unknown:
    return _Look(context).processes()


class _Look:
    """One look at all processes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._proc = Proc(os.fspath(context.path("/proc")))
        self._settings = SettingsReader()
        self._files: dict[int, Files] = {}
        self._ports: dict[str, Mapping[int, int]] = {}

    def processes(self) -> Processes | Unknown:
        try:
            pids = self._proc.pids()
        except OSError as error:
            return Unknown(f"/proc: {error.strerror or error}")
        family = Family({one.stat.pid: one for pid in pids if (one := self._seen(pid))})
        candidates = [one for one in family.seen.values() if one.python or one.launcher or one.has_rank_settings]
        first = time.monotonic()
        before = {one.stat.pid: self._proc.spent(one.stat.pid) for one in candidates}
        for one in candidates:
            one.marks = self._marks(one)
            self._files[one.stat.pid] = files(self._proc, one.stat.pid, maps=one.python)
        found = roles(family)
        holders = self._holders()
        chosen = self._chosen(family, found, holders)
        own = self._own(family)
        close = {pid: self._process(family.seen[pid], found, own) for pid in chosen}
        time.sleep(max(0.0, first + BETWEEN - time.monotonic()))
        watched = time.monotonic() - first
        listed = [self._watched(one, before.get(one.pid), watched) for one in close.values()]
        return Processes(
            listed=tuple(sorted(listed, key=lambda one: one.pid)),
            count=len(family.seen),
            closed=sum(isinstance(one.environ, Unknown) for one in family.seen.values()),
            unseen=self._unseen(),
            watched=round(watched, 3),
            cores=len(os.sched_getaffinity(0)),
            pid_namespace=self._link("self/ns/pid"),
            network_namespace=self._link("self/ns/net"),
            uid=os.geteuid(),
        )

    def _seen(self, pid: int) -> Seen | None:
        proc = self._proc
        stat = proc.stat(pid)
        if isinstance(stat, Unknown):
            return None
        if stat.kernel_thread:
            return Seen(stat)
        words = proc.words(pid)
        environ = proc.read(f"{pid}/environ", 1 << 20)
        return Seen(stat, () if isinstance(words, Unknown) else words, proc.link(f"{pid}/exe"), environ)

    def _marks(self, one: Seen) -> tuple[str, ...]:
        names = {name for thread, name in self._proc.thread_names(one.stat.pid) if thread != one.stat.pid}
        return tuple(sorted(legible(name) for name in names if name.startswith(GROUP_MARKS + OTHER_MARKS)))

    def _holders(self) -> set[int]:
        gpus = self._context.facts(Gpus)
        devices = () if isinstance(gpus, Unknown) else gpus.devices
        return {
            holder.pid
            for gpu in devices
            if not isinstance(gpu.holders, Unknown)
            for holder in gpu.holders
            if holder.pid
        }

    def _chosen(self, family: Family, found: Roles, holders: set[int]) -> set[int]:
        mattering = {pid for pid, (role, _) in found.items() if role is not Role.HELPER} | holders
        for pid, opened in self._files.items():
            if opened.devices and not isinstance(opened.devices, Unknown):
                mattering.add(pid)
            if isinstance(opened.shared_memory, tuple) and opened.shared_memory:
                mattering.add(pid)
        chosen = {pid for pid in mattering if pid in family.seen}
        for pid in list(chosen):
            chosen.update(one.stat.pid for one in family.ancestors(family.seen[pid]))
            chosen.update(one.stat.pid for one in family.descendants(pid))
        return chosen

    def _own(self, family: Family) -> set[int]:
        me = family.seen.get(os.getpid())
        if me is None:
            return {os.getpid()}
        own = {me.stat.pid, *(one.stat.pid for one in family.ancestors(me))}
        return own | {one.stat.pid for one in family.descendants(me.stat.pid)}

    def _process(self, one: Seen, found: Roles, own: set[int]) -> Process:
        proc, stat, pid = self._proc, one.stat, one.stat.pid
        status = proc.status(pid)
        uid = _first_number(status.get("Uid", ""))
        inside = status.get("NSpid", "").split()
        cgroup = proc.read(f"{pid}/cgroup")
        container, unit = contained(cgroup) if isinstance(cgroup, bytes) else ("", "")
        role, place = found.get(pid, (Role.OTHER, None))
        opened = self._files.get(pid) or (Files() if stat.kernel_thread else files(proc, pid, maps=False))
        network = self._link(f"{pid}/ns/net")
        waits_in = proc.read(f"{pid}/wchan", 256)
        return Process(
            pid=pid,
            start=stat.start,
            parent=stat.parent,
            group=stat.group,
            session=stat.session,
            terminal=stat.terminal != 0,
            uid=uid,
            user=_user(uid),
            name=legible(stat.name),
            command=_command(one.words),
            executable=legible(one.executable) if isinstance(one.executable, str) else one.executable,
            state=stat.state,
            age=round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / TICKS), 2),
            cpu_seconds=stat.cpu / TICKS,
            memory=stat.resident * PAGE,
            waits_in="" if isinstance(waits_in, Unknown) else waits_in.decode("ascii", "replace").strip("0"),
            tracer=_first_number(status.get("TracerPid", "")),
            threads=stat.threads,
            marks=one.marks,
            ended_threads=stat.state == MAIN_ENDED and stat.threads > 1,
            role=role,
            place=place,
            settings=self._settings.settings(one.environ) if isinstance(one.environ, bytes) else one.environ,
            devices=opened.devices,
            listens=self._listens(pid, network, opened),
            shared_memory=opened.shared_memory,
            writes_to=opened.writes_to,
            pid_inside=int(inside[-1]) if len(inside) > 1 and inside[-1].isdecimal() else 0,
            pid_namespace=self._link(f"{pid}/ns/pid"),
            network_namespace=network,
            container=container,
            unit=unit,
            ours=pid in own,
        )

    def _listens(self, pid: int, network: str, opened: Files) -> tuple[int, ...] | Unknown:
        if isinstance(opened.sockets, Unknown) or not opened.sockets:
            return opened.sockets if isinstance(opened.sockets, Unknown) else ()
        if network not in self._ports:
            self._ports[network] = listening_ports(self._proc, pid)
        ports = self._ports[network]
        return tuple(sorted({ports[inode] for inode in opened.sockets if inode in ports}))

    def _watched(self, one: Process, before: Spent | Unknown | None, watched: float) -> Process:
        """The same with what it did meanwhile."""
        if before is None:
            return one
        after = self._proc.spent(one.pid)
        if isinstance(before, Unknown) or isinstance(after, Unknown):
            why = before if isinstance(before, Unknown) else after
            assert isinstance(why, Unknown)
            return msgspec.structs.replace(one, recent_cpu=why, recent_bytes=why, recent_switches=why)
        moved = (
            after.transferred if isinstance(after.transferred, Unknown)
            else before.transferred if isinstance(before.transferred, Unknown)
            else max(0, after.transferred - before.transferred)
        )  # fmt: skip
        return msgspec.structs.replace(
            one,
            recent_cpu=round(max(0.0, after.cpu - before.cpu) / watched, 3),
            recent_bytes=moved,
            recent_switches=max(0, after.switches - before.switches),
        )

    def _link(self, file: str) -> str:
        link = self._proc.link(file)
        return "" if isinstance(link, Unknown) else link

    def _unseen(self) -> str:
        """Why there may be more than we are shown."""
        if self._link("self/ns/pid") not in (INITIAL_PID_NAMESPACE, ""):
            return "only this container's processes can be seen from here"
        mounts = self._context.read("/proc/self/mounts")
        for line in mounts.splitlines() if isinstance(mounts, str) else ():
            fields = line.split()
            if len(fields) > 3 and fields[1] == "/proc" and os.geteuid() != 0 and "hidepid=" in fields[3]:
                return "/proc hides the processes of other users (hidepid)"
        return ""


def _first_number(text: str) -> int:
    first = text.split()[0] if text.split() else ""
    return int(first) if first.isdecimal() else 0


@lru_cache(maxsize=4096)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command(words: tuple[str, ...]) -> str:
    return redact_text(legible(shlex.join(words)))[:LONGEST_COMMAND]
