"""Finds out whether we are in a container, and on a host, whether containers could be given GPUs."""

from __future__ import annotations

import json
import re

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.container import Container
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.probes.files import exists, isdir
from ddpdoctor.probes.mounts import Mount, mount_of, read_mounts
from ddpdoctor.probes.programs import find_program

TOOLKIT = ("nvidia-ctk", "nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli")

# In /proc/1/cgroup or /proc/self/cgroup of version 1; in version 2 a container's says only "0::/".
_BY_CGROUP = (
    (r"/kubepods", "kubernetes"),
    (r"/libpod-", "podman"),
    (r"/docker[-/][0-9a-f]{12}", "docker"),
    (r"/lxc(?:\.payload)?[./]", "lxc"),
    (r"/cri-containerd[-:]", "containerd"),
)
# systemd writes these into the environment of the container's init, and /run/systemd/container for everybody.
_NAMES = ("docker", "podman", "lxc", "systemd-nspawn", "kubernetes", "enroot")


def probe(context: Context) -> Container:
    found = Container(
        runtime=_runtime(context),
        nvidia_visible_devices=context.environ.get("NVIDIA_VISIBLE_DEVICES"),
        nvidia_driver_capabilities=context.environ.get("NVIDIA_DRIVER_CAPABILITIES"),
    )
    if found.runtime is not None:
        return found
    docker = _on_path(context, "docker", "dockerd")
    return msgspec.structs.replace(
        found,
        toolkit=_on_path(context, *TOOLKIT),
        docker=docker,
        docker_runtimes=_docker_runtimes(context),
        cdi=_cdi(context),
        docker_is_snap=docker is not None and docker.startswith("/snap/"),
    )


def _runtime(context: Context) -> str | None:
    """The most telling mark first: a pod's container also has its engine's marks."""
    environ = context.environ
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    mounts = read_mounts(context)
    root = mount_of("/", () if isinstance(mounts, Unknown) else mounts)
    words = f"{root.root} {root.source} {root.options}"
    if "enroot" in words or "/pyxis_" in words:
        return "enroot"
    if _is_booted_disk(context, root):
        # A virtual machine made from a container image keeps the image's marks.
        return None
    if isdir(context.path("/.singularity.d")):
        return "apptainer"
    if exists(context.path("/run/secrets/kubernetes.io/serviceaccount")):
        return "kubernetes"
    # Without any mark the variable is left over in a shell on a node.
    if "KUBERNETES_SERVICE_HOST" in environ and (_is_overlay(root) or exists(context.path("/dev/termination-log"))):
        return "kubernetes"
    if exists(context.path("/.dockerenv")):
        return "docker"
    if exists(context.path("/run/.containerenv")):
        return "podman"
    return _by_cgroup(context) or _by_name(context) or _by_root(root)


def _by_cgroup(context: Context) -> str | None:
    # That of init tells of the whole system; our own would also name a container for a job that Slurm put into one.
    text = context.text("/proc/1/cgroup")
    return next((name for pattern, name in _BY_CGROUP if re.search(pattern, text)), None)


def _by_name(context: Context) -> str | None:
    named = context.read_if_there("/run/systemd/container")
    name = named if isinstance(named, str) else context.environ.get("container", "")
    name = name.strip().removesuffix("-libvirt")
    # "wsl" stands there too, and that is a virtual machine.
    return name if name in _NAMES else "unknown" if name == "oci" or name.endswith("-oci") else None


def _by_root(root: Mount) -> str | None:
    """Without any mark: whose storage the root file system is an overlay of. A live system's is one as well."""
    if not _is_overlay(root):
        return None
    stores = (("/containerd/", "containerd"), ("/containers/storage/", "podman"), ("/docker/", "docker"))
    return next((name for store, name in stores if store in root.options), None)


def _is_overlay(root: Mount) -> bool:
    return root.kind in ("overlay", "fuse.fuse-overlayfs", "aufs")


def _is_booted_disk(context: Context, root: Mount) -> bool:
    """The root is a whole file system on a block device, and we are in the first namespace of processes."""
    if not root.source.startswith("/dev/") or root.kind == "squashfs":
        return False
    # btrfs is mounted by its subvolume, "/@" or "/root".
    return context.link("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE and (root.root == "/" or root.kind == "btrfs")


def _on_path(context: Context, *names: str) -> str | None:
    """The first of those commands that PATH finds, or that stands where packages put it."""
    path = f"{context.environ.get('PATH', '')}:/usr/bin:/usr/local/bin:/usr/sbin:/snap/bin"
    return next((found for name in names if (found := find_program(name, path, context.root))), None)


def _docker_runtimes(context: Context) -> Maybe[tuple[str, ...]]:
    """The runtimes that the Docker daemon is configured with; none where it has no configuration file."""
    for file in ("/etc/docker/daemon.json", "/var/snap/docker/current/config/daemon.json"):
        text = context.read_if_there(file)
        if isinstance(text, Unknown):
            return text
        if text is None:
            continue
        try:
            runtimes = json.loads(text or "{}").get("runtimes", {})
            return tuple(sorted(runtimes))
        except (ValueError, AttributeError, TypeError):
            return Unknown(f"{file} isn't valid JSON")
    return ()


def _cdi(context: Context) -> tuple[str, ...]:
    return tuple(
        f"{folder}/{name}"
        for folder in ("/etc/cdi", "/var/run/cdi")
        for name in context.names(folder)
        if "nvidia" in name and name.endswith((".yaml", ".json"))
    )
