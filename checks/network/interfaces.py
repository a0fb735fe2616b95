"""The network interfaces that NCCL, gloo and TensorPipe will take on this host."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.network import Interface, Network
from ddpdoctor.facts.snapshot import Container, Environment, Nccl, Torch
from ddpdoctor.knowledge.interface_choice import (
    left_out_by_family,
    names_in,
    nccl_choices,
    nccl_ifname_counts,
    parse_nccl_filter,
    version_of,
)
from ddpdoctor.knowledge.job_intent import ONE_NODE, several_nodes, way_to_the_others
from ddpdoctor.knowledge.network_fixes import addresses, intent, setting
from ddpdoctor.knowledge.privileges import by_root, runtime_of

NO_NCCL = "no libnccl on this host"
FAMILY = "NCCL_SOCKET_FAMILY leaves NCCL no interface"

INTERNAL = (
    "docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "cilium", "lxc", "lxdbr", "podman", "kube-", "nodelocaldns",
    "tailscale", "wg", "tun", "tap", "zt", "vmnet", "vboxnet", "l4tbr", "usb", "dummy",
)  # fmt: skip
"""Names of bridges, tunnels and the like, which lead to this host's own containers or through a private network."""


def has_nccl(nccl: Nccl, torch: Maybe[Torch]) -> bool:
    """Whether NCCL will run, or RCCL, which has the same rules; some builds of torch have it inside."""
    inside = isinstance(torch, Torch) and (torch.hip is not None or torch.nccl_available is True)
    return nccl.library is not None or inside


def needs_nccl(nccl: Nccl, torch: Maybe[Torch]) -> None:
    """End the check where no NCCL will run."""
    if nccl.library is None:
        requires(has_nccl(nccl, known(torch)), NO_NCCL)


def _family_is_to_blame(nccl: Nccl, network: Network, environment: Environment) -> bool:
    """Whether NCCL_SOCKET_FAMILY leaves no interface: then ipv6-mismatch speaks."""
    family, ifname = environment.get("NCCL_SOCKET_FAMILY"), environment.get("NCCL_SOCKET_IFNAME")
    return left_out_by_family(network.interfaces, ifname=ifname, family=family, version=version_of(nccl.version))


def named(name: str, network: Network) -> Interface | None:
    """The interface of that name."""
    return next((interface for interface in network.interfaces if interface.name == name), None)


def _leads_out(interface: Interface) -> bool:
    return (
        bool(interface.addresses)
        and interface.up
        and not interface.loopback
        and not interface.name.startswith(INTERNAL)
    )


def _name_it(network: Network, variable: str, wrong: str) -> tuple[Fix, ...]:
    """Fixes for a setting that names no interface: one that looks alike, or the one that leads to the others."""
    there = [interface.name for interface in if_known(lambda: network.interfaces, default=()) if _leads_out(interface)]
    alike = difflib.get_close_matches(wrong, there, n=1)
    way = next(iter(alike), None) or if_known(way_to_the_others, network, default=None)
    equals = "=" if variable == "NCCL_SOCKET_IFNAME" else ""
    by_itself = Fix("Or let the library choose", (f"unset {variable}",), appliable=True)
    if not way:
        return (by_itself,)
    command = f"export {variable}={equals}{shlex.quote(way)}"
    return Fix(f"Name an interface of this host: {listed(there)}", (command,), appliable=True), by_itself


