"""Settings that a job's nodes must agree on, and what comes of it where they don't. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.fleet import Node
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.knowledge.version_agreement import to_agree_on


def concerns_other_nodes(name: str) -> bool:
    """Whether the value on one node matters to the others: it is to be equal, or has to be right on each."""
    known = known_settings().get(name)
    return known is not None and known.across != ""


def must_agree(name: str) -> bool:
    """Whether all nodes should have the same value."""
    known = known_settings().get(name)
    return known is not None and known.across == "equal"


_ALGORITHM = "each rank picks algorithm and protocol by itself: those that pick another one hang, or mix up their data"
_CHANNELS = "each rank makes as many channels as it was told, and waits on those that its peers don't have"
_BUFFERS = "sender and receiver cut their data into pieces by their own sizes"
_TRANSPORT = "this node speaks another transport than its peers, so that no connection forms"
_PAIRS = "both ends of a connection count its queue pairs by their own setting"
_LAZY = "ranks exchange their addresses in another way: init hangs on both sides"

PROTOCOL: dict[str, str] = {
    # src/graph/tuning.cc: ncclTopoTuneModel reads them on each rank, after the last exchange.
    "NCCL_ALGO": _ALGORITHM,
    "NCCL_PROTO": _ALGORITHM,
    "NCCL_TUNER_PLUGIN": _ALGORITHM,
    "NCCL_TUNER_CONFIG_FILE": _ALGORITHM,
    "NCCL_NTHREADS": _ALGORITHM,
    # src/graph/connect.cc: ncclTopoPostset applies them on each rank, after the graphs were exchanged.
    "NCCL_MIN_NCHANNELS": _CHANNELS,
    "NCCL_MAX_NCHANNELS": _CHANNELS,
    "NCCL_MIN_NRINGS": _CHANNELS,
    "NCCL_MAX_NRINGS": _CHANNELS,
    "NCCL_MIN_CTAS": _CHANNELS,
    "NCCL_MAX_CTAS": _CHANNELS,
    # src/init.cc: computeBuffSizes, from the setting alone.
    "NCCL_BUFFSIZE": _BUFFERS,
    "NCCL_LL_BUFFSIZE": _BUFFERS,
    "NCCL_LL128_BUFFSIZE": _BUFFERS,
    "NCCL_P2P_NET_CHUNKSIZE": _BUFFERS,
    # src/plugin/net.cc: each rank takes the first network module that works and is allowed.
    "NCCL_NET": _TRANSPORT,
    "NCCL_NET_PLUGIN": _TRANSPORT,
    "NCCL_IB_DISABLE": _TRANSPORT,
    "FI_PROVIDER": _TRANSPORT,
    "NCCL_SOCKET_FAMILY": "this node takes addresses of another family than its peers, and they can't connect",
    "NCCL_IB_ADDR_FAMILY": "this node takes RoCE addresses of another family than its peers",
    "NCCL_IB_ROCE_VERSION_NUM": "this node speaks another version of RoCE than its peers",
    # src/transport/net_ib: localNqps and remoteNqps are both counted with the own parameter.
    "NCCL_IB_QPS_PER_CONNECTION": _PAIRS,
    "NCCL_IB_SPLIT_DATA_ON_QPS": _PAIRS,
    # src/misc/socket.cc and src/bootstrap.cc.
    "NCCL_SOCKET_MAGIC": "a connection that opens with another number is dropped without a word",
    "NCCL_OOB_NET_ENABLE": "this node sets up its ring over another network than its peers",
    "NCCL_COMM_ID": "this node goes to another meeting place than its peers",
    # src/init.cc: the collNet and NVLS graphs are agreed on, but not that one side has none at all.
    "NCCL_COLLNET_ENABLE": "this node and its peers don't agree whether the switches reduce",
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
    "TORCH_NCCL_RANKS_PER_ROOT": "ranks wait for roots of NCCL that the others don't set up",
    "TORCH_NCCL_BCAST_UNIQUEID": "ranks that don't take NCCL's id from the store have none",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "ranks take part in NCCL's start in two different ways",
    "TORCH_DIST_USE_NCCL2": "ranks use two different backends of NCCL",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "ranks use two different backends",
    # Tried with torch 2.13, one rank with and one without: each of them hangs or fails, whichever rank has it.
    "TORCH_DISTRIBUTED_DEBUG": "with DETAIL, ranks hold a second meeting to which the others don't come: init times out",
    "TORCH_DIST_INIT_BARRIER": "ranks that have it wait at a barrier to which the others don't come: init times out",
    "TORCH_GLOO_LAZY_INIT": _LAZY,
    "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": _LAZY,
    "GLOO_DEVICE_TRANSPORT": _TRANSPORT,
}
"""Settings by which ranks that differ don't understand each other, and why; files are those of NCCL 2.30.7."""

