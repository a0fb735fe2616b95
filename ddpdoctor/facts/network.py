"""This host's side of the network."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Otherwise, Source


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface. `speed` in Mbit/s, -1 unknown."""

    name: str
    addresses: tuple[str, ...] = ()
    """"192.168.1.5/24", "fe80::1/64": IPv4 first, each family in the kernel's order."""
    up: bool = True
    """IFF_UP."""
    running: bool = True
    """IFF_RUNNING: there is a carrier."""
    loopback: bool = False
    mtu: int = 1500
    speed: int = -1
    virtual: bool = False
    """No hardware behind it (bridges, veth, tunnels)."""
    qdisc: str = ""
    """The queueing discipline at its root: "mq", "fq_codel", "tbf" (a limiter) ...; "" unknown."""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Holder of a TCP port, by listening on it or with a connection that has it as its near end.

    pid 0: the owner is another user's or in another namespace.
    """

    address: str
    port: int
    pid: int = 0
    process: str = ""
    command: str = ""
    """Redacted command line."""
    user: str = ""
    age: float = -1.0
    """Seconds since the process started."""
    listening: bool = True
    same_job: bool = False
    """It is an ancestor of ours, was started with our SLURM_JOB_ID or TORCHELASTIC_RUN_ID, or by a ddpdoctor of this user's on its own
    account (a rank of `smoke`)."""


NO_ANSWER: Final = "no answer"
"""What the reason begins with by which a name is unknown, where no resolver answered in time."""


class Resolution(Facts, frozen=True, kw_only=True):
    """Answer of the resolver to one name. `error` is empty where it succeeded."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0


class Network(Facts, frozen=True, kw_only=True):
    """Addresses are strings without a prefix length unless a field says otherwise."""

    hostname: Annotated[str, Source("gethostname"), Otherwise("this host")]
    fqdn: Annotated[str, Source("getfqdn")]
    own_name: Annotated[Maybe[Resolution], Source("getaddrinfo of the hostname")]
    master: Annotated[Maybe[Resolution | None], Source("getaddrinfo of MASTER_ADDR")] = None
    """None: neither MASTER_ADDR nor, for torchrun, PET_MASTER_ADDR is set."""
    rendezvous: Annotated[Maybe[Resolution | None], Source("getaddrinfo of the rendezvous endpoint")] = None
    """None: PET_RDZV_ENDPOINT isn't set, or names an etcd server, which isn't torch's store."""
    interfaces: Annotated[tuple[Interface, ...], Source("getifaddrs, /sys/class/net")] = ()
    """In the kernel's order, which is the one NCCL walks."""
    default_interface: Annotated[Maybe[str | None], Source("/proc/net/route")] = None
    interface_to_master: Annotated[Maybe[str | None], Source("route to MASTER_ADDR")] = None
    """None: MASTER_ADDR isn't set, or there is no route."""
    master_route_error: Annotated[str, Source("route to MASTER_ADDR")] = ""
    """"Network is unreachable" and the like; empty where there is a route."""
    listeners: Annotated[Maybe[tuple[Listener, ...]], Source("bind(), /proc/net/tcp")] = ()
    """Those on 29400, 29500, MASTER_PORT and the rendezvous port, as far as they keep torch from it or might."""
    taken_ports: Annotated[Maybe[tuple[int, ...]], Source("bind() to [::] and 0.0.0.0, as torch's store does")] = ()
    """Those of the wanted ports that torch could not listen on, in either way."""
    forbidden_ports: Annotated[tuple[int, ...], Source("bind() to [::] and 0.0.0.0, as torch's store does")] = ()
    """Those of the wanted ports that this user may not listen on: net.ipv4.ip_unprivileged_port_start keeps them for root."""
    wanted_ports: Annotated[tuple[int, ...], Source("defaults of torch, MASTER_PORT")] = ()
    ephemeral_range: Annotated[Maybe[tuple[int, int]], Source("net.ipv4.ip_local_port_range")] = (32768, 60999)
    reserved_ports: Annotated[Maybe[str], Source("net.ipv4.ip_local_reserved_ports")] = ""
    hosts_lines: Annotated[Maybe[tuple[str, ...]], Source("/etc/hosts")] = ()
    """Lines that name this host or MASTER_ADDR."""
    met_at: Annotated[str, Source("who of the peers reached this host, in netcheck")] = ""
    """The address of this host at which other nodes of the job met it; "" where nobody tried. On an isolated network, which has
    no default route, the host itself can't tell it."""
    ipv6_disabled: Annotated[Maybe[bool], Source("net.ipv6.conf.all.disable_ipv6")] = False