@check("nccl-ifname-not-found", severity=FAIL, owner=Owner.USER)
def nccl_ifname_not_found(
    nccl: Nccl, network: Network, environment: Environment, torch: Maybe[Torch]
) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME matches no interface here.

    ## What breaks
    NCCL fails at the first collective with "Bootstrap : no socket interface found", in some releases with an unrelated
    message about an address family.

    ## Why
    Names differ between hosts (eth0, eno1, enp5s0), and the value came from another one. NCCL reads it as a comma list of
    prefixes; `=` in front makes the names exact, `^` excludes them. Without a carrier or an address none counts.

    ## Fix
    Name an interface of this host; where names differ from node to node, set it for each in /etc/nccl.conf.
    """
    value = environment.get("NCCL_SOCKET_IFNAME")
    requires(nccl_ifname_counts(value), "NCCL_SOCKET_IFNAME isn't set")
    if nccl.answer_status == 0:
        return
    requires(not _family_is_to_blame(nccl, network, environment), FAMILY)
    if nccl_choices(network.interfaces, ifname=value, version=version_of(nccl.version)):
        return
    wanted = parse_nccl_filter(value)
    passed = [interface.name for interface in network.interfaces if wanted.takes(interface.name)]
    why = f"{listed(passed)} has no usable address or no carrier" if passed else "no interface of that name is here"
    last_line = nccl.answer_log.rpartition("\n")[2] if nccl.answer_log else ""
    said = (Evidence(last_line, "ncclGetUniqueId in a subprocess"),) if nccl.answer_log else ()
    yield Finding.of(
        f"NCCL_SOCKET_IFNAME={value} leaves NCCL no interface: {why}",
        setting(environment, "NCCL_SOCKET_IFNAME"),
        addresses(network),
        said,
        _name_it(network, "NCCL_SOCKET_IFNAME", next(iter(wanted.names), "")),
        cause=""
        if has_nccl(nccl, torch)
        else "There is no NCCL here, so it only matters where another job brings one.",
        severity=FAIL if has_nccl(nccl, torch) else INFO,
    )


@check("gloo-ifname-not-found", severity=FAIL, owner=Owner.USER, log=LogTraits(setting="GLOO_SOCKET_IFNAME"))
def gloo_ifname_not_found(network: Network, environment: Environment) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME names an interface that isn't here.

    ## What breaks
    `init_process_group` raises "Unable to find address for: NAME" as soon as gloo is set up, which NCCL jobs do as well
    for barriers and object collectives on the CPU.

    ## Why
    gloo takes a comma list of exact names. NCCL's prefixes, `^` and `=` mean nothing to it, and every name must exist.

    ## Fix
    Give the full name of an interface of this host that has an address.
    """
    value = environment.get("GLOO_SOCKET_IFNAME")
    requires(value, "GLOO_SOCKET_IFNAME isn't set")
    yield from _missing_names(network, environment, "GLOO_SOCKET_IFNAME", list(names_in(value)))


@check("tp-ifname-not-found", severity=FAIL, owner=Owner.USER)
def tp_ifname_not_found(network: Network, environment: Environment) -> Iterator[Finding]:
    """TP_SOCKET_IFNAME names an interface that isn't here.

    ## What breaks
    `torch.distributed.rpc.init_rpc` fails while TensorPipe looks for its address.

    ## Why
    TensorPipe takes one exact name of an interface that has an address.

    ## Fix
    Give the full name of an interface of this host, or unset the variable.
    """
    value = environment.get("TP_SOCKET_IFNAME")
    requires(value, "TP_SOCKET_IFNAME isn't set")
    yield from _missing_names(network, environment, "TP_SOCKET_IFNAME", [value])


def _missing_names(
    network: Network, environment: Environment, variable: str, names: Sequence[str]
) -> Iterator[Finding]:
    there = {interface.name for interface in network.interfaces if interface.addresses}
    missing = [name for name in names if name not in there]
    if not missing:
        return
    first = missing[0]
    if first[0] in "^=" or any(name.startswith(first) for name in there):
        why = "only exact names count here, NCCL's prefixes, ^ and = don't"
    else:
        why = "it has no address" if named(first, network) else "there is no such interface"
    yield Finding.of(
        f"{variable}={environment.get(variable)}: {first} can't be used, {why}",
        setting(environment, variable),
        addresses(network),
        _name_it(network, variable, first.lstrip("^=")),
    )


@check("loopback-ifname", severity=FAIL, owner=Owner.USER)
def loopback_ifname(network: Network, environment: Environment, nccl: Maybe[Nccl]) -> Iterator[Finding]:
    """A setting ties the job to the loopback interface, and the job has several nodes.

    ## What breaks
    Each node tells the others to connect to 127.0.0.1, that is to themselves: "Connection refused", or a hang.

    ## Why
    `NCCL_SOCKET_IFNAME=lo` is a recipe for a single node, copied into a job over several.

    ## Fix
    Unset it, or name the interface that leads to the other nodes.
    """
    nccl_value, gloo_value = environment.get("NCCL_SOCKET_IFNAME"), environment.get("GLOO_SOCKET_IFNAME")
    requires(nccl_value or gloo_value, "neither NCCL_SOCKET_IFNAME nor GLOO_SOCKET_IFNAME is set")
    sign = several_nodes(environment, network)
    requires(sign, ONE_NODE)
    # A setting that is an interface's whole name decides where nobody could ask the library.
    taken: dict[str, Maybe[str | None]] = {
        "NCCL_SOCKET_IFNAME": nccl_value.removeprefix("=") if nccl_ifname_counts(nccl_value) else None,
        "GLOO_SOCKET_IFNAME": gloo_value or None,
    }
    if isinstance(nccl, Nccl):
        taken["NCCL_SOCKET_IFNAME"] = nccl.interface if nccl_ifname_counts(nccl_value) else None
        if isinstance(nccl.gloo_interface, str | None):
            taken["GLOO_SOCKET_IFNAME"] = nccl.gloo_interface if gloo_value else None
    for variable, name in taken.items():
        if isinstance(name, str) and if_known(_is_loopback, name, network, default=name == "lo"):
            yield Finding.of(
                f"{variable}={environment.get(variable)} ties this node to the loopback, and the job has several nodes",
                setting(environment, variable),
                intent(sign),
                _name_it(network, variable, ""),
            )
    known(network)
    if nccl_value or (isinstance(nccl, Unknown) and named(gloo_value, network) is None):
        known(nccl)


