"""What kind of machine it is: on this one, and on made-up ones."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.machine import Machine
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.machine import probe


def machine_of(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return probe(Context("python", root=root))


def test_this_machine() -> None:
    found = probe(Context("python"))
    assert found.system == "Linux"
    assert found.kernel == os.uname().release
    assert found.architecture == os.uname().machine
    assert found.logical_cores == psutil.cpu_count()
    assert found.usable_cores == len(os.sched_getaffinity(0))
    assert found.memory_total == psutil.virtual_memory().total
    assert isinstance(found.memory_available, int)
    assert isinstance(found.memory_total, int)
    assert 0 < found.memory_available <= found.memory_total
    assert found.user_id == os.geteuid()


@pytest.mark.parametrize(
    ("kernel", "wsl"),
    [
        ("6.6.87.2-microsoft-standard-WSL2", True),
        ("4.4.0-19041-Microsoft", True),
        ("6.8.0-1021-azure", False),
        ("5.15.0-139-generic", False),
    ],
)
def test_wsl(tmp_path: Path, kernel: str, wsl: bool) -> None:
    found = machine_of(tmp_path, {"proc/sys/kernel/osrelease": kernel + "\n"})
    assert found.kernel == kernel
    assert found.wsl is wsl


def test_jetson(tmp_path: Path) -> None:
    assert machine_of(tmp_path / "a", {"etc/nv_tegra_release": "# R36 (release)\n"}).jetson
    compatible = "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0"
    assert machine_of(tmp_path / "b", {"proc/device-tree/compatible": compatible}).jetson
    assert not machine_of(
        tmp_path / "c", {"proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0"}
    ).jetson


def test_os_release(tmp_path: Path) -> None:
    found = machine_of(tmp_path, {"etc/os-release": '# no\nID=ubuntu\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\nX=\'open\n'})
    assert (found.os_id, found.os_name) == ("ubuntu", "Ubuntu 22.04.5 LTS")
    found = machine_of(tmp_path / "arm", {"usr/lib/os-release": "ID=debian\n"})
    assert found.os_id == "debian"
    assert isinstance(found.os_name, Unknown)


def test_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    found = machine_of(tmp_path, {"proc/meminfo": "MemTotal:       1000 kB\n"})
    assert found.memory_total == 1000 * 1024
    for value in (found.memory_available, found.os_name, found.boot_id, found.kernel_command_line):
        assert isinstance(value, Unknown)


def test_cores_of_arm_and_x86(tmp_path: Path) -> None:
    found = machine_of(tmp_path, {"proc/cpuinfo": "processor\t: 0\nx: y\n\nprocessor\t: 1\n"})
    assert found.logical_cores == 2
