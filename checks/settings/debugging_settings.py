"""Settings that help to find a fault and do harm afterwards: a table, and which of them count under older names."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.snapshot import Gpus, Pci
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.knowledge.launchers import number


class LeftoverSetting(msgspec.Struct, frozen=True):
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
    LeftoverSetting("CUDA_LAUNCH_BLOCKING", one_of("1"), WARN, "makes the program wait for every kernel; slow, and it can deadlock"),
    LeftoverSetting("TORCH_DISTRIBUTED_DEBUG", one_of("DETAIL"), WARN, "checks every collective over gloo first: very slow"),
    LeftoverSetting("PYTORCH_NO_CUDA_MEMORY_CACHING", one_of("1"), WARN, "asks the driver for every tensor's memory: very slow"),
    LeftoverSetting("NCCL_COMM_ID", given, WARN, "sends every communicator to this one address, which may be an old job's"),
    LeftoverSetting("NCCL_SOCKET_MAGIC", given, WARN, "hangs the start if it isn't the same in every rank"),
    LeftoverSetting("NCCL_HOSTID", given, INFO, "joins nodes that have the same value into one, and then ranks can't find their peers"),
    LeftoverSetting("NCCL_SHM_DISABLE", one_of("1"), WARN, "sends data between this node's GPUs without P2P through the network"),
    LeftoverSetting("NCCL_P2P_DISABLE", one_of("1"), WARN, "sends data between NVLink GPUs through host memory, 3 to 20 times slower", "nvlink"),
    LeftoverSetting("NCCL_P2P_LEVEL", one_of("LOC", "0"), WARN, "turns P2P off, so NVLink lies idle", "nvlink"),
    LeftoverSetting("NCCL_IB_DISABLE", one_of("1"), WARN, "sends data between nodes over TCP, 10 to 50 times slower", "infiniband"),
    LeftoverSetting("NCCL_NET", one_of("SOCKET"), WARN, "sends data between nodes over TCP, 10 or more times slower", "infiniband"),
    LeftoverSetting("NCCL_NET_GDR_LEVEL", one_of("LOC", "0"), WARN, "sends GPU data to the network through host memory", "infiniband"),
    LeftoverSetting("NCCL_IB_RETURN_ASYNC_EVENTS", one_of("0"), WARN, "hides a link that goes down, so the job hangs", "infiniband"),
    LeftoverSetting("NCCL_IB_RETRY_CNT", one_of("0"), WARN, "ends the job at the first lost packet", "infiniband"),
    LeftoverSetting("NCCL_IB_TIMEOUT", lambda value: number(value) == 0 or (number(value) or 0) > 31, WARN, "means forever: a broken link hangs the job", "infiniband"),
    LeftoverSetting("NCCL_MULTI_RANK_GPU_ENABLE", one_of("1"), WARN, "hides that several ranks use one GPU by mistake"),
    LeftoverSetting("NCCL_PROTO", one_of("LL"), WARN, "keeps NCCL at a fraction of the bandwidth"),
    LeftoverSetting("NCCL_DEBUG", one_of("INFO", "TRACE"), INFO, "writes a great deal into every rank's log"),
    LeftoverSetting("NCCL_CHECK_POINTERS", one_of("1"), INFO, "slows every call down"),
    LeftoverSetting("NCCL_CHECK_MODE", one_of("DEBUG_GLOBAL"), INFO, "adds communication to every call"),
    LeftoverSetting("TORCH_NCCL_BLOCKING_WAIT", on, WARN, "lets no collective overlap with computing, and turns the watchdog's handling off"),
    LeftoverSetting("TORCH_NCCL_ASYNC_ERROR_HANDLING", one_of("0"), WARN, "leaves every rank hanging forever once one has died"),
    LeftoverSetting("TORCH_NCCL_ENABLE_MONITORING", off, WARN, "leaves a stuck job alive forever"),
    LeftoverSetting("TORCH_NCCL_RETHROW_CUDA_ERRORS", off, WARN, "hides the first error"),
    LeftoverSetting("TORCH_NCCL_BCAST_UNIQUEID", off, FAIL, "breaks the start of NCCL communicators"),
    LeftoverSetting("TORCH_NCCL_NAN_CHECK", on, INFO, "looks through every tensor before it is sent"),
    LeftoverSetting("TORCH_NCCL_DESYNC_DEBUG", on, INFO, "adds traffic to the store"),
    LeftoverSetting("CUDA_DEVICE_MAX_CONNECTIONS", one_of("1"), INFO, "is right for Megatron's tensor parallelism, and costs FSDP and DDP their overlap"),
)  # fmt: skip


def harms(name: str, value: str) -> list[LeftoverSetting]:
    """Those of these that a setting is, by its current name."""
    return [leftover for leftover in LEFTOVERS if leftover.name == name and leftover.bad(value)]


def there(hardware: str, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> bool | None:
    """Whether this host has that hardware; None where nobody could say."""
    if hardware == "nvlink":
        if isinstance(gpus, Unknown):
            return None
        links = {device.nvlinks_active for device in gpus.devices}
        if any(isinstance(active, int) and active > 0 for active in links):
            return True
        return None if any(isinstance(active, Unknown) for active in links) else False
    if hardware == "infiniband":
        if isinstance(pci, Unknown):
            return None
        # 0x0207 is an InfiniBand controller; a Mellanox Ethernet card (0x0200) may speak RoCE or not.
        return any(device.class_code >> 8 == 0x0207 for device in pci.devices)
    return True


def dangerous_here(name: str, value: str, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> bool:
    """Whether it does, or may do, harm on this host's hardware."""
    return any(there(leftover.only_with, gpus, pci) is not False for leftover in harms(name, value))


def counting(name: str, environment: Environment) -> Setting | None:
    """The setting that counts under this name: itself, else an old name that torch still reads in its place."""
    by_torch = (entry for entry in known_settings().values() if entry.reader == "torch")
    old = (entry.name for entry in by_torch if entry.replaced_by == name)
    return next((found for spelling in (name, *old) if (found := environment.setting(spelling))), None)
