"""Looks at this host's names, interfaces, routes and ports. Sends no packet but what the resolver sends."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.network import NO_ANSWER, Interface, Network, Resolution
from ddpdoctor.knowledge.interface_choice import interface_with
from ddpdoctor.knowledge.launchers import master_address, master_port, split_endpoint, store_endpoint
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.interfaces import read_interfaces
from ddpdoctor.probes.taken_ports import error_of_bind, port_holders
from ddpdoctor.probes.waiting import ThreadedCall

DEADLINE = 15.0
RESOLVER_SECONDS = 3.0
"""A dead DNS server keeps getaddrinfo waiting for 10 s and more."""

C10D_PORT, STATIC_PORT = 29400, 29500
"""torchrun's defaults for --rdzv-backend=c10d and for --master-port."""

ROUTE_UP = 0x1


def resolve(name: str) -> Resolution:
    """Resolve a name by getaddrinfo, in its order, however long it takes."""
    started = time.monotonic()
    addresses: tuple[str, ...] = ()
    error = ""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    except (OSError, UnicodeError) as failure:
        error = getattr(failure, "strerror", None) or str(failure)
    return Resolution(name=name, addresses=addresses, error=error, seconds=round(time.monotonic() - started, 3))


def ask_resolver(name: str) -> Callable[[], Resolution]:
    """Start resolving a name; the call that comes back gives the answer, or that there was none in time."""
    resolving = ThreadedCall(lambda: resolve(name), RESOLVER_SECONDS)
    silent = Resolution(name=name, error=_no_answer(), seconds=RESOLVER_SECONDS)
    return lambda: resolving.result(silent)


def _no_answer() -> str:
    return f"{NO_ANSWER} within {RESOLVER_SECONDS:.0f} s"


def probe(context: Context) -> Network | Unknown:
    hostname = socket.gethostname()
    own_name = ThreadedCall(lambda: resolve(hostname), RESOLVER_SECONDS)
    fqdn = ThreadedCall(lambda: _full_name(hostname), RESOLVER_SECONDS)
    master_name = master_address(context.environ)
    master = ask_resolver(master_name) if master_name else lambda: None
    rendezvous_name, rendezvous_port = split_endpoint(store_endpoint(context.environ))
    rendezvous = ask_resolver(rendezvous_name) if rendezvous_name else lambda: None

    interfaces = read_interfaces(context)
    if isinstance(interfaces, Unknown):
        return interfaces
    wanted = (C10D_PORT, STATIC_PORT, master_port(context.environ) or 0, rendezvous_port or 0)
    ports = tuple(dict.fromkeys(port for port in wanted if 0 < port < 65536))
    errors = {port: error_of_bind(port) for port in ports}
    taken = tuple(port for port, error in errors.items() if error == errno.EADDRINUSE)
    reserved = context.read("/proc/sys/net/ipv4/ip_local_reserved_ports")
    master_found = master()
    interface_to_master, route_error = _route_to(master_found, interfaces)
    return Network(
        hostname=hostname,
        fqdn=fqdn.result(hostname),
        own_name=own_name.result(Unknown(_no_answer())),
        master=master_found,
        rendezvous=rendezvous(),
        interfaces=interfaces,
        default_interface=_default_interface(context),
        interface_to_master=interface_to_master,
        master_route_error=route_error,
        listeners=port_holders(context, taken) if taken else (),
        wanted_ports=ports,
        taken_ports=taken,
        forbidden_ports=tuple(port for port, error in errors.items() if error == errno.EACCES),
        ephemeral_range=ephemeral_range(context),
        reserved_ports=reserved.strip() if isinstance(reserved, str) else reserved,
        hosts_lines=_hosts_lines(context, {hostname, master_name, rendezvous_name} - {""}),
        # A kernel without IPv6 has no such setting.
        ipv6_disabled=context.text("/proc/sys/net/ipv6/conf/all/disable_ipv6") != "0",
    )


def _full_name(hostname: str) -> str:
    """Ask for this host's name with its domain: the hostname itself where that can't be looked up."""
    try:
        return socket.getfqdn()
    except (OSError, UnicodeError):  # The latter for a label that is empty, or longer than 63 characters.
        return hostname


def _route_to(destination: Resolution | None, interfaces: tuple[Interface, ...]) -> tuple[str | Unknown | None, str]:
    """The interface by which the kernel would reach it, or why it can't. A connected UDP socket knows, and sends nothing."""
    if destination is None:
        return None, ""
    if not destination.addresses:
        return Unknown(f"{destination.name} doesn't resolve"), ""
    failure = ""
    for address in destination.addresses:
        try:
            with socket.socket(
                socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
            ) as probe_socket:
                probe_socket.connect((address, 9))
                return interface_with(str(probe_socket.getsockname()[0]), interfaces), ""
        except OSError as error:
            failure = failure or error.strerror or str(error)
    return None, failure


def _default_interface(context: Context) -> str | Unknown | None:
    """The interface of the default route with the lowest metric; IPv6's where IPv4 has none."""
    text = context.read("/proc/net/route")
    if isinstance(text, Unknown):
        return text
    rows = [line.split() for line in text.splitlines()[1:]]
    routes = [
        (int(row[6]), row[0])
        for row in rows
        if len(row) > 7 and row[1] == row[7] == "00000000" and int(row[3], 16) & ROUTE_UP
    ]
    if routes:
        return min(routes)[1]
    rows = [line.split() for line in context.text("/proc/net/ipv6_route").splitlines()]
    routes = [
        (int(row[5], 16), row[9])
        for row in rows
        if len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo"
    ]
    return min(routes)[1] if routes else None


def ephemeral_range(context: Context) -> tuple[int, int] | Unknown:
    """The ports that the kernel gives to those who ask for any."""
    text = context.read("/proc/sys/net/ipv4/ip_local_port_range")
    if isinstance(text, Unknown):
        return text
    numbers = [int(word) for word in text.split() if word.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else Unknown(f"ip_local_port_range reads {text.strip()!r}")


def _hosts_lines(context: Context, names: set[str]) -> tuple[str, ...] | Unknown:
    text = context.read("/etc/hosts")
    if isinstance(text, Unknown):
        return text
    lines = [" ".join(line.partition("#")[0].split()) for line in text.splitlines()]
    return tuple(line for line in lines if names & set(line.split()))
