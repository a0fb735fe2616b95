"""From what was read of one process to its facts."""

from __future__ import annotations

import pwd
import shlex
import time
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.processes import Place, Process, Role
from ddpdoctor.probes.environment import for_facts, matters
from ddpdoctor.probes.proc import PAGE, TICKS, Proc, Spent, variables
from ddpdoctor.probes.process_details import Files, contained, files, listening_ports
from ddpdoctor.probes.process_family import Seen
from ddpdoctor.redaction import legible, redact_text

LONGEST_COMMAND = 1000


class Describer:
    """Makes facts out of what was seen. What several processes share is judged once: settings, tables of sockets."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._environments: dict[bytes, tuple[Setting, ...]] = {}
        self._settings: dict[tuple[str, str], tuple[Setting, ...]] = {}
        self._ports: dict[str, Mapping[int, int]] = {}

    def process(self, one: Seen, role: Role, place: Place | None, opened: Files | None, *, ours: bool) -> Process:
        """All but what it did between two looks. opened: None where it was not looked into."""
        opened = opened or Files()
        proc, stat, pid = self._proc, one.stat, one.stat.pid
        status = proc.status(pid)
        uid = _first_number(status.get("Uid", ""))
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
            command=command(one.words),
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
            settings=self._known_settings(one.environ) if isinstance(one.environ, bytes) else one.environ,
            devices=opened.devices,
            listens=self._listens(pid, opened),
            shared_memory=opened.shared_memory,
            writes_to=opened.writes_to,
            pid_inside=int(inside[-1]) if len(inside) > 1 and inside[-1].isdecimal() else 0,
            pid_namespace=self._link(f"{pid}/ns/pid"),
            network_namespace=self._link(f"{pid}/ns/net"),
            container=container,
            unit=unit,
            ours=ours,
        )

    def files(self, pid: int, *, maps: bool) -> Files:
        return files(self._proc, pid, maps=maps)

    def _known_settings(self, environ: bytes) -> tuple[Setting, ...]:
        """By name. Ranks have most of their settings in common, their workers all, so each is judged once."""
        if environ not in self._environments:
            found: list[Setting] = []
            for one in variables(environ).items():
                if one not in self._settings:
                    self._settings[one] = tuple(for_facts([Setting(*one)])) if matters(one[0]) else ()
                found.extend(self._settings[one])
            self._environments[environ] = tuple(sorted(found, key=lambda one: one.name))
        return self._environments[environ]

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


def watched(one: Process, before: Spent | Unknown, after: Spent | Unknown, seconds: float) -> Process:
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
    )


def _first_number(text: str) -> int:
    first = text.split()[0] if text.split() else ""
    return int(first) if first.isdecimal() else 0


@lru_cache(maxsize=4096)
def user_name(uid: int) -> str:
    """The user's name, or the number where the user database has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(maxsize=4096)
def command(words: tuple[str, ...]) -> str:
    """As a shell would take it, without its secrets, cut."""
    return redact_text(legible(shlex.join(words)))[:LONGEST_COMMAND]
