"""Stand-ins for libnvidia-ml.so.1 and libcuda.so.1, compiled by the tests, that see whatever GPUs a test wants.

    fake = FakeNvidia(tmp_path)
    environ = fake.environ(gpus=8, of_gpu={3: {"lost": 1}}, init=0, cuda_init=0)

`environ` is this process's environment with the two libraries first on LD_LIBRARY_PATH. The keys are told at the top of
fake_nvidia/nvml.c; a value "!15" makes that question return NVML's code 15. The fixture `fake_nvidia` (one compilation a
session) comes from tests/real/conftest.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import GpuHolder

SOURCES = Path(__file__).parent / "fake_nvidia"


class FakeNvidia:
    """Compiled stand-ins below `folder`, one set for each driver version and choice of missing functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def libraries(
        self, driver: str = "580.95.05", missing: Sequence[str] = (), which: Sequence[str] = ("nvml", "cuda")
    ) -> Path:
        """The folder with libnvidia-ml.so.1 and libcuda.so.1, named as a driver of that version names them."""
        folder = self.folder / "-".join([driver, *which, *missing])
        if not folder.exists():
            folder.mkdir(parents=True)
            for source, name in (("nvml", "libnvidia-ml"), ("cuda", "libcuda")):
                if source in which:
                    shutil.copy(
                        self._compiled(source, missing if source == "nvml" else ()), folder / f"{name}.so.{driver}"
                    )
                    (folder / f"{name}.so.1").symlink_to(f"{name}.so.{driver}")
        return folder

    def _compiled(self, source: str, missing: Sequence[str]) -> Path:
        file = self.folder / "-".join([source, *missing, "compiled.so"])
        if not file.exists():
            # A function under another name is a function that an older library lacks.
            renamed = [f"-D{name}=lacking_{name}" for name in missing]
            command = ["gcc", "-shared", "-fPIC", "-O0", "-w", *renamed, "-o", str(file), str(SOURCES / f"{source}.c")]
            subprocess.run(command, check=True, timeout=60)
        return file

    def environ(
        self,
        gpus: int = 8,
        *,
        driver: str = "580.95.05",
        cuda: str = "13.0",
        cuda_init: int = 0,
        cuda_does: str = "",
        all_gpus: Mapping[str, object] | None = None,
        of_gpu: Mapping[int, Mapping[str, object]] | None = None,
        missing: Sequence[str] = (),
        which: Sequence[str] = ("nvml", "cuda"),
        base: Mapping[str, str] | None = None,
        **library: object,
    ) -> dict[str, str]:
        """The environment in which a process sees these GPUs.

        all_gpus, of_gpu: what to say of all GPUs and of single ones, `{"name": "NVIDIA A100-SXM4-80GB", "mode": 3}`.
        missing: NVML functions that the library lacks.
        which: of "nvml" and "cuda" those that are installed.
        library: settings of the library as a whole: init=18, init_does="hang", p2p=1.
        cuda_does: "hang", "crash" or "slow" (three seconds) in cuInit.
        """
        major, minor = (int(part) for part in cuda.split("."))
        settings = {
            "gpus": gpus,
            "driver": driver,
            "nvml": f"{major}.{driver}",
            "cuda": major * 1000 + minor * 10,
            **library,
        }
        settings |= {f"*.{key}": value for key, value in (all_gpus or {}).items()}
        settings |= {f"{index}.{key}": value for index, one in (of_gpu or {}).items() for key, value in one.items()}
        environ = dict(os.environ if base is None else base)
        folders = [str(self.libraries(driver, missing, which)), environ.get("LD_LIBRARY_PATH", "")]
        environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        environ["FAKE_NVML"] = _joined(settings)
        environ["FAKE_CUDA"] = _joined({"init": cuda_init, "version": settings["cuda"], "does": cuda_does})
        return environ


def holding(*holders: GpuHolder) -> str:
    """The value of a GPU's key "holders": these processes are on it."""
    return ",".join(
        f"{holder.pid}:{'-' if isinstance(holder.memory, Unknown) else holder.memory}:{_KINDS[holder.kind]}:{_slot(holder.mig_uuid)}"
        for holder in holders
    )


_KINDS = {"compute": "C", "graphics": "G", "mps server": "C", "mps client": "M"}


def _slot(mig_uuid: str) -> int:
    """As in the UUIDs that the stand-in makes up."""
    return int(mig_uuid.split("-")[4], 16) if mig_uuid else -1


def _joined(settings: Mapping[str, object]) -> str:
    return ";" + "".join(f"{key}={value};" for key, value in settings.items() if value != "")
