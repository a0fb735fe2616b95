"""The ports a job listens on, and what this host's packet filter lets through to them."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import capital, listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, Subject, check, leave_untested, requires
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.facts.network import Listener, Network
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Environment, Firewall, Fleet, Gpus, Meeting, Processes, TargetPython
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.firewall_fixes import job_subnet, of_family, opening, whom
from ddpdoctor.knowledge.frameworks import ACCELERATE
from ddpdoctor.knowledge.job_intent import hosts_the_store, several_nodes, way_to_the_others
from ddpdoctor.knowledge.launcher_options import launcher_of_log, launcher_of_settings, with_port
from ddpdoctor.knowledge.launchers import current_launch, number
from ddpdoctor.knowledge.network_fixes import intent
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.knowledge.python_commands import in_target_python
from ddpdoctor.logs.analyze.sightings import host_named, word
from ddpdoctor.logs.exceptions import is_within_launcher
from ddpdoctor.network_check.analysis.way_to_master import another_port, who_listens
from ddpdoctor.processes.gpu_holders_words import end_leftovers, why_left
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes

NOT_LOOKED_AT = Unknown("not looked at")
THE_ENDPOINT = "the rendezvous endpoint"
THE_JOBS_PORT = "the job's own"

PORTS_A_RANK = 64
"""Listeners and connections of one rank: gloo, and per NCCL communicator bootstrap, proxy, P2P, RAS and its channels."""

NOT_PERMITTED: Final = ("EACCES", "errno: 13", "Permission denied")
STORE_PORT: Final = 29500
"""Everybody's default."""
_CHECK: Final = "ddpdoctor check --select port-in-use"
LOWEST_PORT: Final = 1024
HIGHEST_PORT: Final = 65535
"""Those below are root's."""


