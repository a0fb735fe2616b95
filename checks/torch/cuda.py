"""torch's CUDA against this host's driver and GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import dotted, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known
from ddpdoctor.checks.driver.userspace import SHUT
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, leave_untested, requires
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.snapshot import (
    Container,
    Driver,
    Environment,
    Libraries,
    Machine,
    Packages,
    Pci,
    TargetPython,
    Torch,
)
from ddpdoctor.facts.visible import needs_certain_order, visible_gpus
from ddpdoctor.knowledge.cuda_stack import library_path, needs_cuda_build
from ddpdoctor.knowledge.evidence import cuda_start, libcuda, told, torch_cuda
from ddpdoctor.knowledge.installing import capabilities, driver_cuda, jetson_fix, replacing
from ddpdoctor.knowledge.nvidia import (
    NO_DRIVER,
    called,
    compute_capability,
    driver_loaded,
    is_compat,
    nvidia_gpus,
    own_gpus,
    shut_nodes,
)
from ddpdoctor.knowledge.privileges import by_root, runtime_of
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.stuck_driver import IN_TORCH, torch_cut_short
from ddpdoctor.knowledge.wheels import CUDA_TAGS, DRIVER_FLOOR, best_tag, index_url, numbers, release, runs_on

NOT_TOLD = "the driver doesn't tell which CUDA it serves"


@check("driver-too-old", severity=FAIL, owner=Owner.USER)
def driver_too_old(
    torch: Torch,
    driver: Driver,
    machine: Maybe[Machine],
    target_python: TargetPython,
    gpus: Maybe[Gpus],
    container: Maybe[Container],
    packages: Maybe[Packages],
) -> Iterator[Finding]:
    """The NVIDIA driver is older than the CUDA that torch was built with.

    ## What breaks
    `torch.cuda.is_available()` is False, and the first CUDA call says that the driver is too old.

    ## Why
    torch brings CUDA with it, except for the driver's part. Within one major version every driver serves every CUDA (12.8 on
    a driver of 12.4 is fine); a newer major needs a newer driver: 525.60.13 for 12.x, 580.65.06 for 13.x. Plain
    `pip install torch` takes the newest CUDA, whatever the driver.

    ## Fix
    Without root: install the torch for the older CUDA. With root: update the driver. On data-centre GPUs the package
    cuda-compat helps, too.
    """
    cuda = needs_cuda_build(torch)
    requires(driver.version is not None or driver.libcuda_path is not None, NO_DRIVER)
    served = driver_cuda(driver, machine)
    if served is None:
        known(machine)
        leave_untested(NOT_TOLD)
    if served[0] >= numbers(cuda)[0]:
        return
    exact = isinstance(driver.cuda_version, tuple)
    newest = dotted(served) if exact else f"{served[0]}.x"
    says = f"serves CUDA {newest} at most" if served[0] else "is older than any that torch still supports"
    where = " on the host, outside of the container" if runtime_of(container) else ""
    where += f" ({DRIVER_FLOOR.get(numbers(cuda)[0], 'a newer one')} or later)"
    where = " in Windows, not inside WSL" if isinstance(machine, Machine) and machine.wsl else where
    update = f"Or ask the administrator for a driver for CUDA {numbers(cuda)[0]}{where}, and send what this prints"
    yield Finding.of(
        f"torch is built for CUDA {cuda}, and driver {driver.version or ''} {says}".replace("  ", " "),
        torch_cuda(torch),
        told(driver, "cuda_version", f"newest CUDA that the driver serves: {newest}") if exact else None,
        Evidence(f"driver {driver.version}", "the driver's kernel module and libraries") if driver.version else None,
        _for_older_driver(torch, target_python, served, gpus, packages),
        Fix(update, ("nvidia-smi",)),
    )


def _for_older_driver(
    torch: Torch, target_python: TargetPython, served: tuple[int, int], gpus: Maybe[Gpus], packages: Maybe[Packages]
) -> Iterator[Fix]:
    """The same release of torch for the driver's CUDA if there is one, else the newest that there is."""
    version = release(torch.version)
    plain = version and not version.is_prerelease and (version.major, version.minor) in CUDA_TAGS
    for pin in (version.base_version, "") if version and plain else ("",):
        tag = best_tag(served, capabilities(gpus), pin or None)
        if tag:
            names = replacing(packages, f"torch=={pin}" if pin else "torch")
            command = pip_install(target_python, *names, "--index-url", index_url(tag))
            yield Fix(f"Install the build that this driver serves ({tag})", (command,))
            return


