"""Whether the driver answers: its libraries NVML and libcuda, and the device nodes they open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix, Owner
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, Driver, Gpus, Machine, Pci, Torch
from ddpdoctor.knowledge.evidence import cuda_start, kernel_module, nvml_start, told
from ddpdoctor.knowledge.nvidia import (
    NO_DRIVER,
    NO_GPU,
    NO_NODES,
    NVML_CODES,
    driver_loaded,
    is_compat,
    own_gpus,
    shut_nodes,
)
from ddpdoctor.knowledge.privileges import by_root, runtime_of
from ddpdoctor.knowledge.stuck_driver import cuda_cut_short, nvml_cut_short
from ddpdoctor.logs.analyze.sightings import word

SHUT = "this user may not open the GPUs' device nodes: see gpu-device-permission"
"""Why a check has no answer where that is so."""


@check("nvml-driver-mismatch", severity=FAIL, owner=Owner.NODE)
def nvml_driver_mismatch(driver: Driver, container: Maybe[Container], machine: Machine) -> Iterator[Finding]:
    """The driver's libraries and its loaded kernel module are of different versions.

    ## What breaks
    `nvidia-smi` says "Driver/library version mismatch", torch finds no GPU, and NCCL can't start. Jobs that ran before
    go on; new ones fail.

    ## Why
    The driver's packages were upgraded (often by unattended-upgrades) while the old kernel module stays loaded until
    the next reboot. In a container: the host was upgraded under it, or the image brings libraries of its own.

    ## Fix
    Reboot, or stop everything that uses the GPUs and reload the modules. Restart containers.
    To keep it from coming back: `sudo apt-mark hold 'nvidia-*' 'libnvidia-*'`.
    """
    loaded, status = known_or(driver.kernel_version, None), known_or(driver.nvml_status, None)
    requires(loaded or not machine.wsl, "WSL takes the NVIDIA driver from Windows")
    requires(driver.kernel_version is not None or status == 18, NO_DRIVER)
    library = (driver.nvml_version if status == 18 else None) or driver.libcuda_version or driver.nvml_version
    if driver.nvml_status is None and library is None:
        leave_untested("none of the driver's libraries tells its version")
    path, initialised = known_or(driver.libcuda_path, None) or "", known_or(driver.cuda_init, None)
    # Newer libraries out of a compat folder may serve an older module: that is what they are for.
    differs = loaded is not None and library is not None and loaded != library and not is_compat(path)
    if status != 18 and not (differs and initialised != 0) and not (initialised == 803 and not is_compat(path)):
        known(driver.kernel_version), known(driver.nvml_status)
        return
    unload = "sudo rmmod nvidia_peermem nvidia_drm nvidia_modeset nvidia_uvm nvidia"
    text = "Or, while no process uses the GPUs, reload the modules (needs root)"
    cause, fixes = "", (by_root("Reboot", ("sudo reboot",)), Fix(text, (unload, "sudo modprobe nvidia_uvm")))
    if runtime_of(container):
        cause = "The host's driver was changed under this container, or the image brings driver libraries of its own."
        text = "If that doesn't help: remove the driver's packages from the image (as root, in its Dockerfile)"
        fixes = (
            Fix("Restart the container, so that it gets the libraries that the host has now"),
            Fix(text, ("apt-get purge -y 'libnvidia-*' 'nvidia-*'",)),
        )
    versions = f"driver's libraries: version {library or 'unknown'}, {path or 'no libcuda.so.1'}"
    yield Finding.of(
        f"The loaded kernel module is {loaded}, the driver's libraries are {library}"
        if loaded and library and loaded != library
        else "NVML says that the driver's libraries and its loaded kernel module are of different versions",
        kernel_module(driver),
        told(driver, "libcuda_path", versions),
        nvml_start(driver),
        fixes,
        cause=cause,
    )


@check("nvml-unavailable", severity=FAIL, owner=Owner.NODE)
def nvml_unavailable(
    driver: Driver,
    container: Maybe[Container],
    machine: Machine,
    plan: Plan,
    pci: Maybe[Pci],
    gpus: Maybe[Gpus],
    torch: Maybe[Torch],
) -> Iterator[Finding]:
    """The driver's management library (NVML) doesn't work.

    ## What breaks
    `nvidia-smi` fails, and so does NCCL, which asks NVML for the GPUs' connections when it starts: training on more than
    one GPU stops at the first collective.

    ## Why
    libnvidia-ml.so.1 is missing or isn't the driver's, this user may not open the device nodes, or the driver is in a
    bad state.

    ## Fix
    See what `nvidia-smi` says. In a container: `NVIDIA_DRIVER_CAPABILITIES=compute,utility` (utility is what brings NVML).
    On a host: `sudo dmesg | grep NVRM`, and a reboot if the driver is stuck.
    """
    on_bus = isinstance(pci, Pci) and bool(own_gpus(pci))
    requires(not if_known(lambda: machine.jetson, default=False), "a Jetson has no full NVML")
    if not on_bus:
        known(machine)
    if driver.nvml_end:
        requires(driver.device_nodes or driver_loaded(driver) or own_gpus(known(pci)), NO_GPU)
        yield nvml_cut_short(driver, container, gpus, not isinstance(torch, Unknown) and torch.cuda_available is True)
        return
    requires(driver_loaded(driver) or machine.wsl, NO_DRIVER)
    requires(driver.libcuda_path is not None, "there is no libcuda.so.1")
    status = driver.nvml_status
    if isinstance(status, Unknown):
        leave_untested(status.reason)
    requires(status != 18 or machine.wsl, "NVML's version differs from the driver's: see nvml-driver-mismatch")
    requires(status != 15, "a GPU is lost: see gpu-fell-off-bus")
    requires(status != 999 or known(container).runtime is None, "the container lost its GPUs: see container-lost-gpu")
    requires(status != 4 or not shut_nodes(driver), SHUT)
    if status == 0:
        return
    several = plan.nproc > 1 or len(driver.gpu_nodes) > 1
    missing = status in (None, 12)
    words = "there is no libnvidia-ml.so.1" if status is None else NVML_CODES.get(status, driver.nvml_message)
    look = Fix(
        "See what nvidia-smi and the kernel log say, and send it to the administrator",
        ("nvidia-smi", "sudo dmesg | grep NVRM | tail -n 20"),
    )
    fixes: tuple[Fix, ...] = (look,)
    if missing and runtime_of(container):
        capabilities = "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        fixes = (Fix(f"Start the container with `{capabilities}`; `utility` is what brings NVML"),)
    elif missing:
        fixes = (by_root("Install the driver's libraries, in the version of the kernel module"),)
    elif status == 18:
        fixes = (Fix("Restart WSL, from Windows: its driver was changed meanwhile", ("wsl.exe --shutdown",)),)
    elif status == 4:
        who = "See who may open the device nodes, and which groups you are in"
        fixes = (Fix(who, ("ls -l /dev/nvidia*", "id")), look)
    yield Finding.of(
        f"NVML can't be used: {words or 'it fails'}{f' (code {status})' if status is not None else ''}",
        nvml_start(driver),
        told(driver, "nvml_path", f"NVML's library: {driver.nvml_path}") if driver.nvml_path else None,
        kernel_module(driver) if driver.kernel_version else None,
        fixes,
        severity=None if several else WARN,
    )


@check("gpu-device-permission", severity=FAIL, owner=Owner.NODE)
def gpu_device_permission(driver: Driver, container: Container, machine: Maybe[Machine]) -> Iterator[Finding]:
    """This user may not open the GPU's device nodes.

    ## What breaks
    torch sees no GPU although `nvidia-smi`, run by root, shows them all.

    ## Why
    CUDA talks to the driver through /dev/nvidia*. Their mode or group keeps this user out, or a cgroup does.

    ## Fix
    Join the group that owns them (`ls -l /dev/nvidia*`, then `sudo usermod -aG video $USER` and a new login), or in a
    batch system ask for GPUs, so that it lets the job use them.
    """
    requires(driver.device_nodes, NO_NODES)
    lost = driver.nvml_status == 999 and container.runtime
    requires(not lost, "the container lost its GPUs: see container-lost-gpu")
    closed = shut_nodes(driver)
    if not closed:
        return
    join = (f"ls -l {' '.join(closed[:3])}", "sudo usermod -aG video,render $USER")
    fixes = [
        by_root("Join the group that owns them, and log in again", join),
        Fix("Or, in a batch system, ask for GPUs when you submit the job (Slurm: `--gpus-per-node`)"),
    ]
    user = None if isinstance(machine, Unknown) else machine.user_id
    if user == 0:
        fixes = [Fix("Start the container or the job with its GPUs: a device cgroup keeps out even root")]
    yield Finding.of(
        f"{'This user' if user is None else f'User {user}'} may not open {listed(closed, most=3)}",
        told(driver, "unreadable_nodes", f"may not be opened: {listed(driver.unreadable_nodes, most=8)}"),
        None if isinstance(machine, Unknown) else machine.seen("user_id"),
        fixes,
    )


@check("cuda-unknown-error", severity=FAIL, owner=Owner.NODE)
def cuda_unknown_error(
    driver: Driver, container: Maybe[Container], machine: Maybe[Machine], torch: Maybe[Torch]
) -> Iterator[Finding]:
    """CUDA can't start: "unknown error", or its start hangs or crashes.

    ## What breaks
    `nvidia-smi` looks fine, and every CUDA program stops with "CUDA unknown error" (999), never gets past its first call, or
    is killed in it.

    ## Why
    Nearly always the nvidia_uvm module: not loaded, its device node missing, or stuck after the machine slept.

    ## Fix
    Reload it: `sudo rmmod nvidia_uvm; sudo modprobe nvidia_uvm; sudo nvidia-modprobe -u -c=0`. Else reboot.
    """
    requires(driver_loaded(driver) or known(machine).wsl, NO_DRIVER)
    requires(driver.cuda_init is not None, "there is no libcuda.so.1")
    nvml_works = known_or(driver.nvml_status, None) in (0, None) and not driver.nvml_end
    requires(nvml_works or known(machine).jetson, "NVML fails, too: see nvml-unavailable")
    requires(not shut_nodes(driver), SHUT)
    if driver.cuda_end:
        if isinstance(torch, Unknown) or torch.cuda_available is not True:
            yield cuda_cut_short(driver, container)
        return
    if known(driver.cuda_init) != 999:
        return
    loaded = known_or(driver.loaded_modules, ())
    ordinary = isinstance(machine, Machine) and not machine.wsl and not machine.jetson
    reasons = ["nvidia_uvm is not loaded"] if ordinary and "nvidia_uvm" not in loaded else []
    reasons += ["/dev/nvidia-uvm is missing"] if ordinary and "/dev/nvidia-uvm" not in driver.device_nodes else []
    yield Finding.of(
        f"CUDA can't start: unknown error (cuInit returned 999){f'; {listed(reasons)}' if reasons else ''}",
        cuda_start(driver),
        told(driver, "loaded_modules", f"loaded kernel modules: {listed(loaded, most=8) or 'none of the driver'}"),
        driver.seen("device_nodes", listed(driver.device_nodes, most=4)),
        Fix("Start a new container with the GPUs (Docker: `docker run --gpus all`)")
        if runtime_of(container)
        else by_root(
            "Reload the module while no process uses the GPUs, or reboot",
            ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm", "sudo nvidia-modprobe -u -c=0"),
        ),
        cause="The module nvidia_uvm is there, but it can be stuck after a suspend or a driver change."
        if ordinary and not reasons
        else "",
    )


@log_check("nccl-cuda-driver-mismatch", severity=FAIL, owner=Owner.USER, of_rank=True)
def nccl_cuda_driver_mismatch(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL calls functions that this driver doesn't have.

    ## What breaks
    The first collective fails with "unhandled cuda error" (ncclUnhandledCudaError), although torch computes on the GPU.

    ## Why
    torch's wheel brings an NCCL that was built for a newer CUDA than the driver's. CUDA itself still works (minor-version
    compatibility); the functions that only NCCL uses don't. Virtual GPUs lack some in every version.

    ## Fix
    Update the driver, or take a torch wheel of an older CUDA. Where it is about shared buffers, `NCCL_CUMEM_ENABLE=0` (and
    `NCCL_NVLS_ENABLE=0`) keeps NCCL from calling them.
    """
    return Finding.of(
        f'NCCL called a function that this driver doesn\'t have: "{word(seen, "said")}"',
        Fix(
            "Compare torch's CUDA with the newest that the driver serves", ("ddpdoctor check --select driver-too-old",)
        ),
        Fix("Try without NCCL's newer ways to share memory", ("export NCCL_CUMEM_ENABLE=0 NCCL_NVLS_ENABLE=0",)),
        Fix("Else update the driver, or install a torch wheel of the driver's CUDA or an older one"),
    )
