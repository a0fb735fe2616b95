"""Made-up jobs of many process groups in which a rank fails: what each rank's flight recorder holds when everything has come to rest.

    job = some_job(random.Random(7))
    dumps = job.dumps()          # {rank: the dump as JSON, as torch writes it}
    job.faulty                   # the ranks that are at fault

A rank runs a program of calls: collectives within its tensor, expert, data or whole-model group, sends and receives along its
pipeline. Over NCCL the processor calls ahead of the GPU until it needs a result; over gloo each call returns when it is done. The job
is played until nothing moves any more, and only then is it asked who has called and finished what. It knows nothing of how ddpdoctor
judges.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

CREATED = 1_790_000_000_000_000_000
KINDS = ("stops", "exits", "holds the GIL", "error in a kernel", "exception", "another branch")
"""An error in a kernel is one of CUDA: over gloo a rank's own code raises."""
BRANCHES = ("one more", "one fewer", "another kind", "another group", "another order")
"""What a rank in another branch calls."""
AFTER_EXCEPTION = ("stays", "exits", "calls a barrier")
"""What becomes of a rank whose own code has raised: it ends, waits in its `except` or `finally`, or meets the others there."""
COLLECTIVES = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all", "broadcast")


@dataclass(frozen=True)
class Group:
    name: str
    purpose: str
    ranks: tuple[int, ...]


@dataclass
class Op:
    """A call. parts: of a batch of sends and receives, or the one pair: ("send" or "recv", peer). later: nobody waits for it at once.
    sync: the processor goes on only when all before is done."""

    group: Group | None = None
    name: str = ""
    size: int = 0
    parts: tuple[tuple[str, int], ...] = ()
    later: bool = False
    sync: bool = False


@dataclass
class Shape:
    tensor: int
    pipe: int
    data: int
    expert: int
    """Data ranks that share experts."""
    wide_experts: bool = False
    """The ranks of a tensor group share them, too."""

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipe * self.data


class Layout:
    """Which groups there are, and who is in which. Ranks count over tensor, then data, then the pipeline, as Megatron does."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.names = iter(range(100_000))
        tensor, pipe, data = range(shape.tensor), range(shape.pipe), range(shape.data)
        at = self.at
        self.world = self._group("default_pg", range(shape.ranks))
        self.tensor = self._groups("TENSOR", ([at(t, d, p) for t in tensor] for p in pipe for d in data))
        self.data = self._groups("DATA", ([at(t, d, p) for d in data] for p in pipe for t in tensor))
        self.pipe = self._groups("PIPELINE", ([at(t, d, p) for p in pipe] for d in data for t in tensor))
        shared = [range(first, first + shape.expert) for first in range(0, shape.data, shape.expert)]
        columns = [tensor] if shape.wide_experts else [range(t, t + 1) for t in tensor]
        self.expert = self._groups(
            "EXPERT",
            ([at(t, d, p) for d in some for t in column] for p in pipe for some in shared for column in columns),
        )
        self.model = self._groups("MODEL", ([at(t, d, p) for p in pipe for t in tensor] for d in data))

    def at(self, tensor: int, data: int, pipe: int) -> int:
        return (pipe * self.shape.data + data) * self.shape.tensor + tensor

    def groups_of(self, rank: int) -> tuple[Group, ...]:
        some = (self.tensor, self.data, self.pipe, self.expert, self.model)
        return self.world, *(groups[rank] for groups in some)

    def group_back(self, rank: int) -> Group:
        """In which stages send back: two do in the group of all, as Megatron's, so that both ways go at once."""
        return self.world if self.shape.pipe == 2 else self.pipe[rank]

    def stage(self, rank: int) -> int:
        return rank // (self.shape.tensor * self.shape.data)

    def _group(self, purpose: str, ranks: Any) -> Group:
        return Group(str(next(self.names)), purpose, tuple(ranks))

    def _groups(self, purpose: str, all_ranks: Any) -> dict[int, Group]:
        made = [self._group(purpose, ranks) for ranks in all_ranks]
        return {rank: group for group in made for rank in group.ranks}