@check("cuda-compat-unsupported", severity=FAIL, owner=Owner.USER)
def cuda_compat_unsupported(driver: Driver, gpus: Maybe[Gpus], libraries: Maybe[Libraries]) -> Iterator[Finding]:
    """A forward-compatibility libcuda is loaded that doesn't fit this GPU or driver.

    ## What breaks
    `torch.cuda.is_available()` is False with "Error 804: forward compatibility was attempted on non supported HW", or 803.

    ## Why
    Containers bring a libcuda of their own in `/usr/local/cuda/compat`, for data-centre GPUs whose driver is older than the
    container's CUDA. On GeForce cards, and beside a newer driver, it must not be loaded.

    ## Fix
    Take the compat folder out of LD_LIBRARY_PATH and of `/etc/ld.so.conf.d`, so that the driver's own libcuda is found.
    """
    path = known(driver.libcuda_path)
    requires(path is not None, NO_DRIVER)
    code = known(driver.cuda_init)
    if code == 0 or (code != 804 and not is_compat(path)):
        return
    kernel = driver.kernel_version if isinstance(driver.kernel_version, str) else driver.nvml_driver_version
    library = driver.libcuda_version
    names = [] if isinstance(gpus, Unknown) else [device.name for device in gpus.devices]
    consumer = next((name for name in names if re.search(r"GeForce|TITAN", name)), None)
    behind = bool(kernel and library and numbers(library) < numbers(kernel))
    if code not in (803, 804) and not consumer and not behind:
        return
    why = f"{consumer} is no data-centre GPU: forward compatibility doesn't work on it." if consumer else ""
    if behind:
        why = f"It belongs to driver {library}, which is older than the loaded driver {kernel}, so it isn't needed."
    search = () if isinstance(libraries, Unknown) else libraries.search_path
    kept = [folder for folder in search if not is_compat(f"{folder}/")]
    if len(kept) < len(search):
        fix = Fix("Take the compat folder out of LD_LIBRARY_PATH", library_path(kept))
    elif is_compat(path):
        fix = by_root(
            "Delete the file, found by the first command, that puts the compat folder on the loader's path",
            ("grep -rl compat /etc/ld.so.conf.d", "sudo ldconfig"),
        )
    else:
        fix = Fix(
            "Find out where this libcuda comes from, and make the loader find the driver's own before it",
            ("ldconfig -p | grep libcuda.so", "echo $LD_LIBRARY_PATH"),
        )
    yield Finding.of(
        f"CUDA can't start (code {code}): it loads {'a forward-compatibility libcuda, ' * is_compat(path)}{path}",
        libcuda(driver),
        cuda_start(driver),
        told(driver, "kernel_version", f"loaded driver: {kernel or 'of unknown version'}"),
        fix,
        cause=why,
    )


_AMD = ("HIP error: ", "hipErrorNoBinaryForGpu", "rocBLAS error: ", "MIOpen(HIP): ")
_KERNELS_FOR_NEWER = (
    " only supports Ampere GPUs",
    " only supports Hopper GPUs",
    " requires .target sm_",
    "bf16 is only supported on A100+",
    "too old to be supported by the triton GPU compiler",
    "loat16 is only supported on GPUs with",
    "bf16 mixed precision requires PyTorch",
    "Your setup doesn't support bf16/gpu",
    "CUDA_R_16BF",
)


