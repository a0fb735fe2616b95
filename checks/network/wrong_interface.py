"""Interfaces that NCCL and gloo take although they don't lead to the other nodes: as tried by netcheck, else predicted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.checks.network.interfaces import INTERNAL, has_nccl, named, needs_nccl
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, judged_apart, required, requires
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.network import Interface, Network, Resolution
from ddpdoctor.facts.snapshot import Environment, Fleet, Meeting, Nccl, Torch
from ddpdoctor.knowledge.interface_choice import FELL_BACK, as_address, interface_with, nccl_ifname_counts
from ddpdoctor.knowledge.job_intent import ONE_NODE, is_loopback, several_nodes, way_to_the_others
from ddpdoctor.knowledge.network_fixes import addresses, hosts_fix, intent, interface_settings, resolved
from ddpdoctor.knowledge.node_words import own_node
from ddpdoctor.logs.analyze.sightings import word
from ddpdoctor.network_check.analysis.tried_addresses import Tried, Unreached, tried, unreached

NO_WAY = "no route leads out of this host"
OWN_BRIDGES: Final = {
    "172.17.0.1": "Docker's own default bridge (docker0)",
    "192.168.122.1": "libvirt's own default bridge (virbr0)",
}
"""By the address that they have on every host."""


def _offered(seen: Sequence[SignMatch], _log: Log) -> Particulars:
    """Say whose address it is that the log names, and where the name of an interface is to be had."""
    address = word(seen, "address")
    bridge = OWN_BRIDGES.get(address, "")
    return Particulars(
        cause=f"{address} is the address of {bridge}, the same on every host that has one. It leads to no other node, and yet a rank"
        " told the others to reach it there."
        if bridge
        else "",
        fixes=(
            Fix(
                "See the names of the interfaces and their addresses: which one leads to the other nodes?",
                ("ip -br addr",),
            ),
            Fix(
                "Have NCCL take that one on each node: the second `=` makes NAME the exact name rather than a prefix",
                ("export NCCL_SOCKET_IFNAME==NAME",),
            ),
        ),
    )


@check("nccl-wrong-interface", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_offered))
def nccl_wrong_interface(
    nccl: Nccl, network: Network, environment: Environment, torch: Maybe[Torch], fleet: Fleet, meeting: Meeting
) -> Iterator[Finding]:
    """NCCL takes an interface that doesn't lead to the other nodes.

    ## What breaks
    The first collective hangs or fails with "Connect to 172.17.0.1 ... refused": each node offers its peers an address
    that means something else to them.

    ## Why
    Without settings NCCL takes the first interface whose name begins with `ib`, else the first in the kernel's order that
    isn't docker, lo or (since 2.28.3) virbr. Other bridges (br-*, cni0), VPNs and tunnels count as good. Where a libnccl is
    installed, ddpdoctor asks it: a subprocess calls ncclGetUniqueId, and for some milliseconds NCCL listens on the interface
    that it takes. Nothing is sent. netcheck then has all nodes dial the address that each would offer, and what they met
    goes before any prediction.

    ## Fix
    `export NCCL_SOCKET_IFNAME==NAME`: the second `=` makes it the exact name rather than a prefix.
    """
    if found_out := if_known(_found_out, fleet, meeting, "nccl", default=None):
        presence = _presence(nccl, torch, fleet, meeting)
        if found_out.is_wrong and not is_loopback(found_out.address):
            taken = if_known(lambda: nccl.interface, default=None) or "an interface"
            asked = if_known(lambda: nccl.answer_interface, default=None)
            seen = nccl.seen("answer_interface" if asked else "predicted_interface", taken)
            way = if_known(lambda: interface_with(found_out.route, network.interfaces), default=None)
            yield Finding.of(
                f"NCCL {presence.takes} {taken}: {_not_reached(found_out, way)}",
                found_out.seen,
                seen,
                addresses(network),
                (_towards(way, network),) if way else (),
                cause=presence.cause,
                severity=presence.severity,
            )
        if others := unreached(fleet, meeting.node_rank, "nccl"):
            yield _no_way_to("NCCL", others, fleet, network, presence.severity)
        return
    yield from judged_apart((_nccl_by_its_rules(nccl, network, environment, torch), _need(fleet, meeting)))


def _need(fleet: Fleet, meeting: Meeting) -> Iterator[Finding]:
    """What the nodes tried, if they did, goes before any rule."""
    known(fleet), known(meeting)
    yield from ()


def _nccl_by_its_rules(
    nccl: Nccl, network: Network, environment: Environment, torch: Maybe[Torch]
) -> Iterator[Finding]:
    needs_nccl(nccl, torch)
    taken = required(nccl.answer_interface or known(nccl.predicted_interface), "NCCL finds no interface")
    way = required(_way_known(network), NO_WAY)
    found = required(named(taken, network), NO_WAY)
    if taken == way or found.loopback:
        known(network.interface_to_master)
        return
    internal = _internal(found, nccl.answer_address or nccl.predicted_address)
    harmless = not internal and (taken.startswith("ib") or not _leads_to_master(way, network))
    if harmless or (not internal and nccl_ifname_counts(environment.get("NCCL_SOCKET_IFNAME"))):
        known(network.interface_to_master)
        return
    sign = if_known(several_nodes, environment, network, default="")
    if not internal and not sign:
        several_nodes(environment, network)
        return
    address = nccl.answer_address or nccl.predicted_address
    towards = "MASTER_ADDR is reached by" if _leads_to_master(way, network) else "the default route goes over"
    source = "answer_interface" if nccl.answer_interface else "predicted_interface"
    yield Finding.of(
        f"NCCL takes {taken} ({address}); {towards} {way}",
        nccl.seen(source),
        addresses(network),
        intent(sign) if sign else None,
        _towards(way, network),
        cause="" if sign else "It doesn't harm a job on this host alone, only one over several nodes.",
        severity=INFO if not sign else FAIL if internal else WARN,
    )
    several_nodes(environment, network)


def _way_known(network: Network) -> str | None:
    """The interface that leads to the others; None: no route does.

    Leaves the check untested where the routes could not be read.
    """
    if way := way_to_the_others(network):
        return way
    return known(network.interface_to_master) or known(network.default_interface)


def _found_out(fleet: Fleet, meeting: Meeting, library: str) -> Tried | None:
    return tried(fleet, meeting.node_rank, library)


class _Presence(NamedTuple):
    """Whether NCCL runs on this node: how bad a wrong address of it is, and what there is to say of it."""

    severity: Severity
    takes: str
    cause: str = ""


def _presence(nccl: Nccl, torch: Maybe[Torch], fleet: Fleet, meeting: Meeting) -> _Presence:
    if if_known(has_nccl, nccl, torch, default=True):
        return _Presence(FAIL, "takes")
    own = own_node(fleet, meeting)
    if own is not None and isinstance(own.nccl, Unknown):
        return _Presence(WARN, "would take", f"Whether there is an NCCL here isn't known: {own.nccl.reason}.")
    return _Presence(INFO, "would take", "There is no NCCL here: it matters as soon as a job brings one.")


def _not_reached(found_out: Tried, way: str | None) -> str:
    """The end of a summary: whom the address doesn't serve, and what does."""
    reach = "it reaches" if found_out.peers == 1 else "they reach"
    return f"{found_out.who} {found_out.address}, {reach} {found_out.route}{f' on {way}' if way else ''}"


