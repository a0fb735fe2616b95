"""The master's name and address, as this node sees them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, if_known, known
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, required, requires
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.facts.snapshot import Environment, Firewall, Fleet
from ddpdoctor.knowledge.firewall_fixes import LOOK, job_subnet, opening
from ddpdoctor.knowledge.job_intent import (
    OWN_HOST_NAMES,
    is_here,
    means_each_node_itself,
    named_hosts,
    no_family_in_common,
    own_address,
    several_nodes,
)
from ddpdoctor.knowledge.launchers import MASTER_ADDRESS, first_set, master_port
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.knowledge.network_fixes import addresses, intent, own_network, resolved, setting, shared_network
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.logs.analyze.false_positives import may_be_of_one
from ddpdoctor.network_check.analysis.way_to_master import (
    attempts_seen,
    furthest,
    how_often,
    own_port_shut,
    place,
    port_among,
    start_node_0,
    tried,
    was_greeted,
    who_listens,
)

BESIDE_THE_STORE = (
    "(torchrun's own store holds MASTER_PORT, so netcheck meets at a port beside it. A filter that lets in MASTER_PORT alone"
    " stops NCCL and gloo just so.)"
)


def _nobody_listens(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell of an address that has no port, or that leads each host to itself, where the words name no other."""
    found = [match.words for match in seen if match.words.get("host")]
    if found and all(words.get("port") == "0" for words in found):
        return Particulars(
            f"The ranks were to meet at {found[0]['host']}:0, and nobody can listen at port 0",
            (
                Fix(
                    "Give all ranks the same free port of node 0's; port 0 only means \"any\" to who listens, as with torchrun's --rdzv-endpoint",
                    ("export MASTER_PORT=29500",),
                ),
            ),
            "MASTER_PORT, or the port in the init_method, is 0: the store took some free port, and the others dial 0.",
            of_everybody=True,
        )
    if not found or not all(words["host"] in OWN_HOST_NAMES for words in found):
        return Particulars()
    port = f":{found[0]['port']}" if found[0].get("port") else ""
    return Particulars(f"Nobody listens at {found[0]['host']}{port}, which is each host itself", of_everybody=True)


def _was_met(one: SignMatch, log: Log) -> bool:
    """Whether a pod that asked for its master's address got it: torchrun tells of ranks that it has started."""
    return one.sign == "nslookup: can't resolve '" and any(
        process_exit.said_by == "torchrun"
        and process_exit.line.order > one.line.order
        and may_be_of_one(msgspec.structs.replace(process_exit.line, rank=None), one.line)
        for process_exit in log.exited
    )


@check("master-addr-unresolvable", severity=FAIL, owner=Owner.UNKNOWN, log=LogTraits(refuted=_was_met))
def master_addr_unresolvable(network: Network, environment: Environment, meeting: Maybe[Meeting]) -> Iterator[Finding]:
    """The master's name doesn't resolve on this host.

    ## What breaks
    Every rank here retries "The IPv4 network addresses of (NAME, PORT) cannot be retrieved" until the store's timeout.

    ## Why
    MASTER_ADDR or the rendezvous endpoint is misspelt, is a name that only another node's /etc/hosts knows, or has no DNS
    record yet (a Kubernetes headless service whose pod hasn't started).

    ## Fix
    Use the master's IP address, which `hostname -I` shows there.
    Where torchrun runs on this host alone, the name is this host's own: write `127.0.0.1 NAME` into /etc/hosts.
    """
    given = named_hosts(environment, network)
    requires(any(given.values()), "neither MASTER_ADDR nor PET_RDZV_ENDPOINT is set")
    dialled = tried(meeting)
    for name, resolution in given.items():
        if not isinstance(resolution, Resolution) or (dialled and resolution.name == dialled.master):
            continue  # It has had an address since, where it was dialled.
        if not resolution.addresses:
            yield Finding.of(
                f"{name} names {resolution.name}, which this host can't resolve: {resolution.error}",
                resolved(resolution),
                Fix("Look what this host knows of the name", (f"getent ahosts {shlex.quote(resolution.name)}",)),
                Fix(f"Show the master's addresses there, and put one of them into {name}", ("hostname -I",)),
            )
    for resolution in given.values():
        known(resolution)


