"""Arrivals at the meeting: nodes that are missing, went away, or came under another's rank."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.fleet import Fleet, MissingNode, Node, RejectedNode
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.job_intent import means_each_node_itself
from ddpdoctor.knowledge.launchers import srun_netcheck
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.knowledge.netcheck_command import netcheck_command, waits_longer
from ddpdoctor.knowledge.node_words import (
    HUB_CONNECTION,
    NO_FLEET,
    NODE_0_SPEAKS,
    bare_host,
    called,
    missing_name,
    there,
)
from ddpdoctor.network_check.analysis.admission_errors import (
    first_words,
    left_behind,
    one_node_more,
    token_of_a_visitor,
    turned_away,
)

RANK_CODES = ("rank-taken", "duplicate-rank", "rank-out-of-range")
"""Codes of a refusal for which duplicate-rank speaks; rdzv-missing-node speaks for the others. The second is what the first was
called before, as older snapshots have it."""

MAX_COMMANDS = 8

FACTS_LATE = "its facts had not come"
"""What the hub says of a node that it has waited for in vain after it had come."""

STOPPED = "stopped by "
"""What a node says that somebody ends: "stopped by its user: Ctrl-C", "stopped by SIGTERM"."""


@check("rdzv-missing-node", severity=FAIL, owner=Owner.UNKNOWN, stands_for=(LogTopic.MISSING_NODE,))
def rdzv_missing_node(fleet: Fleet, meeting: Meeting, network: Maybe[Network]) -> Iterator[Finding]:
    """A node of the job never arrives at the master, or goes away.

    ## What breaks
    All other ranks wait for it: "1/2 clients joined" after 10 minutes by default, or a bare RendezvousTimeoutError that
    names nobody.

    ## Why
    The job wasn't started there; it was started with another number of nodes, another port or another rendezvous id; the
    node can't reach the master; or its process died early.

    ## Fix
    Start the job on every node with the same `--nnodes`, `--master-addr` and `--master-port` (`--rdzv-id` and
    `--rdzv-endpoint` for c10d), and on each with a `--node-rank` of its own. A node that can't reach the master says
    itself why, when `ddpdoctor netcheck` runs there.
    """
    if meeting.refusal and meeting.refusal not in RANK_CODES:
        yield turned_away(meeting)
        return
    if meeting.left_behind:
        yield left_behind(meeting)
        return
    requires(fleet.nodes, NO_FLEET)
    requires(meeting.node_rank == 0, NODE_0_SPEAKS)
    for visitor, seat in _seats(fleet):
        if visitor.code not in RANK_CODES and (fleet.absent or visitor.code in ("nnodes", "full", "closed")):
            yield _refused(visitor, seat, fleet, meeting)
    if isinstance(network, Network) and isinstance(network.master, Resolution):
        # Then it is master-addr-unreachable that says why nobody comes.
        requires(fleet.doubles or not means_each_node_itself(network.master, network), "the master is localhost")
    # Whoever was turned away is one of those who are missing: one fault, said once.
    more = len(_free(fleet)) - sum(_seat(visitor, fleet) is None for visitor in _unsettled(fleet))
    if more > 0:
        yield _missing(_free(fleet), more, fleet, meeting)
    if any(node.lost for node in fleet.nodes):
        yield _lost(fleet, meeting)


def _unsettled(fleet: Fleet) -> list[RejectedNode]:
    """Nodes that were turned away and haven't come again since under a better rank; of one that came several times, the last.
    Nodes of the job, all of them: see `_unproved`."""
    settled = {(bare_host(node), node.address, node.rank) for node in fleet.nodes}
    last = {(double.host, double.address): double for double in fleet.doubles if double.proved}
    return [
        visitor
        for visitor in last.values()
        if not any(
            (host, address) == (visitor.host, visitor.address) and rank != visitor.rank
            for host, address, rank in settled
        )
    ]


def _unproved(fleet: Fleet) -> list[RejectedNode]:
    """Visitors that came as a node, didn't show that they know the token, and aren't here by now: a node with another token or version,
    or a stranger who says so."""
    here = {(bare_host(node), node.address) for node in fleet.nodes}
    last = {(double.host, double.address): double for double in fleet.doubles if not double.proved}
    return [visitor for place, visitor in last.items() if place not in here]


def _seat(visitor: RejectedNode, fleet: Fleet) -> MissingNode | None:
    """The seat that a node would have had that was turned away; None where it named none, or one that isn't free."""
    return (
        None if visitor.code in RANK_CODES else next((seat for seat in fleet.absent if seat.rank == visitor.rank), None)
    )


