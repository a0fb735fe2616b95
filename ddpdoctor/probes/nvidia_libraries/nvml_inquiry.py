"""Asks NVML everything, in a process of its own, since NVML may hang or crash. Prints one JSON object a line as it goes:

{"init": code, "message": ..., "path": ...}, {"system": ...}, {"asking": index}, {"gpu": {...}} or {"forbidden": index}, {"p2p": [[...]]}.

Run with the folder that holds the `pynvml` module as its argument. The fields of "gpu" are those of facts/gpus.py.
"""

from __future__ import annotations

import ctypes
import json
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

END_SECONDS = 60
"""Longer than any caller waits for it."""
GPU_IS_LOST = 15
NO_ANSWER = {3: "not supported by this GPU or driver", 4: "needs more rights", 13: "this NVML is too old to say"}
"""Codes by which NVML declines one question although the GPU is well."""
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13

NOT_TOLD = "the driver doesn't tell what each process holds"

COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
P2P = ("ok", "chipset-not-supported", "gpu-not-supported", "chipset-not-supported", "disabled-by-regkey",
       "not-supported", "unknown")  # fmt: skip
THROTTLE = ("gpu-idle", "app-clocks", "sw-power-cap", "hw-slowdown", "sync-boost", "sw-thermal", "hw-thermal",
            "hw-power-brake", "display-clocks")  # fmt: skip
LINK_ERRORS = (0, 1, 2)
"""Replay, recovery and flow control CRC."""


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h; nvidia-ml-py before 13.615 gives its UUID a wrong length."""

    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class FabricInfoV(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t of nvml.h; wrong in nvidia-ml-py before 13.580."""

    _fields_ = (("version", ctypes.c_uint), *FabricInfo._fields_, ("health", ctypes.c_uint))


FABRIC_VERSION = ctypes.sizeof(FabricInfoV) | 2 << 24


def tell(what: str, value: object, **more: object) -> None:
    print(json.dumps({what: value, **more}), flush=True)


def unknown(reason: str) -> dict[str, str]:
    return {"type": "unknown", "reason": reason}


def word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else f"unknown ({number})"


