"""The NVIDIA driver: kernel module, user-space libraries, device nodes, NVML's own account of itself."""

from __future__ import annotations

import re
from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Driver(Facts, frozen=True, kw_only=True):
    """Versions are strings such as "580.95.05"; CUDA versions are (major, minor)."""

    loaded_modules: Annotated[Maybe[tuple[str, ...]], Source("/proc/modules")]
    """Those of nvidia, nvidia_uvm, nvidia_drm, nvidia_modeset, nvidia_peermem, nvidia_fs, nouveau, amdgpu, nvgpu that are
    loaded."""
    kernel_version: Annotated[Maybe[str | None], Source("/proc/driver/nvidia/version")]
    """Version of the loaded kernel module; None: it isn't loaded."""
    kernel_flavour: Annotated[str | None, Source("/proc/driver/nvidia/version")] = None
    """"open" or "proprietary"."""
    module_on_disk: Annotated[Maybe[str | None], Source("/lib/modules, modinfo")] = None
    """Version of the nvidia module that is installed for the running kernel; None: there is none."""
    device_nodes: Annotated[tuple[str, ...], Source("/dev")] = ()
    """Of /dev/nvidia*, /dev/dxg (WSL), /dev/nvmap (Jetson): those that exist."""
    unreadable_nodes: Annotated[tuple[str, ...], Source("access() of the device nodes")] = ()
    """Those of them that this user may not open for reading and writing."""
    libcuda_path: Annotated[Maybe[str | None], Source("dynamic loader")] = None
    """Real path of the libcuda.so.1 that a process gets now; None: there is none."""
    libcuda_version: Annotated[str | None, Source("file name of libcuda")] = None
    """Driver version in that file's name, "580.95.05"."""
    cuda_version: Annotated[Maybe[tuple[int, int] | None], Source("cuDriverGetVersion")] = None
    """The newest CUDA that this libcuda serves, as (13, 0); None: there is no libcuda."""
    cuda_init: Annotated[Maybe[int | None], Source("cuInit in a subprocess")] = None
    """None: there is no libcuda. Asked without CUDA_VISIBLE_DEVICES. Else the return code of cuInit(0): 0 is good, 100 no device, 802 not yet initialised, 803 mismatch, 804 compat unsupported, 999 unknown."""
    cuda_end: Annotated[str, Source("cuInit in a subprocess")] = ""
    """How it ended where libcuda got stuck or killed the process before cuInit returned: "hangs" (our deadline passed),
    "crashes: SIGSEGV"; else ""."""
    nvml_status: Annotated[Maybe[int | None], Source("nvmlInit in a subprocess")] = None
    """Return code of nvmlInit: 0 is good, 9 driver not loaded, 18 version mismatch, 999 unknown ...; None: there is no
    libnvidia-ml.so.1 and nothing was asked; 12: the file is there and the loader can't load it."""
    nvml_message: Annotated[str, Source("nvmlErrorString")] = ""
    nvml_end: Annotated[str, Source("NVML's answers in a subprocess")] = ""
    """As `cuda_end`, for NVML; nvmlInit may have worked, and a question about one GPU have hung."""
    nvml_path: Annotated[str | None, Source("memory map of a process that loaded NVML")] = None
    """Real path of libnvidia-ml.so.1."""
    nvml_version: Annotated[str | None, Source("nvmlSystemGetNVMLVersion, or the file name of NVML")] = None
    """Version of the NVML library, that is the user-space driver's: "580.95.05", without NVML's "13." in front."""
    nvml_driver_version: Annotated[str | None, Source("nvmlSystemGetDriverVersion")] = None
    nouveau_blacklisted: Annotated[Maybe[bool], Source("/etc/modprobe.d")] = False
    fabric_manager: Annotated[Maybe[str | None], Source("systemd unit, process list")] = None
    """"active", "inactive", "failed"; None: not installed."""
    fabric_manager_version: Annotated[Maybe[str | None], Source("nv-fabricmanager on disk")] = None
    persistence_daemon: Annotated[Maybe[bool], Source("/run/nvidia-persistenced")] = False

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        """/dev/nvidia0, /dev/nvidia1 ..."""
        return tuple(node for node in self.device_nodes if re.fullmatch(r"/dev/nvidia\d+", node))

    @property
    def version(self) -> str | None:
        """The driver's version from the best source that has one."""
        kernel = self.kernel_version if isinstance(self.kernel_version, str) else None
        return kernel or self.nvml_driver_version or self.libcuda_version