@dataclass
class Plan:
    layout: Layout
    steps: int
    batches: int
    layers: int
    schedule: str
    """"all forward, all backward" or "1F1B"."""
    later_sends: bool
    buckets: int
    sync_layers: bool
    """Experts need the number of tokens on the processor."""

    def program(self, rank: int) -> list[Op]:
        """All calls of a rank, in their order."""
        calls: list[Op] = []
        for step in range(self.steps):
            calls += self._step(rank, step)
        return calls

    def _step(self, rank: int, step: int) -> Iterator[Op]:
        layout, stage, last = self.layout, self.layout.stage(rank), self.layout.shape.pipe - 1
        if self.schedule == "1F1B" and last:
            ahead = min(last - stage, self.batches)
            for _ in range(ahead):
                yield from self._receive(rank, -1)
                yield from self._forward(rank)
                yield from self._send(rank, 1)
            if self.batches > ahead:
                yield from self._receive(rank, -1)
            for batch in range(ahead, self.batches):
                yield from self._forward(rank)
                yield from self._both(rank, 1)
                yield from self._backward(rank, final=False)
                if batch < self.batches - 1:
                    yield from self._both(rank, -1)
                else:
                    yield from self._send(rank, -1)
            for index in range(ahead):
                yield from self._receive(rank, 1)
                yield from self._backward(rank, final=index == ahead - 1)
                yield from self._send(rank, -1)
        else:
            for _ in range(self.batches):
                yield from self._receive(rank, -1)
                yield from self._forward(rank)
                yield from self._send(rank, 1)
            for batch in range(self.batches):
                yield from self._receive(rank, 1)
                yield from self._backward(rank, final=batch == self.batches - 1)
                yield from self._send(rank, -1)
        for bucket in range(self.buckets):
            yield from self._in(layout.data[rank], "all_reduce", 100 + bucket, later=True)
        yield Op(sync=True)
        yield from self._in(layout.model[rank], "all_reduce", 1)
        yield Op(sync=True)
        if step % 2:
            yield from self._in(layout.world, "barrier", 0)
            yield Op(sync=True)

    def _in(self, group: Group, name: str, size: int, *, later: bool = False) -> Iterator[Op]:
        if len(group.ranks) > 1:
            yield Op(group, name, size, later=later)

    def _forward(self, rank: int) -> Iterator[Op]:
        for _ in range(self.layers):
            yield from self._in(self.layout.tensor[rank], "_all_gather_base", 64)
            if len(self.layout.expert[rank].ranks) > 1:
                yield from self._in(self.layout.expert[rank], "all_to_all", 32)
                if self.sync_layers:
                    yield Op(sync=True)
                yield from self._in(self.layout.expert[rank], "all_to_all", 48)
            yield from self._in(self.layout.tensor[rank], "_reduce_scatter_base", 64)

    def _backward(self, rank: int, *, final: bool) -> Iterator[Op]:
        for layer in range(self.layers):
            yield from self._in(self.layout.tensor[rank], "_all_gather_base", 80)
            yield from self._in(self.layout.tensor[rank], "_reduce_scatter_base", 80)
            if final and layer:
                yield from self._in(self.layout.data[rank], "_reduce_scatter_base", 200 + layer, later=True)

    def _peer(self, rank: int, way: int) -> int | None:
        group = self.layout.pipe[rank].ranks
        place = group.index(rank) + way
        return group[place] if 0 <= place < len(group) else None

    def _send(self, rank: int, way: int) -> Iterator[Op]:
        peer = self._peer(rank, way)
        if peer is not None:
            group = self.layout.pipe[rank] if way > 0 else self.layout.group_back(rank)
            yield Op(group, "send", 16, (("send", peer),), later=self.later_sends)

    def _receive(self, rank: int, way: int) -> Iterator[Op]:
        peer = self._peer(rank, way)
        if peer is not None:
            group = self.layout.pipe[rank] if way < 0 else self.layout.group_back(rank)
            yield Op(group, "recv", 16, (("recv", peer),))

    def _both(self, rank: int, way: int) -> Iterator[Op]:
        peer = self._peer(rank, way)
        if peer is not None and self.layout.shape.pipe == 2:
            yield replace(next(self._send(rank, way)), later=True)
            yield from self._receive(rank, way)
        elif peer is not None:
            yield Op(self.layout.pipe[rank], "batch", 16, (("send", peer), ("recv", peer)))