def _free(fleet: Fleet) -> list[MissingNode]:
    """The seats that nobody came for who was turned away."""
    named = [_seat(visitor, fleet) for visitor in _unsettled(fleet)]
    return [seat for seat in fleet.absent if seat not in named]


def _seats(fleet: Fleet) -> Iterator[tuple[RejectedNode, MissingNode | None]]:
    """Nodes that were turned away, each with a seat to take when it comes again: its own, else one of the free ones."""
    free = iter(_free(fleet))
    for visitor in _unsettled(fleet):
        yield visitor, _seat(visitor, fleet) or next(free, None)


def _so_missing(visitor: RejectedNode, fleet: Fleet) -> str:
    """The consequence for the others of its being turned away."""
    own = _seat(visitor, fleet)
    seats = [own] if own else _free(fleet)
    if not seats:
        return ""
    which = (
        f"So {missing_name(seats[0])}" if len(seats) == 1 else f"So one of {listed(map(missing_name, seats), most=4)}"
    )
    return f"{which} is missing, and all others would wait for it until their timeout."


def _place_of(visitor: RejectedNode) -> str:
    return f"{visitor.host} ({visitor.address})" if visitor.host else visitor.address


def _missing(missing: list[MissingNode], count: int, fleet: Fleet, meeting: Meeting) -> Finding:
    """The finding on nodes that never came.

    Args:
        missing: the seats that nobody took.
        count: how many of them are missing; the others were turned away, and which seats they would have had isn't known.
        fleet: who came.
        meeting: where.
    """
    who = listed(map(missing_name, missing), most=4)
    if count < len(missing):
        who = f"{count} more, of {who},"
    unproved, knocked = _unproved(fleet), listed(fleet.strangers)
    summary = f"{who} didn't come: {len(there(fleet))} of {plural(fleet.expected, 'node')} are here"
    cause = (
        "It wasn't started there, can't reach the master, or goes to another address or port: all others would wait for it "
        "until their timeout."
    )
    if unproved:
        texts = [visitor.text for visitor in unproved if visitor.code == "token"]
        came_with = token_of_a_visitor(texts) if texts else "another version and no proof"
        summary += f"; {listed(map(_place_of, unproved), most=2)} came with {came_with}"
        cause = (
            f"Nothing proves who came as {listed(map(_place_of, unproved), most=4)}: a node of yours, which must come with this"
            " run's token and version, or a stranger at the port, who calls himself what he likes. All others would wait until"
            " their timeout."
        )
    return Finding.of(
        summary,
        told(fleet, "absent", f"{who}: never joined"),
        (
            told(fleet, "doubles", f"{_place_of(visitor)} was turned away: {first_words(visitor.text)}")
            for visitor in unproved
        ),
        _waited(fleet),
        Evidence(f"--nnodes is {fleet.expected}", "--nnodes, the launcher's settings"),
        told(fleet, "strangers", f"others that knocked: {knocked}") if knocked else None,
        _same_version(unproved, fleet),
        _run_there(missing, fleet, meeting),
        _here_again(fleet, meeting),
        _fewer(fleet, meeting),
        cause=cause,
    )


def _same_version(unproved: list[RejectedNode], fleet: Fleet) -> tuple[Fix, ...]:
    """The fix for a visitor of another version. It names node 0's own version: a stranger's word goes into no command."""
    ours = next((node.ddpdoctor for node in fleet.nodes if node.rank == 0 and node.ddpdoctor), "")
    if not ours or all(visitor.code != "version" for visitor in unproved):
        return ()
    return (Fix("If that is a node of yours, install node 0's ddpdoctor there", (f"pip install 'ddpdoctor=={ours}'",)),)


def _waited(fleet: Fleet) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"waited for {phase.seconds:.0f} s", "our clock") for phase in fleet.phases if phase.name == "join"
    )


def _by_srun(fleet: Fleet, meeting: Meeting) -> tuple[Fix, ...]:
    """srun starts nothing on more nodes than the Slurm job has."""
    if meeting.launched:
        return (Fix("Let Slurm start all ranks again", (netcheck_command(meeting, fleet.expected, None),)),)
    nodes = min(fleet.expected, meeting.allocated or fleet.expected)
    # All tasks make the same token of the job's id, or take it from the same environment.
    without_token = msgspec.structs.replace(meeting, token=False)
    name = "smoke" if meeting.command == "smoke" else "netcheck"
    same = netcheck_command(without_token, None, None).removeprefix(f"ddpdoctor {name}")
    command = srun_netcheck(nodes, name) + same
    if nodes == fleet.expected:
        return (Fix("Let Slurm start it on all nodes", (command,)),)
    few = f"The Slurm job has {plural(nodes, 'node')}, too few for --nnodes {fleet.expected}"
    more = f"{fleet.expected} nodes (salloc or sbatch with --nodes={fleet.expected})"
    return (
        Fix(f"{few}: if the job is meant for {nodes}, let Slurm start it on these", (command,)),
        Fix(f"Else ask Slurm for {more} and start it there"),
    )


