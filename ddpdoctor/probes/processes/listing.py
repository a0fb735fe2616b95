"""Lists the processes of this host: looks at all of them cheaply, at those that may matter to training closely, and twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.probes.mounts import mount_of, read_mounts
from ddpdoctor.probes.proc import DENIED, MAX_ENVIRON, Proc, Spent, Stat
from ddpdoctor.probes.processes.command_lines import names_python
from ddpdoctor.probes.processes.description import Describer, with_activity
from ddpdoctor.probes.processes.open_files import OpenFiles
from ddpdoctor.probes.processes.process_tree import ObservedProcess, ObservedTree
from ddpdoctor.probes.processes.reading_limits import OVER_LIMIT, UserLimits, read_each
from ddpdoctor.probes.processes.resource_holders import HANGS, ResourceHolders
from ddpdoctor.probes.processes.roles import Roles, roles
from ddpdoctor.probes.processes.tcp_sockets import with_connections

DEADLINE = 40.0
"""Seconds. As a rule it takes less than one; stacks of ranks that may be left over take more."""
WATCH_SECONDS = 0.25
"""Between the two looks, at least, where there is anybody to watch."""
UNCOLLECTED_SECONDS = 5.0
"""Age of a zombie that counts. One that ended sooner may be one of many that a pool starts and ends; when it ended, nobody tells."""
NVML_SECONDS = 5.0
"""How long NVML is waited for beyond that: /proc tells much without it."""

ENDED = Unknown("the process has ended")


def probe(context: Context) -> Processes | Unknown:
    """List the processes that matter to training."""
    return _Look(context).processes()


class _Look:
    """One look at all processes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._proc = Proc(context.path("/proc"))
        self._limits = UserLimits(self._proc)
        self._describer = Describer(self._proc)
        self._holders = ResourceHolders(context, self._proc, self._describer, self._limits)

    def processes(self) -> Processes | Unknown:
        try:
            pids = self._proc.pids()
        except OSError as error:
            return Unknown(f"/proc: {error.strerror or error}")
        tree = ObservedTree(self._observe_all(pids))
        candidates = self._candidates(tree)
        first = time.monotonic()
        before = {pid: self._spent(pid) for pid in candidates}
        self._look_into(tree, candidates)
        found = roles(tree, self._context.asked)
        self._holders.look_into_the_rest(tree)
        ended = _uncollected(tree, found)
        facts = self._describe(tree, found, ended)
        if any(not process.ours or process.role is ProcessRole.RANK for process in facts.values()):
            time.sleep(max(0.0, first + WATCH_SECONDS - time.monotonic()))
        seconds = time.monotonic() - first
        after = {pid: self._spent(pid) for pid in before if pid in facts}
        collected = {pid for pid in ended - found.keys() if self._proc.stat(pid) != tree.by_pid[pid].stat}
        listed = [
            with_activity(process, before[pid], after[pid], seconds, self._proc) if pid in after else process
            for pid, process in facts.items()
            if pid not in collected
        ]
        return Processes(
            listed=tuple(
                sorted(with_connections(self._proc, listed, self._holders.files), key=lambda process: process.pid)
            ),
            count=len(tree.by_pid),
            closed=sum(
                isinstance(process.environ, Unknown) and process.environ.reason.endswith(DENIED)
                for process in tree.by_pid.values()
            ),
            unseen=self._unseen(),
            spared=self._limits.spared(),
            watched=round(seconds, 3),
            cores=len(os.sched_getaffinity(0)),
            pid_namespace=self._proc.target("self/ns/pid"),
            network_namespace=self._proc.target("self/ns/net"),
            uid=os.geteuid(),
        )

    def _candidates(self, tree: ObservedTree) -> Sequence[int]:
        """Choose those that may have to do with a training; where a user has too many, launchers and ranks rather than their
        workers, and these rather than plain Pythons."""
        candidates = [
            process
            for process in tree.by_pid.values()
            if process.is_python or process.is_launcher or process.has_rank_settings
        ]
        candidates.sort(
            key=lambda process: (not process.is_launcher, not process.has_rank_settings, process.stat.forked)
        )
        chosen = self._limits.first_of_each_user(process.pid for process in candidates)
        for process in candidates:
            if process.pid not in chosen:
                tree.by_pid[process.pid] = ObservedProcess(process.stat, (), OVER_LIMIT, OVER_LIMIT)
        return [pid for pid in tree.by_pid if pid in chosen]

    def _spent(self, pid: int) -> Spent | Unknown:
        return self._limits.read(pid, lambda: self._proc.spent(pid), OVER_LIMIT)

    def _observe_all(self, pids: Iterable[int]) -> dict[int, ObservedProcess]:
        """A cheap look at each. One that hangs still tells its /proc/PID/stat."""
        stats = {pid: stat for pid in pids if not isinstance(stat := self._proc.stat(pid), Unknown)}

        def observe(pid: int) -> ObservedProcess:
            unread = ObservedProcess(stats[pid], (), OVER_LIMIT, OVER_LIMIT)
            return self._limits.read(pid, lambda: self._observe(stats[pid]), unread)

        observed = read_each(list(stats), observe)
        for pid in stats.keys() - observed.keys():
            observed[pid] = ObservedProcess(stats[pid], (), HANGS, HANGS)
            self._holders.mark_as_hanging(pid)
        return observed

    def _observe(self, stat: Stat) -> ObservedProcess:
        if stat.kernel_thread:
            return ObservedProcess(stat)
        if stat.ended:
            return ObservedProcess(stat, (), ENDED, ENDED)
        words = self._proc.words(stat.pid)
        environ = self._limits.keep(stat.pid, self._proc.whole(f"{stat.pid}/environ", MAX_ENVIRON))
        executable = self._proc.link(f"{stat.pid}/exe")
        return ObservedProcess(stat, () if isinstance(words, Unknown) else words, executable, environ)

    def _look_into(self, tree: ObservedTree, pids: Iterable[int]) -> None:
        """Read the names of their threads, and what they have open."""
        proc, holders = self._proc, self._holders
        threads_and_files = read_each(
            list(pids),
            lambda pid: (self._limits.read(pid, lambda: list(proc.thread_names(pid)), ()), holders.files_of(pid)),
        )
        for pid in pids:
            if pid not in threads_and_files:
                holders.mark_as_hanging(pid)
                continue
            threads, opened = threads_and_files[pid]
            process = tree.by_pid[pid]
            process.note_threads(name for thread, name in threads if thread != pid)
            # A shell has a rank's settings as well, an interpreter may have any name.
            process.computes = process.is_python or bool(opened.runtime)
            process.awaits_others = opened.runtime == "torch" and self._has_own_ports(process)

    def _has_own_ports(self, process: ObservedProcess) -> bool:
        """Whether it listens on a socket that its parent has not."""
        own, parents = (self._holders.files.get(pid, OpenFiles()).sockets for pid in (process.pid, process.stat.parent))
        sockets = own if isinstance(own, frozenset) else frozenset()
        inherited = parents if isinstance(parents, frozenset) else frozenset()
        listening = self._describer.ports_of(process.pid) if sockets else {}
        return bool((sockets - inherited) & listening.keys())

    def _describe(self, tree: ObservedTree, found: Roles, ended: set[int]) -> Mapping[int, Process]:
        """Make facts of those that matter, and of ddpdoctor itself, with their relatives."""
        mattering = ended | {pid for pid, (role, _) in found.items() if role is not ProcessRole.HELPER}
        mattering |= self._holders.pids(NVML_SECONDS) & tree.by_pid.keys()
        own = _own_pids(tree)
        mattering |= {os.getpid()} & tree.by_pid.keys()
        # Who is yet to be collected matters by itself (`_uncollected`), or not at all: every process is that for a moment.
        relatives = {pid for pid in tree.relatives(mattering) - mattering if not tree.by_pid[pid].stat.uncollected}
        # Where there are too many, rather those that matter than their relatives.
        chosen = self._limits.first_of_each_user([*sorted(mattering), *sorted(relatives)])

        def describe(pid: int) -> Process:
            process = tree.by_pid[pid]
            opened = None if process.stat.kernel_thread else self._holders.files_of(pid)
            role, place = found.get(pid, (ProcessRole.OTHER, None))
            return self._describer.describe(process, role, place, opened, ours=pid in own)

        described = read_each(sorted(chosen), lambda pid: self._limits.read(pid, lambda: describe(pid), None))
        return {pid: process for pid, process in described.items() if process}

    def _unseen(self) -> str:
        """Tell why there may be more than we are shown; "" if not."""
        if self._proc.target("self/ns/pid") not in (INITIAL_PID_NAMESPACE, ""):
            return "from inside a container only the container's own processes are seen"
        mounts = read_mounts(self._context)
        options = () if isinstance(mounts, Unknown) else mount_of("/proc", mounts).options.split(",")
        hides = any(option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off") for option in options)
        return "/proc is mounted so that it hides other users' processes (hidepid)" if hides and os.geteuid() else ""


def _uncollected(tree: ObservedTree, found: Roles) -> set[int]:
    """Find those that have ended, and whose parent has not asked how: Pythons, and what a Python or a launcher has started, but no
    ddpdoctor. Of what they were for, only name and parent are left."""
    pids = set()
    for process in tree.by_pid.values():
        stat, parent = process.stat, tree.by_pid.get(process.stat.parent)
        if not stat.ended or stat.age < UNCOLLECTED_SECONDS or (parent and parent.is_ddpdoctor):
            continue
        role_of_parent, _ = found.get(stat.parent, (ProcessRole.OTHER, None))
        started_by_job = parent and (parent.is_python or role_of_parent is ProcessRole.LAUNCHER)
        if started_by_job or names_python(stat.name):
            pids.add(stat.pid)
    return pids


def _own_pids(tree: ObservedTree) -> set[int]:
    """ddpdoctor, its ancestors, and all that it started."""
    me = tree.by_pid.get(os.getpid())
    relatives = [*tree.ancestors(me), *tree.descendants(os.getpid())] if me else []
    return {os.getpid(), *(relative.pid for relative in relatives)}
