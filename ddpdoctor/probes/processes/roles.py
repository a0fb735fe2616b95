"""Tells what each process is to a training job, and which rank: by commands, settings, parents and names of threads."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import ProcessRole, RankPlace
from ddpdoctor.knowledge.launchers import number
from ddpdoctor.probes.processes import command_lines as commands
from ddpdoctor.probes.processes.process_tree import STORE_THREADS, ObservedProcess, ObservedTree

DATA_WORKER = "pt_data_worker"
"""Name that torch gives the main thread of a DataLoader's worker, since 2.6."""
BY_ORDER = "the order in which its parent started them"
BY_CHILDREN = "its children's LOCAL_RANK"
BY_NAME = "nobody but who asked for it"
BY_ITSELF = "its launcher, which started no other"

MAX_WRAPPERS = 64
"""Processes between a launcher and what it has started in the end, or between that and its workers."""

Roles = dict[int, tuple[ProcessRole, RankPlace | None]]
"""Role and place by pid."""
Places = list[RankPlace | None]
NO_ROLE: tuple[ProcessRole, RankPlace | None] = (ProcessRole.OTHER, None)


def roles(tree: ObservedTree, asked: int = 0) -> Roles:
    """Find role and place of each process that has one; all others are `ProcessRole.OTHER`. asked: a pid that the user means, or 0."""
    search = _RoleSearch(tree)
    search.find_by_command()
    search.mark_unnamed_groups()
    search.find_forked_ranks()
    search.find_ranks_by_settings()
    search.find_rank_0_by_children()
    search.find_ranks_of_further_nodes()
    search.find_ranks_without_settings()
    search.find_unreadable_ranks()
    search.find_dead_among_siblings()
    search.find_only_rank_of_accelerate()
    search.find_asked_for(asked)
    search.find_workers()
    return search.found