@check("master-addr-unreachable", severity=FAIL, owner=Owner.UNKNOWN, log=LogTraits(particulars=_nobody_listens))
def master_addr_unreachable(
    network: Network, environment: Environment, meeting: Maybe[Meeting], fleet: Fleet, firewall: Maybe[Firewall]
) -> Iterator[Finding]:
    """MASTER_ADDR leads nowhere from this host.

    ## What breaks
    The ranks of this node try to reach the store until their timeout, 10 minutes by default, and say nothing meanwhile.

    ## Why
    The address is of a network that this host isn't connected to, or it is `localhost`, which is another host on each node.
    Or it isn't node 0's own, or nobody listens there yet, or a packet filter on node 0, here or between takes the
    connections.

    ## Fix
    Set MASTER_ADDR, on all nodes alike, to an address of node 0 that the others can route to, and let its port through.
    `ddpdoctor netcheck`, run on every node, tells these causes apart.
    """
    master = required(known(network.master), "MASTER_ADDR isn't set, or doesn't resolve")
    requires(master.addresses, "MASTER_ADDR isn't set, or doesn't resolve")
    dialled = tried(meeting)
    # Node 0 meets itself at localhost, too, and waits for the others in vain.
    if (dialled and was_greeted(dialled) and not fleet.absent) or len(fleet.nodes) > 1:
        return
    # An address of this very host, ::1 at the least, is no matter of families.
    of_a_family_here = is_here(master, network) or not no_family_in_common(master, network)
    requires(of_a_family_here, "MASTER_ADDR is of another family, IPv4 or IPv6, than this host")
    variable = if_known(first_set, environment, MASTER_ADDRESS, default=MASTER_ADDRESS[0])
    by_itself = means_each_node_itself(master, network)
    sign = if_known(several_nodes, environment, network, default="")
    if by_itself and sign:
        yield _on_every_node_another(variable, master, network, sign, meeting)
    elif dialled and not was_greeted(dialled):
        beside = dialled.port != (if_known(master_port, environment, default=None) or dialled.port)
        yield from _by_experiment(dialled, variable, master, network, firewall, BESIDE_THE_STORE if beside else "")
    elif network.master_route_error:
        yield _no_route(variable, master, network, environment)
    elif isinstance(meeting, Meeting) and meeting.hosts_the_store and fleet.absent:
        yield from _shut_here(meeting, network, known(firewall))
    else:
        known(meeting)
        if by_itself:
            several_nodes(environment, network)


def _no_route(variable: str, master: Resolution, network: Network, environment: Environment) -> Finding:
    error = network.master_route_error
    return Finding.of(
        f"No route from here to {variable} {master.name}: {error}",
        setting(environment, variable),
        resolved(master),
        Evidence(error, "connect"),
        _other_networks(variable, master.addresses[0]),
    )


def _other_networks(variable: str, address: str) -> tuple[Fix, ...]:
    return (
        Fix("Look at this host's networks", ("ip -br address", f"ip route get {shlex.quote(address)}")),
        Fix(f"Show node 0's addresses there, and set {variable} to one of a network that both have", ("hostname -I",)),
    )


def _on_every_node_another(
    variable: str, master: Resolution, network: Network, sign: str, meeting: Maybe[Meeting]
) -> Finding:
    here = own_address(network)
    commands: tuple[str, ...] = (f"export {variable}={shlex.quote(here)}",) if here else ("hostname -I",)
    if here and isinstance(meeting, Meeting) and meeting.master:
        commands = _meet_at(here, meeting, variable)
    text = f"Set it to node 0's address on all nodes{f'; if this is node 0, that is {here}' if here else ''}"
    return Finding.of(
        f"{variable}={master.name} means this host itself on every node, and the job has several",
        resolved(master),
        intent(sign),
        Fix(text, commands),
        cause="Node 0 listens where only it gets to, and every other node looks for node 0 on itself.",
    )


# --- what was tried -----------------------------------------------------------------------------------------------------


def _by_experiment(
    meeting: Meeting, variable: str, master: Resolution, network: Network, firewall: Maybe[Firewall], note: str
) -> Iterator[Finding]:
    attempt = furthest(meeting)
    if attempt.met is ConnectOutcome.CONNECTED:
        return  # Somebody else answered, and port-squatted says who.
    here = is_here(master, network)
    if meeting.node_rank == 0 and not here:
        yield _not_node_0s_own(meeting, variable, master, network)
    elif meeting.hosts_the_store and here:
        yield _out_of_its_own_reach(attempt, meeting, network, firewall)
    elif meeting.nnodes is None and here:
        yield own_port_shut(attempt, meeting, network, firewall)
    elif meeting.node_rank and here:
        yield _own_but_not_node_0(meeting, variable, master, network)
    else:
        meant = (
            _filtered_on_the_way_out(attempt, meeting, network, firewall)
            or _answers_filtered(attempt, meeting, network, firewall)
            or _meaning_of(attempt, meeting, variable, network)
        )
        yield Finding.of(
            f"{meant.summary} ({how_often(attempt, meeting)})",
            attempts_seen(meeting),
            meant.fixes,
            cause=f"{meant.cause} {note}".strip(),
        )


