"""The driver and GPU probes against compiled stand-ins for NVML and libcuda, healthy and sick."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus, MigInstance
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.probes import driver, gpus
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.nvidia_libraries import inquiry, libcuda, nvml
from tests.support.fixture_hosts import healthy_facts, to_snapshot
from tests.support.nvml import FakeNvidia, holding
from tests.support.registered_checks import find_check

pytestmark = pytest.mark.tool("gcc")

ON_THE_BUS = Pci(
    devices=(PciDevice(address="0000:1b:00.0", vendor=0x10DE, device=0x2330, class_code=0x030200, driver="nvidia"),)
)
NO_GPU_ON_THE_BUS = Pci(devices=())
Look = Callable[..., Any]
NOT_SUPPORTED = Unknown("not supported by this GPU or driver")


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Looks at the GPUs of a host whose root is empty: all there is comes from the stand-ins."""

    def look(environ: dict[str, str], pci: Pci | Unknown = ON_THE_BUS) -> Gpus | Unknown:
        return gpus.probe(context(tmp_path, environ, pci))

    return look


def context(root: Path, environ: dict[str, str], pci: Pci | Unknown = ON_THE_BUS) -> Context:
    one = Context("python", environ=environ, root=root)

    def ask(group: str) -> Facts | Unknown:
        assert group == "pci"
        return pci

    one.answered_by(ask)
    return one


def test_eight_healthy_gpus(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(gpus=8))
    assert isinstance(found, Gpus)
    assert found.vendor == "nvidia"
    assert len(found.devices) == len(found.answering) == 8
    assert found.devices[0] == Gpu(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-5c7d1e00-3a4f-b1c2-9d0e-000000000000",
        bus_id="0000:1b:00.0",
        vbios="96.00.89.00.01",
        compute_capability=(9, 0),
        memory_total=85520809984,
        memory_used=0,
        compute_mode="default",
        mig_enabled=False,
        ecc_enabled=True,
        ecc_corrected_volatile=77,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        row_remap_pending=False,
        row_remap_failed=False,
        retired_pages_pending=False,
        throttle_reasons=("gpu-idle",),
        temperature=31,
        power=71.3,
        power_limit=700.0,
        power_limit_default=700.0,
        sm_clock=345,
        sm_clock_max=1980,
        utilisation=0,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        nvlinks_active=18,
        nvlinks_total=18,
        nvlink_errors=0,
        fabric_state="completed",
        fabric_status=0,
        processes=0,
        processes_memory=0,
        holders=(),
        virtualization="none",
    )
    assert found.p2p == tuple(tuple("self" if i == j else "ok" for j in range(8)) for i in range(8))


def test_lost_gpu_does_not_take_the_others_with_it(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(gpus=4, of_gpu={1: {"lost": 1}, 2: {"temperature": "!15"}}))
    assert [gpu.lost for gpu in found.devices] == [False, True, True, False]
    assert found.devices[1] == Gpu(index=1, lost=True, error="GPU is lost (handle)")
    assert found.devices[2].name == "NVIDIA H100 80GB HBM3"
    assert found.devices[2].error == "GPU is lost (temperature)"
    assert found.devices[3].memory_total == 85520809984
    assert found.p2p[0] == ("self", "unknown", "unknown", "ok")
    assert found.p2p[1][2] == "unknown"


def test_gpus_that_belong_to_other_jobs_are_not_listed(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(gpus=3, of_gpu={1: {"handle": "!4"}}))
    assert [(gpu.index, gpu.error) for gpu in found.devices] == [(0, ""), (2, "")]
    assert found.p2p == (("self", "ok"), ("ok", "self"))
    found = look(fake_nvidia.environ(gpus=3, all_gpus={"handle": "!4"}))
    assert isinstance(found, Unknown)
    assert "this user may open none of the GPUs that NVML counts" in found.reason