class NvmlGpu:
    """One GPU's answers. Each question is guarded for itself."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.answers: dict[str, Any] = {"index": index, "lost": False, "error": ""}
        self.handle: Any = None
        self.forbidden = False
        """Counted by NVML, but nothing that this user or job may touch."""

    def ask(self, field: str, question: Callable[[], Any], otherwise: object = None) -> None:
        """Note the answer; or `otherwise`, or why there is none."""
        self.ask_for((field,), lambda: (question(),), otherwise)

    def ask_for(self, fields: tuple[str, ...], question: Callable[[], Any], otherwise: object = None) -> None:
        """Note the answers to several fields at once, or why there are none."""
        if self.answers["lost"]:
            return
        try:
            self.answers.update(zip(fields, question(), strict=True))
            return
        except self.nvml.NVMLError as error:
            if error.value not in NO_ANSWER:
                self.answers["error"] = self.answers["error"] or f"{message(self.nvml, error)} ({fields[0]})"
                self.answers["lost"] = error.value == GPU_IS_LOST
            reason = NO_ANSWER.get(error.value) or message(self.nvml, error)
        except AttributeError:
            reason = "the installed nvidia-ml-py is too old to ask"
        except Exception as crash:
            reason = f"{type(crash).__name__}: {crash}"
        self.answers.update(dict.fromkeys(fields, unknown(reason) if otherwise is None else otherwise))

    def look(self) -> None:
        nvml, index = self.nvml, self.answers["index"]
        try:
            handle = self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            self.forbidden = error.value == NO_PERMISSION
            self.answers.update(lost=error.value == GPU_IS_LOST, error=f"{message(nvml, error)} (handle)")
            return
        self.ask("bus_id", lambda: sysfs_address(nvml.nvmlDeviceGetPciInfo(handle)), "")
        self.ask("name", lambda: nvml.nvmlDeviceGetName(handle), "")
        self.ask("uuid", lambda: nvml.nvmlDeviceGetUUID(handle), "")
        self.ask("vbios", lambda: nvml.nvmlDeviceGetVbiosVersion(handle))
        self.ask("compute_capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        self.ask("memory_total", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
        self.ask("memory_used", lambda: self.memory_used())
        self.ask("compute_mode", lambda: word(COMPUTE_MODES, nvml.nvmlDeviceGetComputeMode(handle)))
        self.ask("mig_enabled", lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
        if self.answers.get("mig_enabled") is True:
            self.ask("mig_instances", lambda: self.mig_instances(), ())
        self.ask("ecc_enabled", lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]))
        self.ask("ecc_corrected_volatile", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0))
        self.ask("ecc_uncorrected_volatile", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0))
        self.ask("ecc_uncorrected_aggregate", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 1))
        self.ask("row_remap_pending", lambda: bool(nvml.nvmlDeviceGetRemappedRows(handle)[2]))
        self.ask("row_remap_failed", lambda: bool(nvml.nvmlDeviceGetRemappedRows(handle)[3]))
        self.ask("retired_pages_pending", lambda: bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)))
        self.ask("throttle_reasons", lambda: throttle(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        self.ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, 0))
        self.ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        self.ask("power_limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000)
        self.ask("power_limit_default", lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000)
        self.ask("sm_clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, 1))
        self.ask("sm_clock_max", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, 1))
        self.ask("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        self.ask("pcie_generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
        self.ask("pcie_generation_max", lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        self.ask("pcie_width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
        self.ask("pcie_width_max", lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
        self.ask("virtualization", lambda: word(VIRTUALIZATION, nvml.nvmlDeviceGetVirtualizationMode(handle)))
        active: list[int] = []
        self.ask_for(("nvlinks_active", "nvlinks_total", "nvlink_errors"), lambda: self.links(active))
        if isinstance(self.answers.get("nvlinks_active"), int):
            self.ask("nvlink_errors", lambda: self.link_errors(active))
        self.ask_for(("fabric_state", "fabric_status"), lambda: self.fabric())
        self.ask_for(("processes", "processes_memory"), lambda: self.compute_processes())
        self.ask("holders", lambda: self.holders())

    def memory_used(self) -> int:
        """Without what the driver keeps for itself, where NVML tells the two apart."""
        try:
            return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle, self.nvml.nvmlMemory_v2).used)
        except (self.nvml.NVMLError, AttributeError, TypeError):
            return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)

    def mig_instances(self) -> list[dict[str, Any]]:
        found = []
        for uuid, part in self.parts():
            instance = {"uuid": uuid}
            with suppress(self.nvml.NVMLError):
                instance["name"] = self.nvml.nvmlDeviceGetName(part)
            with suppress(self.nvml.NVMLError):
                instance["memory_total"] = self.nvml.nvmlDeviceGetMemoryInfo(part).total
            found.append(instance)
        return found

    def links(self, active: list[int]) -> tuple[int, int, int]:
        """Count the NVLinks that are up, and those that the GPU has; active: those that are up are noted there."""
        total = 0
        for link in range(self.nvml.NVML_NVLINK_MAX_LINKS):
            try:
                active += [link] if self.nvml.nvmlDeviceGetNvLinkState(self.handle, link) else []
                total += 1
            except self.nvml.NVMLError as error:
                if error.value == INVALID_ARGUMENT:
                    break
                if error.value != NOT_SUPPORTED:
                    raise
        return len(active), total, 0

    def link_errors(self, links: list[int]) -> int:
        return sum(
            self.nvml.nvmlDeviceGetNvLinkErrorCounter(self.handle, link, counter)
            for link in links
            for counter in LINK_ERRORS
        )

    def fabric(self) -> tuple[str, int]:
        info: FabricInfo | FabricInfoV = FabricInfoV(FABRIC_VERSION)
        try:
            self.nvml.nvmlDeviceGetGpuFabricInfoV(self.handle, ctypes.byref(info))
        except (self.nvml.NVMLError, AttributeError) as error:
            if getattr(error, "value", FUNCTION_NOT_FOUND) != FUNCTION_NOT_FOUND:
                raise
            info = FabricInfo()
            self.nvml.nvmlDeviceGetGpuFabricInfo(self.handle, ctypes.byref(info))
        return word(FABRIC_STATES, info.state), info.status

    def compute_processes(self) -> tuple[int, int]:
        listed = self.running("Compute", self.handle)
        self.answers["mps_server"] = any(is_mps_server(process.pid) for process in listed)
        return len(listed), sum(process.usedGpuMemory or 0 for process in listed)

    def running(self, kind: str, handle: Any) -> Any:
        """List the processes of that kind ("Compute", "Graphics", "MPSCompute"), by the newest function that there is.

        Raises:
            AttributeError: nvidia-ml-py doesn't know any.
        """
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
        except (self.nvml.NVMLError, AttributeError) as error:
            if getattr(error, "value", FUNCTION_NOT_FOUND) != FUNCTION_NOT_FOUND:
                raise
            return getattr(self.nvml, f"nvmlDeviceGet{kind}RunningProcesses_v2")(handle)

    def holders(self) -> list[dict[str, Any]]:
        """List all processes on the GPU and on its MIG instances. The whole GPU tells of those, too, to whom it may."""
        found: dict[object, dict[str, Any]] = {}
        for uuid, part in self.parts():
            self.note_holders(part, uuid, found)
        on_instances = {holder["pid"] for holder in found.values()}
        try:
            self.note_holders(self.handle, "", found, on_instances)
        except self.nvml.NVMLError as error:
            if not found or error.value not in NO_ANSWER:
                raise
        return list(found.values())

    def note_holders(self, handle: Any, uuid: str, found: dict[object, dict[str, Any]], known: Any = ()) -> None:
        """Add the processes on a MIG instance, or without a uuid on the GPU, to those that were found; known: pids that have been noted
        on another part.

        Raises:
            AttributeError: nvidia-ml-py is too old to ask.
        """
        for kind, word_for_it in (("Compute", "compute"), ("Graphics", "graphics"), ("MPSCompute", "mps client")):
            try:
                listed = self.running(kind, handle)
            except (self.nvml.NVMLError, AttributeError) as error:
                # A GPU without display or MPS, and an old NVML, don't know the question.
                if kind == "Compute" or getattr(error, "value", FUNCTION_NOT_FOUND) not in NO_ANSWER:
                    raise
                continue
            for index, process in enumerate(listed):
                if process.pid and process.pid in known:
                    continue
                # Who computes and draws stands in both lists, with the same memory. Those without a pid are unlike.
                key = (uuid, process.pid) if process.pid else (uuid, kind, index)
                role = "mps server" if is_mps_server(process.pid) else word_for_it
                holder = found.setdefault(
                    key, {"pid": process.pid, "mig_uuid": uuid, "kind": role, "memory": unknown(NOT_TOLD)}
                )
                if word_for_it == "mps client" and role != "mps server":
                    holder["kind"] = role
                if process.usedGpuMemory is not None:
                    holder["memory"] = process.usedGpuMemory

    def parts(self) -> list[tuple[str, Any]]:
        """(UUID, handle) of each MIG instance."""
        if self.answers.get("mig_enabled") is not True:
            return []
        found = []
        for slot in range(self.nvml.nvmlDeviceGetMaxMigDeviceCount(self.handle)):
            try:
                part = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, slot)
                found.append((self.nvml.nvmlDeviceGetUUID(part), part))
            except self.nvml.NVMLError as error:
                if error.value not in (INVALID_ARGUMENT, NOT_FOUND):  # An empty slot.
                    raise
        return found


def is_mps_server(pid: int) -> bool:
    """Whether that process is nvidia-cuda-mps-server; the kernel keeps 15 letters of a name."""
    try:
        with open(f"/proc/{pid}/comm") as comm:  # noqa: PTH123 (pathlib would be this process's slowest import)
            return comm.read().strip() == "nvidia-cuda-mps"
    except OSError:
        return False


def throttle(bits: int) -> list[str]:
    return [name for number, name in enumerate(THROTTLE) if bits >> number & 1]


def sysfs_address(info: Any) -> str:
    """ "00000000:17:00.0" as sysfs writes it: "0000:17:00.0". An integrated GPU has none: ""."""
    text = info.busId or info.busIdLegacy
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.lower())
    return f"{int(found[1], 16):04x}:{found[2]}" if found else ""


def p2p_status(nvml: Any, reader: Any, read: Any) -> str:
    """Whether the first may read the other's memory."""
    try:
        return word(P2P, nvml.nvmlDeviceGetP2PStatus(reader, read, 0))
    except nvml.NVMLError as error:
        if error.value == FUNCTION_NOT_FOUND:
            raise
        return "not-supported" if error.value == NOT_SUPPORTED else "unknown"