def _not_node_0s_own(meeting: Meeting, variable: str, master: Resolution, network: Network) -> Finding:
    own = own_address(network)
    here = f"If {network.hostname} is node 0, name its own address, on all nodes alike"
    there = "If another host is node 0, start this one with its own --node-rank"
    as_node_1 = netcheck_command(meeting, meeting.nnodes, 1)
    return Finding.of(
        f"{master.name} isn't an address of {network.hostname}, which was started as node 0",
        resolved(master),
        addresses(network),
        attempts_seen(meeting),
        Fix(here, _meet_at(own, meeting, variable)) if own else None,
        Fix(there, (as_node_1,) if not meeting.launcher and meeting.nnodes == 2 else ()),
        cause="The job's store listens on node 0. Either another host is node 0, or a router translates this address (NAT, a cloud's public address): then no process here can listen on it.",
    )


def _meet_at(address: str, meeting: Meeting, variable: str) -> tuple[str, ...]:
    """Name another master: to the job, and where it was typed by hand, to netcheck."""
    by_hand = netcheck_command(meeting, meeting.nnodes, meeting.node_rank or 0, master=address)
    return (f"export {variable}={shlex.quote(address)}", *(() if meeting.launcher else (by_hand,)))


def _own_but_not_node_0(meeting: Meeting, variable: str, master: Resolution, network: Network) -> Finding:
    return Finding.of(
        f"{master.name} is {network.hostname} itself, which was started as node {meeting.node_rank}, not as node 0",
        resolved(master),
        attempts_seen(meeting),
        Fix(f"Either make {network.hostname} node 0", (netcheck_command(meeting, meeting.nnodes, 0),)),
        Fix(f"Or show node 0's addresses there, and set {variable} to one of them on all nodes", ("hostname -I",)),
        cause="The job's store listens on node 0, so nobody listens at this address.",
    )


class _Meaning(NamedTuple):
    """The meaning of one outcome; its summary is without how often it was tried."""

    summary: str
    cause: str
    fixes: tuple[Fix, ...]


def _meaning_of(attempt: Attempt, meeting: Meeting, variable: str, network: Network) -> _Meaning:
    host, port, address = network.hostname, meeting.port, attempt.address
    where = place(address, port)
    start = start_node_0(meeting)
    listening = Fix(
        "On the master, see whether something listens there, and on which address", (f"ss -tln 'sport = :{port}'",)
    )
    way = Fix("See which way its packets go", (f"ip route get {shlex.quote(address)}",))
    # This node doesn't know which tool filters there.
    theirs = own_network(address, network) or "the other nodes"
    open_it = by_root(f"On the master, let in TCP from {theirs}: this shows what filters there", LOOK)
    another = Fix(f"Show node 0's addresses there, and set {variable} to one of them", ("hostname -I",))
    asked = (f"ip neighbor show {shlex.quote(address)}", f"ip route get {shlex.quote(address)}")
    neighbours = Fix("See what this host's network says of it", asked)
    if attempt.met is ConnectOutcome.REFUSED:
        cause = (
            "The host is there, and says that nobody listens at this port. Node 0 hasn't been started, or with another port"
            " or address; netcheck there has ended already (--wait gives it more time for late nodes); or a packet filter"
            " rejects the connections with a reset."
        )
        return _Meaning(
            f"{where} refuses {host}'s connections: nobody listens there", cause, (start, listening, open_it)
        )
    if attempt.met is ConnectOutcome.SILENT:
        cause = _why_silent(address, meeting, network)
        return _Meaning(f"{where} doesn't answer {host} at all", cause, (open_it, listening, way))
    if attempt.met is ConnectOutcome.PROHIBITED:
        return _Meaning(
            f"A packet filter rejects {host}'s connections to {where}: {attempt.words}",
            "An ICMP message came back at once: a filter on the master, on a router or on this host sends it.",
            (open_it, way),
        )
    if attempt.met is ConnectOutcome.RESET:
        return _Meaning(
            f"{where} accepts {host}'s connections and cuts them off at once",
            "Something accepts on the master's behalf and finds nobody behind it: a published port of a container, a"
            " Kubernetes Service, a load balancer, an ssh tunnel; or a filter cuts what it first let through.",
            (start, who_listens(port)),
        )
    if attempt.met is ConnectOutcome.NO_HOST:
        return _Meaning(
            f"No host has the address {address}: {host} asked its network for it in vain",
            "The master's host is down or unplugged, is on another network with the same numbers, or the address is wrong.",
            (another, neighbours),
        )
    if attempt.met is ConnectOutcome.NO_ROUTE:
        return _Meaning(
            f"{host} has no route to the master, {address}: {attempt.words}",
            "The address is of a network that this host isn't connected to, and no router that it knows leads there.",
            _other_networks(variable, address),
        )
    cause = "The system's own words say what stops it here: no answer of the master was seen."
    return _Meaning(f"{host} can't connect to {where}: {attempt.words}", cause, (way, listening))