def test_unknown_error_on_one_gpu(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(gpus=2, of_gpu={0: {"handle": "!999"}, 1: {"memory": "!999", "power": "!4"}}))
    assert found.devices[0] == Gpu(index=0, error="Unknown Error (handle)")
    assert found.devices[1].error == "Unknown Error (memory_total)"
    assert found.devices[1].memory_total == Unknown("Unknown Error")
    assert found.devices[1].power == Unknown("needs more rights")
    assert not found.devices[1].lost
    assert found.devices[1].temperature == 31


@pytest.mark.parametrize(
    ("told", "facts"),
    [
        ({"ecc_volatile": 3, "ecc_aggregate": 12}, {"ecc_uncorrected_volatile": 3, "ecc_uncorrected_aggregate": 12}),
        ({"remap_pending": 1}, {"row_remap_pending": True, "row_remap_failed": False}),
        ({"remap_failed": 1}, {"row_remap_pending": False, "row_remap_failed": True}),
        ({"retired_pending": 1}, {"retired_pages_pending": True}),
        ({"mode": 1}, {"compute_mode": "exclusive-thread"}),
        ({"mode": 2}, {"compute_mode": "prohibited"}),
        ({"mode": 3}, {"compute_mode": "exclusive-process"}),
        ({"throttle": 0x48}, {"throttle_reasons": ("hw-slowdown", "hw-thermal")}),
        ({"throttle": 0}, {"throttle_reasons": ()}),
        ({"pcie_generation": 1, "pcie_width": 4}, {"pcie_generation": 1, "pcie_width": 4, "pcie_width_max": 16}),
        ({"nvlinks": 12, "nvlinks_up": 9}, {"nvlinks_active": 9, "nvlinks_total": 12}),
        ({"nvlinks": 0}, {"nvlinks_active": 0, "nvlinks_total": 0, "nvlink_errors": 0}),
        ({"nvlink_errors": 5}, {"nvlink_errors": 15}),
        ({"fabric": 2, "fabric_status": 999}, {"fabric_state": "in-progress", "fabric_status": 999}),
        ({"fabric": 1}, {"fabric_state": "not-started", "fabric_status": 0}),
        ({"fabric": "!3"}, {"fabric_state": NOT_SUPPORTED, "fabric_status": NOT_SUPPORTED}),
        ({"processes": 3, "process_memory": 1000}, {"processes": 3, "processes_memory": 3000}),
        ({"virtualization": 2}, {"virtualization": "vgpu"}),
        ({"used": 41943040}, {"memory_used": 41943040}),
        ({"bus_id": "00010000:3F:00.0"}, {"bus_id": "10000:3f:00.0"}),
    ],
    ids=str,
)
def test_what_a_gpu_tells(
    look: Look, fake_nvidia: FakeNvidia, told: dict[str, object], facts: dict[str, object]
) -> None:
    found = look(fake_nvidia.environ(gpus=2, of_gpu={1: told}))
    healthy, sick = found.devices
    assert {name: getattr(sick, name) for name in facts} == facts
    assert any(getattr(healthy, name) != value for name, value in facts.items())
    assert sick.error == ""


def test_mig_instances(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(gpus=2, of_gpu={0: {"mig": 2, "memory": 10737418240}}))
    assert found.devices[0].mig_enabled is True
    assert found.devices[0].mig_instances == tuple(
        MigInstance(
            uuid=f"MIG-5c7d1e00-3a4f-b1c2-000{slot}-000000000000",
            name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            memory_total=10737418240,
        )
        for slot in (1, 2)
    )
    assert found.devices[1].mig_enabled is False
    assert found.devices[1].mig_instances == ()


def test_different_gpus_side_by_side(look: Look, fake_nvidia: FakeNvidia) -> None:
    consumer = {"name": "NVIDIA GeForce RTX 3060", "capability": 86, "memory": 12884901888, "ecc": "!3", "mig": "!3"}
    found = look(fake_nvidia.environ(gpus=2, of_gpu={1: consumer}, p2p=1))
    assert [gpu.compute_capability for gpu in found.devices] == [(9, 0), (8, 6)]
    assert found.devices[1].name == "NVIDIA GeForce RTX 3060"
    assert found.devices[1].mig_enabled == found.devices[1].ecc_enabled == NOT_SUPPORTED
    assert found.p2p == (("self", "chipset-not-supported"), ("chipset-not-supported", "self"))


