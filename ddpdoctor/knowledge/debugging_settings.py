"""Settings that help to find a fault and do harm afterwards: a table, and which of them count under older names."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.pci import Pci
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.knowledge.launchers import number


class Leftover(msgspec.Struct, frozen=True):
    """A setting that is right while one looks for a fault, and wrong afterwards. `only_with`: the hardware without which
    it does no harm ("nvlink", "infiniband"), or ""."""

    name: str
    bad: Callable[[str], bool]
    severity: Severity
    does: str
    only_with: str = ""


def on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes", "y", "t", "on")


def off(value: str) -> bool:
    return value.strip().lower() in ("0", "false", "no", "n", "f")


def one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in words


def given(value: str) -> bool:
    return bool(value.strip())


LEFTOVERS = (
    Leftover("CUDA_LAUNCH_BLOCKING", one_of("1"), WARN, "makes the program wait for every kernel; slow, and it can deadlock"),
    Leftover("TORCH_DISTRIBUTED_DEBUG", one_of("DETAIL"), WARN, "checks every collective over gloo first: very slow"),
    Leftover("PYTORCH_NO_CUDA_MEMORY_CACHING", one_of("1"), WARN, "asks the driver for every tensor's memory: very slow"),
    Leftover("NCCL_COMM_ID", given, WARN, "sends every communicator to this one address, which may be an old job's"),
    Leftover("NCCL_SOCKET_MAGIC", given, WARN, "hangs the start if it isn't the same in every rank"),
    Leftover("NCCL_HOSTID", given, INFO, "joins nodes that have the same value into one, and then ranks can't find their peers"),
    Leftover("NCCL_SHM_DISABLE", one_of("1"), WARN, "sends data between this node's GPUs without P2P through the network"),
    Leftover("NCCL_P2P_DISABLE", one_of("1"), WARN, "sends data between NVLink GPUs through host memory, 3 to 20 times slower", "nvlink"),
    Leftover("NCCL_P2P_LEVEL", one_of("LOC", "0"), WARN, "turns P2P off, so NVLink lies idle", "nvlink"),
    Leftover("NCCL_IB_DISABLE", one_of("1"), WARN, "sends data between nodes over TCP, 10 to 50 times slower", "infiniband"),
    Leftover("NCCL_NET", one_of("SOCKET"), WARN, "sends data between nodes over TCP, 10 or more times slower", "infiniband"),
    Leftover("NCCL_NET_GDR_LEVEL", one_of("LOC", "0"), WARN, "sends GPU data to the network through host memory", "infiniband"),
    Leftover("NCCL_IB_RETURN_ASYNC_EVENTS", one_of("0"), WARN, "hides a link that goes down, so the job hangs", "infiniband"),
    Leftover("NCCL_IB_RETRY_CNT", one_of("0"), WARN, "ends the job at the first lost packet", "infiniband"),
    Leftover("NCCL_IB_TIMEOUT", lambda value: number(value) == 0 or (number(value) or 0) > 31, WARN, "means for ever: a broken link hangs the job", "infiniband"),
    Leftover("NCCL_MULTI_RANK_GPU_ENABLE", one_of("1"), WARN, "hides that several ranks use one GPU by mistake"),
    Leftover("NCCL_PROTO", one_of("LL"), WARN, "keeps NCCL at a fraction of the bandwidth"),
    Leftover("NCCL_DEBUG", one_of("INFO", "TRACE"), INFO, "writes a great deal into every rank's log"),
    Leftover("NCCL_CHECK_POINTERS", one_of("1"), INFO, "slows every call down"),
    Leftover("NCCL_CHECK_MODE", one_of("DEBUG_GLOBAL"), INFO, "adds communication to every call"),
    Leftover("TORCH_NCCL_BLOCKING_WAIT", on, WARN, "lets no collective overlap with computing, and turns the watchdog's handling off"),
    Leftover("TORCH_NCCL_ASYNC_ERROR_HANDLING", one_of("0"), WARN, "leaves every rank hanging for ever once one has died"),
    Leftover("TORCH_NCCL_ENABLE_MONITORING", off, WARN, "leaves a stuck job alive for ever"),
    Leftover("TORCH_NCCL_RETHROW_CUDA_ERRORS", off, WARN, "hides the first error"),
    Leftover("TORCH_NCCL_BCAST_UNIQUEID", off, FAIL, "breaks the start of NCCL communicators"),
    Leftover("TORCH_NCCL_NAN_CHECK", on, INFO, "looks through every tensor before it is sent"),
    Leftover("TORCH_NCCL_DESYNC_DEBUG", on, INFO, "adds traffic to the store"),
    Leftover("CUDA_DEVICE_MAX_CONNECTIONS", one_of("1"), INFO, "is right for Megatron's tensor parallelism, and costs FSDP and DDP their overlap"),
)  # fmt: skip


def dangerous(name: str, value: str) -> bool:
    """Whether that setting is one of these, by its current name."""
    return any(one.name == name and one.bad(value) for one in LEFTOVERS)


def there(hardware: str, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> bool | None:
    """Whether this host has that hardware; None where nobody could say."""
    if hardware == "nvlink":
        if isinstance(gpus, Unknown):
            return None
        return any(isinstance(one.nvlinks_active, int) and one.nvlinks_active > 0 for one in gpus.devices)
    if hardware == "infiniband":
        if isinstance(pci, Unknown):
            return None
        # 0x0207 is an InfiniBand controller; a Mellanox Ethernet card (0x0200) may speak RoCE or not.
        return any(one.class_code >> 8 == 0x0207 for one in pci.devices)
    return True


def dangerous_here(name: str, value: str, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> bool:
    """Whether it does, or may do, harm on this host's hardware."""
    return any(
        one.name == name and one.bad(value) and there(one.only_with, gpus, pci) is not False for one in LEFTOVERS
    )


def counting(name: str, environment: Environment) -> Setting | None:
    """The setting that counts under this name: itself, else an old name that torch still reads in its stead."""
    old = (one.name for one in known_settings().values() if one.replaced_by == name and one.reader == "torch")
    return next((found for one in (name, *old) if (found := environment.setting(one))), None)
