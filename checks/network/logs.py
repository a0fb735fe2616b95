"""What NCCL's and gloo's words on the network show, and no host's facts can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix
from ddpdoctor.engine.registry import LogSign, SignRole, check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.nccl_connecting import TO_THE_LAST
from ddpdoctor.logs.analyze.false_positives import CLOSED, INVALID_USAGE, USES_IB
from ddpdoctor.logs.analyze.sightings import lines, sightings, word

NCCL = "NCCL 2.14 (in torch 1.13.1), 2.20.5, 2.27.5 and 2.32.3"
CONTAINERS = r"(?P<address>172\.17\.0\.(?!1\b)\d+)"
OFI = "aws-ofi-nccl: issues 174 and 889, with whole logs"


@check(
    "container-network-isolated",
    severity=FAIL,
    log_signs=(
        LogSign(
            "onnect to 172.17.0.",
            why="NCCL was offered an address of docker's own network, which no other host can dial",
            pattern=rf"onnect to {CONTAINERS}<\d+> (?:failed|returned){TO_THE_LAST}",
            source=f"{NCCL}: misc/socket.cc",
        ),
        LogSign(
            "remote=[172.17.0.",
            why="gloo was offered an address of docker's own network, which no other host can dial",
            pattern=rf"error=.*remote=\[{CONTAINERS}\]|timed out connecting: .*remote=\[{CONTAINERS.replace('address', 'last')}\]",
            source="made to happen with torch 2.13.0",
        ),
        LogSign(
            "connect [172.17.0.",
            why="the words of older releases of gloo",
            pattern=rf"connect \[{CONTAINERS}\]:\d+: (?:Connection refused|No route to host|Connection timed out)",
            source="torch 1.13.1: third_party/gloo/gloo/transport/tcp/pair.cc",
        ),
        *(
            LogSign(
                words,
                role=SignRole.HINTS,
                why="NCCL takes an eth0 in docker's own network, which no other host can dial: ranks in one container don't mind, and may lose a peer",
                pattern=pattern,
                near="eth0:172.17.0.",
                source=source,
            )
            for words, pattern, source in (
                (
                    "NCCL WARN Call to connect",
                    r"Call to connect (?:timeout|failed) : (?:Connection timed out|No route to host)",
                    "NCCL 2.3 and 2.4: include/socket.h",
                ),
                ("Connect: exceeded retries (", "", "NCCL 2.20.5: misc/socket.cc"),
            )
        ),
    ),
)
def container_network_isolated(log: Log) -> Iterator[Finding]:
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
    seen = sightings(log, "container-network-isolated")
    if not seen:
        return
    address = word(seen, "address") or word(seen, "last")
    yield Finding(
        summary=f"A rank dials {address}, an address of docker's own network, which other hosts can't reach"
        if address
        else "NCCL offers an address of docker's own network, which other hosts can't reach",
        evidence=lines(log, seen),
        fixes=(
            Fix(
                "Start the containers of all nodes in the host's network",
                ("docker run --network=host --ipc=host --gpus all IMAGE torchrun ...",),
            ),
            Fix(
                "Then test the way between the nodes, in the containers, on all of them at the same time",
                ("ddpdoctor netcheck --master-addr HOST",),
            ),
        ),
    )


NO_PLUGIN = "Failed to initialize any NET plugin"
NO_IB = "Error: network IB not found"
NO_OFI = "Error: network AWS Libfabric not found"
NOT_TO_BE_HAD = (NO_PLUGIN, NO_IB, NO_OFI)
"""NCCL's words where NCCL_NET asks for a network, so that it may not take another one."""