def _why_silent(address: str, meeting: Meeting, network: Network) -> str:
    if not shared_network(address, network):
        return "A packet filter drops the connections, on the master, on this host or between; or no host has this address."
    if meeting.undelivered == 0:
        return (
            "A packet filter drops the connections, most likely the master's own: the address is of this host's own"
            " network, a host has it, or the system would say that there is no route to it, and no answer reaches this one."
        )
    return (
        "A packet filter drops the connections or their answers, on the master or on this host: the address is of this"
        " host's own network, and a host has it, or the system would say that there is no route to it."
    )


# --- packet filters of this host ----------------------------------------------------------------------------------------


def _filtered_on_the_way_out(
    attempt: Attempt, meeting: Meeting, network: Network, firewall: Maybe[Firewall]
) -> _Meaning | None:
    """The meaning where this host's kernel kept at least a packet a try from leaving."""
    kept = meeting.untransmitted or 0
    if (
        attempt.met not in (ConnectOutcome.SILENT, ConnectOutcome.REFUSED, ConnectOutcome.PROHIBITED)
        or kept < attempt.tries
    ):
        return None
    where = place(attempt.address, meeting.port)
    return _Meaning(
        f"{network.hostname}'s own packet filter stops its connections to {where}",
        f"Its kernel was to send {plural(kept, 'packet')} more than it did while the master was dialled.",
        opening(
            f"Let TCP out to the master on {network.hostname}",
            firewall,
            (shared_network(attempt.address, network) or attempt.address,),
            inbound=False,
        )
        or (_look_there(network.hostname),),
    )


def _answers_filtered(
    attempt: Attempt, meeting: Meeting, network: Network, firewall: Maybe[Firewall]
) -> _Meaning | None:
    """The meaning where this host's kernel received the answers and handed them to nobody, at half of the tries at the least: one may
    have coincided with packets that were sent again."""
    taken = meeting.undelivered or 0
    if attempt.met is not ConnectOutcome.SILENT or taken < 2 * attempt.tries:
        return None
    where, host = place(attempt.address, meeting.port), network.hostname
    whence = (shared_network(attempt.address, network) or attempt.address,)
    return _Meaning(
        f"{host}'s own packet filter stops the answers of {where}",
        f"Its kernel received {plural(taken, 'answer')} of the master and handed them to nobody: a rule on its input drops TCP"
        " without regard to connections that it opened itself.",
        opening(f"Let TCP in from the master on {host}", firewall, whence, inbound=True) or (_look_there(host),),
    )


def _look_there(host: str) -> Fix:
    """The fix where no known rule is in the way."""
    return by_root(f"On {host}, look for rules that drop or reject TCP", LOOK)


def _out_of_its_own_reach(attempt: Attempt, meeting: Meeting, network: Network, firewall: Maybe[Firewall]) -> Finding:
    where = place(attempt.address, meeting.port)
    subnet = own_network(attempt.address, network)
    to = (subnet,) if subnet else ()
    return Finding.of(
        f"{network.hostname} listens at {where} and can't reach it itself: {attempt.words or attempt.met.value} ({how_often(attempt, meeting)})",
        attempts_seen(meeting),
        opening(f"Let TCP in on {network.hostname}", firewall, to, inbound=True) or (_look_there(network.hostname),),
        cause="Its own packet filter takes even what it sends to itself, so it takes what the other nodes send, too.",
    )


def _shut_here(meeting: Meeting, network: Network, firewall: Maybe[Firewall]) -> Iterator[Finding]:
    """Node 0, where a rule names the very port at which nobody arrives."""
    if not isinstance(firewall, Firewall):
        return
    rules = [shut_port for shut_port in firewall.shut_ports if port_among(shut_port, meeting.port)]
    subnets = (subnet,) if (subnet := job_subnet(network)) else ()
    if rules:
        yield Finding.of(
            f"{network.hostname}'s packet filter stops the other nodes at the master's port, {meeting.port}",
            firewall.seen("shut_ports", listed(rules)),
            firewall.seen("tool"),
            opening(f"Let the port in on {network.hostname}", firewall, subnets, inbound=True),
            cause="A rule of its own drops or rejects TCP to this port, and not all nodes have arrived.",
        )