def p2p_matrix(nvml: Any, gpus: list[NvmlGpu]) -> list[list[str]]:
    def status(gpu: NvmlGpu, peer: NvmlGpu) -> str:
        if gpu is peer:
            return "self"
        dead = any(end.handle is None or end.answers["lost"] for end in (gpu, peer))
        return "unknown" if dead else p2p_status(nvml, gpu.handle, peer.handle)

    return [[status(gpu, peer) for peer in gpus] for gpu in gpus]


def message(nvml: Any, error: Any) -> str:
    """The library's own words for an error, or those of the module."""
    try:
        text = nvml.nvmlErrorString(error.value)
        return text.decode() if isinstance(text, bytes) else str(text)
    except Exception:
        return str(error)


def library_path() -> str:
    """The file that was loaded."""
    try:
        with open("/proc/self/maps") as maps:  # noqa: PTH123 (pathlib would be this process's slowest import)
            return next((line.split(None, 5)[5].strip() for line in maps if "libnvidia-ml" in line), "")
    except OSError:
        return ""


def text_or_nothing(question: Callable[[], Any]) -> str | None:
    try:
        answer = question()
    except Exception:
        return None
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def main() -> None:
    sys.path.append(sys.argv[1])
    import pynvml as nvml

    # Loaded and told first: should nvmlInit crash, we still know which file it was.
    with suppress(Exception):  # nvmlInit says so again, with its code.
        nvml._LoadNvmlLibrary()
    path = library_path()
    tell("library", path)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        tell("init", error.value, message=message(nvml, error), path=path)
        return
    tell("init", 0, message="", path=path or library_path())
    tell(
        "system",
        {
            "nvml_version": text_or_nothing(nvml.nvmlSystemGetNVMLVersion),
            "nvml_driver_version": text_or_nothing(nvml.nvmlSystemGetDriverVersion),
        },
    )
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        tell("no_count", message(nvml, error))
        return
    gpus = []
    for index in range(count):
        tell("asking", index)
        gpu = NvmlGpu(nvml, index)
        gpu.look()
        if gpu.forbidden:
            tell("forbidden", index)
            continue
        tell("gpu", gpu.answers)
        gpus.append(gpu)
    try:
        tell("p2p", p2p_matrix(nvml, gpus))
    except nvml.NVMLError:
        tell("p2p", unknown(NO_ANSWER[FUNCTION_NOT_FOUND]))
    tell("done", True)


if __name__ == "__main__":
    # If the caller was killed, nobody else ends what hangs here.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_SECONDS)
    main()