@check(
    "ib-device-missing-in-container",
    severity=WARN,
    log_signs=(
        LogSign(
            "Call to ibv_modify_qp failed with",
            why="the RoCE address belongs to an interface of the host's, which the container's network hasn't got",
            pattern=r"ibv_modify_qp failed with (?:error|\d+) No such device",
            fatal=True,
            source=f"{NCCL}: ibvwrap.cc; NVIDIA/nccl issues 799 and 925",
        ),
        LogSign(
            NO_IB,
            fatal=True,
            why="NCCL_NET=IB asks for InfiniBand, and NCCL sees no device",
            source="NCCL 2.20.5: init.cc",
        ),
        LogSign(
            NO_PLUGIN,
            near="NCCL_NET set by environment to IB",
            fatal=True,
            why="NCCL_NET=IB asks for InfiniBand, and NCCL sees no device",
            source="NCCL 2.27, as reported in public",
        ),
        LogSign(
            NO_PLUGIN,
            role=SignRole.HINTS,
            why="the network that NCCL_NET asks for is not to be had: InfiniBand, or one of a plugin",
            fatal=True,
            source="NCCL 2.27, as reported in public",
        ),
        LogSign(
            INVALID_USAGE,
            role=SignRole.HINTS,
            near="NCCL_NET set by environment to IB",
            why="NCCL refuses so where it sees no device, and NCCL_NET=IB asks for one; two ranks on one GPU are refused so, too",
            fatal=True,
            source="torch 1.13.1: torch/csrc/distributed/c10d/NCCLUtils.hpp; NCCL 2.20.5: init.cc",
        ),
        LogSign(
            CLOSED,
            why="the host's devices are to be seen, and may not be opened: /dev/infiniband is missing here; NCCL goes on without them",
            pattern=r"NET/IB : Unable to open device (?P<device>\w+)",
            source=f"{NCCL}: net_ib",
        ),
        LogSign(
            USES_IB,
            refutes=(CLOSED, INVALID_USAGE),
            why="NCCL goes over InfiniBand: a device that it may not open is one of several, and the container has /dev/infiniband",
            role=SignRole.NOISE,
            source=f"{NCCL}: init.cc or net.cc",
        ),
        LogSign(
            "NCCL WARN Call to ibv_open_device failed",
            why="the next line names the device, which NCCL passes over",
            role=SignRole.NOISE,
            source=f"{NCCL}: ibvwrap.cc",
        ),
        LogSign(
            "NET/IB : No device found",
            why="hosts without InfiniBand say so, too, and go over TCP",
            role=SignRole.NOISE,
            source=f"{NCCL}: net_ib",
        ),
        LogSign(
            "Failed to open libibverbs.so",
            why="hosts without InfiniBand say so, too, and go over TCP",
            role=SignRole.NOISE,
            source="NCCL 2.20.5 and 2.27.5: ibvsymbols.cc",
        ),
    ),
)
def ib_device_missing_in_container(log: Log) -> Iterator[Finding]:
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
    seen = [
        sighting for sighting in sightings(log, "ib-device-missing-in-container") if sighting.role is not SignRole.NOISE
    ]
    if not seen:
        return
    closed = word(seen, "device")
    yield Finding(
        summary=f"NCCL sees {closed} and may not open it: this container lacks /dev/infiniband; it goes without, over TCP"
        if closed and all(one.sign == CLOSED for one in seen)
        else "NCCL can't use the InfiniBand or RoCE device: in a container it lacks /dev/infiniband or the host's network",
        severity=WARN if all(one.sign == CLOSED for one in seen) else FAIL,
        evidence=lines(log, seen),
        fixes=(
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
                if any(one.sign in NOT_TO_BE_HAD for one in seen)
                else ("export NCCL_IB_DISABLE=1",),
            ),
        ),
    )


REFUSED = "Got completion from peer"