def _is_loopback(name: str, network: Network) -> bool:
    interface = named(name, network)
    return interface is not None and interface.loopback


@check("nccl-no-interface", severity=FAIL, owner=Owner.NODE)
def nccl_no_interface(
    nccl: Nccl, network: Network, environment: Environment, torch: Maybe[Torch], container: Maybe[Container]
) -> Iterator[Finding]:
    """There is no network interface that NCCL could use.

    ## What breaks
    NCCL fails with "Bootstrap : no socket interface found", even for ranks on one host. Where only the loopback is there, a
    job over several nodes can't connect.

    ## Why
    A container with `--network=none`, a host without a network, or interfaces without an address or a carrier. Or
    NCCL_COMM_ID, left over or copied, names an address that is in no subnet of this host's.

    ## Fix
    Bring an interface up (`ip link set lo up` is enough for one node), or start the container with `--network=host`.
    """
    needs_nccl(nccl, torch)
    taken = nccl.answer_interface or known(nccl.predicted_interface)
    family, ifname = environment.get("NCCL_SOCKET_FAMILY"), environment.get("NCCL_SOCKET_IFNAME")
    interfaces = if_known(lambda: network.interfaces, default=None)
    by_name = nccl_choices(interfaces or (), ifname=ifname, family=family, version=version_of(nccl.version))
    if taken is None and by_name and "NCCL_COMM_ID" in environment:
        yield _comm_id_elsewhere(network, environment)
        return
    requires(not nccl_ifname_counts(ifname), "NCCL_SOCKET_IFNAME is set")
    requires(not family or not _family_is_to_blame(nccl, network, environment), FAMILY)
    sign = if_known(several_nodes, environment, network, default="")
    on_loopback = bool(taken) and if_known(_is_loopback, taken, network, default=taken == "lo")
    fixes: list[Fix] = []
    if taken is None:
        fixes.append(by_root("For ranks on this host alone the loopback is enough", ("sudo ip link set lo up",)))
        why = "NCCL finds no interface" if interfaces is None else "no interface here has an address and a carrier"
        summary = f"{why}, so NCCL can't start"
    elif on_loopback and sign:
        summary = f"NCCL finds nothing but the loopback ({taken}), and the job has several nodes"
    else:
        known(network)
        if on_loopback:
            several_nodes(environment, network)
        return
    if runtime_of(container):
        text = "Start the container with the host's network: add --network=host --ipc=host to its `docker run`"
        fixes.append(Fix(text))
    yield Finding.of(
        summary,
        nccl.seen("predicted_interface"),
        addresses(network),
        intent(sign) if sign else None,
        Fix("Look which interfaces are down or have no address", ("ip -br address",)),
        fixes,
    )


def _comm_id_elsewhere(network: Network, environment: Environment) -> Finding:
    value = environment.get("NCCL_COMM_ID")
    return Finding.of(
        f"NCCL_COMM_ID={value[:80]} is in no subnet of this host's, so NCCL finds no interface",
        setting(environment, "NCCL_COMM_ID"),
        addresses(network),
        Fix("Unset it: torch tells NCCL the address itself", ("unset NCCL_COMM_ID",), appliable=True),
        cause="With NCCL_COMM_ID, NCCL takes the interface in whose subnet that address is, whatever else is set.",
    )


@check("nccl-prediction-disagrees", severity=INFO, owner=Owner.UNKNOWN)
def nccl_prediction_disagrees(nccl: Nccl) -> Iterator[Finding]:
    """NCCL takes another interface than its documented rules say.

    ## What breaks
    Nothing by itself: NCCL's own answer counts, and the other checks use it. But something here isn't as it seems.

    ## Why
    A configuration file or plugin that ddpdoctor doesn't read, a patched NCCL, or a release with new rules.

    ## Fix
    Set `NCCL_SOCKET_IFNAME` if the answer isn't the interface you want.
    """
    requires(nccl.library is not None, NO_NCCL)
    requires(nccl.answer_interface, "NCCL was not asked, or found no interface")
    predicted = known(nccl.predicted_interface)
    if predicted != nccl.answer_interface:
        yield Finding.of(
            f"libnccl takes {nccl.answer_interface}, its rules say {predicted or 'none'}",
            nccl.seen("answer_interface"),
            nccl.seen("predicted_interface"),
            nccl.seen("library"),
            Fix("See what NCCL reads and says", ("cat /etc/nccl.conf ~/.nccl.conf; env | grep NCCL_",)),
            Fix(
                f"To be sure of {nccl.answer_interface}, name it",
                (f"export NCCL_SOCKET_IFNAME=={shlex.quote(nccl.answer_interface or '')}",),
            ),
        )
