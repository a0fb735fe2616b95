"""This host's names and addresses, as a job over several nodes needs them."""

from __future__ import annotations

import ipaddress
import shlex
from collections import Counter
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known
from ddpdoctor.engine.registry import check, judged_apart, required, requires
from ddpdoctor.facts.fleet import Cell, Fleet, Node
from ddpdoctor.facts.network import NO_ANSWER, Network, Resolution
from ddpdoctor.facts.snapshot import Environment, Meeting, Nccl
from ddpdoctor.knowledge.interface_choice import (
    as_address,
    left_out_by_family,
    nccl_family,
    nccl_ifname_counts,
    version_of,
)
from ddpdoctor.knowledge.job_intent import (
    ONE_NODE,
    is_here,
    is_loopback,
    named_hosts,
    no_family_in_common,
    several_nodes,
    way_to_the_others,
)
from ddpdoctor.knowledge.launchers import (
    BACKEND,
    MASTER_ADDRESS,
    first_set,
    master_port,
    split_endpoint,
    store_endpoint,
)
from ddpdoctor.knowledge.network_fixes import (
    addresses,
    hosts_fix,
    hosts_lines,
    intent,
    interface_settings,
    resolved,
    setting,
    without_root,
)
from ddpdoctor.knowledge.privileges import by_root


@check("hostname-resolves-loopback", severity=FAIL, owner=Owner.NODE)
def hostname_resolves_loopback(network: Network, environment: Environment, nccl: Maybe[Nccl]) -> Iterator[Finding]:
    """The hostname resolves to the loopback address.

    ## What breaks
    gloo fails with "Connection refused, remote=[127.0.0.1]" on one rank while the others wait for up to five times the
    group's timeout. A c10d rendezvous at this host's IP finds nobody who hosts the store.

    ## Why
    Debian and Ubuntu write `127.0.1.1 NAME` to /etc/hosts. gloo tells its peers the address of its hostname, and torchrun
    recognises its own rendezvous endpoint by it. On a single node neither matters.

    ## Fix
    Give the name its real address in /etc/hosts, or set `GLOO_SOCKET_IFNAME` to the interface on each node.
    """
    own = known(network.own_name)
    requires(own.addresses, "the hostname doesn't resolve")
    sign = several_nodes(environment, network)
    requires(sign, ONE_NODE)
    if not is_loopback(own.addresses[0]):
        return
    gloo_is_told = bool(environment.get("GLOO_SOCKET_IFNAME"))
    if gloo_is_told and network.rendezvous is None:
        return
    certain = network.rendezvous is not None or (isinstance(nccl, Nccl) and nccl.library is None)
    yield Finding.of(
        f"{network.hostname} resolves to {own.addresses[0]}, so the other nodes are told to talk to themselves",
        resolved(own),
        hosts_lines(network),
        intent(sign),
        hosts_fix(network),
        without_root(network, suffices=network.rendezvous is None),
        severity=FAIL if certain else WARN,
    )
    known(nccl)


@check("hostname-unresolvable", severity=FAIL, owner=Owner.NODE)
def hostname_unresolvable(network: Network, environment: Environment) -> Iterator[Finding]:
    """The hostname doesn't resolve.

    ## What breaks
    gloo falls back to 127.0.0.1 with a warning, which only peers on the same host can reach. torchrun's c10d rendezvous
    raises "Name or service not known". A resolver that doesn't answer delays every rank by 10 s and more.

    ## Why
    Neither /etc/hosts nor DNS knows the name; often in containers with `--network=host` or after a host was renamed.

    ## Fix
    Add `ADDRESS NAME` to /etc/hosts, or set `GLOO_SOCKET_IFNAME` to the interface.
    """
    own = network.own_name
    error = own.reason if isinstance(own, Unknown) and own.reason.startswith(NO_ANSWER) else known(own).error
    if not error:
        return
    sign = if_known(several_nodes, environment, network, default="")
    gloo_is_told = bool(if_known(lambda: environment.get("GLOO_SOCKET_IFNAME"), default=""))
    line = shlex.quote(f"127.0.0.1 {network.hostname}")
    yield Finding.of(
        f"This host's own name, {network.hostname}, doesn't resolve: {error}",
        network.seen("own_name") if isinstance(own, Unknown) else resolved(own),
        intent(sign) if sign else None,
        hosts_fix(network) + without_root(network)
        or (by_root("Name the host in /etc/hosts", (f"echo {line} | sudo tee -a /etc/hosts",)),),
        severity=FAIL if sign and not gloo_is_told else WARN if sign or error.startswith(NO_ANSWER) else INFO,
    )
    several_nodes(environment, network)


C10D = "torchrun --rdzv-backend=c10d --rdzv-endpoint"


