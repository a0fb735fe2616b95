"""Illnesses of the network that only NCCL's and gloo's words show."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word

CLOSED = "NET/IB : Unable to open device"


@log_check("container-network-isolated", severity=FAIL, owner=Owner.USER)
def container_network_isolated(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The ranks run in containers on docker's own network, which other hosts can't dial.

    ## What breaks
    The rendezvous passes, since its port is published. Then gloo or NCCL dials an address like 172.17.0.2: "No route to host",
    "Connection refused", or a hang.

    ## Why
    Each docker host has a network 172.17.0.0/16 of its own. gloo and NCCL offer the address that they see inside, and listen
    on ports that the kernel picks: publishing ports with `-p` doesn't help.

    ## Fix
    `docker run --network=host --ipc=host ...` on every node; on Kubernetes `hostNetwork: true`, or a network plugin that
    routes between pods.
    """
    address = word(seen, "address") or word(seen, "last")
    return Finding.of(
        f"A rank dials {address}, an address of docker's own network, which other hosts can't reach"
        if address
        else "NCCL offers an address of docker's own network, which other hosts can't reach",
        Fix(
            "Start the containers of all nodes in the host's network",
            ("docker run --network=host --ipc=host --gpus all IMAGE torchrun ...",),
        ),
        Fix(
            "Then test the way between the nodes, in the containers, on all of them at the same time",
            ("ddpdoctor netcheck --master-addr HOST",),
        ),
    )


NO_PLUGIN = "Failed to initialize any NET plugin"
NO_IB = "Error: network IB not found"
NO_OFI = "Error: network AWS Libfabric not found"
NOT_TO_BE_HAD = (NO_PLUGIN, NO_IB, NO_OFI)
"""NCCL's words where NCCL_NET asks for a network, so that it may not take another one."""


