"""Packet filters between the nodes, as netcheck met them when every node dialled every other one on the ports of a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.fleet import Cell, Fleet
from ddpdoctor.facts.snapshot import Firewall, Meeting, Network
from ddpdoctor.knowledge.firewall_fixes import of_family, opening, subnets_of, whom
from ddpdoctor.knowledge.node_words import NO_FLEET, called
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.network_check.analysis.fault_location import Block, LostPackets, NetworkCut, Way, locate_faults
from ddpdoctor.network_check.analysis.tried_addresses import DIALLED, MET

NOT_DIALLED = "the nodes didn't dial each other"
COUNTERS = "/proc/net/snmp"

MEETINGS = {
    Cell.SILENT.value: ("times out", "time out"),
    Cell.REFUSED.value: ("is refused", "are refused"),
    Cell.PROHIBITED.value: ('is told "no route to host"', 'are told "no route to host"'),
    Cell.RESET.value: ("is cut off", "are cut off"),
    Cell.OTHER.value: ("meets another host", "meet another host"),
}
"""What one, and what several, met, by the cell."""

MAX_RANGES = 3
"""Of ports that a summary has room for."""

LUCK = "gloo dials one way only, so a job may pass by luck: NCCL's root connects back to every rank."


@check("firewall-blocked-ports", severity=FAIL, owner=Owner.NODE)
def firewall_blocked_ports(
    fleet: Fleet, meeting: Meeting, network: Maybe[Network], firewall: Maybe[Firewall]
) -> Iterator[Finding]:
    """The other nodes can't connect to this one on the ports that a job uses.

    ## What breaks
    The rendezvous passes where its port is open. Then gloo hangs, with five times its timeout and a message that names no
    peer, or NCCL does, for up to an hour.

    ## Why
    Only the store listens on MASTER_PORT. gloo and NCCL listen on ports that the kernel picks out of
    net.ipv4.ip_local_port_range, on every node, and all nodes dial each other: NCCL's root connects back to every rank.
    ufw, firewalld and the security groups of clouds let in ssh and little else. netcheck had every node dial every other
    one on up to ten such ports; a node is only named where most of its peers fail, or its own kernel counted the packets that
    its filter took away.

    ## Fix
    Let in all TCP from the job's other nodes; at the least MASTER_PORT and net.ipv4.ip_local_port_range. What a node's own
    filter drops, `ddpdoctor check --select local-firewall` shows there.
    """
    view = _View(fleet, meeting, network, firewall)
    for block in view.blocks(Way.INBOUND):
        yield view.of_block(block)
    for cuts in view.cuts(both=True):
        yield view.of_cuts(cuts)
    yield from view.not_tried()


@check("one-way-firewall", severity=FAIL, owner=Owner.FABRIC)
def one_way_firewall(
    fleet: Fleet, meeting: Meeting, network: Maybe[Network], firewall: Maybe[Firewall]
) -> Iterator[Finding]:
    """Connections pass in one direction only.

    ## What breaks
    Whether a job starts is chance: gloo has the node with the larger address dial the other one, and NCCL's root connects
    back to every rank. One side fails, the other waits in silence.

    ## Why
    A filter on what a node sends, or something between two nodes that lets connections through one way: a security group,
    a switch's access list, a firewall between subnets. What passes over MASTER_PORT says nothing of it.

    ## Fix
    Let all TCP through between the job's nodes, both ways.
    """
    view = _View(fleet, meeting, network, firewall)
    for block in view.blocks(Way.OUTBOUND):
        yield view.of_block(block)
    for cuts in view.cuts(both=False):
        yield view.of_cuts(cuts)


class _View:
    """One node's view of who reaches whom."""

    def __init__(self, fleet: Fleet, meeting: Meeting, network: Maybe[Network], firewall: Maybe[Firewall]) -> None:
        requires(fleet.nodes, NO_FLEET)
        self.reaches = fleet.routes
        requires(self.reaches, NOT_DIALLED)
        self.nodes = fleet.nodes
        self.faults = locate_faults(fleet)
        self.me = fleet.place_of(meeting.node_rank)
        self.network = network
        self.firewall = firewall
        self.filters = of_family(firewall, self.address(self.me)) if self.me >= 0 else firewall
        """Of the family in which the nodes meet."""

    def name(self, at: int) -> str:
        return called(self.nodes[at])

    def names(self, places: Sequence[int]) -> str:
        return listed(self.name(at) for at in places)

    def blocks(self, way: Way) -> list[Block]:
        return [block for block in self.faults.blocks if block.node == self.me and block.way is way]

    def cuts(self, *, both: bool) -> Iterator[tuple[NetworkCut, ...]]:
        """This node's, those together that begin at the same node."""
        mine = [cut for cut in self.faults.cuts if cut.both is both and self._speaker(cut) == self.me]
        for _, together in groupby(
            mine, key=lambda cut: (cut.here, cut.where_here, cut.way_here, cut.where_there, cut.way_there)
        ):
            yield tuple(together)

    @staticmethod
    def _speaker(cut: NetworkCut) -> int:
        """The node that tells of it: that whose own filter it is, else the first of all."""
        if cut.where_there is LostPackets.HERE:
            return cut.there[0]
        return cut.here[0] if cut.where_here is LostPackets.HERE else min(*cut.here, *cut.there)

    # --- a whole node ---------------------------------------------------------------------------------------------------

    def of_block(self, block: Block) -> Finding:
        ports = self.ports_of(block)
        met = f"{self.peers(block)}; {self.other_way(block)}".removesuffix("; ")
        # Answers go the other way.
        answers = block.where in (LostPackets.ANSWERS, LostPackets.DOUBTFUL)
        way, where = (block.way.other if answers else block.way), block.where
        return Finding.of(
            f"{self.verdict(block, ports)} ({met})",
            Evidence(self.tried(block), DIALLED),
            self.counted(way, where),
            self.rules(way, where),
            self.opening(way, where, block.peers),
            cause=LUCK if block.other_way else "",
        )

    def verdict(self, block: Block, ports: str) -> str:
        name = self.name(block.node)
        silent = block.cells.startswith(Cell.SILENT.value)
        if block.where is LostPackets.DOUBTFUL:
            whose = "connections to it" if block.way is Way.INBOUND else "its connections"
            return f"{name}: {whose} on {ports} fail, and its filter on what {_goes(block.way)} lets them pass"
        if block.where is LostPackets.ANSWERS:
            return f"{name} drops the answers to {'connections' if block.way is Way.INBOUND else 'its connections'} on {ports}"
        if block.where is LostPackets.ELSEWHERE:
            done = "dropped" if silent else "rejected"
            if block.way is Way.INBOUND:
                return f"{name}: inbound {ports} is {done} before it arrives there"
            return f"{name}: outbound {ports} is {done} after it has left"
        return f"{name} {'drops' if silent else 'rejects'} {block.way.value} {ports}"

    def ports(self, columns: Sequence[bool], at: Sequence[int]) -> str:
        """Those that failed, of the nodes that were dialled."""
        if all(columns):
            return f"TCP {self.port_ranges(at)}"
        failed, _ = self.dialled_ports(columns, at)
        return f"TCP on {sum(columns)} of {len(columns)} ports tried ({min(failed)} to {max(failed)})"

    def port_ranges(self, at: Sequence[int]) -> str:
        """The ranges from which those nodes take the ports on which they listen: each has its own setting."""
        ranges = sorted({self.nodes[place].port_range for place in at})
        if len(ranges) > MAX_RANGES:
            ranges = [(min(low for low, _ in ranges), max(high for _, high in ranges))]
        return listed(f"{low}-{high}" for low, high in ranges)

    def ports_of(self, block: Block) -> str:
        """The ports as the packet filter itself has them, where that agrees with what was tried."""
        inbound = block.way is Way.INBOUND
        at = (block.node,) if inbound else block.peers
        failed, passed = self.dialled_ports(block.ports, at)
        if isinstance(self.filters, Firewall) and block.where in (LostPackets.HERE, LostPackets.UNTOLD):
            shut = self.filters.shut_ephemeral if inbound else self.filters.shut_outbound
            told = 0 < len(shut) <= MAX_RANGES and all(_among(port, shut) for port in failed)
            if told and not any(_among(port, shut) for port in passed):
                return f"TCP {', '.join(shut)}"
        return self.ports(block.ports, at)

    def dialled_ports(self, columns: Sequence[bool], at: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ports of those nodes: in the columns that failed, and in the others."""
        both: tuple[list[int], list[int]] = ([], [])
        for reach, bad in zip(self.reaches, columns, strict=True):
            both[0 if bad else 1].extend(reach.ports[node] for node in at if reach.ports[node])
        return both

    def not_tried(self) -> Iterator[Finding]:
        """Ports that this node's filter shuts, and that nobody happened to dial."""
        filters = self.filters
        if self.me < 0 or self.blocks(Way.INBOUND) or isinstance(filters, Unknown) or filters.open_sources:
            return
        tried = [reach.ports[self.me] for reach in self.reaches if reach.ports[self.me]]
        shut = filters.shut_ephemeral
        if not shut or not tried or any(_among(port, shut) for port in tried):
            return
        name, peers = self.name(self.me), [at for at in range(len(self.nodes)) if at != self.me]
        yield Finding.of(
            f"{name}'s packet filter shuts TCP {listed(shut[:MAX_RANGES])} to the other nodes; the "
            f"{len(tried)} ports that they dialled are others, and pass",
            filters.seen("shut_ephemeral", listed(shut)),
            Evidence(f"dialled: {_numbers(tried)}", DIALLED),
            self.rules(Way.INBOUND, LostPackets.UNTOLD),
            self.opening(Way.INBOUND, LostPackets.HERE, peers),
            cause="The kernel gives a job any port of the ephemeral range, so that it fails now and then.",
            severity=WARN,
        )

    def peers(self, block: Block) -> str:
        """ "both peers time out", "7 of 8 peers are refused", "towards both peers it times out"."""
        singular, several = MEETINGS[block.cells[0]]
        failed = len(block.peers)
        if block.tried == 1:
            who = "its only peer"
        elif failed < block.tried:
            who = f"{failed} of {block.tried} peers"
        else:
            who = "both peers" if failed == 2 else f"all {failed} peers"
        if block.way is Way.OUTBOUND:
            return f"towards {who} it {singular}"
        return f"{who} {singular if block.tried == 1 else several}"

    def other_way(self, block: Block) -> str:
        words = {True: "OK", False: "fails, too"}
        return "" if block.other_way is None else f"{block.way.other.value} {words[block.other_way]}"

    def tried(self, block: Block) -> str:
        if block.way is Way.OUTBOUND:
            return f"{self.name(block.node)} dialled {self.names(block.peers)}: {_meant(block.cells)}"
        failed, passed = self.dialled_ports(block.ports, (block.node,))
        text = (
            f"{self.names(block.peers)} dialled {self.address(block.node)}, {_numbers(failed)}: {_meant(block.cells)}"
        )
        return f"{text}; {_numbers(passed)} passed" if passed else text

    def counted(self, way: Way, where: LostPackets) -> tuple[Evidence, ...]:
        node = self.nodes[self.me]
        here = self.name(self.me)
        if way is Way.INBOUND:
            number, text = node.undelivered, f"IP packets that came into {here} meanwhile and reached nobody there"
        else:
            number, text = node.untransmitted, f"IP packets that {here} was to send meanwhile and that never left it"
        if where is LostPackets.UNTOLD or number is None:
            return ()
        return (Evidence(f"{text}: {max(number, 0)}", COUNTERS),)

    def rules(self, way: Way, where: LostPackets) -> tuple[Evidence, ...]:
        """The packet filter's own words, where they could be read and may have done it."""
        filters = self.filters
        if isinstance(filters, Unknown) or where is LostPackets.ELSEWHERE:
            return ()
        if isinstance(filters.tool, Unknown):
            return (Evidence(filters.tool.reason, "packet filter"),)
        if filters.tool is None:
            return (Evidence("no rule on its input or output", "packet filter"),)
        if way is Way.OUTBOUND:
            return (Evidence(f"filters what is sent: {listed(filters.output_chains)}", filters.tool),)
        policy = filters.input_policy
        blocked = listed(filters.blocked[:3]) or f"policy {'unknown' if isinstance(policy, Unknown) else policy}"
        label = "drops or rejects" if filters.drops_new else "filters what comes in"
        return (Evidence(f"{label}: {blocked}", filters.tool),)

    def opening(self, way: Way, where: LostPackets, peers: Sequence[int]) -> tuple[Fix, ...]:
        """Fixes to type on this host, or where to look where it isn't this host that filters."""
        if where is LostPackets.ELSEWHERE:
            return (self.between((self.me,), peers),)
        inbound = way is Way.INBOUND
        subnets = self.subnets(peers)
        needed = self.port_ranges((self.me,) if inbound else peers)
        text = f"On {self.name(self.me)}, {'let in all TCP from' if inbound else 'let out all TCP to'} {whom(subnets)}"
        text += f", of which the job needs {needed}"
        if open_it := opening(text, self.firewall, subnets, inbound=inbound):
            return (*open_it, self.between((self.me,), peers)) if where is LostPackets.DOUBTFUL else open_it
        text += ". No rule of its input and output chains is in the way: look in the others"
        look: tuple[str, ...] = ("sudo nft list ruleset", "sudo ip6tables-save")
        if ":" not in self.address(self.me):
            text += ", and at rp_filter"
            look = ("sudo nft list ruleset", "sudo iptables-save", "nstat -az TcpExtIPReversePathFilter")
        elsewhere = where not in (LostPackets.HERE, LostPackets.ANSWERS)
        return (by_root(text, look), *((self.between((self.me,), peers),) if elsewhere else ()))

    def subnets(self, peers: Sequence[int]) -> tuple[str, ...]:
        """Networks that hold those peers."""
        interfaces = () if isinstance(self.network, Unknown) else self.network.interfaces
        addresses = [self.address(at) for at in peers]
        return subnets_of(self.address(self.me), addresses, interfaces)

    def address(self, at: int) -> str:
        return self.reaches[0].addresses[at] or self.nodes[at].address

    def between(self, here: Sequence[int], there: Sequence[int]) -> Fix:
        ranges, address = self.port_ranges((*here, *there)), self.address(there[0])
        return Fix(
            f"Let all TCP, at the least {ranges}, through between {self.names(here)} and {self.names(there)} in what is "
            "between: a cloud's security group, an access list, the firewall of the machine under this one",
            (f"ip route get {shlex.quote(address)}", f"tracepath -n {shlex.quote(address)}"),
        )

    # --- links ----------------------------------------------------------------------------------------------------------

    def of_cuts(self, cuts: Sequence[NetworkCut]) -> Finding:
        first = cuts[0]
        there = [at for cut in cuts for at in cut.there]
        singular, several = MEETINGS[first.cells[0]]
        met = singular if len(first.here) == 1 else several
        ports = self.ports(first.ports, first.there)
        if first.both:
            summary = f"{self.names(first.here)} and {self.names(there)} don't reach each other on {ports} ({_meant(first.cells)})"
        else:
            summary = (
                f"{self.names(first.here)} can't reach {self.names(there)} on {ports} ({met}; the other way passes)"
            )
        dialled = self.me in there
        where, way = (first.where_there, first.way_there) if dialled else (first.where_here, first.way_here)
        peers = first.here if dialled else tuple(there)
        return Finding.of(
            summary,
            (self.dialled(cut) for cut in cuts[:5]),
            self.counted(way, where),
            self.rules(way, where),
            self.opening(way, where, peers) if where is LostPackets.HERE else self.both_ends(first, there),
            cause=self.where_it_is(first) + ("" if first.both else f" {LUCK}"),
        )

    def where_it_is(self, cut: NetworkCut) -> str:
        here, there = self.names(cut.here), self.names(cut.there)
        takers = [
            f"{name} itself takes away what {_goes(way)} {'from' if way is Way.INBOUND else 'to'} {peer}"
            for name, peer, where, way in (
                (there, here, cut.where_there, cut.way_there),
                (here, there, cut.where_here, cut.way_here),
            )
            if where is LostPackets.HERE
        ]
        if takers:
            return f"{listed(takers)}, and lets others pass."
        if cut.where_there is LostPackets.ELSEWHERE and cut.where_here is LostPackets.ELSEWHERE:
            return f"Neither {here} nor {there} took packets away: something between the two filters."
        for name, where, peer in ((there, cut.where_there, here), (here, cut.where_here, there)):
            if where is LostPackets.ELSEWHERE:
                return f"{name} took no packets away: {peer} filters, or something between the two does."
        return (
            "No node fails with most of its peers, so something between these filters, or a rule for these addresses."
        )

    def dialled(self, cut: NetworkCut) -> Evidence:
        failed, _ = self.dialled_ports(cut.ports, cut.there[:1])
        where = f"{self.address(cut.there[0])}, {_numbers(failed)}" + (", and so on" if len(cut.there) > 1 else "")
        text = f"{self.names(cut.here)} dialled {self.names(cut.there)} ({where}): {_meant(cut.cells)}"
        return Evidence(text, DIALLED)

    def both_ends(self, cut: NetworkCut, there: Sequence[int]) -> tuple[Fix, ...]:
        between = self.between(cut.here, there)
        if cut.where_here is LostPackets.ELSEWHERE and cut.where_there is LostPackets.ELSEWHERE:
            return (between,)
        peers = tuple(there) if self.me in cut.here else cut.here
        text = f"Or one of them filters: on {self.name(self.me)}, let in all TCP from {whom(self.subnets(peers))}"
        return (between, *opening(text, self.firewall, self.subnets(peers), inbound=True))


def _goes(way: Way) -> str:
    return "comes in" if way is Way.INBOUND else "it sends"


def _among(port: int, ranges: Sequence[str]) -> bool:
    """Whether the port is in one of the ranges, as the facts have them: "40000-60999", "40000"."""
    ends = ((first, last or first) for first, _, last in (ports.partition("-") for ports in ranges))
    return any(int(first) <= port <= int(last) for first, last in ends)


def _numbers(ports: Sequence[int]) -> str:
    return f"port{'s' * (len(ports) > 1)} {listed(ports)}"


def _meant(cells: str) -> str:
    """The outcomes in the words of a single connection."""
    return listed(MET[cell] for cell in cells)
