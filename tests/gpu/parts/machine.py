"""What there is to work on; looked at before any part is run."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from tests.gpu.kit import FailedError, Kit, Machine, NotPossibleError

ASK = """
gpus = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
nccl = torch.cuda.nccl.version() if torch.version.cuda and torch.distributed.is_nccl_available() else ()
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl)),
    "gpus": [one.name for one in gpus], "available": torch.cuda.is_available(),
}))
"""


def look(folder: Path, rehearsed_gpus: int) -> tuple[Machine, dict[str, Any], float]:
    """What there is, what the record says of it, and how many seconds an import of torch takes here.

    Args:
        folder: to work in.
        rehearsed_gpus: that many stand-ins, where it is a rehearsal.

    Raises:
        NotPossibleError: there is no GPU that torch can use, and it is no rehearsal.
        FailedError: torch itself doesn't work.
    """
    folder.mkdir(parents=True)
    kit = Kit(Machine(gpus=rehearsed_gpus, rehearsal=rehearsed_gpus > 0), folder)
    asked = kit.asked_of_torch(ASK, seconds=180)
    told: dict[str, Any] = {
        "gpus": asked["gpus"],
        "torch": asked["torch"],
        "cuda": asked["cuda"] or "",
        "nccl": asked["nccl"],
        "driver": _driver(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": _system(),
        "processors": os.cpu_count(),
        "root": os.geteuid() == 0,
    }
    if rehearsed_gpus:
        unit = _seconds_of_torch(kit)
        stand_ins = _stand_ins(folder, rehearsed_gpus)
        return Machine(gpus=rehearsed_gpus, rehearsal=True, environ=stand_ins), told, unit
    if not asked["available"]:
        raise NotPossibleError(
            f"torch {asked['torch']} of {sys.executable} can use no GPU here. What ddpdoctor says of it:\n"
            f"    {sys.executable} -m ddpdoctor check\nWithout a GPU: python -m tests.gpu --rehearse"
        )
    if tuple(int(number) for number in asked["torch"].split("+")[0].split(".")[:2]) < (2, 5):
        raise FailedError(f"the kit needs torch 2.5 or later; this is {asked['torch']}")
    return Machine(gpus=len(asked["gpus"])), told, _seconds_of_torch(kit)


def _seconds_of_torch(kit: Kit) -> float:
    return min(kit.run([sys.executable, "-c", "import torch"], 180).seconds for _ in range(2))


def _stand_ins(folder: Path, gpus: int) -> dict[str, str]:
    """The settings with which processes see GPUs that aren't there: compiled libraries, as the tests have them."""
    from tests.support.nvml import FakeNvidia

    names = ("LD_LIBRARY_PATH", "FAKE_NVML", "FAKE_CUDA")
    settings = FakeNvidia(folder / "stand-ins").environ(gpus=gpus)
    return {name: settings[name] for name in names}


def _driver() -> str:
    """The driver's version; a sandbox may lack its file in /proc."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        words = []
    version = next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "")
    return version or _asked_of_nvml()


def _asked_of_nvml() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ""
    return version.decode() if isinstance(version, bytes) else str(version)


def _system() -> str:
    """A sandbox calls itself otherwise: its /proc and /sys are its own."""
    version = Path("/proc/version").read_text(errors="replace").strip()
    return f"{platform.machine()}, {version.partition(' (')[0]}"  # In brackets: who built it, and on which host.
