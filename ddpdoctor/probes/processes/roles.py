"""What each process is to a training job, and which rank: judged from commands, settings, parents and names of threads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import ProcessRole, RankPlace
from ddpdoctor.knowledge.launchers import number
from ddpdoctor.probes.processes import command_lines as commands
from ddpdoctor.probes.processes.process_tree import STORE_MARKS, Family, SeenProcess

DATA_WORKER = "pt_data_worker"
"""How torch calls the main thread of a DataLoader's worker, since 2.6."""
BY_ORDER = "the order in which its parent started them"
BY_CHILDREN = "its children's LOCAL_RANK"
BY_NAME = "nobody but who asked for it"
BY_ITSELF = "its launcher, which started no other"

MAX_WRAPPERS = 64
"""Processes between a launcher and what it has started in the end, or between that and its workers."""

Roles = dict[int, tuple[ProcessRole, "RankPlace | None"]]


def roles(family: Family, asked: int = 0) -> Roles:
    """Role and place of each process that has one; all others are `ProcessRole.OTHER`. asked: the pid of one that the user means."""
    found: Roles = {}
    for seen_process in family.seen.values():
        if seen_process.is_inquiry:
            found[seen_process.stat.pid] = ProcessRole.HELPER, None
        elif seen_process.launcher:
            found[seen_process.stat.pid] = ProcessRole.LAUNCHER, None
        elif seen_process.stat.name == DATA_WORKER:
            found[seen_process.stat.pid] = ProcessRole.WORKER, None
        elif seen_process.python and _helps(seen_process):
            found[seen_process.stat.pid] = ProcessRole.HELPER, None
    _unnamed_groups(family)
    _forked_ranks(family, found)
    _ranks_by_settings(family, found)
    _parents_that_are_rank_0(family, found)
    _ranks_of_further_nodes(family, found)
    _ranks_without_settings(family, found)
    _unreadable_ranks(family, found)
    _dead_among_siblings(family, found)
    _only_one_of_a_launcher(family, found)
    _asked_for(family, found, asked)
    _workers(family, found)
    return found


def _helps(one: SeenProcess) -> bool:
    """What a fork server forks has the server's command line, and is no helper."""
    return commands.is_helper(one.words) and not (one.stat.forked and commands.is_fork_server(one.words))


def _role(family_member: SeenProcess, found: Roles) -> ProcessRole:
    return found.get(family_member.stat.pid, (ProcessRole.OTHER, None))[0]


def _unnamed_groups(family: Family) -> None:
    """Before 2.6 or so torch didn't name its threads. Several children of one Python that listen for each other are in a
    group all the same; one alone may be anything."""
    meeting: dict[int, list[SeenProcess]] = {}
    for seen_process in family.seen.values():
        if seen_process.meets and seen_process.by_multiprocessing and seen_process.python and not seen_process.marks:
            meeting.setdefault(seen_process.stat.parent, []).append(seen_process)
    for ranks in meeting.values():
        if len(ranks) > 1:
            for rank in ranks:
                rank.in_group = True


def _forked_ranks(family: Family, found: Roles) -> None:
    """Those that a script has forked or spawned show no settings of their own, but have threads of a process group."""
    starters = {seen_process.stat.parent for seen_process in family.seen.values() if seen_process.forked_rank}
    for parent in (family.seen[pid] for pid in starters if pid in family.seen):
        if not parent.python or parent.in_group:
            continue
        children = family.children(parent.stat.pid)
        ranks = [child for child in children if _role(child, found) is ProcessRole.OTHER and _alike(child, children)]
        node, nodes = _node(parent)
        for count, one in enumerate(ranks):
            place = RankPlace(
                rank=node * len(ranks) + count,
                world_size=nodes * len(ranks),
                local_rank=count,
                local_world_size=len(ranks),
                source=BY_ORDER,
            )
            found[one.stat.pid] = ProcessRole.RANK, place
        starter = parent
        if commands.is_fork_server(parent.words):
            starter = family.seen.get(parent.stat.parent, parent)
        if _role(starter, found) is ProcessRole.OTHER:
            found[starter.stat.pid] = ProcessRole.LAUNCHER, None