@check(
    "gdr-disabled",
    severity=WARN,
    log_signs=(
        LogSign(
            "GPU Direct RDMA Disabled for HCA",
            why="NCCL looked for the kernel's way from the network card into the GPU's memory, and there is none",
            pattern=r"NET/IB : GPU Direct RDMA Disabled for HCA \d+ '(?P<device>[^']+)'",
            source="NCCL 2.20.5, 2.27.5 and 2.32.3: transport/net.cc or graph/paths.cc",
        ),
        LogSign(
            REFUSED,
            why="4 is IBV_WC_LOC_PROT_ERR: the card may not go into that memory; a GPU's, where the way into it is broken",
            role=SignRole.HINTS,
            pattern=r"with (?:error |status=)(?:\w+\()?4\b",
            source="NCCL 2.14 (in torch 1.13.1), 2.20.5, 2.27.5 and 2.32.3: net_ib, with the numbers of libibverbs",
        ),
        LogSign(
            "GPU Direct RDMA Disabled for GPU",
            why="said of a pair that is too far apart: each GPU may have a nearer network card",
            role=SignRole.NOISE,
            source="NCCL 2.14 (in torch 1.13.1), 2.20.5 and 2.27.5: graph/paths.cc",
        ),
    ),
)
def gdr_disabled(log: Log) -> Iterator[Finding]:
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
    seen = [sighting for sighting in sightings(log, "gdr-disabled") if sighting.role is not SignRole.NOISE]
    if not seen:
        return
    if all(one.sign == REFUSED for one in seen):
        yield Finding(
            summary="A network card was refused access to memory: GPU Direct RDMA may be broken, or an IOMMU in between",
            evidence=lines(log, seen),
            fixes=(
                Fix(
                    "See whether it goes without GPU Direct RDMA, through the host", ("export NCCL_NET_GDR_LEVEL=LOC",)
                ),
                Fix(
                    "If so, look for the kernel's way into the GPU's memory",
                    ("grep -E 'nvidia_peermem|nv_peer_mem' /proc/modules",),
                ),
            ),
        )
        return
    device = word(seen, "device")
    # Of what a rank says several times only the first is known; with NCCL_DEBUG=INFO it says it of each card.
    more = any(one.times > 1 for one in seen)
    cards = f"{device}, the first card that the log names" if more and device else device or "the network cards"
    yield Finding(
        summary=f"GPU Direct RDMA is off for {cards}: traffic between nodes is copied through the host",
        evidence=lines(log, seen),
        fixes=(
            Fix(
                "Load the module that lets the card into the GPU's memory, as root on every node",
                ("modprobe nvidia-peermem", "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf"),
            ),
            Fix("See whether it is there", ("grep -E 'nvidia_peermem|nv_peer_mem' /proc/modules",)),
        ),
    )