def _run_there(missing: list[MissingNode], fleet: Fleet, meeting: Meeting) -> tuple[Fix, ...]:
    if meeting.launcher == "Slurm":
        return _by_srun(fleet, meeting)
    commands = tuple(netcheck_command(meeting, fleet.expected, seat.rank) for seat in missing[:MAX_COMMANDS])
    where = "there" if len(missing) == 1 else "on each of them, with its own rank"
    text = f"Run this {where}, while it runs here again; if it can't reach {meeting.master}:{meeting.port}, it says why"
    return (Fix(text, commands),)


def _here_again(fleet: Fleet, meeting: Meeting) -> tuple[Fix, ...]:
    """The command for this node: with a token, the one that was typed may be wrong to repeat, since it may make up a new one."""
    if not meeting.token or meeting.launcher:
        return ()
    command = netcheck_command(meeting, fleet.expected, 0)
    return (Fix("And this here, on node 0: the same token goes on every node", (command,)),)


def _fewer(fleet: Fleet, meeting: Meeting) -> tuple[Fix, ...]:
    here = len(there(fleet))
    if here < 2:
        return ()
    text = f"If the job is meant for {here} nodes: --nnodes {here} on each of them, on this one too"
    return (Fix(text, (netcheck_command(meeting, here, 0),)),)


def _refused(visitor: RejectedNode, seat: MissingNode | None, fleet: Fleet, meeting: Meeting) -> Finding:
    who, host = _place_of(visitor), visitor.host or visitor.address
    command = netcheck_command(meeting, fleet.expected, seat.rank if seat else None)
    more = (meeting.nnodes or fleet.expected) + 1
    summary = f"{who} came and was turned away: {first_words(visitor.text)}"
    fixes: tuple[Fix, ...] = (Fix(f"Run this on {host}, while it runs here again", (command,)),)
    if visitor.code == "nnodes":
        summary = f"{who} was told that the job has {visitor.nnodes} nodes, node 0 that it has {fleet.expected}"
        here = netcheck_command(meeting, visitor.nnodes or more, 0)
        fixes = (
            Fix(f"If the job has {plural(fleet.expected, 'node')}, run this on {host}", (command,)),
            Fix(f"If it has {visitor.nnodes}, give that number on all nodes, on this one too", (here,)),
        )
    elif visitor.code == "version":
        newer = visitor.text.partition(": ")[2].removesuffix(" on both")
        fixes = (
            Fix("Install the newer ddpdoctor on both", (newer,)),
            Fix(f"Then run this on {host}, while it runs here again", (command,)),
        )
    elif visitor.code == "closed" and fleet.absent:
        summary = f"{who} came too late: the test had begun without it"
        text = "Start it again on all nodes, and wait longer for the late ones on this one"
        fixes = (Fix(text, (waits_longer(meeting, fleet.expected, 0),)),)
    elif visitor.code in ("full", "closed"):
        late = " while the test ran" if visitor.code == "closed" else ""
        summary = f"{who} came{late}, and all {fleet.expected} nodes of the job were there already"
        fixes = (one_node_more(more, meeting),)
    return Finding.of(
        summary,
        told(fleet, "doubles", f"{who} was told: {visitor.text}"),
        _waited(fleet),
        fixes,
        cause=_so_missing(visitor, fleet),
    )


def _why_lost(node: Node, meeting: Meeting) -> str:
    if STOPPED in node.lost:
        return f"{meeting.command} was {STOPPED}{node.lost.partition(STOPPED)[2]} on {called(node)}; nothing is known to be wrong there."
    if FACTS_LATE in node.lost:
        return f"Something that netcheck looks at hangs on {called(node)}, such as a GPU's driver: ddpdoctor check says what."
    return "Its process ended, the host went down, or the network between it and the master was cut."


