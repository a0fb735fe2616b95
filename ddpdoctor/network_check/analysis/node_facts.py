"""Facts that each node brings to the fleet: those of its host that `netcheck` needs, and the `Node` that they come to. Pure."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.base.text import dotted
from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown, known_or
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.fleet import Node
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.network import Interface, Network
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.interface_choice import as_address, interface_with
from ddpdoctor.knowledge.settings_agreement import concerns_other_nodes
from ddpdoctor.knowledge.wheels import tag_cuda

CHECK_FAMILIES: Final = ("network", "join", "compare", "reach", "links", "collective")
"""The families of checks that `netcheck` judges by."""

FACT_GROUPS: Final = (
    "target_python",
    "torch",
    "packages",
    "driver",
    "gpus",
    "container",
    "environment",
    "network",
    "nccl",
    "firewall",
    "rdma",
)
"""The groups of facts that a node sends. Its context is a quick one, so that torch is read from its files alone."""

MAX_SETTINGS: Final = 200
"""So many settings of one node are looked at: nobody sets more of those that concern other nodes."""

NCCL_PACKAGES: Final = re.compile(r"nvidia-nccl-cu\d+")
NETWORK_UNKNOWN: Final = (32768, 60999)


def node_of(
    snapshot: Snapshot, *, rank: int, host: str, address: str, offset: float, error: float, lost: str = ""
) -> Node:
    """The node as the fleet sees it.

    address: its own end of the connection to the hub.
    offset, error: seconds that its clock is ahead of node 0's, and how exactly that is known.
    lost: when and how it went away, "" while it is there.
    """
    network = snapshot.network if isinstance(snapshot.network, Network) else None
    nccl = snapshot.nccl if isinstance(snapshot.nccl, Nccl) else None
    interface = _holding(address, network) if network else None
    port_range = network.ephemeral_range if network else NETWORK_UNKNOWN
    return Node(
        rank=rank,
        host=host,
        address=address,
        interface=interface.name if interface else "",
        mtu=interface.mtu if interface else 0,
        speed=interface.speed if interface else -1,
        virtual=interface.virtual if interface else False,
        qdisc=interface.qdisc if interface else "",
        port_range=NETWORK_UNKNOWN if isinstance(port_range, Unknown) else port_range,
        nccl_interface=nccl.interface if nccl else None,
        nccl_address=(nccl.answer_address or nccl.predicted_address) if nccl else None,
        gloo_address=known_or(nccl.gloo_address, None) if nccl else None,
        families=_families(network) if network else "",
        ddpdoctor=snapshot.tool_version,
        python=_python(snapshot.target_python),
        torch=_torch(snapshot.torch, snapshot.packages),
        nccl=_nccl(snapshot.nccl, snapshot.packages, snapshot.target_python),
        cuda=_cuda(snapshot.torch, snapshot.packages),
        driver=snapshot.driver if isinstance(snapshot.driver, Unknown) else snapshot.driver.version,
        settings=_settings(snapshot.environment),
        clock_offset=offset,
        clock_error=error,
        lost=lost,
    )


def _holding(address: str, network: Network) -> Interface | None:
    try:
        name = interface_with(address, network.interfaces)
    except NotKnown:
        return None
    return next((interface for interface in network.interfaces if interface.name == name), None)


def _families(network: Network) -> str:
    """ "4", "6" or "46"; "" where this host has no address but loopback and link-local ones."""
    found = set()
    for interface in network.interfaces:
        for text in interface.addresses:
            try:
                address = as_address(text)
            except NotKnown:
                continue
            if not address.is_loopback and not address.is_link_local:
                found.add(address.version)
    return "".join(str(version) for version in sorted(found))


def _python(target_python: Maybe[TargetPython]) -> Maybe[str | None]:
    if isinstance(target_python, Unknown):
        return target_python
    return target_python.version or Unknown(
        f"the target Python can't be asked: {target_python.detail or target_python.state}"
    )


def _torch(torch: Maybe[Torch], packages: Maybe[Packages]) -> Maybe[str | None]:
    """torch's version with its local part, "2.13.0+cu130": of its own files, else of its package's metadata."""
    if isinstance(torch, Torch):
        if torch.version:
            return torch.version
        if not torch.installed:
            return None
    if isinstance(packages, Packages) and (version := packages.version("torch")):
        return version
    return torch if isinstance(torch, Unknown) else Unknown("this torch doesn't tell its version")


def _nccl(nccl: Maybe[Nccl], packages: Maybe[Packages], target_python: Maybe[TargetPython]) -> Maybe[str | None]:
    """The library's own word, else its package's version. Where the target Python can't say in which folders it looks, a libnccl
    that was found elsewhere, or none, says nothing about the one that it would load."""
    if isinstance(packages, Unknown) and (isinstance(target_python, Unknown) or target_python.state != "ok"):
        return packages
    if isinstance(nccl, Nccl) and isinstance(nccl.version, str):
        return nccl.version
    if isinstance(packages, Packages):
        for package in packages.installed:
            if NCCL_PACKAGES.fullmatch(package.name):
                return package.version
    return nccl if isinstance(nccl, Unknown) else nccl.version


def _cuda(torch: Maybe[Torch], packages: Maybe[Packages]) -> Maybe[str | None]:
    """The CUDA that torch was built for; None: for none, or there is no torch."""
    if isinstance(torch, Torch) and (torch.version or not torch.installed):
        return torch.cuda
    version = _torch(torch, packages)
    if not isinstance(version, str):
        return version
    cuda = tag_cuda(version.partition("+")[2])
    return dotted(cuda) if cuda else None


def _settings(environment: Maybe[Environment]) -> tuple[Setting, ...]:
    if isinstance(environment, Unknown):
        return ()
    found = [setting for setting in environment.effective if concerns_other_nodes(setting.name)]
    return tuple(sorted(found, key=lambda setting: setting.name)[:MAX_SETTINGS])