@check(
    "efa-plugin-misconfigured",
    severity=WARN,
    log_signs=(
        LogSign("NET/OFI Only EFA provider is supported", why="the plugin found another network than EFA", source=OFI),
        LogSign(
            NO_OFI,
            why="NCCL_NET asks for the plugin's network by its name, and NCCL found no plugin that brings it, or it gave up",
            fatal=True,
            source="NCCL 2.20.5: init.cc, which puts the setting there; as reported in public",
        ),
        LogSign(
            NO_PLUGIN,
            near="NCCL_NET set by environment to AWS Libfabric",
            why="NCCL_NET asks for the plugin's network by its name, and NCCL found no plugin that brings it, or it gave up",
            fatal=True,
            source="NCCL 2.27, as reported in public",
        ),
        LogSign(
            NO_PLUGIN,
            role=SignRole.HINTS,
            why="the network that NCCL_NET asks for is not to be had: InfiniBand, or one of a plugin",
            fatal=True,
            source="NCCL 2.27, as reported in public",
        ),
        LogSign(
            "NET/OFI aws-ofi-nccl initialization failed",
            why="the plugin gave up, and NCCL goes over plain sockets",
            source=OFI,
        ),
        LogSign(
            "NET/OFI Selected Provider is",
            why="the plugin took another network than EFA, which it says of itself as `efa`",
            pattern=r"NET/OFI Selected Provider is (?!efa\b)(?P<provider>\w+)",
            source="aws-ofi-nccl: issue 803; NVIDIA/nccl issue 1597 for the healthy form",
        ),
        LogSign(
            "NET/OFI Could not find any optimal provider",
            why="the same in the plugin's first releases, which then left NCCL to plain sockets",
            source="aws-ofi-nccl 1.x: nccl_ofi_net.c, as reported in public",
        ),
        LogSign(
            "NET/OFI Couldn't find any optimal provider",
            why="the same in other releases",
            pattern=r"provider\s*$",
            source="aws-ofi-nccl 1.x: nccl_ofi_net.c, as reported in public",
        ),
        LogSign(
            "NET/OFI OFI fi_getinfo() call failed: No data available",
            why="libfabric has no provider that is what the plugin wants: no EFA device is seen",
            source="aws-ofi-nccl 1.x: nccl_ofi_ofiutils.c, as reported in public",
        ),
        LogSign(
            "NET/OFI Couldn't ",
            why="the plugin can't set up libfabric's objects on a network that it has found: the provider doesn't fit it",
            pattern=r"NET/OFI Couldn't (?P<object>open (?:a fabric (?:access domain|provider)|AV|CQ|EQ|domain|fabric)|allocate endpoint|enable endpoint)\. RC: -\d+",
            fatal=True,
            source="aws-ofi-nccl 1.x: src/nccl_ofi_net.c, nccl_ofi_ofiutils.c",
        ),
        LogSign(
            "NET/OFI Request completed with error. RC: ",
            role=SignRole.EFFECT,
            why="a transfer failed: a peer that can't be reached (its security group), a fault of the provider, or a rank that ended",
            pattern=r"NET/OFI Request completed with error\. RC: (?P<completion>\d+)",
            source="aws-ofi-nccl: src/nccl_ofi_rdma.cpp, nccl_ofi_cq",
        ),
        LogSign(
            "fi_getinfo: provider efa output empty list",
            why="libfabric sees no EFA device",
            source=OFI,
        ),
    ),
)
def efa_plugin_misconfigured(log: Log) -> Iterator[Finding]:
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
    seen = sightings(log, "efa-plugin-misconfigured")
    if not seen:
        return
    failing = word(seen, "object") or ("send or receive" if word(seen, "completion") else "")
    if failing:
        yield _plugin_fails(log, seen, failing)
        return
    provider = word(seen, "provider")
    refused = all(one.sign in NOT_TO_BE_HAD for one in seen)
    yield Finding(
        summary="NCCL_NET asks for the network of aws-ofi-nccl, and NCCL finds no such plugin, or it can't start"
        if refused
        else f"aws-ofi-nccl finds no EFA device{f' and takes {provider}' if provider else ''}: NCCL goes over plain sockets",
        severity=FAIL if refused else WARN,
        evidence=lines(log, seen),
        fixes=(
            Fix("See on the host and in the container whether EFA is there", ("fi_info -p efa", "ls /dev/infiniband")),
            Fix(
                "Give the container the devices and the host's network",
                (
                    "docker run --network=host --device=/dev/infiniband --ulimit memlock=-1 --gpus all IMAGE torchrun ...",
                ),
            ),
            Fix("On an instance without EFA do without the plugin", ("export NCCL_NET=Socket",)),
        ),
    )


def _plugin_fails(log: Log, seen: Sequence[SignMatch], what: str) -> Finding:
    started = what == "send or receive"
    return Finding(
        summary=f"aws-ofi-nccl could not {what}: libfabric refused it{', or the peer was gone' if started else ''}",
        severity=FAIL,
        evidence=lines(log, seen),
        fixes=(
            *(
                (Fix("See whether another rank ended first: then this only followed; its own log says why"),)
                if started
                else ()
            ),
            Fix(
                "See that EFA is there, and let its security group allow all traffic to and from itself",
                ("fi_info -p efa",),
            ),
            Fix(
                "Install the current EFA installer, whose libfabric and aws-ofi-nccl fit each other, and name the provider",
                ("export FI_PROVIDER=efa",),
            ),
            Fix("To see whether it is the plugin, go without it for once", ("export NCCL_NET=Socket",)),
        ),
    )