@check("rdzv-hostname-not-self", severity=FAIL, owner=Owner.USER)
def rdzv_hostname_not_self(network: Network, environment: Environment) -> Iterator[Finding]:
    """torchrun doesn't recognise the rendezvous endpoint as this host.

    ## What breaks
    With `--rdzv-backend=c10d` no node hosts the store: all wait as clients, and end after one to three minutes.

    ## Why
    torchrun compares the endpoint with the hostname, its canonical name and the addresses it resolves to, not with the
    interfaces. An address of a second interface, or any address while the hostname means 127.0.1.1, doesn't match.

    ## Fix
    Say it: `--rdzv-conf is_host=1` on this node and `is_host=0` on the others; or correct /etc/hosts.
    """
    named_endpoint = known(network.rendezvous) or known(network.master)
    endpoint = required(named_endpoint, "neither MASTER_ADDR nor PET_RDZV_ENDPOINT is set")
    by_rendezvous = endpoint == network.rendezvous
    # torchrun reads PET_MASTER_ADDR for a static rendezvous alone.
    static = (
        environment.get(BACKEND) == "static"
        if by_rendezvous
        else first_set(environment, MASTER_ADDRESS).startswith("PET_")
    )
    requires(not static, "the rendezvous is static")
    requires(by_rendezvous or not environment.get("RANK"), "the ranks were started without a c10d rendezvous")
    if "is_host" in environment.get("PET_RDZV_CONF") or not is_here(endpoint, network):
        return
    if _recognised(endpoint, network):
        return
    own = known(network.own_name)
    port = (split_endpoint(store_endpoint(environment))[1] if by_rendezvous else master_port(environment)) or 29400
    named = shlex.quote(endpoint.name)
    is_host = f"{C10D}={named}:{port} --rdzv-conf is_host=1 --local-addr={named}"
    fixes = [Fix("Tell torchrun who hosts the store (is_host=0 on the other nodes)", (is_host,))]
    if own.addresses and not is_loopback(own.addresses[0]):
        text = f"Or use an endpoint that it knows as its own, on all nodes alike, if {own.addresses[0]} is reached from there"
        fixes.append(Fix(text, (f"{C10D}={shlex.quote(network.hostname)}:{port}",)))
    yield Finding(
        summary=f"{endpoint.name} is this host, but torchrun won't see it: {network.hostname} resolves to {listed(own.addresses) or 'nothing'}",
        evidence=(resolved(endpoint), resolved(own)),
        fixes=(*fixes, *hosts_fix(network)),
        # With MASTER_ADDR alone, the rendezvous may well be static, where --node-rank decides.
        severity=FAIL if by_rendezvous else INFO,
    )


def _recognised(endpoint: Resolution, network: Network) -> bool:
    """torch.distributed.elastic's rule, as of torch 2.13."""
    own = network.own_name.addresses if isinstance(network.own_name, Resolution) else ()
    if endpoint.name in ("localhost", network.hostname, network.fqdn):
        return True
    return bool(set(endpoint.addresses) & set(own)) or _is_loopback_text(endpoint.name)