def _lost(fleet: Fleet, meeting: Meeting) -> Finding:
    # What nobody wanted comes first.
    lost = sorted((node for node in fleet.nodes if node.lost), key=lambda node: STOPPED in node.lost)
    first = lost[0]
    killed = (Fix(f"Look on {called(first)} whether the kernel killed it", ("sudo dmesg -T | tail -50",)),)
    stopped = STOPPED in first.lost
    read = "" if stopped else f", and read what it says on {called(first)}"
    others = f" (and {plural(len(lost) - 1, 'other')})" if len(lost) > 1 else ""
    return Finding.of(
        f"{called(first)}{others} was {first.lost}",
        (Evidence(f"{called(node)} ({node.address}): {node.lost}", HUB_CONNECTION) for node in lost),
        () if stopped else killed,
        Fix(
            f"Run it there again, while it runs here again{read}",
            tuple(netcheck_command(meeting, fleet.expected, node.rank) for node in lost[:MAX_COMMANDS]),
        ),
        _here_again(fleet, meeting),
        cause=_why_lost(first, meeting),
    )


@check("duplicate-rank", severity=FAIL, owner=Owner.USER)
def duplicate_rank(fleet: Fleet, meeting: Meeting) -> Iterator[Finding]:
    """Two nodes have the same node rank, or one has a rank out of range.

    ## What breaks
    The ranks of one node take the places of the other's: the store waits for ranks that don't exist ("1/2 clients
    joined", "has already checked in"), or two processes write under one name.

    ## Why
    `--node-rank` was copied from one node to the next (or left at its default, 0), or a script takes it from a setting
    that isn't there, such as SLURM_NODEID outside of `srun`. A rank out of range comes from counting from 1. Where all ranks are
    there twice, the script was started once for each (`srun -n 2`, mpirun) and then starts all of them itself (`mp.spawn`).

    ## Fix
    `torchrun --nnodes 2 --node-rank 0` on the first node, `--node-rank 1` on the second, and so on up to the number of nodes
    less one. Under Slurm: `srun --ntasks-per-node=1 bash -c 'torchrun --node-rank $SLURM_NODEID ...'`. One launcher alone starts
    the ranks.
    """
    if meeting.refusal in RANK_CODES:
        yield _own_rank(meeting)
        return
    requires(fleet.nodes, NO_FLEET)
    requires(meeting.node_rank == 0, NODE_0_SPEAKS)
    for visitor, seat in _seats(fleet):
        if visitor.code in RANK_CODES:
            yield _double(visitor, seat, fleet, meeting)


def _double(visitor: RejectedNode, free: MissingNode | None, fleet: Fleet, meeting: Meeting) -> Finding:
    who = _place_of(visitor)
    counted = ""
    if visitor.code == "rank-out-of-range":
        last = fleet.expected - 1
        summary = f"{who} says node rank {visitor.rank}, and {plural(fleet.expected, 'node')} have ranks 0 to {last}"
        counted = f"Ranks are counted from 0, so that the last is {last}. "
    else:
        summary = f"{who} says node rank {visitor.rank}, which {visitor.holder or 'another node'} has already"
    if free is not None:
        text = f"Rank {free.rank} is free: run this on {visitor.host or visitor.address}, while it runs here again"
        command = netcheck_command(meeting, fleet.expected, free.rank)
    else:
        more = fleet.expected + 1
        text = f"All {fleet.expected} ranks are taken: if it belongs to the job, give {more} nodes on all of them, on this one too"
        command = netcheck_command(meeting, more, 0)
    ranks = listed((f"{called(node)} has rank {node.rank}" for node in fleet.nodes), most=4)
    return Finding.of(
        summary,
        told(fleet, "doubles", f"{who} came with node rank {visitor.rank}"),
        told(fleet, "nodes", ranks),
        Fix(text, (command,)),
        _here_again(fleet, meeting) if free is not None else (),
        cause=f"{counted}{_so_missing(visitor, fleet)}".strip(),
    )


def _own_rank(meeting: Meeting) -> Finding:
    """The finding on the very node that was turned away: which ranks are taken, only node 0 knows."""
    nnodes = meeting.nnodes or 1
    candidates = [rank for rank in range(1, nnodes) if rank != meeting.node_rank]
    commands = tuple(netcheck_command(meeting, nnodes, rank) for rank in candidates[:MAX_COMMANDS])
    if candidates:
        text = f"Give this node a rank that no other has ({listed(candidates)}); node 0 says which are free"
    else:
        text, commands = (
            f"All {nnodes} ranks are taken: if this node belongs to the job, raise --nnodes on all of them",
            (netcheck_command(meeting, nnodes + 1, nnodes),),
        )
    return Finding.of(
        f"node 0 doesn't let this node in: {first_words(meeting.turned_away)}",
        told(meeting, "turned_away", f"node 0 says: {meeting.turned_away}"),
        told(meeting, "node_rank", f"node rank here: {meeting.node_rank}"),
        Fix(text, commands),
    )