_DEFAULTS = {
    "NCCL_IB_DISABLE": "0",
    "NCCL_OOB_NET_ENABLE": "0",
    "NCCL_IB_QPS_PER_CONNECTION": "1",
    "NCCL_IB_SPLIT_DATA_ON_QPS": "0",
    "NCCL_IB_MERGE_NICS": "1",
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_RUNTIME_CONNECT": "1",
    "NCCL_PXN_DISABLE": "0",
    "NCCL_CROSS_NIC": "2",
    "NCCL_NVLS_ENABLE": "2",
    "NCCL_RAS_ENABLE": "1",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_BCAST_UNIQUEID": "1",
    "TORCH_DIST_INIT_BARRIER": "0",
    "TORCH_DIST_USE_NCCL2": "0",
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "0",
    "TORCH_GLOO_LAZY_INIT": "0",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    "GLOO_DEVICE_TRANSPORT": "TCP",
}
"""What a reader takes where the variable isn't set: to set it to that changes nothing."""

_BOOLEANS = {"y": "1", "yes": "1", "t": "1", "true": "1", "n": "0", "no": "0", "f": "0", "false": "0"}


def meaning(name: str, value: str | None) -> str:
    """The value as its reader takes it, so that "ring" and "Ring", or no setting and the default, are the same."""
    text = (value or "").strip() or _DEFAULTS.get(name, "")
    if name == "TORCH_DISTRIBUTED_DEBUG":
        # INFO only writes more into the log.
        return "DETAIL" if text.upper() == "DETAIL" else "OFF"
    known = known_settings().get(name)
    kind = known.kind if known else ""
    if kind == "torch-bool":
        return _BOOLEANS.get(text.lower(), text)
    if kind in ("nccl-int", "torch-int"):
        try:
            return str(int(text, 0))
        except ValueError:
            return text
    return text.lower() if kind in ("word", "words") else text


class Deviation(msgspec.Struct, frozen=True):
    """A setting of one node that isn't as the others'. `own` None: this node doesn't set it; `wanted` None: the others don't."""

    name: str
    own: Setting | None
    wanted: str | None

    @property
    def fatal(self) -> str:
        """Why ranks that differ in it don't understand each other; "" where they do."""
        return PROTOCOL.get(self.name, "")

    @property
    def of_nccl(self) -> bool:
        """Whether only NCCL reads it."""
        return known_settings()[self.name].reader == "NCCL"

    @property
    def hits_gloo(self) -> bool:
        """Whether ranks that use gloo alone read it."""
        return "NCCL" not in self.name and self.name != "FI_PROVIDER"

    @property
    def hits_nccl(self) -> bool:
        """Whether ranks that use NCCL alone read it."""
        return "GLOO" not in self.name

    @property
    def of_infiniband(self) -> bool:
        """Whether NCCL reads it only where it has an InfiniBand or RoCE device."""
        return self.name.startswith("NCCL_IB_")


def deviations(own: Sequence[Setting], pattern: Sequence[Setting]) -> list[Deviation]:
    """In which settings that should be equal a node differs from the pattern, by name."""
    mine, theirs = (
        {setting.name: setting for setting in settings if must_agree(setting.name)} for settings in (own, pattern)
    )
    found = []
    for name in sorted({*mine, *theirs}):
        here = mine.get(name)
        wanted = theirs[name].value if name in theirs else None
        if meaning(name, here.value if here else None) != meaning(name, wanted):
            found.append(Deviation(name, here, wanted))
    return found


def value_of(node: Node, name: str) -> str | None:
    """The setting's value on that node, None where it isn't set."""
    return next((setting.value for setting in node.settings if setting.name == name), None)


def pattern_of(nodes: Sequence[Node]) -> tuple[Setting, ...]:
    """The settings that all nodes should have: for each name the majority's, on a tie that of the lowest rank."""
    pattern = []
    for name in sorted({setting.name for node in nodes for setting in node.settings if must_agree(setting.name)}):
        values = {node.rank: value_of(node, name) for node in nodes}
        wanted = to_agree_on({rank: meaning(name, value) for rank, value in values.items()})
        value = next(value for value in values.values() if meaning(name, value) == wanted)
        if value is not None:
            pattern.append(Setting(name, value))
    return tuple(pattern)
