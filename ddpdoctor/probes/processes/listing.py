"""Looks at the processes of this host: at all of them cheaply, at those that may matter to training closely, and twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.probes.proc import DENIED, MAX_ENVIRON, TICKS, Proc, Spent, Stat, user_name
from ddpdoctor.probes.processes.command_lines import names_python
from ddpdoctor.probes.processes.description import Describer, watched
from ddpdoctor.probes.processes.open_files import Files
from ddpdoctor.probes.processes.process_tree import Family, SeenProcess
from ddpdoctor.probes.processes.reading_limits import SPARED, Shares, of_each
from ddpdoctor.probes.processes.resource_holders import HANGS, Holders
from ddpdoctor.probes.processes.roles import Roles, roles
from ddpdoctor.probes.processes.tcp_sockets import with_connections

DEADLINE = 40.0
"""Seconds. As a rule it takes less than one; stacks of ranks that may be left over take more."""
BETWEEN = 0.25
"""Seconds between the two looks, at least, where there is anybody to watch."""
UNCOLLECTED = 5.0
"""Seconds of age. One that ended sooner may be one of many that a pool starts and ends; when it ended, nobody tells."""
NVML_SECONDS = 5.0
"""How long NVML is waited for beyond that: /proc tells much without it."""

ENDED = Unknown("the process has ended")


def probe(context: Context) -> Processes | Unknown:
    return _Look(context).processes()


class _Look:
    """One look at all processes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._proc = Proc(os.fspath(context.path("/proc")))
        self._shares = Shares(self._proc)
        self._describer = Describer(self._proc)
        self._holders = Holders(context, self._describer, self._shares)

    def processes(self) -> Processes | Unknown:
        try:
            pids = self._proc.pids()
        except OSError as error:
            return Unknown(f"/proc: {error.strerror or error}")
        family = Family(self._all(pids))
        candidates = self._candidates(family)
        first = time.monotonic()
        before = {pid: self._spent(pid) for pid in candidates}
        self._look_into(family, candidates)
        found = roles(family, self._context.asked)
        self._holders.look_into_the_rest(family)
        ended = _uncollected(family, found)
        facts = self._described(family, found, ended)
        if any(not process.ours or process.role is ProcessRole.RANK for process in facts.values()):
            time.sleep(max(0.0, first + BETWEEN - time.monotonic()))
        seconds = time.monotonic() - first
        after = {pid: self._spent(pid) for pid in before if pid in facts}
        collected = {pid for pid in ended - found.keys() if self._proc.stat(pid) != family.seen[pid].stat}
        listed = [
            watched(one, before[pid], after[pid], seconds, self._proc) if pid in after else one
            for pid, one in facts.items()
            if pid not in collected
        ]
        return Processes(
            listed=tuple(
                sorted(
                    with_connections(self._proc, listed, self._holders.files),
                    key=lambda with_connection: with_connection.pid,
                )
            ),
            count=len(family.seen),
            closed=sum(
                isinstance(seen_process.environ, Unknown) and seen_process.environ.reason.endswith(DENIED)
                for seen_process in family.seen.values()
            ),
            unseen=self._unseen(),
            spared=self._shares.spared(user_name),
            watched=round(seconds, 3),
            cores=len(os.sched_getaffinity(0)),
            pid_namespace=self._link("self/ns/pid"),
            network_namespace=self._link("self/ns/net"),
            uid=os.geteuid(),
        )

    def _candidates(self, family: Family) -> Sequence[int]:
        """Those that may have to do with a training; where a user has too many, launchers and ranks rather than their workers, and
        these rather than plain Pythons."""
        found = [
            seen_process
            for seen_process in family.seen.values()
            if seen_process.python or seen_process.launcher or seen_process.has_rank_settings
        ]
        found.sort(key=lambda one: (not one.launcher, not one.has_rank_settings, one.stat.forked))
        chosen = self._shares.first_of_each(seen_process.stat.pid for seen_process in found)
        for seen_process in found:
            if seen_process.stat.pid not in chosen:
                family.seen[seen_process.stat.pid] = SeenProcess(seen_process.stat, (), SPARED, SPARED)
        return [pid for pid in family.seen if pid in chosen]

    def _spent(self, pid: int) -> Spent | Unknown:
        return self._shares.look(pid, lambda: self._proc.spent(pid), SPARED)

    def _all(self, pids: Iterable[int]) -> dict[int, SeenProcess]:
        """A cheap look at each. One that hangs still tells its /proc/PID/stat."""
        stats = {pid: stat for pid in pids if not isinstance(stat := self._proc.stat(pid), Unknown)}
        shares = self._shares
        seen = of_each(
            list(stats),
            lambda pid: shares.look(pid, lambda: self._seen(stats[pid]), SeenProcess(stats[pid], (), SPARED, SPARED)),
        )
        for pid in stats.keys() - seen.keys():
            seen[pid] = SeenProcess(stats[pid], (), HANGS, HANGS)
            self._holders.mark_as_hanging(pid)
        return seen

    def _seen(self, stat: Stat) -> SeenProcess:
        if stat.kernel_thread:
            return SeenProcess(stat)
        if stat.ended:
            return SeenProcess(stat, (), ENDED, ENDED)
        words = self._proc.words(stat.pid)
        environ = self._shares.kept(stat.pid, self._proc.whole(f"{stat.pid}/environ", MAX_ENVIRON))
        executable = self._proc.link(f"{stat.pid}/exe")
        return SeenProcess(stat, () if isinstance(words, Unknown) else words, executable, environ)

    def _look_into(self, family: Family, pids: Iterable[int]) -> None:
        """The names of their threads, and what they have open."""
        proc, holders = self._proc, self._holders
        looked = of_each(
            list(pids),
            lambda pid: (self._shares.look(pid, lambda: list(proc.thread_names(pid)), ()), holders.of(pid)),
        )
        for pid in pids:
            if pid not in looked:
                holders.mark_as_hanging(pid)
                continue
            threads, opened = looked[pid]
            one = family.seen[pid]
            one.named(name for thread, name in threads if thread != pid)
            # A shell has a rank's settings as well, an interpreter may have any name.
            one.computes = one.python or bool(opened.programme)
            one.meets = opened.programme == "torch" and bool(self._own_ports(one))

    def _own_ports(self, one: SeenProcess) -> frozenset[int]:
        """Sockets on which it listens and its parent does not."""
        own, parents = (self._holders.files.get(pid, Files()).sockets for pid in (one.stat.pid, one.stat.parent))
        sockets = own if isinstance(own, frozenset) else frozenset()
        inherited = parents if isinstance(parents, frozenset) else frozenset()
        listening = self._describer.ports_of(one.stat.pid) if sockets else {}
        return (sockets - inherited) & listening.keys()

    def _described(self, family: Family, found: Roles, ended: set[int]) -> Mapping[int, Process]:
        """Facts of those that matter, and of ddpdoctor itself, with their relatives."""
        mattering = ended | {pid for pid, (role, _) in found.items() if role is not ProcessRole.HELPER}
        mattering |= self._holders.pids(NVML_SECONDS) & family.seen.keys()
        own = _own(family)
        mattering |= {os.getpid()} & family.seen.keys()
        # Where there are too many, rather those that matter than their relatives.
        chosen = self._shares.first_of_each([*sorted(mattering), *sorted(family.relatives(mattering) - mattering)])

        def describe(pid: int) -> Process:
            opened = None if family.seen[pid].stat.kernel_thread else self._holders.of(pid)
            role, place = found.get(pid, (ProcessRole.OTHER, None))
            return self._describer.process(family.seen[pid], role, place, opened, ours=pid in own)

        def described(pid: int) -> Process | None:
            return self._shares.look(pid, lambda: describe(pid), None)

        return {pid: one for pid, one in of_each(sorted(chosen), described).items() if one}

    def _link(self, file: str) -> str:
        link = self._proc.link(file)
        return "" if isinstance(link, Unknown) else link

    def _unseen(self) -> str:
        """Why there may be more than we are shown."""
        if self._link("self/ns/pid") not in (INITIAL_PID_NAMESPACE, ""):
            return "from inside a container only the container's own processes are seen"
        mounts = self._context.read("/proc/self/mounts")
        for line in mounts.splitlines() if isinstance(mounts, str) and os.geteuid() != 0 else ():
            fields = line.split()
            options = fields[3].split(",") if len(fields) > 3 and fields[1] == "/proc" else []
            if any(option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off") for option in options):
                return "/proc is mounted so that it hides other users' processes (hidepid)"
        return ""


def _uncollected(family: Family, found: Roles) -> set[int]:
    """Those that have ended, and whose parent has not asked how: Pythons, and what a Python or a launcher has started. Of what
    they were for, only name and parent are left."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    pids = set()
    for seen_process in family.seen.values():
        stat, parent = seen_process.stat, family.seen.get(seen_process.stat.parent)
        if stat.state != "Z" or now - stat.start / TICKS < UNCOLLECTED:
            continue
        started_by = parent and (
            parent.python or found.get(stat.parent, (ProcessRole.OTHER, None))[0] is ProcessRole.LAUNCHER
        )
        if started_by or names_python(stat.name):
            pids.add(stat.pid)
    return pids


def _own(family: Family) -> set[int]:
    """ddpdoctor, its ancestors, and all that it started."""
    me = family.seen.get(os.getpid())
    relatives = [*family.ancestors(me), *family.descendants(os.getpid())] if me else []
    return {os.getpid(), *(relative.stat.pid for relative in relatives)}