def _is_loopback_text(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@check("ipv6-mismatch", severity=FAIL, owner=Owner.USER)
def ipv6_mismatch(
    network: Network, environment: Environment, nccl: Nccl, fleet: Fleet, meeting: Maybe[Meeting]
) -> Iterator[Finding]:
    """Names or settings ask for IPv6, and this host hasn't got it (or the other way round).

    ## What breaks
    Connecting fails with "Address family not supported by protocol" or "Network is unreachable", or NCCL finds no interface.
    gloo ends with "[enforce fail ...] ss1.ss_family == ss2.ss_family", even where every node has both.

    ## Why
    A name has an AAAA record while the host has only IPv4 addresses, or NCCL_SOCKET_FAMILY was copied from another cluster.
    gloo takes the first address of the hostname, which is IPv6 where /etc/hosts or DNS has both, and all nodes must agree.
    A "[W socket.cpp] ... errno: 97" that is followed by success is harmless: torch tries IPv6 first.

    ## Fix
    Use an IPv4 address for MASTER_ADDR, and `NCCL_SOCKET_FAMILY=AF_INET`.
    """
    looks = (
        _family_of_nccl(network, environment, nccl),
        _families_of_names(network, environment),
        _families_of_gloo(network, environment, nccl, fleet, meeting),
    )
    yield from judged_apart(looks)
    known(meeting)


def _families_of_names(network: Network, environment: Environment) -> Iterator[Finding]:
    named = named_hosts(environment, network)
    for name, resolution in named.items():
        if not isinstance(resolution, Resolution) or is_here(resolution, network):
            continue
        if no_family_in_common(resolution, network):
            theirs = as_address(resolution.addresses[0]).version
            ours = 10 - theirs
            yield Finding.of(
                f"{name} {resolution.name} has only IPv{theirs} addresses, this host only IPv{ours}",
                resolved(resolution),
                addresses(network),
                Fix(f"Show the master's IPv{ours} address there, and use it for {name}", ("hostname -I",)),
            )
    for resolution in named.values():
        known(resolution)


def _family_of_nccl(network: Network, environment: Environment, nccl: Nccl) -> Iterator[Finding]:
    family, ifname = environment.get("NCCL_SOCKET_FAMILY"), environment.get("NCCL_SOCKET_IFNAME")
    if nccl.library is None:
        return
    if left_out_by_family(network.interfaces, ifname=ifname, family=family, version=version_of(nccl.version)):
        named = f" that NCCL_SOCKET_IFNAME={ifname} names" if nccl_ifname_counts(ifname) else " here"
        yield Finding.of(
            f"NCCL_SOCKET_FAMILY={family}, but no interface{named} has an IPv{nccl_family(family)} address",
            setting(environment, "NCCL_SOCKET_FAMILY"),
            addresses(network),
            Fix("Let NCCL use what there is", ("unset NCCL_SOCKET_FAMILY",), appliable=True),
        )


def _families_of_gloo(
    network: Network, environment: Environment, nccl: Nccl, fleet: Fleet, meeting: Maybe[Meeting]
) -> Iterator[Finding]:
    if len(fleet.nodes) > 1:
        yield from _families_of_fleet(network, fleet, meeting)
    else:
        yield from _family_of_gloo(network, environment, nccl)


def _family_of_gloo(network: Network, environment: Environment, nccl: Nccl) -> Iterator[Finding]:
    sign = several_nodes(environment, network)
    master = network.master
    if not sign or not isinstance(master, Resolution) or not master.addresses:
        return
    address = known(nccl.gloo_address)
    if not address:
        return
    ours, theirs = as_address(address), {as_address(text).version for text in master.addresses}
    if ours.version == 6 and not ours.is_loopback and theirs == {4}:
        way = way_to_the_others(network)
        yield Finding.of(
            f"gloo will use {address} (IPv6) here, while MASTER_ADDR is IPv4",
            nccl.seen("gloo_address"),
            resolved(master),
            intent(sign),
            hosts_fix(network),
            Fix("Or name the interface", interface_settings(way)) if way else None,
            severity=WARN,
        )


def _families_of_fleet(network: Network, fleet: Fleet, meeting: Maybe[Meeting]) -> Iterator[Finding]:
    me = fleet.place_of(meeting.node_rank) if isinstance(meeting, Meeting) else -1
    if me < 0:
        return
    own = fleet.nodes[me]
    apart = [
        node
        for at, node in enumerate(fleet.nodes)
        # "": not known.
        if node.rank > own.rank and own.families and node.families and not set(own.families) & set(node.families)
        # That they were seen to reach each other beats what their addresses say.
        if not any(Cell.OK.value in (reach.rows[me][at], reach.rows[at][me]) for reach in fleet.reach)
    ]
    if apart:
        theirs = apart[0]
        only = f"{listed(node.host for node in apart)}: only IPv{theirs.families}"
        text = "Show the addresses of each, and give the one or the other the family it lacks"
        yield Finding.of(
            f"{own.host} has only IPv{own.families} addresses and {theirs.host} only IPv{theirs.families} ones: no way between them",
            addresses(network),
            Evidence(only, "the nodes' own words"),
            Fix(text, ("ip -br address",)),
        )
    yield from _gloo_apart(own, network, fleet)


def _gloo_apart(own: Node, network: Network, fleet: Fleet) -> Iterator[Finding]:
    """The finding where gloo's addresses are of different families, on the nodes with the rarer one; of two as many, with IPv6."""
    taken = {
        node.rank: node.gloo_address for node in fleet.nodes if node.gloo_address and not is_loopback(node.gloo_address)
    }
    versions: dict[int, int] = {rank: as_address(address).version for rank, address in taken.items()}
    count = Counter(versions.values())
    if len(count) < 2 or own.rank not in versions:
        return
    ours = versions[own.rank]
    theirs = 10 - ours
    if (count[ours], ours == 4) > (count[theirs], theirs == 4):
        return
    others = [f"{node.host} {taken[node.rank]}" for node in fleet.nodes if versions.get(node.rank) == theirs]
    yield Finding.of(
        f"gloo takes {taken[own.rank]} (IPv{ours}) on {own.host}, and IPv{theirs} on {plural(len(others), 'other node')}: it needs one family on all",
        Evidence(f"{own.host}: {taken[own.rank]}", "gloo's rules"),
        Evidence(listed(others), "gloo's rules over there"),
        _other_family(theirs, own, network),
    )


def _other_family(version: int, own: Node, network: Network) -> Iterator[Fix]:
    """gloo takes an interface's IPv4 address before its IPv6 one, and a name's IPv6 address before its IPv4 one."""
    interfaces = if_known(lambda: network.interfaces, default=())
    every = [(interface.name, as_address(text)) for interface in interfaces for text in interface.addresses]
    there = [
        (name, str(address))
        for name, address in every
        if address.version == version and not address.is_loopback and not address.is_link_local
    ]
    if not there:
        yield Fix(f"Give {own.host} an IPv{version} address", ("ip -br address",))
        return
    interface, address = next((choice for choice in there if choice[0] == way_to_the_others(network)), there[0])
    if version == 4:
        yield Fix(
            f"Name the interface on {own.host}; of its addresses gloo takes the IPv4 one",
            (f"export GLOO_SOCKET_IFNAME={shlex.quote(interface)}",),
        )
    else:
        line = shlex.quote(f"{address} {network.hostname}")
        yield by_root(f"Name {own.host}'s IPv6 address in /etc/hosts there", (f"echo {line} | sudo tee -a /etc/hosts",))