def test_gpu_that_supports_next_to_nothing(look: Look, fake_nvidia: FakeNvidia) -> None:
    told = {"everything": "!3", "handle": 0, "name": "Orin (nvgpu)", "uuid": "GPU-1"}
    (gpu,) = look(fake_nvidia.environ(gpus=1, all_gpus=told), NO_GPU_ON_THE_BUS).devices
    assert (gpu.name, gpu.uuid, gpu.bus_id, gpu.error, gpu.lost) == ("Orin (nvgpu)", "GPU-1", "", "", False)
    assert gpu.memory_total == gpu.compute_capability == gpu.throttle_reasons == gpu.processes == NOT_SUPPORTED


def test_jetson_whose_gpu_is_integrated(fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    tree = tmp_path / "proc/device-tree"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0")
    (tree / "model").write_bytes(b"NVIDIA Jetson AGX Orin Developer Kit\0")
    told = {"everything": "!3", "handle": 0, "name": "Orin (nvgpu)"}
    found = gpus.probe(context(tmp_path, fake_nvidia.environ(gpus=1, all_gpus=told), NO_GPU_ON_THE_BUS))
    assert isinstance(found, Gpus)
    assert [(gpu.name, gpu.integrated) for gpu in found.devices] == [("Orin (nvgpu)", True)]
    silent = gpus.probe(context(tmp_path, fake_nvidia.environ(init=9), NO_GPU_ON_THE_BUS))
    assert isinstance(silent, Gpus)
    assert [(gpu.name, gpu.integrated) for gpu in silent.devices] == [("NVIDIA Jetson AGX Orin Developer Kit", True)]


def test_no_gpu(look: Look, fake_nvidia: FakeNvidia) -> None:
    assert look(fake_nvidia.environ(gpus=0), NO_GPU_ON_THE_BUS) == Gpus(devices=())


INIT_CODES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    17: "The operating system has blocked the request",
    18: "Driver/library version mismatch",
    27: "Unknown Error",
    999: "Unknown Error",
}


@pytest.mark.parametrize(("code", "words"), INIT_CODES.items())
def test_nvml_that_fails_to_start(fake_nvidia: FakeNvidia, tmp_path: Path, code: int, words: str) -> None:
    one = context(tmp_path, fake_nvidia.environ(init=code))
    found = driver.probe(one)
    assert isinstance(found, Driver)
    assert (found.nvml_status, found.nvml_message) == (code, words)
    assert found.nvml_version == "580.95.05", "the file's name says it even so"
    assert found.nvml_driver_version is None
    assert gpus.probe(one) == Unknown(
        f"there is an NVIDIA GPU on the PCI bus, but NVML failed to start: {words} (code {code})"
    )


def test_nvml_that_fails_where_there_is_no_gpu_anyway(look: Look, fake_nvidia: FakeNvidia) -> None:
    assert look(fake_nvidia.environ(init=9), NO_GPU_ON_THE_BUS) == Gpus(devices=())


def test_nvml_that_fails_where_nobody_can_say(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(init=9), Unknown("/sys/bus/pci/devices: Permission denied"))
    assert found == Unknown("NVML failed to start: Driver Not Loaded (code 9); /sys/bus/pci/devices: Permission denied")


def test_nvml_that_hangs(fake_nvidia: FakeNvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "SECONDS", 2.0)
    started = time.monotonic()
    one = context(tmp_path, fake_nvidia.environ(init_does="hang"))
    found = driver.probe(one)
    assert time.monotonic() - started < 8
    assert isinstance(found, Driver)
    assert found.nvml_status == Unknown("NVML did not answer within 2 s")
    assert str(found.nvml_path).endswith("/libnvidia-ml.so.580.95.05")
    assert (found.cuda_init, found.cuda_version) == (0, (13, 0))
    assert gpus.probe(one) == Unknown("there is an NVIDIA GPU on the PCI bus, but NVML did not answer within 2 s")