def _port_of_log(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Have the holder named first, and advise by the launcher that the log is of. Nobody holds a port that is root's."""
    said = number(word(seen, "port"))
    port = said or STORE_PORT
    launcher = ACCELERATE if any("Tried to launch" in match.sign for match in seen) else launcher_of_log(log)
    command, beside = with_port(launcher, str(port + 1 if LOWEST_PORT <= port < HIGHEST_PORT else STORE_PORT))
    note = f" ({beside})" if beside else ""
    text, commands = f"ake another port, the same on all nodes{note}", (command,) if command else ()
    if port < LOWEST_PORT or any(refusal in match.line.text for match in seen for refusal in NOT_PERMITTED):
        return Particulars(fixes=(Fix(f"T{text}", commands),))
    if more_than_once := _opened_more_than_once(seen, log, port):
        return more_than_once
    host = next((match.line.host for match in seen if match.line.host), "")
    ask = Fix(
        f"End what holds the port{f' on {host_named(host)}' if host else ''}: this names the process, and how to end it",
        (f"{f'MASTER_PORT={said} ' if said else ''}{_CHECK}",),
    )
    return Particulars(fixes=(ask, Fix(f"Or t{text}", commands)), decided=True)


def _opened_more_than_once(seen: Sequence[SignMatch], log: Log, port: int) -> Particulars | None:
    """Say that the job itself has the port, where several of its processes want it, and not all are refused; or srun's tasks, each of which may
    be a torchrun of its own."""
    ranks = {match.line.rank for match in seen if match.line.rank is not None}
    hosts = {match.line.host for match in seen}
    everybody = {*log.ranks, *range(max(ranks, default=0) + 1)}
    if len(ranks) > 1 and len(hosts) == 1 and everybody - ranks:
        return Particulars(
            f"{capital(ranks_named(ranks))} each want to listen on port {port}, which another rank of the job has",
            (
                Fix(
                    "Let one rank alone open it, and the others connect to that: TCPStore(..., is_master=rank == 0), or init_process_group() with"
                    " each rank's own number"
                ),
                Fix(f"Where each rank needs a server of its own, give each its own port: {port} + local_rank"),
            ),
            "The script opens the port in every rank, and on a host only one process can have it: another port would be taken in the same way.",
            of_everybody=True,
            decided=True,
        )
    started = [raised for raised in log.raised if is_within_launcher(raised) and _is_of_one_of(seen, raised)]
    if started and any(end.said_by == "srun" for end in log.exited):
        return Particulars(
            fixes=(
                Fix(
                    "See how many tasks srun starts on a node: torchrun starts the ranks itself, so it is to be one",
                    ("srun --ntasks-per-node=1 torchrun --nproc-per-node=GPUS ...",),
                ),
                Fix("Else another job has it: this names the process", (f"MASTER_PORT={port} {_CHECK}",)),
            ),
            cause="torchrun itself couldn't listen. Mostly srun has started several of them on the node, one a task, and the first has the port:"
            " another port would be taken in the same way. Else another job, or what a crashed run has left behind.",
            decided=True,
        )
    return None


def _is_of_one_of(seen: Sequence[SignMatch], raised: LoggedException) -> bool:
    return any(match.line.order == raised.line.order for match in seen)


@check(
    "port-in-use",
    severity=FAIL,
    owner=Owner.UNKNOWN,
    log=LogTraits(particulars=_port_of_log),
    judges=(Subject.NEXT_JOB,),
)
def port_in_use(
    network: Network,
    environment: Environment,
    target_python: TargetPython,
    meeting: Maybe[Meeting],
    processes: Maybe[Processes] = NOT_LOOKED_AT,
    gpus: Maybe[Gpus] = NOT_LOOKED_AT,
    log: Maybe[Log] = NOT_LOOKED_AT,
) -> Iterator[Finding]:
    """The job's port is taken.

    ## What breaks
    Rank 0, or torchrun on the first node, ends with "Address already in use"; the other nodes wait in silence.

    ## Why
    Another job runs here with the same port (29500 unless told otherwise), or a crashed run left a process behind. On one
    node and with no port named, torchrun of torch 2.13 takes a free one; older ones, and most other launchers, don't. A port
    below 1024 is root's ("Permission denied").

    ## Fix
    End what holds the port, or take another one, the same on all nodes: `torchrun --master-port` (on one node `--standalone`),
    `accelerate launch --main_process_port`, `deepspeed --master_port`, MASTER_PORT for what python, srun or mpirun starts.
    """
    requires(hosts_the_store(network), "another host is to host the job's store")
    meets = meeting if isinstance(meeting, Meeting) and meeting.master else None
    not_listened = meets if meets and meets.listen_error else None
    taken = known_or(network.taken_ports, ())
    on_one_node = not if_known(several_nodes, environment, network, default="not known")
    of_log = "" if isinstance(log, Unknown) else launcher_of_log(log)
    launcher = of_log or if_known(launcher_of_settings, environment, default="")
    for port, severity, name in _ports_that_matter(network, environment):
        # Only who tried it knows of a port that can't be listened on although it is free.
        if not_listened and not_listened.port == port and port not in (*taken, *network.forbidden_ports):
            yield _not_listened(not_listened, f"port {port}", name, target_python, launcher)
        if port in network.forbidden_ports:
            other = _other_port(target_python, name, port, meets, launcher, alone=True, on_one_node=on_one_node)
            yield _forbidden(port, name, other)
        if port not in taken:
            continue
        if if_known(lambda: current_launch(environment), default=True):
            known(network.listeners)  # The launch that this is a part of may have the port.
        holders = [listener for listener in known_or(network.listeners, ()) if listener.port == port]
        if any(listener.same_job for listener in holders):
            if not_listened and not_listened.port == port:
                yield _not_listened(not_listened, f"ports {port + 1} to {port + 4}", name, target_python, launcher)
            continue
        holder = max(
            holders, key=lambda listener: (listener.listening, listener.pid), default=Listener(address="", port=port)
        )
        left = _left_over(holder, processes, gpus)
        summary = f"Port {port} ({name}) is taken by {_who(holder)}"
        if left:
            summary += f", {'a leftover' if left.proven else 'perhaps a leftover'} of a run that is gone"
            cause = why_left(left)
        elif severity is FAIL:
            cause = "Another job runs here with the same port, or a crashed run left a process behind."
        else:
            cause = f"A job that already runs isn't hurt; one that is started now and wants {port} is."
        yield Finding.of(
            summary,
            Evidence(f"bind to port {port}: Address already in use", "bind()"),
            _holder_seen(holder),
            (end_leftovers([left]),) if left else _end_it(holder),
            _other_port(target_python, name, port, meets, launcher, on_one_node=on_one_node),
            cause=cause,
            severity=severity,
        )
    known(network.taken_ports), known(environment), known(meeting)


def _left_over(holder: Listener, processes: Maybe[Processes], gpus: Maybe[Gpus]) -> Leftover | None:
    """The leftover that the holder is, where it is one of a run that is gone."""
    process = processes.get(holder.pid) if holder.pid and isinstance(processes, Processes) else None
    if process is None:
        return None
    found = left_by_processes(processes, gpus)
    return next((leftover for leftover in found if process.identity in (leftover.identity, *leftover.children)), None)


def _not_listened(meeting: Meeting, where: str, name: str, target_python: TargetPython, launcher: str) -> Finding:
    return Finding.of(
        f"Could not listen on {meeting.master} {where}: {meeting.listen_error}",
        Evidence(f"{meeting.master} {where}: {meeting.listen_error}", "bind()"),
        who_listens(meeting.port),
        _other_port(target_python, name, meeting.port, meeting, launcher),
        cause="Whoever holds it came after this host was looked at, or can't be seen by this user.",
    )


def _forbidden(port: int, name: str, other_port: Fix) -> Finding:
    return Finding.of(
        f"Port {port} ({name}) is one that this user may not listen on",
        Evidence(f"bind to port {port}: Permission denied", "bind()"),
        other_port,
        cause="Ports below net.ipv4.ip_unprivileged_port_start, 1024 unless somebody changed it, are for root.",
    )


def _ports_that_matter(network: Network, environment: Environment) -> list[tuple[int, Severity, str]]:
    """The defaults only count where nothing names another port."""
    master = if_known(launchers.master_port, environment, default=None)
    named = [port for port in network.wanted_ports if port not in (29400, 29500) or port == master]
    endpoint = if_known(launchers.store_endpoint, environment, default="")
    if named or endpoint:
        _, in_endpoint = launchers.split_endpoint(endpoint)
        setting = if_known(launchers.first_set, environment, launchers.MASTER_PORT, default="")
        ports = dict.fromkeys([*named, *([29400] if endpoint and in_endpoint in (None, 29400) else [])])
        return [
            (port, FAIL, (setting if port == master else THE_ENDPOINT) if setting else THE_JOBS_PORT) for port in ports
        ]
    return [(29500, WARN, "torch's default"), (29400, INFO, "the default of torchrun's c10d rendezvous")]


def _who(holder: Listener) -> str:
    if not holder.pid:
        return f"a process of {holder.user or 'another user'} that this user may not look at"
    return f"{holder.process or 'a process'} (pid {holder.pid}, {holder.user})"


def _holder_seen(holder: Listener) -> tuple[Evidence, ...]:
    if not holder.pid:
        return ()
    age = f", started {holder.age / 3600:.1f} h ago" if holder.age >= 3600 else f", started {holder.age:.0f} s ago"
    text = f"pid {holder.pid}: {holder.command or holder.process}{age if holder.age >= 0 else ''}"
    return (Evidence(text, "/proc/net/tcp, /proc"),)


def _end_it(holder: Listener) -> tuple[Fix, ...]:
    if not holder.pid:
        return (by_root("See who it is", (f"sudo ss -tlnp 'sport = :{holder.port}'",)),)
    look = f"ps -o pid,user,lstart,args -p {holder.pid}"
    return (Fix("If it is a left-over of your own, end it", (look, f"kill {holder.pid}")),)


def _other_port(
    target_python: TargetPython,
    name: str,
    port: int,
    meets: Meeting | None,
    launcher: str,
    *,
    alone: bool = False,
    on_one_node: bool = False,
) -> Fix:
    """The fix that takes another port.

    Args:
        target_python: finds a free one.
        name: the setting that names the port.
        port: the one that is taken.
        meets: where netcheck runs, whose nodes must all name the same port.
        launcher: the job's, as `launcher_options` calls it.
        alone: whether no other fix goes before it.
        on_one_node: whether no other host has to name the same one.
    """
    if meets and meets.port == port and name != THE_ENDPOINT:
        return another_port(meets, alone=alone)
    code = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
    free = in_target_python(target_python, "-c", code)
    if name == THE_ENDPOINT:
        return Fix("Use another port in the endpoint, the same on all nodes; this prints a free one", (free,))
    variable = name if name in launchers.MASTER_PORT else "MASTER_PORT"
    command, beside = with_port(launcher, f'"${variable}"')
    use = f". Then: {command}{f' ({beside})' if beside else ''}" if command else f"; {beside}"
    return Fix(
        f"Take a free port, the same on all nodes{use}",
        (f"export {variable}=$({free})",),
        appliable=on_one_node and name == variable,
    )


@check("port-range-too-small", severity=WARN, owner=Owner.NODE)
def port_range_too_small(network: Network, plan: Plan) -> Iterator[Finding]:
    """The range of ephemeral ports is small for this many ranks.

    ## What breaks
    A rank fails to listen or to connect with "Cannot assign requested address" or "Address already in use", now and then.

    ## Why
    All but the store's port are taken from net.ipv4.ip_local_port_range. A rank needs one for gloo, and for every NCCL
    communicator about four listeners and a few connections a channel; 64 a rank leaves room for a handful of groups. The
    range is often narrowed to what a firewall lets through.

    ## Fix
    Widen it: `sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, and open the same ports in the firewall. A range that
    takes in 29500 should leave that port to the stores: `net.ipv4.ip_local_reserved_ports`.
    """
    low, high = known(network.ephemeral_range)
    there, needed = high - low + 1, plan.nproc * PORTS_A_RANK
    if there < needed:
        yield Finding.of(
            f"{there} ephemeral ports ({low}-{high}) for {plural(plan.nproc, 'rank')}, which want about {needed}",
            network.seen("ephemeral_range", f"{low}-{high}"),
            _wider(low, high, needed, network),
        )


RANGES = ((32768, 60999), (10000, 65535), (1024, 65535))
"""The kernel's default, and wider ones."""


def _wider(low: int, high: int, needed: int, network: Network) -> Fix:
    """The narrowest of the ranges that takes in what is there and suffices, else the widest."""
    suffices = (
        bounds for bounds in RANGES if bounds[0] <= low and high <= bounds[1] and bounds[1] - bounds[0] + 1 >= needed
    )
    first, last = next(suffices, RANGES[-1])
    if (low, high) == (first, last):
        return Fix("There is no wider range: start fewer ranks on this host")
    commands = [f'sudo sysctl -w net.ipv4.ip_local_port_range="{first} {last}"']
    if first <= 29400 and isinstance(network.reserved_ports, str):
        kept = ",".join(ports for ports in (network.reserved_ports, "29400,29500") if ports)
        commands.append(f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={shlex.quote(kept)}")
    return by_root("Widen the range", tuple(commands))


@check("local-firewall", severity=FAIL, owner=Owner.NODE)
def local_firewall(network: Network, firewall: Firewall, environment: Environment, fleet: Fleet) -> Iterator[Finding]:
    """This host's packet filter drops what the other nodes send.

    ## What breaks
    The rendezvous may pass, since people open its port; then NCCL or gloo hangs: NCCL's root connects back to every rank,
    and every rank listens on a random high port. gloo waits five times its timeout and names no peer.

    ## Why
    firewalld, ufw and most hand-made rule sets let in ssh and little else.

    ## Fix
    Let in all TCP from the job's own network; at the least the store's port and net.ipv4.ip_local_port_range.
    """
    requires(not fleet.routes, "netcheck tried the ports themselves")
    every, firewall = firewall, known(of_family(firewall, job_subnet(network)))
    if firewall.enabled_service and isinstance(firewall.drops_new, Unknown):
        leave_untested(f"{firewall.enabled_service} is switched on on this host, but {firewall.drops_new.reason}")
    drops = known(firewall.drops_new)
    if drops is None:
        leave_untested("the packet filter's rules are too involved to tell")
    sign = if_known(several_nodes, environment, network, default="")
    subnet, way = job_subnet(network), way_to_the_others(network)
    if not drops or any(_covers(source, subnet, way) for source in firewall.open_sources):
        return
    subnets = (subnet,) if subnet else ()
    ports, sources = listed(firewall.open_ports) or "none", listed(firewall.open_sources) or "nowhere"
    tool = known_or(firewall.tool, None)
    yield Finding.of(
        f"The packet filter{f' ({tool})' if tool else ''} drops new TCP from other hosts; NCCL and gloo listen on random high ports",
        firewall.seen("input_policy"),
        Evidence(listed(firewall.blocked[:3]), "rules that drop or reject TCP") if firewall.blocked else None,
        Evidence(f"let in: ports {ports}; from {sources}", "rules that accept TCP"),
        intent(sign) if sign else None,
        opening(f"Let in all TCP from {whom(subnets)}", every, subnets, inbound=True),
        cause="" if sign else "It doesn't touch a job on this host alone, only one over several nodes.",
        severity=FAIL if sign else INFO,
    )
    several_nodes(environment, network)


def _covers(source: str, subnet: str, way: str | None) -> bool:
    """ "10.0.0.0/8", "iif eth0", "iif eth*", "10.0.0.0/8, 192.168.0.0/16"; two conditions joined by "and" must both hold."""
    if " and " in source:
        return all(_covers(part, subnet, way) for part in source.split(" and "))
    parts = source.removeprefix("iif ").split(", ")
    if source.startswith("iif "):
        return way is not None and any(
            way == name or (name[-1:] in "*+" and way.startswith(name[:-1])) for name in parts
        )
    ours = ipaddress.ip_network(subnet) if subnet else None
    for part in parts:
        try:
            there = ipaddress.ip_network(part, strict=False)
        except ValueError:
            continue
        if (
            isinstance(there, ipaddress.IPv4Network)
            and isinstance(ours, ipaddress.IPv4Network)
            and ours.subnet_of(there)
        ):
            return True
    return False