def _towards(way: str, network: Network) -> Fix:
    leading = named(way, network)
    if leading and not leading.running:
        return Fix(
            f"{way} has no carrier, so NCCL passes over it: look at its cable or link",
            (f"ip link show {shlex.quote(way)}",),
        )
    return Fix(
        f"Name {way} (== means exactly this name); on other nodes, theirs",
        (f"export NCCL_SOCKET_IFNAME=={shlex.quote(way)}",),
        appliable=True,
    )


def _leads_to_master(way: str, network: Network) -> bool:
    return network.interface_to_master == way


def _internal(interface: Interface, address: str | None) -> bool:
    """Whether it is a bridge, tunnel or the like, or only has a link-local address (169.254.x.x, fe80::)."""
    return interface.name.startswith(INTERNAL) or bool(address and as_address(address).is_link_local)


@check("gloo-wrong-interface", severity=FAIL, owner=Owner.USER)
def gloo_wrong_interface(
    network: Network, environment: Environment, nccl: Nccl, fleet: Fleet, meeting: Meeting
) -> Iterator[Finding]:
    """gloo takes an address that the other nodes can't reach.

    ## What breaks
    "Gloo connectFullMesh failed" on one rank, while the others wait up to five times the group's timeout. NCCL jobs are hit
    as well where they create a gloo group.

    ## Why
    gloo takes the first address of the hostname that it can bind. Where that is a bridge's address, or where none is this
    host's own (a cloud's public address, an old DNS record), it offers an address that peers can't use.

    ## Fix
    `export GLOO_SOCKET_IFNAME=NAME` with the interface that leads to the other nodes.
    """
    found_out = if_known(_found_out, fleet, meeting, "gloo", default=None)
    if others := if_known(lambda: unreached(fleet, meeting.node_rank, "gloo"), default=None):
        yield _no_way_to("gloo", others, fleet, network, FAIL)
    # The loopback has checks of its own, but for a hostname that resolves to addresses of others.
    if found_out and not is_loopback(found_out.address):
        if found_out.is_wrong:
            took = nccl.gloo_interface if isinstance(nccl.gloo_interface, str) else "an interface"
            to_master = if_known(lambda: interface_with(found_out.route, network.interfaces), default=None)
            own_name = () if isinstance(network.own_name, Unknown) else (resolved(network.own_name),)
            settings = interface_settings(to_master)[:1] if to_master else ()
            named_here = (Fix(f"Name {to_master}; on other nodes, theirs", settings),) if settings else ()
            yield Finding.of(
                f"gloo takes {took}: {_not_reached(found_out, to_master)}",
                found_out.seen,
                nccl.seen(
                    "gloo_interface", f"{took}, {if_known(lambda: known(nccl.gloo_reason), default='not known why')}"
                ),
                own_name,
                named_here,
                hosts_fix(network),
            )
        return
    yield from judged_apart((_gloo_by_its_rules(network, environment, nccl), _need(fleet, meeting)))