def test_one_gpu_that_hangs_is_named(look: Look, fake_nvidia: FakeNvidia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "SECONDS", 2.0)
    found = look(fake_nvidia.environ(of_gpu={3: {"power": "hang"}}), NO_GPU_ON_THE_BUS)
    assert found == Unknown("NVML did not answer within 2 s (asking GPU 3)")


def test_nvml_that_crashes(fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    one = context(tmp_path, fake_nvidia.environ(init_does="crash"))
    found = driver.probe(one)
    assert isinstance(found, Driver)
    assert found.nvml_status == Unknown("NVML crashed with SIGSEGV")
    assert found.cuda_init == 0
    assert gpus.probe(one) == Unknown("there is an NVIDIA GPU on the PCI bus, but NVML crashed with SIGSEGV")


def test_count_that_fails(look: Look, fake_nvidia: FakeNvidia) -> None:
    found = look(fake_nvidia.environ(count=999))
    assert found == Unknown("there is an NVIDIA GPU on the PCI bus, but NVML can't count the GPUs: Unknown Error")


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetRemappedRows", "row_remap_pending"),
        ("nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2", "processes_memory"),
        ("nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2", "holders"),
        ("nvmlDeviceGetNvLinkState", "nvlinks_active"),
        ("nvmlDeviceGetMigMode", "mig_enabled"),
        ("nvmlDeviceGetVirtualizationMode", "virtualization"),
    ],
)
def test_function_that_an_older_nvml_lacks(look: Look, fake_nvidia: FakeNvidia, function: str, field: str) -> None:
    (gpu,) = look(fake_nvidia.environ(gpus=1, missing=function.split())).devices
    assert getattr(gpu, field) == Unknown("this NVML is too old to say")
    assert gpu.memory_used == 0
    assert gpu.temperature == 31
    assert gpu.error == ""


def test_older_nvml_without_the_newer_forms(look: Look, fake_nvidia: FakeNvidia) -> None:
    missing = ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetP2PStatus", "nvmlErrorString"]
    environ = fake_nvidia.environ(gpus=2, missing=missing, of_gpu={1: {"power": "!999"}})
    found = look(environ)
    assert found.devices[0].fabric_state == "completed"
    assert found.devices[0].memory_used == 512 * 1024**2
    assert found.devices[1].error == "Unknown Error (power)"
    assert found.p2p == Unknown("this NVML is too old to say")