def _node(parent: SeenProcess) -> tuple[int, int]:
    """Which node this is, of how many: a PyTorchJob counts pods, and the script in each forks the ranks."""
    place = parent.place
    return (place.rank, place.world_size) if place and place.world_size else (0, 1)


def _alike(one: SeenProcess, siblings: Iterable[SeenProcess]) -> bool:
    """Whether it was started as those were that have a process group: one may be late, or have died."""
    if one.forked_rank:
        return True
    ranks = [sibling for sibling in siblings if sibling.forked_rank]
    if not one.words:
        return one.stat.name in {rank.stat.name for rank in ranks}
    spawned = commands.is_spawned(one.words)
    return one.python and any(
        commands.is_spawned(rank.words) == spawned and (spawned or rank.words == one.words) for rank in ranks
    )


def _ranks_by_settings(family: Family, found: Roles) -> None:
    chains: dict[int, list[SeenProcess]] = {}
    for seen_process in family.seen.values():
        if (
            seen_process.place
            and seen_process.computes
            and _role(seen_process, found) is ProcessRole.OTHER
            and not commands.is_tool(seen_process.words)
        ):
            chains.setdefault(_outermost(seen_process, family, found).stat.pid, []).append(seen_process)
    for pid, chain in chains.items():
        # A Python that only wraps another doesn't train. What was forked holds no group unless it is a rank itself.
        grouped = [seen_process for seen_process in chain if seen_process.in_group]
        rank = min(grouped, key=lambda one: one.stat.start) if grouped else family.seen[pid]
        if rank.stat.forked and not rank.in_group:
            found[rank.stat.pid] = ProcessRole.WORKER, None
        else:
            found[rank.stat.pid] = ProcessRole.RANK, rank.place


def _outermost(one: SeenProcess, family: Family, found: Roles) -> SeenProcess:
    """The first of those with its place, from whom it has its settings: a rank's workers and helpers inherit them."""
    outermost = one
    for up in islice(family.ancestors(one), MAX_WRAPPERS):
        if _role(up, found) in (ProcessRole.LAUNCHER, ProcessRole.RANK):
            break
        if up.computes and up.place == one.place and not commands.is_tool(up.words):
            outermost = up
    return outermost


def _parents_that_are_rank_0(family: Family, found: Roles) -> None:
    """Lightning's first rank starts the others, and its own settings don't show."""
    by_parent: dict[int, list[RankPlace]] = {}
    for pid, (_, place) in list(found.items()):
        if place and place.source == "LOCAL_RANK":
            by_parent.setdefault(family.seen[pid].stat.parent, []).append(place)
    for pid, places in by_parent.items():
        parent = family.seen.get(pid)
        if (
            parent
            and parent.python
            and _role(parent, found) is ProcessRole.OTHER
            and min(one.rank for one in places) == 1
        ):
            place = RankPlace(rank=0, world_size=places[0].world_size, local_rank=0, node_rank=0, source=BY_CHILDREN)
            found[pid] = ProcessRole.RANK, place


def _ranks_of_further_nodes(family: Family, found: Roles) -> None:
    """Lightning's on a node behind the first: its children's LOCAL_RANKs tell how many ranks each node has."""
    by_parent: dict[int, list[SeenProcess]] = {}
    for seen_process in family.seen.values():
        if (
            seen_process.further_node
            and seen_process.computes
            and not seen_process.stat.forked
            and _role(seen_process, found) is ProcessRole.OTHER
        ):
            by_parent.setdefault(seen_process.stat.parent, []).append(seen_process)
    for pid, children in by_parent.items():
        local_ranks = [number(child.variables["LOCAL_RANK"]) or 0 for child in children]
        parent = family.seen.get(pid)
        if not (parent and parent.python and _role(parent, found) is ProcessRole.OTHER and min(local_ranks) == 1):
            continue
        here, node = max(local_ranks) + 1, children[0].further_node
        size = number(children[0].variables["WORLD_SIZE"])
        for member, local, source in (
            (parent, 0, BY_CHILDREN),
            *((one, local, "LOCAL_RANK") for one, local in zip(children, local_ranks, strict=True)),
        ):
            found[member.stat.pid] = (
                ProcessRole.RANK,
                RankPlace(
                    rank=node * here + local,
                    world_size=size,
                    local_rank=local,
                    local_world_size=here,
                    node_rank=node,
                    source=source,
                ),
            )


