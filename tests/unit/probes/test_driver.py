"""The driver probe over made-up trees, with nothing to load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.driver import Driver
from ddpdoctor.probes import driver, subprocesses
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.library_search import can_be_found

OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-AM02)  Tue Sep 23 09:55:41 UTC 2025
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024\n"
JETSON = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build  (buildbrain@mobile-u64)\n"
RELEASE = "5.15.0-139-generic"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def host(root: Path, files: dict[str, str] | None = None, path: str = "/nowhere") -> Context:
    write(root, **(files or {}))
    return Context("python", root=root, environ={"PATH": path})


def look(root: Path, files: dict[str, str] | None = None) -> Driver:
    found = driver.probe(host(root, files))
    assert isinstance(found, Driver)
    return found


def script(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_host_without_nvidia_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: object, **more: object) -> None:
        raise AssertionError("started a process")

    monkeypatch.setattr(subprocesses.subprocess, "Popen", start)
    files = {"proc/modules": "i915 1 0 - Live 0x0\n", "proc/sys/kernel/osrelease": RELEASE}
    (tmp_path / f"lib/modules/{RELEASE}").mkdir(parents=True)
    assert look(tmp_path, files) == Driver(loaded_modules=(), kernel_version=None)


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [(OPEN, "580.95.05", "open"), (PROPRIETARY, "550.144.03", "proprietary"), (JETSON, "540.4.0", "open")],
)
def test_loaded_module(tmp_path: Path, text: str, version: str, flavour: str) -> None:
    found = look(
        tmp_path,
        {
            "proc/driver/nvidia/version": text,
            "proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 9 1 nvidia_uvm, Live 0x0 (OE)\nnvidiafb 1 0 - Live 0x0\n",
        },
    )
    assert (found.kernel_version, found.kernel_flavour, found.version) == (version, flavour, version)
    assert found.loaded_modules == ("nvidia", "nvidia_uvm")


def test_version_file_that_names_none(tmp_path: Path) -> None:
    found = look(tmp_path, {"proc/driver/nvidia/version": "rubbish\n"})
    assert found.kernel_version == Unknown("/proc/driver/nvidia/version names no version")


def test_device_nodes_in_order(tmp_path: Path) -> None:
    names = ["nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-nvswitchctl", "dxg", "nvram", "nvme0n1", "null"]
    found = look(tmp_path, {f"dev/{name}": "" for name in names})
    assert found.device_nodes == (
        "/dev/dxg",
        "/dev/nvidia2",
        "/dev/nvidia10",
        "/dev/nvidia-nvswitchctl",
        "/dev/nvidia-uvm",
        "/dev/nvidiactl",
    )
    assert found.unreadable_nodes == ()


@pytest.mark.parametrize("refused", ["nvidia0", "nvidia-uvm"])
def test_nodes_that_this_user_may_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    monkeypatch.setattr(driver.os, "access", lambda path, mode: Path(path).name not in (refused, "nvidia-nvswitchctl"))
    found = look(tmp_path, {f"dev/{name}": "" for name in ("nvidia0", "nvidia-uvm", "nvidia-nvswitchctl")})
    assert found.unreadable_nodes == (f"/dev/{refused}",), "CUDA opens no nvswitchctl"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """An ELF object with the .modinfo section of a kernel module."""
    file = tmp_path / "built/nvidia.ko"
    file.parent.mkdir()
    source = 'const char info[] __attribute__((section(".modinfo"))) = "license=Dual MIT/GPL\\0version=580.95.05\\0supported=external";'
    subprocess.run(["gcc", "-c", "-x", "c", "-o", str(file), "-"], input=source.encode(), check=True, timeout=30)
    return file


@pytest.mark.parametrize("place", ["updates/dkms/nvidia.ko", "kernel/nvidia-580/nvidia.ko"])
@pytest.mark.tool("gcc")
def test_module_on_disk(tmp_path: Path, module: Path, place: str) -> None:
    folder = tmp_path / "lib/modules" / RELEASE
    (folder / place).parent.mkdir(parents=True)
    shutil.copy(module, folder / place)
    one = host(tmp_path, {"proc/sys/kernel/osrelease": RELEASE + "\n"})
    (folder / "modules.dep").write_text(f"kernel/fs/nvidia-not.ko: x\nkernel/x/nvidia-drm.ko: y\n{place}: z\n")
    assert driver.version_on_disk(one) == "580.95.05"


@pytest.mark.tool("gcc")
def test_module_that_modules_dep_does_not_list(tmp_path: Path, module: Path) -> None:
    folder = tmp_path / "lib/modules" / RELEASE / "updates/dkms"
    folder.mkdir(parents=True)
    shutil.copy(module, folder / "nvidia.ko")
    one = host(tmp_path, {"proc/sys/kernel/osrelease": RELEASE})
    assert driver.version_on_disk(one) == "580.95.05"


def test_compressed_module_is_modinfos_to_read(tmp_path: Path) -> None:
    folder = f"lib/modules/{RELEASE}/updates/dkms"
    one = host(tmp_path, {"proc/sys/kernel/osrelease": RELEASE, f"{folder}/nvidia.ko.zst": "..."}, f"{tmp_path}/bin")
    if shutil.which("modinfo", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        assert driver.version_on_disk(one) == Unknown("nvidia.ko.zst is compressed, and modinfo can't tell its version")
    script(tmp_path / "bin/modinfo", f'[ "$3" = {tmp_path}/{folder}/nvidia.ko.zst ] && echo 570.124.06')
    assert driver.version_on_disk(one) == "570.124.06"


def test_no_module_and_no_folder_are_told_apart(tmp_path: Path) -> None:
    one = host(tmp_path, {"proc/sys/kernel/osrelease": RELEASE})
    assert driver.version_on_disk(one) == Unknown(f"/lib/modules/{RELEASE} is not here")
    (tmp_path / "lib/modules" / RELEASE).mkdir(parents=True)
    assert driver.version_on_disk(one) is None


def test_module_that_is_cut_off(tmp_path: Path) -> None:
    place = f"lib/modules/{RELEASE}/extra/nvidia.ko"
    one = host(tmp_path, {"proc/sys/kernel/osrelease": RELEASE, place: "\x7fELF"})
    assert isinstance(driver.version_on_disk(one), Unknown)


@pytest.mark.parametrize(
    ("files", "listed"),
    [
        ({"etc/modprobe.d/nvidia.conf": "# ours\nblacklist nouveau\n"}, True),
        ({"usr/lib/modprobe.d/nvidia-installer.conf": "blacklist   nouveau\noptions nouveau modeset=0\n"}, True),
        ({"etc/modprobe.d/x.conf": "install nouveau /bin/false\n"}, True),
        ({"proc/cmdline": "quiet modprobe.blacklist=floppy,nouveau ro"}, True),
        ({"proc/cmdline": "rd.driver.blacklist=nouveau"}, True),
        ({"proc/cmdline": "quiet nouveau.modeset=0"}, True),
        ({"etc/modprobe.d/x.conf": "# blacklist nouveau\nblacklist nouveaux\n"}, False),
        ({"etc/modprobe.d/x.conf.disabled": "blacklist nouveau\n"}, False),
        ({"proc/cmdline": "quiet nouveau.modeset=1"}, False),
        ({}, False),
    ],
)
def test_nouveau_blacklist(tmp_path: Path, files: dict[str, str], listed: bool) -> None:
    assert driver.nouveau_blacklisted(host(tmp_path, files)) is listed


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("echo active", "active"),
        ("echo inactive; exit 3", "inactive"),
        ("echo failed; exit 3", "failed"),
        ("exit 1", Unknown("systemctl gave no answer")),
    ],
)
def test_fabric_manager_of_systemd(tmp_path: Path, answer: str, state: object) -> None:
    one = host(tmp_path, {"lib/systemd/system/nvidia-fabricmanager.service": ""}, f"{tmp_path}/bin")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    script(tmp_path / "bin/systemctl", answer)
    assert driver.fabric_manager(one) == state


def test_fabric_manager_without_systemd(tmp_path: Path) -> None:
    one = host(tmp_path, {"proc/17/comm": "bash\n"})
    assert driver.fabric_manager(one) is None
    assert driver.fabric_manager_version(one) is None
    script(tmp_path / "usr/bin/nv-fabricmanager", "echo Fabric Manager version is : 580.95.05")
    assert driver.fabric_manager(one) == "inactive"
    assert driver.fabric_manager_version(one) == "580.95.05"
    write(tmp_path, **{"proc/18/comm": "nv-fabricmanage\n"})
    assert driver.fabric_manager(one) == "active"


def test_where_the_loader_would_find_a_library(tmp_path: Path) -> None:
    one = Context("python", root=tmp_path / "root", environ={"LD_LIBRARY_PATH": f":{tmp_path}/mine:"})
    assert not can_be_found(one, "libcuda.so.1")
    write(tmp_path, **{"root/etc/ld.so.cache": "x\0libcuda.so\0libcuda.so.1\0/somewhere/libcuda.so.1\0"})
    assert can_be_found(one, "libcuda.so.1")
    assert not can_be_found(one, "libnvidia-ml.so.1")
    write(tmp_path, **{"mine/libnvidia-ml.so.1": ""})
    assert can_be_found(one, "libnvidia-ml.so.1")


def test_wsl_library(tmp_path: Path) -> None:
    one = host(tmp_path, {"usr/lib/wsl/lib/libcuda.so.1": ""})
    assert can_be_found(one, "libcuda.so.1")