class _RoleSearch:
    """The steps of the search, each of which goes on from what those before it have found."""

    def __init__(self, tree: ObservedTree) -> None:
        self.tree = tree
        self.found: Roles = {}

    def _role(self, process: ObservedProcess) -> ProcessRole:
        return self.found.get(process.pid, NO_ROLE)[0]

    def _place(self, process: ObservedProcess) -> RankPlace | None:
        return self.found.get(process.pid, NO_ROLE)[1]

    def _is_open(self, process: ObservedProcess) -> bool:
        """Whether it has no role yet."""
        return self._role(process) is ProcessRole.OTHER

    def _note(self, process: ObservedProcess, role: ProcessRole, place: RankPlace | None = None) -> None:
        self.found[process.pid] = role, place

    def _pids(self, role: ProcessRole) -> list[int]:
        return [pid for pid, (found, _) in self.found.items() if found is role]

    def find_by_command(self) -> None:
        """Find what the command line or the name tells for certain."""
        for process in self.tree.by_pid.values():
            # What a fork server forks has the server's command line, and is no helper.
            forked_by_server = process.stat.forked and commands.is_fork_server(process.words)
            if process.is_inquiry:
                self._note(process, ProcessRole.HELPER)
            elif process.is_launcher:
                self._note(process, ProcessRole.LAUNCHER)
            elif process.stat.name == DATA_WORKER:
                self._note(process, ProcessRole.WORKER)
            elif process.is_python and commands.is_helper(process.words) and not forked_by_server:
                self._note(process, ProcessRole.HELPER)

    def mark_unnamed_groups(self) -> None:
        """Mark those that are in a process group of a torch before 2.6 or so, which didn't name its threads.

        Several children of one Python that listen for each other are in a group all the same; one alone may be anything.
        """
        by_parent: dict[int, list[ObservedProcess]] = defaultdict(list)
        for process in self.tree.by_pid.values():
            if process.awaits_others and process.by_multiprocessing and process.is_python and not process.marks:
                by_parent[process.stat.parent].append(process)
        for ranks in by_parent.values():
            for rank in ranks if len(ranks) > 1 else ():
                rank.in_group = True

    def find_forked_ranks(self) -> None:
        """Find those that a script has forked or spawned: no settings of their own, but threads of a process group."""
        starters = {process.stat.parent for process in self.tree.by_pid.values() if process.is_forked_rank}
        for parent in (self.tree.by_pid[pid] for pid in starters if pid in self.tree.by_pid):
            if not parent.is_python or parent.in_group:
                continue
            children = self.tree.children(parent.pid)
            ranks = [child for child in children if self._is_open(child) and _is_started_as_ranks_are(child, children)]
            # Which node this is, of how many: a PyTorchJob counts pods, and the script in each forks the ranks.
            place = parent.place
            node, nodes = (place.rank, place.world_size) if place and place.world_size else (0, 1)
            for local_rank, rank in enumerate(ranks):
                place = _by_order(node * len(ranks), local_rank, nodes * len(ranks), len(ranks))
                self._note(rank, ProcessRole.RANK, place)
            starter = parent
            if commands.is_fork_server(parent.words):
                starter = self.tree.by_pid.get(parent.stat.parent, parent)
            if self._is_open(starter):
                self._note(starter, ProcessRole.LAUNCHER)

    def find_ranks_by_settings(self) -> None:
        """Find those whose settings say which rank they are."""
        chains: dict[int, list[ObservedProcess]] = defaultdict(list)
        for process in self.tree.by_pid.values():
            if process.place and process.computes and self._is_open(process) and not commands.is_tool(process.words):
                chains[self._outermost(process).pid].append(process)
        for pid, chain in chains.items():
            # A Python that only wraps another doesn't train. What was forked holds no group unless it is a rank itself.
            grouped = [process for process in chain if process.in_group]
            rank = min(grouped, key=lambda process: process.stat.start) if grouped else self.tree.by_pid[pid]
            if rank.stat.forked and not rank.in_group:
                self._note(rank, ProcessRole.WORKER)
            else:
                self._note(rank, ProcessRole.RANK, rank.place)

    def _outermost(self, process: ObservedProcess) -> ObservedProcess:
        """The first with the same place, from whom it has its settings: a rank's workers and helpers inherit them."""
        outermost = process
        for ancestor in islice(self.tree.ancestors(process), MAX_WRAPPERS):
            if self._role(ancestor) in (ProcessRole.LAUNCHER, ProcessRole.RANK):
                break
            if ancestor.computes and ancestor.place == process.place and not commands.is_tool(ancestor.words):
                outermost = ancestor
        return outermost

    def find_rank_0_by_children(self) -> None:
        """Find Lightning's first rank, which starts the others, and whose own settings don't show."""
        by_parent: dict[int, list[RankPlace]] = defaultdict(list)
        for pid, (_, place) in self.found.items():
            if place and place.source == "LOCAL_RANK":
                by_parent[self.tree.by_pid[pid].stat.parent].append(place)
        for pid, places in by_parent.items():
            parent = self.tree.by_pid.get(pid)
            if parent and parent.is_python and self._is_open(parent) and min(place.rank for place in places) == 1:
                size = places[0].world_size
                place = RankPlace(rank=0, world_size=size, local_rank=0, node_rank=0, source=BY_CHILDREN)
                self._note(parent, ProcessRole.RANK, place)

    def find_ranks_of_further_nodes(self) -> None:
        """Find Lightning's ranks on a node behind the first: the children's LOCAL_RANKs tell how many ranks each node has."""
        by_parent: dict[int, list[ObservedProcess]] = defaultdict(list)
        for process in self.tree.by_pid.values():
            if process.further_node and process.computes and not process.stat.forked and self._is_open(process):
                by_parent[process.stat.parent].append(process)
        for pid, children in by_parent.items():
            local_ranks = [number(child.variables["LOCAL_RANK"]) or 0 for child in children]
            parent = self.tree.by_pid.get(pid)
            if not (parent and parent.is_python and self._is_open(parent) and min(local_ranks) == 1):
                continue
            ranks_here, node = max(local_ranks) + 1, children[0].further_node
            for process, local_rank in zip((parent, *children), (0, *local_ranks), strict=True):
                place = RankPlace(
                    rank=node * ranks_here + local_rank,
                    world_size=number(children[0].variables["WORLD_SIZE"]),
                    local_rank=local_rank,
                    local_world_size=ranks_here,
                    node_rank=node,
                    source=BY_CHILDREN if process is parent else "LOCAL_RANK",
                )
                self._note(process, ProcessRole.RANK, place)

    def find_ranks_without_settings(self) -> None:
        """Find those in a process group of which nobody says which rank they are: the script has set it all itself, or whoever
        forked them is gone."""
        orphans: dict[tuple[object, ...], list[ObservedProcess]] = defaultdict(list)
        for process in self.tree.by_pid.values():
            if process.in_group and process.is_python and self._is_open(process):
                self._note(process, ProcessRole.RANK)
                if process.by_multiprocessing:
                    stat = process.stat
                    command = "spawned" if commands.is_spawned(process.words) else process.words
                    orphans[stat.parent, stat.session, stat.group, command].append(process)
        for ranks in orphans.values():
            # One alone may be a daemon of its own making.
            if len(ranks) > 1:
                ranks.sort(key=ObservedProcess.age_order)
                for local_rank, rank in enumerate(ranks):
                    self._note(rank, ProcessRole.RANK, _by_order(0, local_rank, None, len(ranks)))

    def find_unreadable_ranks(self) -> None:
        """Find a launcher's children whose settings can't be read: zombies', one's that hangs in the kernel, another user's."""
        for pid in self._pids(ProcessRole.LAUNCHER):
            ranks, names = self._ranks_of(pid)
            hidden = [child for child in self.tree.children(pid) if self._may_be_rank(child, names)]
            for process, place in self._in_row(pid, [*ranks, *hidden], _with_missing_places) if hidden else ():
                self._note(process, ProcessRole.RANK, place)

    def _ranks_of(self, pid: int) -> tuple[list[ObservedProcess], set[str]]:
        """The ranks among its children, and their names."""
        ranks = [child for child in self.tree.children(pid) if self._role(child) is ProcessRole.RANK]
        return ranks, {rank.stat.name for rank in ranks}

    def _in_row(
        self, pid: int, members: Sequence[ObservedProcess], fill: Callable[[Places], Places]
    ) -> Iterator[tuple[ObservedProcess, RankPlace | None]]:
        """These children, the oldest first, in the places that `fill` completes."""
        row = [child for child in self.tree.children(pid) if child in members]
        return zip(row, fill(list(map(self._place, row))), strict=True)

    def _may_be_rank(self, process: ObservedProcess, names_of_ranks: set[str]) -> bool:
        if not isinstance(process.environ, Unknown) or self._place(process):
            return False
        return process.in_group or (self._is_open(process) and process.stat.name in names_of_ranks)

    def find_dead_among_siblings(self) -> None:
        """Find zombies between the ranks that a script has started by hand: the order tells which they were, where it agrees
        with all that the others say. Whoever adopts orphans tells nothing by the order in which it has them."""
        parents = {self.tree.by_pid[pid].stat.parent for pid in self._pids(ProcessRole.RANK)}
        for parent in parents & self.tree.by_pid.keys():
            if parent == 1 or not self._is_open(self.tree.by_pid[parent]):
                continue
            ranks, names = self._ranks_of(parent)
            children = self.tree.children(parent)
            dead = [child for child in children if child.stat.ended and child.stat.name in names]
            if all(map(self._place, ranks)):
                for process, place in self._in_row(parent, [*ranks, *dead], _with_gaps_filled):
                    if place:
                        self._note(process, ProcessRole.RANK, place)

    def find_only_rank_of_accelerate(self) -> None:
        """Find what accelerate starts without torchrun's agent: one process without a rank's settings, which is the whole job."""
        for pid in self._pids(ProcessRole.LAUNCHER):
            children = [
                child for child in self.tree.children(pid) if child.is_python and not commands.is_tool(child.words)
            ]
            if not commands.is_accelerate(self.tree.by_pid[pid].words) or len(children) != 1:
                continue
            if self._is_open(children[0]) and "ACCELERATE_MIXED_PRECISION" in children[0].variables:
                self._note(children[0], ProcessRole.RANK, RankPlace(rank=0, world_size=1, source=BY_ITSELF))

    def find_asked_for(self, asked: int) -> None:
        """Take the process that somebody asks for as a job of one: a training on one GPU has neither launcher nor settings."""
        process = self.tree.by_pid.get(asked)
        if process is None:
            return
        # What a rank runs is its own, but where it runs us as well, we are asked for less.
        me = self.tree.by_pid.get(os.getpid())
        ours = {ancestor.pid for ancestor in self.tree.ancestors(me)} if me else set()
        above = [ancestor for ancestor in self.tree.ancestors(process) if ancestor.pid not in ours]
        members = [process, *self.tree.descendants(asked)]
        if any(self._role(ancestor) is ProcessRole.RANK for ancestor in above) or any(
            self._role(member) in (ProcessRole.RANK, ProcessRole.LAUNCHER) for member in members
        ):
            return
        # Of one whose settings are hidden it can't be told that it is no rank of several.
        if any(member.is_python and isinstance(member.environ, Unknown) for member in members):
            return
        pythons = [member for member in members if member.is_python and self._is_open(member)]
        pids = {python.pid for python in pythons}
        own = [python for python in pythons if not commands.is_tool(python.words)]
        # A Python that has started another by its own command only waits for it, as a script of experiments does.
        waiting = {member.stat.parent for member in own if not member.by_multiprocessing}
        outermost = [
            member
            for member in own
            if member.pid not in waiting and not (member.by_multiprocessing and member.stat.parent in pids)
        ]
        if outermost:
            first = min(outermost, key=ObservedProcess.age_order)
            # A store is kept for others, and how many these are, nobody says.
            local_rank = number(first.variables.get("LOCAL_RANK", ""))
            alone = local_rank is None and not first.in_group and not STORE_THREADS & {*first.marks}
            place = RankPlace(rank=local_rank or 0, world_size=1 if alone else None, source=BY_NAME)
            self._note(first, ProcessRole.RANK, place)

    def find_workers(self) -> None:
        """Take what a rank forks for a DataLoader's worker, as it is as a rule."""
        for pid in self._pids(ProcessRole.RANK):
            children = self.tree.children(pid)
            servers = [child for child in children if commands.is_fork_server(child.words)]
            for child in [*children, *(worker for server in servers for worker in self.tree.children(server.pid))]:
                if self._is_open(child) and child.is_python and child.by_multiprocessing:
                    self._note(child, ProcessRole.WORKER)