def _ranks_without_settings(family: Family, found: Roles) -> None:
    """In a process group, but nobody says who: the script has set it all itself, or whoever forked them is gone."""
    orphans: dict[tuple[object, ...], list[SeenProcess]] = {}
    for one in family.seen.values():
        if one.in_group and one.python and _role(one, found) is ProcessRole.OTHER:
            found[one.stat.pid] = ProcessRole.RANK, None
            if one.by_multiprocessing:
                command = "spawned" if commands.is_spawned(one.words) else one.words
                orphans.setdefault((one.stat.parent, one.stat.session, one.stat.group, command), []).append(one)
    for ranks in orphans.values():
        # One alone may be a daemon of its own making.
        if len(ranks) > 1:
            ranks.sort(key=lambda one: (one.stat.start, one.stat.pid))
            for count, one in enumerate(ranks):
                found[one.stat.pid] = ProcessRole.RANK, _by_order(0, count, None, len(ranks))


def _unreadable_ranks(family: Family, found: Roles) -> None:
    """A launcher's child whose settings can't be read: a zombie's, one's that hangs in the kernel, another user's."""
    launchers = [pid for pid, (role, _) in found.items() if role is ProcessRole.LAUNCHER]
    for pid in launchers:
        ranks = [child for child in family.children(pid) if _role(child, found) is ProcessRole.RANK]
        hidden = [child for child in family.children(pid) if _may_be_rank(child, ranks, found)]
        if not hidden:
            continue
        everybody = [child for child in family.children(pid) if child in ranks or child in hidden]
        places = [found.get(seen_process.stat.pid, (ProcessRole.OTHER, None))[1] for seen_process in everybody]
        for one, place in zip(everybody, _filled(places), strict=True):
            found[one.stat.pid] = ProcessRole.RANK, place


def _dead_among_siblings(family: Family, found: Roles) -> None:
    """Zombies between the ranks that a script has started by hand: which they were, the order tells where it agrees with all
    that the others say. Whoever adopts orphans tells nothing by the order in which it has them."""
    parents = {family.seen[pid].stat.parent for pid, (role, _) in found.items() if role is ProcessRole.RANK}
    for parent in parents & family.seen.keys():
        if parent == 1 or found.get(parent, (ProcessRole.OTHER, None))[0] is not ProcessRole.OTHER:
            continue
        children = family.children(parent)
        ranks = [child for child in children if _role(child, found) is ProcessRole.RANK]
        names = {rank.stat.name for rank in ranks}
        row = [child for child in children if child in ranks or (child.stat.state == "Z" and child.stat.name in names)]
        places = [found.get(seen_process.stat.pid, (ProcessRole.OTHER, None))[1] for seen_process in row]
        if all(place for one, place in zip(row, places, strict=True) if one in ranks):
            for one, place in zip(row, _continued(places), strict=True):
                if place:
                    found[one.stat.pid] = ProcessRole.RANK, place


def _continued(places: list[RankPlace | None]) -> list[RankPlace | None]:
    """With the gaps in that row of ranks filled in; as it was where it is none."""
    told = [(count, place) for count, place in enumerate(places) if place]
    like = told[0][1]
    first, size, here = like.rank - told[0][0], like.world_size or 0, like.local_world_size
    in_a_row = all(
        place.rank == first + count and place.local_rank in (None, count) and place.world_size == like.world_size
        for count, place in told
    )
    if not in_a_row or first < 0 or len(places) > (here or size) or first + len(places) > size:
        return places
    return [
        place or msgspec.structs.replace(like, rank=first + count, local_rank=count, source=BY_ORDER)
        for count, place in enumerate(places)
    ]


def _may_be_rank(one: SeenProcess, ranks: list[SeenProcess], found: Roles) -> bool:
    if not isinstance(one.environ, Unknown) or found.get(one.stat.pid, (ProcessRole.OTHER, None))[1]:
        return False
    if one.in_group:
        return True
    return _role(one, found) is ProcessRole.OTHER and one.stat.name in {rank.stat.name for rank in ranks}