def _of_others(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Of an AMD GPU, and of kernels that were written for newer GPUs, other things help than another build of torch for CUDA."""
    lines = [match.line.text for match in seen]
    if any(words in line for line in lines for words in _AMD):
        return _OF_ROCM
    return _OF_KERNELS if all(any(words in line for words in _KERNELS_FOR_NEWER) for line in lines) else Particulars()


_SHOW_AMD = (
    "python -c 'import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_properties(0).gcnArchName)'"
)
_OF_ROCM = Particulars(
    fixes=(
        Fix("See for which GPUs this torch was built, and what this one is called", (_SHOW_AMD,)),
        Fix("Install a build for a release of ROCm that names this GPU; build extensions again, with PYTORCH_ROCM_ARCH naming it"),
    ),
    cause="A ROCm build of torch, or of an extension, holds code for the AMD GPUs that were named as it was built, and for no others.",
)  # fmt: skip
_OF_KERNELS = Particulars(
    "This GPU is older than the kernels need that the run uses",
    (
        Fix("See what this GPU can", ("python -c 'import torch; print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())'",)),
        Fix("On a GPU before Ampere (below 8.0), train in float16 or float32 in place of bfloat16"),
        Fix("Use other kernels: in transformers attn_implementation='sdpa' in place of 'flash_attention_2'; torch's own scaled_dot_product_attention"),
    ),
    "These kernels use what only newer GPUs have; no build of them runs on this one.",
)  # fmt: skip


@check("gpu-arch-unsupported", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_of_others))
def gpu_arch_unsupported(
    torch: Torch,
    gpus: Gpus,
    driver: Maybe[Driver],
    machine: Maybe[Machine],
    target_python: TargetPython,
    environment: Maybe[Environment],
    packages: Maybe[Packages],
) -> Iterator[Finding]:
    """torch has no code for this GPU.

    ## What breaks
    The first kernel ends with "no kernel image is available for execution on the device".

    ## Why
    A build holds machine code for some generations of GPUs. A GPU newer than the build has none (Blackwell with CUDA 12.4),
    and builds for newer CUDA drop old generations (Pascal and Volta have none in CUDA 12.8 and 13 wheels).

    ## Fix
    Install the build that has it: cu126 for Maxwell, Pascal and Volta; cu128 or cu130 for Blackwell.
    Where the traceback ends in an extension (flash-attn, fused kernels), the extension lacks the code, and no other torch helps:
    build it again on this GPU, or with `TORCH_CUDA_ARCH_LIST` naming it, and remove the old build from `~/.cache/torch_extensions` or
    the script's own `build` folder.
    """
    cuda = needs_cuda_build(torch)
    nvidia_gpus(gpus)
    arch_list = known(torch.arch_list)
    if not arch_list:
        leave_untested("torch doesn't tell which GPUs it has code for")
    usable = [visible_gpu.gpu for visible_gpu in visible_gpus(gpus, environment)]
    requires(usable, "no GPU is visible to torch")
    served = driver_cuda(driver, machine)
    jit = served is None or served >= numbers(cuda)[:2]

    def runs(gpu: Gpu, jit: bool) -> bool:
        capability = compute_capability(gpu)
        on_desktop, on_tegra = (runs_on(capability, arch_list, tegra=tegra, jit=jit) for tegra in (False, True))
        return on_desktop if on_desktop == on_tegra or not known(machine).jetson else on_tegra

    unsupported = list(dict.fromkeys(gpu for gpu in usable if not if_known(runs, gpu, jit, default=True)))
    if not unsupported:
        if not all(runs(gpu, jit and served is not None) for gpu in usable):
            known(driver), known(machine)
            leave_untested(NOT_TOLD)
        return
    supported = [gpu for gpu in usable if gpu not in unsupported and if_known(runs, gpu, jit, default=False)]
    first, capability = unsupported[0], dotted(compute_capability(unsupported[0]))
    if supported:
        needs_certain_order(gpus, environment)
    yield Finding.of(
        f"torch {torch.version} has no code for {called(unsupported)}: {first.name}, sm_{capability.replace('.', '')}",
        told(torch, "arch_list", f"torch has code for {listed(arch_list, most=9)}"),
        told(gpus, "devices", f"{first.name} has compute capability {capability}"),
        jetson_fix(target_python, driver, packages)
        if isinstance(machine, Machine) and machine.jetson
        else _for_these_gpus(target_python, served, [*unsupported, *supported], supported, packages),
        severity=WARN if supported else FAIL,
    )
    for gpu in usable:
        runs(gpu, jit)


def _for_these_gpus(
    target_python: TargetPython,
    served: tuple[int, int] | None,
    usable: list[Gpu],
    supported: list[Gpu],
    packages: Maybe[Packages],
) -> Iterator[Fix]:
    tag = best_tag(served, [compute_capability(gpu) for gpu in usable])
    if tag:
        command = pip_install(target_python, *replacing(packages), "--index-url", index_url(tag))
        yield Fix(f"Install the build that has code for it ({tag})", (command,))
    if supported:
        chosen = shlex.quote(",".join(gpu.uuid for gpu in supported))
        yield Fix("Or leave that GPU out" if tag else "Leave that GPU out", (f"export CUDA_VISIBLE_DEVICES={chosen}",))
    elif not tag:
        yield Fix(
            "Ask the administrator for a newer driver, or take an older torch: no current build has code for this GPU and "
            "works with this driver; this shows for which GPUs the installed build has code",
            (in_target_python(target_python, "-c", "import torch; print(torch.cuda.get_arch_list())"),),
        )


@check("cuda-unavailable", severity=FAIL, owner=Owner.UNKNOWN)
def cuda_unavailable(
    torch: Torch,
    gpus: Maybe[Gpus],
    driver: Maybe[Driver],
    machine: Maybe[Machine],
    target_python: TargetPython,
    environment: Maybe[Environment],
    pci: Maybe[Pci],
    container: Maybe[Container],
) -> Iterator[Finding]:
    """torch has CUDA, the driver or the bus shows GPUs, and yet torch can't use them.

    ## What breaks
    `torch.cuda.is_available()` is False, hangs or kills the process: training falls back to the processor or stops.

    ## Why
    CUDA itself failed to start; torch's message says more than `nvidia-smi` does.

    ## Fix
    Read the message. Without one, start a new process: where CUDA was used before a fork, it is broken in the child.
    """
    cuda = needs_cuda_build(torch)
    if torch.cuda_error.startswith(IN_TORCH):
        driver = known(driver)
        own = driver.cuda_end and (driver_loaded(driver) or known(machine).wsl)
        requires(not own, "CUDA itself can't start: see cuda-unknown-error")
        yield torch_cut_short(torch, driver, target_python)
        return
    on_bus = () if isinstance(pci, Unknown) else own_gpus(pci)
    answering = not isinstance(gpus, Unknown) and gpus.vendor == "nvidia" and bool(gpus.answering)
    if not on_bus:
        nvidia_gpus(known(gpus))
    if known(torch.cuda_available):
        return
    if answering:
        requires(visible_gpus(known(gpus), environment), "no GPU is visible to torch")
    else:
        requires(not _drivers_own_matter(driver, machine, container), "the driver itself doesn't work: see its checks")
    served = driver_cuda(driver, machine)
    requires(not served or served[0] >= numbers(cuda)[0], "the driver is too old for this torch: see driver-too-old")
    others_can_tell = not isinstance(machine, Unknown) and not isinstance(container, Unknown)
    if isinstance(driver, Driver) and isinstance(driver.cuda_init, int) and others_can_tell:
        other = {
            802: "fabric-manager-not-running",
            803: "cuda-compat-unsupported" if is_compat(str(driver.libcuda_path)) else "nvml-driver-mismatch",
            804: "cuda-compat-unsupported",
            999: "cuda-unknown-error",
        }
        requires(driver.cuda_init not in other, f"CUDA itself can't start: see {other.get(driver.cuda_init)}")
        requires(not shut_nodes(driver), SHUT)
    message = (torch.cuda_error.strip().splitlines() or ["no reason given"])[-1].rstrip(".")
    if answering:
        gpus = known(gpus)
        count, who = len(gpus.answering), "the driver"
        shown = told(gpus, "devices", f"the driver shows {count} x {gpus.answering[0].name}")
    else:
        count, who = len(on_bus), "the PCI bus"
        text = f"{plural(count, 'NVIDIA GPU')} on the PCI bus, the first at {on_bus[0].address}"
        shown = told(known(pci), "devices", text)
    yield Finding.of(
        f"torch {torch.version} can't use the {plural(count, 'GPU')} that {who} shows: {message}",
        told(torch, "cuda_available", "torch finds no GPU that it can use"),
        told(torch, "cuda_error", f"torch's message: {message}"),
        None if isinstance(driver, Unknown) else cuda_start(driver),
        shown,
        Fix("See the whole message", (in_target_python(target_python, "-c", "import torch; torch.cuda.init()"),)),
        Fix("Look for settings that mislead CUDA", ("env | grep -E 'CUDA|NVIDIA|LD_'",)),
    )


def _drivers_own_matter(driver: Maybe[Driver], machine: Maybe[Machine], container: Maybe[Container]) -> bool:
    """Whether what is known of the driver suffices for its own checks to say why no GPU is there."""
    if isinstance(driver, Unknown) or isinstance(machine, Unknown) or isinstance(container, Unknown):
        return False
    no_library = driver.libcuda_path is None
    not_loaded = not isinstance(driver.kernel_version, Unknown) and not driver_loaded(driver) and not machine.wsl
    no_management = not isinstance(driver.nvml_status, Unknown) and driver.nvml_status != 0
    return no_library or not_loaded or no_management or bool(driver.nvml_end) or bool(shut_nodes(driver))