def _is_started_as_ranks_are(process: ObservedProcess, siblings: Iterable[ObservedProcess]) -> bool:
    """Whether it was started as those were that have a process group: one may be late, or have died."""
    if process.is_forked_rank:
        return True
    ranks = [sibling for sibling in siblings if sibling.is_forked_rank]
    if not process.words:
        return process.stat.name in {rank.stat.name for rank in ranks}
    spawned = commands.is_spawned(process.words)
    return process.is_python and any(
        commands.is_spawned(rank.words) == spawned and (spawned or rank.words == process.words) for rank in ranks
    )


def _with_gaps_filled(places: Places) -> Places:
    """Fill the gaps in a row of ranks; as it was where it isn't a row."""
    known = [(index, place) for index, place in enumerate(places) if place]
    index, example = known[0]
    first, size, ranks_here = example.rank - index, example.world_size or 0, example.local_world_size
    in_a_row = all(
        place.rank == first + index and place.local_rank in (None, index) and place.world_size == example.world_size
        for index, place in known
    )
    if not in_a_row or first < 0 or len(places) > (ranks_here or size) or first + len(places) > size:
        return places
    return [
        place or msgspec.structs.replace(example, rank=first + index, local_rank=index, source=BY_ORDER)
        for index, place in enumerate(places)
    ]


def _with_missing_places(places: Places) -> Places:
    """Fill in the missing places of a launcher's children, the oldest first, where the known ones agree with that order, or
    only one is missing."""
    known = [place for place in places if place and place.local_rank is not None]
    first = {place.rank - (place.local_rank or 0) for place in known} or {0}
    sizes = {place.local_world_size for place in known if place.local_world_size}
    ranks_here = max(sizes, default=len(places))
    if len(first) > 1 or len(sizes) > 1 or ranks_here < len(places):
        return places
    in_order = all(place is None or place.local_rank in (None, index) for index, place in enumerate(places))
    free = sorted(set(range(ranks_here)) - {place.local_rank for place in known})
    if in_order and len(places) == ranks_here:
        free = [index for index, place in enumerate(places) if place is None]
    elif len(free) != 1 or places.count(None) != 1:
        return places
    local_ranks = iter(free)
    size = next((place.world_size for place in known if place.world_size), None)
    return [place or _by_order(min(first), next(local_ranks), size, ranks_here) for place in places]


def _by_order(first: int, local_rank: int, world_size: int | None, ranks_here: int) -> RankPlace:
    return RankPlace(
        rank=first + local_rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=ranks_here,
        source=BY_ORDER,
    )