@log_check("ib-device-missing-in-container", severity=WARN, owner=Owner.USER)
def ib_device_missing_in_container(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL can't use the InfiniBand or RoCE device from inside the container.

    ## What breaks
    The first collective between nodes fails with "Call to ibv_modify_qp failed with error No such device", or NCCL finds no
    device at all: then it goes over TCP, many times slower, or stops where NCCL_NET=IB asks for one.

    ## Why
    The container was started without /dev/infiniband, or without the host's network: the addresses (GIDs) of RoCE belong to
    interfaces that a container's own network doesn't have. The memory lock limit and CAP_IPC_LOCK matter, too.

    ## Fix
    `docker run --network=host --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ...`. Until then
    `NCCL_IB_DISABLE=1` goes over TCP, slower.
    """
    closed = word(seen, "device")
    return Finding.of(
        f"NCCL sees {closed} and may not open it: this container lacks /dev/infiniband; it goes without, over TCP"
        if closed and all(match.sign == CLOSED for match in seen)
        else "NCCL can't use the InfiniBand or RoCE device: in a container it lacks /dev/infiniband or the host's network",
        Fix(
            "Give the container the devices, the host's network and locked memory",
            (
                "docker run --network=host --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 --ipc=host"
                " --gpus all IMAGE torchrun ...",
            ),
        ),
        Fix("See in the container which devices there are", ("ls /dev/infiniband /sys/class/infiniband",)),
        Fix(
            "Until then go over TCP, slower",
            ("unset NCCL_NET", "export NCCL_IB_DISABLE=1")
            if any(match.sign in NOT_TO_BE_HAD for match in seen)
            else ("export NCCL_IB_DISABLE=1",),
        ),
        severity=WARN if all(match.sign == CLOSED for match in seen) else FAIL,
    )


REFUSED = ("Got completion from peer", "Call to ibv_reg_")


@log_check("gdr-disabled", severity=WARN, owner=Owner.NODE)
def gdr_disabled(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The network card can't write into the GPU's memory: GPU Direct RDMA is off.

    ## What breaks
    Nothing fails. What goes between nodes is copied through the host's memory, which can be several times slower.

    ## Why
    The module nvidia_peermem isn't loaded (DMA-BUF, which NCCL takes with the open kernel modules, does as well), it was
    loaded before the RDMA drivers, or a virtual machine doesn't let the devices talk to each other. NCCL up to 2.22.3 doesn't
    recognise some releases of the module.

    ## Fix
    As root `modprobe nvidia-peermem`, and for the next boot `echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf`.
    """
    if all(match.sign in REFUSED for match in seen):
        return Finding.of(
            "A network card was refused access to memory: GPU Direct RDMA may be broken, or an IOMMU in between",
            Fix("See whether it goes without GPU Direct RDMA, through the host", ("export NCCL_NET_GDR_LEVEL=LOC",)),
            Fix(
                "If so, look for the kernel's way into the GPU's memory",
                ("grep -E 'nvidia_peermem|nv_peer_mem' /proc/modules",),
            ),
        )
    device = word(seen, "device")
    # Of what a rank says several times only the first is known; with NCCL_DEBUG=INFO it says it of each card.
    more = any(match.times > 1 for match in seen)
    cards = f"{device}, the first card that the log names" if more and device else device or "the network cards"
    return Finding.of(
        f"GPU Direct RDMA is off for {cards}: traffic between nodes is copied through the host",
        Fix(
            "Load the module that lets the card into the GPU's memory, as root on every node",
            ("modprobe nvidia-peermem", "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf"),
        ),
        Fix("See whether it is there", ("grep -E 'nvidia_peermem|nv_peer_mem' /proc/modules",)),
    )


@log_check("efa-plugin-misconfigured", severity=WARN, owner=Owner.USER)
def efa_plugin_misconfigured(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL's plugin for AWS finds no EFA device.

    ## What breaks
    NCCL goes over plain TCP sockets, many times slower between nodes, or ends with "unhandled system error".

    ## Why
    The instance has no EFA interface or its security group doesn't let it talk to itself, the container was started without
    the devices, or aws-ofi-nccl doesn't fit the NCCL and the libfabric beside it.

    ## Fix
    Start the container with all `/dev/infiniband/uverbs*` devices and the host's network, install the current EFA installer
    (which brings aws-ofi-nccl), and set `FI_PROVIDER=efa`. Instances without EFA work without the plugin: `NCCL_NET=Socket`.
    """
    failing = word(seen, "object") or ("send or receive" if word(seen, "completion") else "")
    if failing:
        return _plugin_fails(log, seen, failing)
    provider = word(seen, "provider")
    refused = all(match.sign in NOT_TO_BE_HAD for match in seen)
    return Finding.of(
        "NCCL_NET asks for the network of aws-ofi-nccl, and NCCL finds no such plugin, or it can't start"
        if refused
        else f"aws-ofi-nccl finds no EFA device{f' and takes {provider}' if provider else ''}: NCCL goes over plain sockets",
        Fix("See on the host and in the container whether EFA is there", ("fi_info -p efa", "ls /dev/infiniband")),
        Fix(
            "Give the container the devices and the host's network",
            ("docker run --network=host --device=/dev/infiniband --ulimit memlock=-1 --gpus all IMAGE torchrun ...",),
        ),
        Fix("On an instance without EFA do without the plugin", ("export NCCL_NET=Socket",)),
        severity=FAIL if refused else WARN,
    )


def _plugin_fails(log: Log, seen: Sequence[SignMatch], what: str) -> Finding:
    started = what == "send or receive"
    first = Fix("See whether another rank ended first: then this only followed; its own log says why")
    return Finding.of(
        f"aws-ofi-nccl could not {what}: libfabric refused it{', or the peer was gone' if started else ''}",
        first if started else None,
        Fix(
            "See that EFA is there, and let its security group allow all traffic to and from itself",
            ("fi_info -p efa",),
        ),
        Fix(
            "Install the current EFA installer, whose libfabric and aws-ofi-nccl fit each other, and name the provider",
            ("export FI_PROVIDER=efa",),
        ),
        Fix("To see whether it is the plugin, go without it for once", ("export NCCL_NET=Socket",)),
        severity=FAIL,
    )