def _filled(places: list[RankPlace | None]) -> list[RankPlace | None]:
    """The places of a launcher's children, the oldest first, with those that nobody told filled in where the others agree
    with that order, or only one is missing."""
    told = [place for place in places if place and place.local_rank is not None]
    first = {place.rank - (place.local_rank or 0) for place in told} or {0}
    sizes = {place.local_world_size for place in told if place.local_world_size}
    if len(first) > 1 or len(sizes) > 1 or (sizes and max(sizes) < len(places)):
        return places
    in_order = all(place is None or place.local_rank in (None, count) for count, place in enumerate(places))
    free = sorted(set(range(max(sizes, default=len(places)))) - {place.local_rank for place in told})
    if in_order and (len(places) == max(sizes, default=len(places))):
        free = [count for count, place in enumerate(places) if place is None]
    elif len(free) != 1 or places.count(None) != 1:
        return places
    left = iter(free)
    size = next((place.world_size for place in told if place.world_size), None)
    return [place or _by_order(min(first), next(left), size, max(sizes, default=len(places))) for place in places]


def _by_order(first: int, local: int, world_size: int | None, here: int) -> RankPlace:
    return RankPlace(
        rank=first + local, world_size=world_size, local_rank=local, local_world_size=here, source=BY_ORDER
    )


def _only_one_of_a_launcher(family: Family, found: Roles) -> None:
    """What accelerate starts without torchrun's agent, a single process, has none of a rank's settings, and is the whole job."""
    for pid in [pid for pid, (role, _) in found.items() if role is ProcessRole.LAUNCHER]:
        children = [child for child in family.children(pid) if child.python and not commands.is_tool(child.words)]
        if not commands.is_accelerate(family.seen[pid].words) or len(children) != 1:
            continue
        (child,) = children
        if _role(child, found) is ProcessRole.OTHER and "ACCELERATE_MIXED_PRECISION" in child.variables:
            found[child.stat.pid] = ProcessRole.RANK, RankPlace(rank=0, world_size=1, source=BY_ITSELF)


def _asked_for(family: Family, found: Roles, asked: int) -> None:
    """A training on one GPU has no launcher and no settings of a rank. Where somebody asks for it, it is a job of one."""
    one = family.seen.get(asked)
    if one is None:
        return
    # What a rank runs is its own, but where it runs us as well, we are asked for less.
    mine = {up.stat.pid for up in family.ancestors(me)} if (me := family.seen.get(os.getpid())) else set()
    if any(_role(up, found) is ProcessRole.RANK for up in family.ancestors(one) if up.stat.pid not in mine):
        return
    tree = [one, *family.descendants(asked)]
    if any(_role(member, found) in (ProcessRole.RANK, ProcessRole.LAUNCHER) for member in tree):
        return
    # Of one whose settings are hidden it can't be told that it is no rank of several.
    if any(member.python and isinstance(member.environ, Unknown) for member in tree):
        return
    pythons = {member.stat.pid for member in tree if member.python and _role(member, found) is ProcessRole.OTHER}
    own = [family.seen[pid] for pid in pythons if not commands.is_tool(family.seen[pid].words)]
    # A Python that has started another by its own command only waits for it, as a script of experiments does.
    starts = {member.stat.parent for member in own if not member.by_multiprocessing}
    outermost = [
        member
        for member in own
        if member.stat.pid not in starts and not (member.by_multiprocessing and member.stat.parent in pythons)
    ]
    if outermost:
        first = min(outermost, key=lambda member: (member.stat.start, member.stat.pid))
        # A store is kept for others, and how many these are, nobody says.
        local = number(first.variables.get("LOCAL_RANK", ""))
        size = 1 if local is None and not first.in_group and not STORE_MARKS & {*first.marks} else None
        found[first.stat.pid] = ProcessRole.RANK, RankPlace(rank=local or 0, world_size=size, source=BY_NAME)


def _workers(family: Family, found: Roles) -> None:
    """What a rank forks is a DataLoader's, as a rule."""
    for pid in [pid for pid, (role, _) in found.items() if role is ProcessRole.RANK]:
        children = family.children(pid)
        servers = [one for one in children if commands.is_fork_server(one.words)]
        for child in [*children, *(one for server in servers for one in family.children(server.stat.pid))]:
            if _role(child, found) is ProcessRole.OTHER and child.python and child.by_multiprocessing:
                found[child.stat.pid] = ProcessRole.WORKER, None