@dataclass
class Rank:
    """How far one has come. calls: those made. done: of these by their places. numbers: of each in its group."""

    program: list[Op]
    at: int = 0
    calls: list[Op] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)
    first: int = 0
    """Place of the first call that isn't done."""
    ready: int = 0
    """Calls before this place have begun on the GPU."""
    stops_at: int | None = None
    """Place in the program that the processor doesn't get beyond."""
    gpu_ends: int | None = None
    """Place among the calls from which the GPU does nothing."""


@dataclass
class Fault:
    rank: int
    kind: str
    at: int
    branch: str = ""
    """With another branch one of BRANCHES, with an exception of AFTER_EXCEPTION."""

    @property
    def leads_elsewhere(self) -> bool:
        """Whether the rank goes on to call what the others don't."""
        return self.kind == "another branch" or self.branch == "calls a barrier"

    @property
    def ends_process(self) -> bool:
        return "exits" in (self.kind, self.branch)


class Job:
    """One that is played until it rests."""

    def __init__(self, plan: Plan, faults: list[Fault], chance: random.Random, backend: str) -> None:
        self.plan = plan
        self.faults = faults
        self.faulty = tuple(sorted(fault.rank for fault in faults))
        self.chance = chance
        self.backend = backend
        self.world = plan.layout.shape.ranks
        self.ranks = [Rank(plan.program(rank)) for rank in range(self.world)]
        self.runs_ahead = chance.choice((4, 30, 400)) if backend == "nccl" else 1
        for fault in faults:
            self._break(fault)
        self.collectives: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        self.pairs: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
        self.counters: list[dict[tuple[str, bool], int]] = [defaultdict(int) for _ in self.ranks]
        self.only_open = backend == "nccl" and chance.random() < 0.3
        # A recorder holds at least what a rank calls before it waits.
        self.room = chance.choice((100 if self.runs_ahead <= 30 else 1500, 2000))
        self._play()
        self.stale = {fault.rank: self._stale_calls(fault) for fault in faults if fault.kind == "error in a kernel"}
        self.faulty = tuple(sorted(fault.rank for fault in faults if self._struck(fault) and self._missed(fault)))

    def _struck(self, fault: Fault) -> bool:
        """Not where it waited before for somebody else."""
        one = self.ranks[fault.rank]
        if fault.leads_elsewhere:
            return one.at > fault.at
        return one.at == one.stops_at

    def _stale_calls(self, fault: Fault) -> set[int]:
        """Calls that were done and that its recorder doesn't say so of: events can't be asked any more once CUDA has failed."""
        one = self.ranks[fault.rank]
        return set(sorted(one.done)[-self.chance.randint(1, 6) :]) if self._struck(fault) else set()

    @property
    def dead(self) -> tuple[int, ...]:
        """The ranks that can write no dump."""
        return tuple(
            sorted(
                fault.rank
                for fault in self.faults
                if (fault.kind == "stops" or fault.ends_process) and self._struck(fault)
            )
        )

    def waits_in_nothing_recorded(self, rank: int) -> bool:
        """Whether all that it has called is done, but for sends and receives."""
        one = self.ranks[rank]
        return all(place in one.done or op.parts for place, op in enumerate(one.calls))

    def shows(self, fault: Fault) -> bool:
        """Whether the dumps can show it. A GPU that failed leaves no trace if there was no collective shortly before."""
        return fault.kind != "error in a kernel" or any(
            self._shown(fault.rank, place) for place in self.stale[fault.rank]
        )

    def _shown(self, rank: int, place: int) -> bool:
        """Whether a healthy rank's dump says that this call is done. One that leaves out what is done can't, in a group of which torch's
        status counts collectives and sends alike."""
        op = self.ranks[rank].calls[place]
        if op.parts or op.group is None or (self.only_open and op.group == self.plan.layout.group_back(rank)):
            return False
        return not {fault.rank for fault in self.faults}.issuperset(op.group.ranks)

    @property
    def branched(self) -> bool:
        return any(fault.leads_elsewhere for fault in self.faults)

    @property
    def hides_waits(self) -> bool:
        """Whether ranks may wait in sends and receives that no recorder tells of."""
        return self.backend == "gloo" and self.plan.layout.shape.pipe > 1

    def can_be_told(self) -> bool:
        """Whether the dumps show that more ranks of the same place in the script have gone another way than those in another branch. What
        is not recorded shows nothing, and a collective is known by its group and its name: sizes may differ."""
        if self.only_open or any(len(rank.calls) > self.room for rank in self.ranks):
            return False
        stage = self.plan.layout.stage
        ways = [[(_purpose(op), op.name) for op in rank.calls if not op.parts] for rank in self.ranks]
        return all(
            sum(
                stage(rank) == stage(odd) and any(theirs != own for theirs, own in zip(way, ways[odd], strict=False))
                for rank, way in enumerate(ways)
            )
            > len(self.faulty)
            for odd in self.faulty
        )

    def waiting_for_each_other(self) -> set[int]:
        """The faulty ranks, and those that wait for one of them which waits for them, also by way of others."""
        ahead = {rank: self._awaited_by(rank) for rank in range(self.world)}
        back: dict[int, set[int]] = defaultdict(set)
        for rank, awaited in ahead.items():
            for other in awaited:
                back[other].add(rank)
        return {rank for odd in self.faulty for rank in _reached(odd, ahead) & _reached(odd, back)}

    def _awaited_by(self, rank: int) -> set[int]:
        """Those that haven't begun the same call."""
        one = self.ranks[rank]
        awaited: set[int] = set()
        for place, op in enumerate(one.calls):
            if place in one.done:
                continue
            awaited |= {peer for _, peer in op.parts}
            if not op.parts:
                joined = self.collectives[op.group.name, one.numbers[place]] if op.group else {}
                awaited |= {
                    member
                    for member in _members(op)
                    if member not in joined or self.ranks[member].calls[joined[member]] != op
                }
        return awaited - {rank}

    def _missed(self, fault: Fault) -> bool:
        """Whether others have called what this rank hasn't, or has and its GPU doesn't come to."""
        own = self.ranks[fault.rank]
        begun = {
            (op.group.name, number) for op, number in zip(own.calls[: own.ready], own.numbers, strict=False) if op.group
        }
        if fault.leads_elsewhere:
            return self._all_others_wait(fault)
        for rank, one in enumerate(self.ranks):
            for place, op in enumerate(one.calls[: one.ready]):
                if rank == fault.rank or place in one.done or not op.group or fault.rank not in op.group.ranks:
                    continue
                if (
                    fault.rank in (peer for _, peer in op.parts)
                    if op.parts
                    else (op.group.name, one.numbers[place]) not in begun
                ):
                    return True
        return False

    def _all_others_wait(self, fault: Fault) -> bool:
        """Whether not all is done, and nobody whom a rank in another branch waits for has ended: then that rank isn't late, but alone."""
        own = self.ranks[fault.rank]
        left = {place for place in range(len(own.calls)) if place not in own.done}
        awaited = {rank for place in left for rank in _members(own.calls[place])} - {fault.rank}
        ended = {rank for rank in awaited if self.ranks[rank].at == len(self.ranks[rank].program)}
        return any(len(rank.done) < len(rank.calls) for rank in self.ranks) and not ended

    def waits(self, fault: Fault) -> bool:
        """Whether it has called something that isn't done."""
        one = self.ranks[fault.rank]
        return fault.kind != "error in a kernel" and len(one.done) < len(one.calls)

    def _break(self, fault: Fault) -> None:
        one = self.ranks[fault.rank]
        if fault.kind == "another branch":
            self._branch(fault, one.program)
        elif fault.leads_elsewhere:
            one.program[fault.at :] = [Op(self.plan.layout.world, "barrier", 0)]
        else:
            one.stops_at = fault.at
        if fault.ends_process or fault.kind == "error in a kernel":
            called = sum(not op.sync for op in one.program[: fault.at])
            one.gpu_ends = max(0, called - self.chance.randint(0, 3))

    def _branch(self, fault: Fault, program: list[Op]) -> None:
        at, op = fault.at, program[fault.at]
        # Whoever takes this branch calls the same.
        choice = random.Random(at).choice
        if fault.branch == "one more":
            program.insert(at, choice((op, Op(op.group, "broadcast", 7))))
        elif fault.branch == "one fewer":
            del program[at]
        elif fault.branch == "another kind":
            program[at] = replace(op, name=choice([name for name in COLLECTIVES if name != op.name]))
        elif fault.branch == "another group":
            program[at] = replace(op, group=choice(_groups_beside(self.plan.layout, fault.rank, op)))
        else:
            program[at : at + 2] = reversed(program[at : at + 2])

    def _play(self) -> None:
        moving = set(range(self.world))
        while moving:
            rank = moving.pop()
            woken = self._advance(rank)
            moving |= woken

    def _advance(self, rank: int) -> set[int]:
        """As far as it gets; whom that lets go on."""
        one = self.ranks[rank]
        woken: set[int] = set()
        moved = True
        while moved:
            moved = False
            while one.at < len(one.program) and one.at != one.stops_at and self._may_call(one):
                self._call(rank, one, one.program[one.at])
                one.at += 1
                moved = True
            limit = len(one.calls) if one.gpu_ends is None else min(len(one.calls), one.gpu_ends)
            while one.ready < limit and all(
                place in one.done or one.calls[place].later for place in range(one.first, one.ready)
            ):
                woken |= self._begin(rank, one.ready)
                one.ready += 1
                moved = True
            while one.first in one.done:
                one.first += 1
        return woken - {rank}

    def _may_call(self, one: Rank) -> bool:
        op = one.program[one.at]
        waiting = [place for place in range(one.first, len(one.calls)) if place not in one.done]
        if op.sync:
            return not waiting
        if self.backend == "gloo":
            return all(one.calls[place].later for place in waiting)
        return len(waiting) < self.runs_ahead

    def _call(self, rank: int, one: Rank, op: Op) -> None:
        if op.sync:
            return
        assert op.group
        counter = self.counters[rank]
        pair = bool(op.parts)
        counter[op.group.name, pair] += 1
        one.numbers.append(counter[op.group.name, pair])
        one.calls.append(op)

    def _begin(self, rank: int, place: int) -> set[int]:
        one = self.ranks[rank]
        op = one.calls[place]
        assert op.group
        if not op.parts:
            joined = self.collectives[op.group.name, one.numbers[place]]
            joined[rank] = place
            calls = {
                (self.ranks[other].calls[at].name, self.ranks[other].calls[at].size) for other, at in joined.items()
            }
            if len(joined) < len(op.group.ranks) or len(calls) > 1:
                return set()
            for other, at in joined.items():
                self.ranks[other].done.add(at)
            return set(joined)
        for index, (verb, peer) in enumerate(op.parts):
            self.pairs[rank, peer, verb].append((place, index))
        return {one for verb, peer in op.parts for one in self._pair_up(rank, peer, verb)}

    def _pair_up(self, rank: int, peer: int, verb: str) -> set[int]:
        mine, theirs = self.pairs[rank, peer, verb], self.pairs[peer, rank, "recv" if verb == "send" else "send"]
        woken: set[int] = set()
        for (place, _), (other, _) in zip(mine, theirs, strict=False):
            for who, at in ((rank, place), (peer, other)):
                if at not in self.ranks[who].done and self._all_parts_met(who, at):
                    self.ranks[who].done.add(at)
                    woken.add(who)
        return woken

    def _all_parts_met(self, rank: int, place: int) -> bool:
        for index, (verb, peer) in enumerate(self.ranks[rank].calls[place].parts):
            at = self.pairs[rank, peer, verb].index((place, index))
            if len(self.pairs[peer, rank, "recv" if verb == "send" else "send"]) <= at:
                return False
        return True

    # --- what torch writes of it --------------------------------------------------------------------------------------------

    def dumps(self) -> dict[int, bytes]:
        """Of each rank that is able to write one."""
        dead = self.dead
        version = self.chance.choice(("2.4", "2.5", "2.9", "2.10"))
        return {rank: msgspec.json.encode(self._dump(rank, version)) for rank in range(self.world) if rank not in dead}

    def _dump(self, rank: int, version: str) -> dict[str, Any]:
        one = self.ranks[rank]
        entries: list[dict[str, Any]] = []
        done = one.done - self.stale.get(rank, set())
        status: dict[str, dict[str, int]] = {}
        groups = self._groups_of(rank)
        ids = {group.name: index for index, group in enumerate(groups)}
        gloo_ops: dict[str, int] = defaultdict(int)
        used = set()
        for place, op in enumerate(one.calls):
            assert op.group
            used.add(op.group.name)
            gloo_ops[op.group.name] += max(1, len(op.parts))
            if self.backend == "gloo" and op.parts:
                continue
            finished = place in done
            number = gloo_ops[op.group.name] if self.backend == "gloo" else one.numbers[place]
            told = status.setdefault(str(ids[op.group.name]), {
                "last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1,
            })  # fmt: skip
            told["last_enqueued_collective"] = number
            if finished:
                told["last_completed_collective"] = number
            for entry in self._entries(rank, op, one.numbers[place], ids[op.group.name], number, finished):
                entries.append(
                    {**entry, "record_id": len(entries), "time_created_ns": CREATED + 1_000_000 * place + rank}
                )
        entries = entries[-self.room :]
        if self.only_open:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        config: dict[str, Any] = {
            group.name: {"name": group.name, "desc": group.purpose, "ranks": str(list(group.ranks))}
            for group in groups
            if group.name in used
        }
        if self.backend == "gloo":
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {"version": version, "pg_config": config, "pg_status": status, "entries": entries}

    def _groups_of(self, rank: int) -> list[Group]:
        return sorted(self.plan.layout.groups_of(rank), key=lambda group: int(group.name))

    def _entries(
        self, rank: int, op: Op, number: int, pg_id: int, op_id: int, finished: bool
    ) -> Iterator[dict[str, Any]]:
        assert op.group
        nccl = self.backend == "nccl"
        entry: dict[str, Any] = {
            "pg_id": pg_id, "process_group": (op.group.name, op.group.purpose), "op_id": op_id, "is_p2p": bool(op.parts),
            "collective_seq_id": 0 if op.parts else number, "p2p_seq_id": number if op.parts else 0,
            "input_sizes": [[op.size]], "output_sizes": [[op.size]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "timeout_ms": 600_000, "state": "completed" if finished and nccl else "scheduled", "retired": finished,
            "profiling_name": f"{self.backend}:{op.name}",
        }  # fmt: skip
        own = op.group.ranks.index(rank)
        for verb, peer in op.parts:
            arrow = "->" if verb == "send" else "<-"
            name = f"nccl:{verb} {own}{arrow}{op.group.ranks.index(peer)}"
            batch = {"state": "scheduled", "retired": False} if len(op.parts) > 1 else {}
            yield {**entry, **batch, "profiling_name": name}
        if len(op.parts) > 1:
            yield {**entry, "is_p2p": False, "profiling_name": "nccl:coalesced"}
        elif not op.parts:
            yield entry


def _members(op: Op) -> tuple[int, ...]:
    return op.group.ranks if op.group else ()


def _purpose(op: Op) -> str:
    return op.group.purpose if op.group else ""


def _reached(start: int, ways: Mapping[int, set[int]]) -> set[int]:
    found, new = {start}, {start}
    while new:
        new = {end for rank in new for end in ways.get(rank, ())} - found
        found |= new
    return found


def _groups_beside(layout: Layout, rank: int, op: Op) -> list[Group]:
    """Other groups of a rank that it isn't alone in, nor together with the same ranks."""
    return [group for group in layout.groups_of(rank) if len(group.ranks) > 1 and group.ranks != _members(op)]


def _may_branch(layout: Layout, rank: int, program: list[Op], at: int, branch: str) -> bool:
    op = program[at]
    if op.sync or op.parts:
        return False
    if branch == "another group":
        return bool(_groups_beside(layout, rank, op))
    following = program[at + 1 : at + 2]
    return branch != "another order" or any(
        not after.parts and not after.sync and after.group != op.group for after in following
    )


def _who_branches(layout: Layout, rank: int, chance: random.Random) -> list[int]:
    """A rank, or all of its stage that have its place in the tensor or in the data groups, where these are the fewer."""
    if chance.random() < 0.7:
        return [rank]
    stage = layout.stage(rank)
    along, across = chance.sample((layout.tensor, layout.data), 2)
    same = [other for other in along[rank].ranks if layout.stage(other) == stage]
    return same if len(across[rank].ranks) > 2 else [rank]


def some_job(
    chance: random.Random, *, sizes: tuple[int, int] = (2, 64), backend: str = "", kind: str = "", pipes: bool = True
) -> Job:
    """With one rank at fault that the others wait for when all rests; now and then with two. sizes: fewest and most ranks."""
    backend = backend or chance.choice(("nccl", "nccl", "gloo"))
    while True:
        job = _a_job(chance, sizes, backend, kind, pipes)
        if job is not None:
            return job


def _a_job_with_branches(plan: Plan, chance: random.Random, backend: str) -> Job | None:
    rank = chance.randrange(plan.layout.shape.ranks)
    program, branch = plan.program(rank), chance.choice(BRANCHES)
    step = len(program) // plan.steps
    places = [at for at in range(step, len(program)) if _may_branch(plan.layout, rank, program, at, branch)]
    if not places:
        return None
    at = chance.choice(places)
    faults = [Fault(rank, "another branch", at, branch) for rank in _who_branches(plan.layout, rank, chance)]
    job = Job(plan, faults, chance, backend)
    return job if len(job.faulty) == len(faults) else None


def _a_job(chance: random.Random, sizes: tuple[int, int], backend: str, kind: str, pipes: bool) -> Job | None:
    data = chance.choice((1, 2, 4, 8))
    shape = Shape(
        tensor=chance.choice((1, 2, 4, 8)), pipe=chance.choice((1, 2, 3, 4, 6, 8)) if pipes else 1, data=data,
        expert=chance.choice([one for one in (1, 2, 4, 8) if data % one == 0]), wide_experts=chance.random() < 0.3,
    )  # fmt: skip
    if not sizes[0] <= shape.ranks <= sizes[1]:
        return None
    plan = Plan(
        Layout(shape), steps=chance.randint(2, 4), batches=chance.randint(1, 4), layers=chance.randint(1, 3),
        schedule="all forward, all backward" if backend == "gloo" else chance.choice(("1F1B", "all forward, all backward")),
        later_sends=chance.random() < 0.5, buckets=chance.randint(1, 3), sync_layers=chance.random() < 0.5,
    )  # fmt: skip
    faults = []
    two = not kind and shape.ranks > 4 and backend == "nccl" and chance.random() < 0.2
    kinds = ("holds the GIL", "error in a kernel") if two else KINDS
    kind = kind or chance.choice([kind for kind in kinds if backend == "nccl" or kind != "error in a kernel"])
    if kind == "another branch":
        return _a_job_with_branches(plan, chance, backend)
    for rank in chance.sample(range(shape.ranks), 1 + two):
        program = plan.program(rank)
        step = len(program) // plan.steps
        places = [at for at in range(step, len(program)) if not program[at].sync]
        if not places:
            return None
        branch = chance.choice(AFTER_EXCEPTION) if kind == "exception" else ""
        faults.append(Fault(rank, kind, chance.choice(places), branch))
    job = Job(plan, faults, chance, backend)
    if len(job.faulty) < len(faults) or not all(map(job.shows, faults)):
        return None
    # Of two, one that has called what the other keeps from being done waits itself, as far as anybody can see.
    return job if len(faults) == 1 or not any(job.waits(fault) for fault in faults) else None
