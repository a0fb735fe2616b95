"""Which container we are in, by its marks; and which look like one and are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.container import Container
from ddpdoctor.probes.container import probe
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context

OVERLAY = "700 600 0:55 / / rw,relatime - overlay overlay rw,lowerdir={0}/l/A:{0}/l/B,upperdir={0}/x/diff\n"
DISK = "26 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw\n"
INNER = "pid:[4026532618]"


def look(
    root: Path,
    files: dict[str, str],
    environ: dict[str, str] | None = None,
    *,
    mounts: str = OVERLAY.format("/var/lib/x"),
    namespace: str = INNER,
) -> Container:
    files = {"proc/self/mountinfo": mounts, "proc/1/cgroup": "0::/\n", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(namespace)
    return probe(Context("python", root=root, environ=environ or {"PATH": "/usr/bin"}))


@pytest.mark.parametrize(
    ("runtime", "files", "environ", "mounts"),
    [
        ("docker", {".dockerenv": ""}, {}, OVERLAY.format("/var/lib/docker/overlay2")),
        ("docker", {}, {}, OVERLAY.format("/var/lib/docker/overlay2")),
        ("docker", {"proc/1/cgroup": "4:memory:/docker/4f0d9c1b2a3e4f0d9c1b2a3e\n"}, {}, DISK),
        ("podman", {"run/.containerenv": ""}, {}, OVERLAY.format("/x")),
        ("podman", {}, {}, OVERLAY.format("/home/ada/.local/share/containers/storage/overlay")),
        ("kubernetes", {"run/secrets/kubernetes.io/serviceaccount/token": "x"}, {}, OVERLAY.format("/x")),
        ("kubernetes", {".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, OVERLAY.format("/x")),
        ("kubernetes", {"proc/1/cgroup": "4:memory:/kubepods/burstable/pod1/2\n"}, {}, OVERLAY.format("/x")),
        ("containerd", {}, {}, OVERLAY.format("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs")),
        ("apptainer", {}, {"APPTAINER_CONTAINER": "/images/torch.sif"}, OVERLAY.format("/x")),
        ("apptainer", {".singularity.d/runscript": ""}, {}, "9 1 7:0 / / ro - squashfs /dev/loop0 ro\n"),
        ("enroot", {}, {}, "9 1 8:1 /raid/enroot-data/user-1000/pyxis_48213.0 / rw - ext4 /dev/sda1 rw\n"),
        ("lxc", {"run/systemd/container": "lxc\n"}, {}, "9 1 0:44 / / rw - zfs pool/ct1 rw\n"),
        ("systemd-nspawn", {"run/systemd/container": "systemd-nspawn"}, {}, "9 1 8:1 /machines/a / rw - ext4 /dev/sda1 rw\n"),
        ("podman", {}, {"container": "podman"}, OVERLAY.format("/x")),
    ],
)  # fmt: skip
def test_containers(tmp_path: Path, runtime: str, files: dict[str, str], environ: dict[str, str], mounts: str) -> None:
    found = look(tmp_path, files, {"NVIDIA_VISIBLE_DEVICES": "all", **environ}, mounts=mounts)
    assert found.runtime == runtime
    assert found.nvidia_visible_devices == "all"


@pytest.mark.parametrize(
    ("files", "environ", "mounts"),
    [
        ({}, {}, DISK),
        # A virtual machine whose disk was made from a container image.
        ({".dockerenv": ""}, {}, DISK),
        ({"run/systemd/container": "wsl\n"}, {}, "26 1 8:32 / / rw - ext4 /dev/sdc rw\n"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, DISK),
        ({}, {}, "26 1 0:30 /@ / rw - btrfs /dev/nvme0n1p3 rw,subvol=/@\n"),
        # A live system, and overlayroot.
        ({}, {}, "26 1 0:30 / / rw - overlay /cow rw,lowerdir=/filesystem.squashfs,upperdir=/cow/upper\n"),
    ],
)
def test_no_containers(tmp_path: Path, files: dict[str, str], environ: dict[str, str], mounts: str) -> None:
    assert look(tmp_path, files, environ, mounts=mounts, namespace=INITIAL_PID_NAMESPACE).runtime is None


def host(root: Path, commands: tuple[str, ...] = (), files: dict[str, str] | None = None) -> Container:
    for command in commands:
        path = root / command.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return look(root, files or {}, {"PATH": "/usr/bin:/snap/bin"}, mounts=DISK, namespace=INITIAL_PID_NAMESPACE)


def test_docker_and_toolkit_on_a_host(tmp_path: Path) -> None:
    daemon = json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}})
    found = host(
        tmp_path,
        ("/usr/bin/docker", "/usr/bin/nvidia-ctk"),
        {"etc/docker/daemon.json": daemon, "etc/cdi/nvidia.yaml": "", "etc/cdi/other.yaml": ""},
    )
    assert (found.docker, found.toolkit, found.docker_runtimes) == (
        "/usr/bin/docker",
        "/usr/bin/nvidia-ctk",
        ("nvidia",),
    )
    assert found.cdi == ("/etc/cdi/nvidia.yaml",)
    assert not found.docker_is_snap


def test_docker_as_a_snap(tmp_path: Path) -> None:
    found = host(tmp_path, ("/snap/bin/docker",))
    assert (found.docker, found.docker_is_snap, found.toolkit) == ("/snap/bin/docker", True, None)


def test_a_file_that_may_not_be_run_is_no_docker(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/docker").write_text("")
    assert host(tmp_path).docker is None


@pytest.mark.parametrize("text", ["{", "[]", '{"runtimes": 3}'])
def test_broken_daemon_configuration_is_unknown(tmp_path: Path, text: str) -> None:
    assert isinstance(host(tmp_path, files={"etc/docker/daemon.json": text}).docker_runtimes, Unknown)


def test_unreadable_daemon_configuration_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "etc/docker/daemon.json").mkdir(parents=True)
    assert isinstance(host(tmp_path).docker_runtimes, Unknown)