def test_healthy_driver(fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    found = driver.probe(context(tmp_path, fake_nvidia.environ()))
    assert isinstance(found, Driver)
    folder = fake_nvidia.libraries()
    assert found.libcuda_path == str(folder / "libcuda.so.580.95.05")
    assert found.nvml_path == str(folder / "libnvidia-ml.so.580.95.05")
    assert (found.libcuda_version, found.nvml_version, found.nvml_driver_version) == ("580.95.05",) * 3
    assert (found.cuda_version, found.cuda_init, found.nvml_status, found.nvml_message) == ((13, 0), 0, 0, "")
    assert found.version == "580.95.05"


@pytest.mark.parametrize("code", [0, 100, 802, 803, 804, 999])
def test_what_cu_init_returns(fake_nvidia: FakeNvidia, tmp_path: Path, code: int) -> None:
    found = driver.probe(context(tmp_path, fake_nvidia.environ(cuda_init=code, cuda="12.4", driver="550.144.03")))
    assert isinstance(found, Driver)
    assert (found.cuda_init, found.cuda_version, found.libcuda_version) == (code, (12, 4), "550.144.03")
    assert found.nvml_version == "550.144.03"


def test_gpus_hidden_from_the_job_are_not_a_driver_that_fails(fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    found = driver.probe(context(tmp_path, {**fake_nvidia.environ(), "CUDA_VISIBLE_DEVICES": ""}))
    assert isinstance(found, Driver)
    assert found.cuda_init == 0


def test_cu_init_that_hangs_or_crashes(
    fake_nvidia: FakeNvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libcuda, "SECONDS", 2.0)
    for does, reason in (("hang", "cuInit did not end within 2 s"), ("crash", "cuInit crashed with SIGSEGV")):
        found = driver.probe(context(tmp_path, fake_nvidia.environ(cuda_does=does)))
        assert isinstance(found, Driver)
        assert found.cuda_init == Unknown(reason)
        assert found.cuda_version == (13, 0)
        assert found.libcuda_version == "580.95.05"


def test_server_of_mps_is_known_by_its_name(look: Look, fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    for name, expected in (("nvidia-cuda-mps-server", True), ("python", False)):
        program = shutil.copy("/bin/sleep", tmp_path / name)
        with subprocess.Popen([program, "60"]) as process:
            try:
                found = look(fake_nvidia.environ(gpus=1, all_gpus={"processes": 1, "process_id": process.pid}))
            finally:
                process.kill()
        assert found.devices[0].mps_server is expected
        assert found.devices[0].holders == (
            GpuHolder(pid=process.pid, memory=GIB, kind="mps server" if expected else "compute"),
        )
    assert (
        not look(fake_nvidia.environ(gpus=1, all_gpus={"processes": 1, "process_id": 2**22 + 1})).devices[0].mps_server
    )


GIB = 1 << 30
NOT_TOLD = Unknown("the driver doesn't tell what each process holds")
SLICES = tuple(f"MIG-5c7d1e00-3a4f-b1c2-000{slot}-000000000000" for slot in (1, 2))


def test_who_holds_a_gpu_and_how_much(look: Look, fake_nvidia: FakeNvidia) -> None:
    held = (
        GpuHolder(pid=4711, memory=3 * GIB),
        GpuHolder(pid=4712, memory=NOT_TOLD),
        GpuHolder(pid=0, memory=NOT_TOLD),
        GpuHolder(pid=0, memory=2 * GIB),
        GpuHolder(pid=2001, memory=1 << 28, kind="graphics"),
        GpuHolder(pid=4713, memory=GIB, kind="mps client"),
    )
    found = look(fake_nvidia.environ(gpus=2, of_gpu={1: {"holders": holding(*held)}}))
    assert found.devices[0].holders == ()
    assert found.devices[1].holders == held
    assert (found.devices[1].processes, found.devices[1].processes_memory) == (4, 5 * GIB)


def test_who_computes_and_draws_is_one_holder(look: Look, fake_nvidia: FakeNvidia) -> None:
    both = holding(GpuHolder(pid=4711, memory=GIB), GpuHolder(pid=4711, memory=GIB, kind="graphics"))
    (gpu,) = look(fake_nvidia.environ(gpus=1, all_gpus={"holders": both})).devices
    assert gpu.holders == (GpuHolder(pid=4711, memory=GIB),)


@pytest.mark.parametrize("whole_processes", [0, "!4"], ids=["told by the whole GPU, too", "by the instances alone"])
def test_who_holds_a_mig_instance(look: Look, fake_nvidia: FakeNvidia, whole_processes: object) -> None:
    held = tuple(GpuHolder(pid=4711 + place, memory=GIB, mig_uuid=uuid) for place, uuid in enumerate(SLICES))
    told = {"mig": 2, "holders": holding(*held), "whole_processes": whole_processes}
    (gpu,) = look(fake_nvidia.environ(gpus=1, all_gpus=told)).devices
    assert gpu.holders == held
    assert isinstance(gpu.processes, Unknown) is (whole_processes == "!4")


def test_holders_that_this_user_may_not_know(look: Look, fake_nvidia: FakeNvidia) -> None:
    (gpu,) = look(fake_nvidia.environ(gpus=1, all_gpus={"whole_processes": "!4"})).devices
    assert gpu.holders == gpu.processes == Unknown("needs more rights")
    assert gpu.error == ""


def test_older_nvml_tells_the_holders_in_its_own_form(look: Look, fake_nvidia: FakeNvidia) -> None:
    held = GpuHolder(pid=4711, memory=GIB)
    missing = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    (gpu,) = look(fake_nvidia.environ(gpus=1, missing=missing, all_gpus={"holders": holding(held)})).devices
    assert gpu.holders == (held,)
    assert (gpu.processes, gpu.processes_memory) == (1, GIB)


@pytest.mark.parametrize(
    ("library", "slug", "summary"),
    [
        ({"init_does": "hang"}, "nvml-unavailable", "NVML did not answer in time: nvidia-smi and NCCL need it"),
        (
            {"of_gpu": {3: {"power": "hang"}}},
            "nvml-unavailable",
            "NVML did not answer in time, asked about GPU 3: nvidia-smi and NCCL need it",
        ),
        ({"init_does": "crash"}, "nvml-unavailable", "NVML crashed with SIGSEGV: nvidia-smi and NCCL need it"),
        ({"cuda_does": "hang"}, "cuda-unknown-error", "CUDA can't start: it hangs, apart from torch, too"),
        ({"cuda_does": "crash"}, "cuda-unknown-error", "CUDA can't start: it crashes (SIGSEGV), apart from torch, too"),
    ],
    ids=str,
)
def test_driver_that_is_stuck_is_an_illness(
    fake_nvidia: FakeNvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Any, slug: str, summary: str
) -> None:
    monkeypatch.setattr(nvml, "SECONDS", 2.0)
    monkeypatch.setattr(libcuda, "SECONDS", 2.0)
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    one = context(tmp_path, fake_nvidia.environ(**library))
    not_imported = {"cuda_available": Unknown("torch was not imported")}
    host = to_snapshot(healthy_facts("h100x8-bare-metal"))
    host = replace(host, driver=driver.probe(one), gpus=gpus.probe(one), torch=replace(host.torch, **not_imported))
    results = diagnose(host, plan_for(host), [find_check("nvml-unavailable"), find_check("cuda-unknown-error")])
    found = {result.check.slug: finding for result in results for finding in result.findings}
    assert {name: (finding.summary, finding.severity) for name, finding in found.items()} == {slug: (summary, None)}
    assert len(results) == 2


def test_library_that_is_no_library(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).write_text("not an ELF file, although long enough to be read as one" * 9)
    found = driver.probe(context(tmp_path / "root", {"LD_LIBRARY_PATH": str(folder)}))
    assert isinstance(found, Driver)
    assert isinstance(found.libcuda_path, Unknown)
    assert "libcuda can't be used" in found.libcuda_path.reason
    assert "invalid ELF header" in found.libcuda_path.reason
    assert found.nvml_status == 12


def test_settings_of_the_patient_do_not_get_in_the_way(fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit('the wrong pynvml')")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    environ = {**fake_nvidia.environ(), "PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere"}
    found = driver.probe(context(tmp_path, environ))
    assert isinstance(found, Driver)
    assert (found.nvml_status, found.cuda_init) == (0, 0)


def test_nvml_is_asked_once_for_both_probes(fake_nvidia: FakeNvidia, tmp_path: Path) -> None:
    one = context(tmp_path, fake_nvidia.environ())
    assert nvml.ask(one) is nvml.ask(one)
    driver.probe(one)
    found = gpus.probe(one)
    assert isinstance(found, Gpus)
    assert len(found.devices) == len(nvml.ask(one).gpus)


HANGS_AS_IT_IS_LOADED = (
    "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n"
)


@pytest.mark.parametrize("library", ["nvml", "libcuda", "nccl"])
def test_an_inquiry_that_hangs_ends_itself_where_its_caller_was_killed(library: str, tmp_path: Path) -> None:
    (tmp_path / "hang.c").write_text(HANGS_AS_IT_IS_LOADED)
    hanging = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", hanging, tmp_path / "hang.c"], check=True)
    (tmp_path / "libcuda.so.1").symlink_to(hanging)
    argument = hanging if library == "nccl" else Path(pynvml.__file__).parent
    source = inquiry(library).read_text()
    assert source.count("END_SECONDS = 60\n") == 1
    script = tmp_path / "inquiry.py"
    script.write_text(source.replace("END_SECONDS = 60\n", "END_SECONDS = 1\n"))
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-I", "-S", script, argument], env=environ, timeout=60, check=False)
    assert ended.returncode == -signal.SIGALRM
