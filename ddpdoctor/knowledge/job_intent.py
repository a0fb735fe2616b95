"""Reads from the settings which job is meant to run: over several nodes? is its store to be on this host? Pure."""

from __future__ import annotations

from ddpdoctor.base.unknown import Maybe, if_known, known
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.interface_choice import as_address, interface_with

ONE_NODE = "no settings of a job over several nodes"
"""The reason of checks that only matter to such jobs."""
OWN_HOST_NAMES = ("localhost", "localhost.localdomain", "0.0.0.0", "127.0.0.1", "::1", "::")
"""By them each host means itself."""


def named_hosts(environment: Environment, network: Network) -> dict[str, Maybe[Resolution | None]]:
    """The settings that name the job's meeting place, and what the resolver makes of each; None: it isn't set."""
    given = if_known(launchers.first_set, environment, launchers.MASTER_ADDRESS, default=launchers.MASTER_ADDRESS[0])
    return {
        given: network.master,
        launchers.ENDPOINT: network.rendezvous,
    }


def several_nodes(environment: Environment, network: Network) -> str:
    """The sign that the job runs over several nodes, in words; "" where there is none.

    A launcher's own counts go before a MASTER_ADDR that another job may have left behind.

    Raises:
        NotKnown: only a name that couldn't be resolved might tell.
    """
    counted = launchers.several_nodes(environment)
    if counted is not None:
        return counted
    for setting, resolution in named_hosts(environment, network).items():
        if isinstance(resolution, Resolution) and resolution.addresses and not is_here(resolution, network):
            return f"{setting} names another host, {resolution.name}"
    known(network.master), known(network.rendezvous)
    return ""


def is_here(resolution: Resolution, network: Network) -> bool:
    """Whether any of its addresses is one of this host's."""
    return any(interface_with(address, network.interfaces) for address in resolution.addresses)


def no_family_in_common(resolution: Resolution, network: Network) -> bool:
    """Whether it has addresses of one family (IPv4, IPv6) alone, and this host, link-local ones apart, of the other."""
    own = [as_address(text) for interface in network.interfaces for text in interface.addresses]
    families = {address.version for address in own if not address.is_loopback and not address.is_link_local}
    wanted = {as_address(address).version for address in resolution.addresses}
    return bool(families and wanted) and not wanted & families


def hosts_the_store(network: Network) -> bool:
    """Whether the job's store is to listen on this host: nothing names another one."""
    named = [
        resolution
        for resolution in (network.master, network.rendezvous)
        if isinstance(resolution, Resolution) and resolution.addresses
    ]
    return all(is_here(resolution, network) for resolution in named)


def is_loopback(address: str) -> bool:
    return as_address(address).is_loopback


def means_each_node_itself(master: Resolution, network: Network) -> bool:
    """A loopback address, or a name for it. This host's own name may lead to the loopback here, since the store listens
    on all addresses, and to the right one elsewhere."""
    if not master.addresses or not all(map(is_loopback, master.addresses)):
        return False
    return master.name in OWN_HOST_NAMES or master.name not in (
        network.hostname,
        network.hostname.partition(".")[0],
        network.fqdn,
    )


def way_to_the_others(network: Network) -> str | None:
    """The interface that leads to the other nodes: where they met this one, else towards MASTER_ADDR, else the default
    route's."""
    if network.met_at and (met_on := interface_with(network.met_at, network.interfaces)):
        return met_on
    loopbacks = {interface.name for interface in network.interfaces if interface.loopback}
    to_master, default = network.interface_to_master, network.default_interface
    if isinstance(to_master, str) and to_master not in loopbacks:
        return to_master
    return default if isinstance(default, str) else None


def own_address(network: Network) -> str | None:
    """The address by which the other nodes would reach this one: where they met it, on the way to them, else of the only
    interface that has one for other hosts."""
    if network.met_at:
        return network.met_at
    way = way_to_the_others(network)
    if way:
        return address_of(way, network)
    outer: dict[str, str] = {}
    for interface in network.interfaces:
        for text in interface.addresses:
            if not interface.loopback and not as_address(text).is_link_local:
                outer.setdefault(interface.name, text.partition("/")[0])
    return next(iter(outer.values())) if len(outer) == 1 else None


def address_of(name: str, network: Network) -> str | None:
    """The first address of the interface, without its prefix length."""
    addresses = next((interface.addresses for interface in network.interfaces if interface.name == name), ())
    return addresses[0].partition("/")[0] if addresses else None