def _gloo_by_its_rules(network: Network, environment: Environment, nccl: Nccl) -> Iterator[Finding]:
    sign = several_nodes(environment, network)
    requires(sign, ONE_NODE)
    taken = required(known(nccl.gloo_interface), "gloo finds no address")
    address = required(known(nccl.gloo_address), "gloo finds no address")
    found, way = required(named(taken, network), NO_WAY), required(_way_known(network), NO_WAY)
    own = network.own_name
    fell_back = found.loopback and known(nccl.gloo_reason) == FELL_BACK
    foreign = fell_back and isinstance(own, Resolution) and bool(own.addresses)
    # A hostname that doesn't resolve, or resolves to the loopback, has a check of its own.
    if taken == way or (found.loopback and not foreign) or (not found.loopback and not _internal(found, address)):
        if fell_back:
            known(own)
        return
    why = "no address of the hostname is this host's" if foreign else f"an address of {taken}, which leads elsewhere"
    yield Finding.of(
        f"gloo will offer the other nodes {address}: {why}; they are reached by {way}",
        nccl.seen("gloo_interface", f"{taken} ({address}), {known_or(nccl.gloo_reason, 'not known why')}"),
        None if isinstance(own, Unknown) else resolved(own),
        intent(sign),
        Fix(f"Name {way}; on other nodes, theirs", interface_settings(way)[:1], appliable=True),
        hosts_fix(network),
    )


def _no_way_to(library: str, others: Unreached, fleet: Fleet, network: Network, severity: Severity) -> Finding:
    """Other nodes offer an address that serves their peers, and not this node."""
    variable, equals = ("NCCL_SOCKET_IFNAME", "==") if library == "NCCL" else ("GLOO_SOCKET_IFNAME", "=")
    shared = {node.interface for node in fleet.nodes if node.interface}
    name = shared.pop() if len(shared) == 1 else ""
    text = (
        f"On all nodes, name the interface over which they meet the master{'' if name else ': here, and theirs there'}"
    )
    way = name or if_known(way_to_the_others, network, default=None)
    fixes = (Fix(text, (f"export {variable}{equals}{shlex.quote(way)}",)),) if way else ()
    look = Fix("Or see why this node has no way there", (f"ip route get {shlex.quote(others.addresses[0])}",))
    return Finding.of(
        f"{library} on {listed(others.names, most=3)} offers {listed(others.addresses, most=3)}, "
        "which this node doesn't reach and others do",
        others.seen,
        addresses(network),
        fixes,
        look,
        cause="The nodes take interfaces of different networks.",
        severity=severity,
    )
