"""Whether we are in a container, which, and what it was given."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Container(Facts, frozen=True, kw_only=True):
    """`runtime` is None outside of any container."""

    runtime: Annotated[str | None, Source("/.dockerenv, /run/.containerenv, cgroup, mount table")]
    """"docker", "podman", "kubernetes", "apptainer", "enroot", "lxc", "containerd", "systemd-nspawn", "unknown"."""
    nvidia_visible_devices: Annotated[str | None, Source("NVIDIA_VISIBLE_DEVICES")] = None
    nvidia_driver_capabilities: Annotated[str | None, Source("NVIDIA_DRIVER_CAPABILITIES")] = None
    toolkit: Annotated[Maybe[str | None], Source("nvidia-ctk, nvidia-container-cli on PATH")] = None
    """On a host: path of the NVIDIA container toolkit, None if it isn't there."""
    docker: Annotated[Maybe[str | None], Source("docker, dockerd on PATH")] = None
    """On a host: path of the docker engine or client, None if there is none."""
    docker_runtimes: Annotated[Maybe[tuple[str, ...]], Source("/etc/docker/daemon.json")] = ()
    cdi: Annotated[tuple[str, ...], Source("/etc/cdi, /var/run/cdi")] = ()
    """On a host: specifications of NVIDIA devices for the Container Device Interface."""
    docker_is_snap: Annotated[bool, Source("path of docker")] = False
