"""The target Python's torch: is it there, does it import, and is it the build for this host's GPUs and driver?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.log import SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import (
    Container,
    Disks,
    Driver,
    Environment,
    Gpus,
    Log,
    Machine,
    Packages,
    Pci,
    TargetPython,
    Torch,
)
from ddpdoctor.knowledge.evidence import told, torch_cuda, torch_version
from ddpdoctor.knowledge.installing import amd_accelerator, install_torch, nvidia_hardware, rocm_fix
from ddpdoctor.knowledge.launchers import number
from ddpdoctor.knowledge.loader_messages import loader_fault
from ddpdoctor.knowledge.privileges import runtime_of
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.shadowed_modules import another_name, why_in_the_way
from ddpdoctor.knowledge.wheels import index_options
from ddpdoctor.logs.analyze.sightings import said, word

NO_LOG = Unknown("no log was read")

EXPLAINED_BY = (
    (r"version `(GLIBCXX|CXXABI)_", "glibcxx-too-old"),
    (r"version [`']lib(?:cu|nv)[^'`]*' not found", "ld-library-path-shadow", "cuda-libs-mixed"),
    (r"undefined symbol: nccl", "nccl-duplicate-pip", "nccl-lib-shadowed"),
    (
        r"undefined symbol: (__nvJitLink|cu(blas|sparse|dnn|rand|solver|fft|[A-Z]))",
        "ld-library-path-shadow",
        "cuda-libs-mixed",
    ),
    (r"lib(cuda|nvidia-ml)\.so\.1: cannot open shared object", "no-nvidia-driver"),
    (r"cannot open shared object file", "cuda-lib-not-found"),
    (r"operator torchvision::", "torch-torchvision-mismatch"),
)
"""Patterns of an import's error, and the checks that know more of it."""


@check("torch-missing", severity=FAIL, owner=Owner.USER)
def torch_missing(
    torch: Torch,
    target_python: TargetPython,
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    pci: Maybe[Pci],
    machine: Maybe[Machine],
    packages: Maybe[Packages],
) -> Iterator[Finding]:
    """PyTorch is not installed in the interpreter in which training is to run.

    ## What breaks
    The first `import torch` ends with "No module named 'torch'".

    ## Why
    Mostly another interpreter is active than the one into which torch was installed: a virtual environment that was not
    activated, `sudo`, a batch job that doesn't read the shell's start files, or an IDE with its own choice.

    ## Fix
    Name the right interpreter with `ddpdoctor check --python PATH`, or install torch into this one. Which build is right
    depends on the driver: plain `pip install torch` takes the newest CUDA, which an older driver can't serve.
    """
    if torch.installed:
        return
    yield Finding.of(
        f"PyTorch is not installed in {target_python.python}",
        told(torch, "installed", "that Python finds no package called torch"),
        Evidence(f"python: {target_python.python}", target_python.chosen_by),
        Fix(
            "If torch is in another environment: activate that one, then",
            ('ddpdoctor check --python "$(command -v python3)"',),
        ),
        install_torch(target_python, driver, gpus, pci, machine, packages),
        cause=f"That is the Python that was examined, chosen by: {target_python.chosen_by}. Training may run in another.",
    )


@check("torch-import-broken", severity=FAIL, owner=Owner.USER)
def torch_import_broken(
    torch: Torch, target_python: TargetPython, container: Maybe[Container], disks: Maybe[Disks]
) -> Iterator[Finding]:
    """PyTorch is installed, but can't be imported.

    ## What breaks
    Every rank ends, or hangs, at `import torch`.

    ## Why
    An exception mostly means a shared library that is missing or of another version; a death by a signal means a library
    that doesn't fit this processor or the other libraries; an import that never ends, a slow or hung network file system.

    ## Fix
    Read the last line of the traceback first: where another check knows the cause, this one names it. Otherwise install
    torch into a new environment.
    """
    requires(torch.installed, "torch is not installed")
    requires(torch.import_state != "not-tried", "torch was not imported")
    if torch.import_state == "ok":
        return
    requires(isinstance(disks, Unknown) or not disks.removed, "see working-folder-gone")
    requires(not torch.impostor, "see torch-shadowed")
    line = (torch.import_error.strip().splitlines() or ["no message"])[-1]
    short = re.sub(r"/[^\s:'\"()]+/", "", line)
    evidence = [told(torch, "import_error", f"import torch: {line}"), torch_version(torch)]
    traceback = "Traceback (most recent call last)" in torch.import_traceback
    printed = torch.import_traceback.strip().splitlines()
    if printed and not traceback:
        evidence.insert(1, told(torch, "import_traceback", f"the last line that it printed: {printed[-1]}"))
    repeat = ("-c", "import torch")
    if torch.import_state == "crashes":
        verb = "kills Python"
        cause = "A compiled library crashed while it was being loaded. The stack that faulthandler prints names it."
        look = Fix("See where it dies", (in_target_python(target_python, "-X", "faulthandler", *repeat),))
    elif torch.import_state == "hangs":
        verb = "hangs"
        cause = "Its files come slowly or not at all (a network file system), or a call to the GPU's driver hangs."
        timed = f"timeout 120 {in_target_python(target_python, '-X', 'importtime', *repeat)}"
        look = Fix("See how far it gets: the last line names the module", (timed, f"df {shlex.quote(torch.location)}"))
    else:
        verb, cause = "fails", "The last line of the traceback says what is missing or doesn't fit."
        if printed and not traceback:
            cause = f"It ended without a traceback, and printed: {printed[-1]}"
        look = Fix("See all that it prints", (in_target_python(target_python, *repeat),))
    text = torch.import_error + torch.import_traceback
    slugs = next((slugs for pattern, *slugs in EXPLAINED_BY if re.search(pattern, text)), [])
    if slugs == ["no-nvidia-driver"] and runtime_of(container):
        slugs = ["container-no-gpu"]
    fixes = [look, *_import_remedies(torch, target_python, line)]
    fault = loader_fault(text)
    if fault and not slugs:
        others = fixes[1:] if torch.found_through or fault.message.built_again else []
        cause, fixes = f"{fault.summary}. {fault.message.cause}", [*fault.fixes, *others]
    if slugs:
        cause = f"{listed(slugs)} {'looks' if len(slugs) == 1 else 'look'} into this."
        fixes = [Fix("Read about the likely cause", tuple(f"ddpdoctor explain {slug}" for slug in slugs))]
    if torch.in_the_way:
        cause, fixes = why_in_the_way(torch), [another_name(torch.in_the_way), look]
        evidence.append(told(torch, "in_the_way", f"the error comes from {torch.in_the_way}, or names it"))
    yield Finding.of(f"import torch {verb}: {short}", evidence, fixes, cause=cause)


def _import_remedies(torch: Torch, target_python: TargetPython, line: str) -> Iterator[Fix]:
    missing = re.search(r"No module named '([A-Za-z0-9_]+)'", line)
    if torch.found_through == "PYTHONPATH":
        yield Fix("This torch comes from PYTHONPATH; try without it", ("unset PYTHONPATH",))
    elif torch.found_through:
        yield Fix("This torch comes from the working folder; start from another folder", ("cd ~",))
    elif missing and missing[1] != "torch":
        yield Fix("Install the module that torch misses", (pip_install(target_python, missing[1].replace("_", "-")),))
    elif torch.import_state == "hangs":
        venv = in_target_python(target_python, "-m", "venv", "/tmp/ddp-env")
        yield Fix("Make an environment on a disk of this host, and install torch there", (venv,))
    elif torch.version:
        same = (f"torch=={torch.version}", *index_options(torch.version))
        yield Fix("Install the same torch again", (pip_install(target_python, "--force-reinstall", *same),))


@check("torch-cpu-only", severity=FAIL, owner=Owner.USER)
def torch_cpu_only(
    torch: Torch,
    target_python: TargetPython,
    pci: Maybe[Pci],
    gpus: Maybe[Gpus],
    driver: Maybe[Driver],
    machine: Maybe[Machine],
    container: Maybe[Container],
    packages: Maybe[Packages],
    log: Maybe[Log] = NO_LOG,
) -> Iterator[Finding]:
    """torch is the build without GPU support, and training is to run on a GPU.

    ## What breaks
    "Torch not compiled with CUDA enabled", or a training that runs on the processor, a hundred times slower.

    ## Why
    The CPU build came from another index (`.../whl/cpu`), or from a lock file or mirror that was made on a machine without a
    GPU; or conda's solver chose it.

    ## Fix
    Install the build for the driver's CUDA; `--force-reinstall`, since pip takes the installed one for the same version.
    """
    requires(torch.installed, "torch is not installed")
    if not torch.cpu_only:
        return
    jetson = not isinstance(machine, Unknown) and machine.jetson
    seen = nvidia_hardware(pci, gpus, driver)
    if seen is None and jetson:
        seen = told(known(machine), "jetson", "this is a Jetson")
    if seen is None:
        if amd := amd_accelerator(pci, gpus):
            yield Finding.of(
                f"torch {torch.version} is a build without ROCm, but this host has an AMD GPU",
                torch_version(torch),
                told(torch, "hip", "torch is built without ROCm"),
                amd,
                rocm_fix(target_python, packages),
                severity=WARN,
            )
        elif said(log, "torch-cpu-only"):
            yield Finding.of(
                f"torch {torch.version} is a build without CUDA, and the script asks for a GPU",
                torch_version(torch),
                torch_cuda(torch),
                Fix("Without a GPU, let the script take one only where torch.cuda.is_available() says so"),
                _build_for_other_hosts(target_python),
                cause="No GPU was found on this host: another build alone won't make the script run here.",
            )
        else:
            _would_be_seen(pci, gpus, driver, machine)
        return
    no_nodes = not isinstance(driver, Unknown) and not driver.device_nodes
    spared = runtime_of(container) is not None and no_nodes and not jetson
    yield Finding.of(
        f"torch {torch.version} is a build without CUDA, but this host has an NVIDIA GPU",
        torch_version(torch),
        torch_cuda(torch),
        seen,
        install_torch(target_python, driver, gpus, pci, machine, packages),
        cause="This container wasn't given the GPU either: see container-no-gpu." if spared else "",
        severity=WARN if spared else FAIL,
    )


def _build_for_other_hosts(target_python: TargetPython) -> Fix:
    return Fix(
        "If it is to run on hosts with GPUs, install the build for CUDA",
        (pip_install(target_python, "--force-reinstall", "torch"),),
    )


def _would_be_seen(pci: Maybe[Pci], gpus: Maybe[Gpus], driver: Maybe[Driver], machine: Maybe[Machine]) -> None:
    """Leave the check untested where a GPU, if there were one, might not have shown."""
    # Neither WSL's GPU nor a Jetson's is on the PCI bus; how much memory an AMD GPU has is not to be seen there.
    if known(machine).wsl and "/dev/dxg" in known(driver).device_nodes:
        known(known(driver).libcuda_path)
    if known(pci).amd_gpus:
        for device in known(gpus).devices:
            known(device.memory_total)


@check("nccl-not-built", severity=FAIL, owner=Owner.USER)
def nccl_not_built(
    torch: Torch,
    target_python: TargetPython,
    plan: Plan,
    machine: Maybe[Machine],
    environment: Maybe[Environment],
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    pci: Maybe[Pci],
    packages: Maybe[Packages],
    log: Maybe[Log] = NO_LOG,
) -> Iterator[Finding]:
    """torch was built without NCCL.

    ## What breaks
    `init_process_group("nccl")` ends with "Distributed package doesn't have NCCL built in".

    ## Why
    Mostly it is PyTorch's build for the CPU, whose version ends in `+cpu`: `python -c "import torch; print(torch.__version__)"`
    shows it. NCCL is a Linux library, so Windows builds have none, Jetson builds mostly none, and a build of your own only if
    NCCL was found then.

    ## Fix
    On Linux with a GPU take PyTorch's own wheel for CUDA: `pip install --force-reinstall torch`; for an older driver
    `ddpdoctor check --select torch-cpu-only` names the right one. Without a GPU, or where there is no NCCL, use `init_process_group("gloo")`,
    which moves GPU tensors through the processor's memory.
    """
    asked_for = said(log, "nccl-not-built")
    requires(torch.installed, "torch is not installed")
    requires(not torch.cpu_only or asked_for, "torch is a CPU-only build")
    if known(torch.nccl_available):
        return
    elsewhere = isinstance(machine, Unknown) or machine.jetson or machine.system != "Linux"
    world = None if isinstance(environment, Unknown) else number(environment.get("WORLD_SIZE"))
    ranks = max(plan.nproc, world or 1)
    alone = ranks == 1 and not asked_for
    if alone:
        known(environment)
        known(machine)
    requires(not (alone and elsewhere), "one rank, on a kind of host for which there is no NCCL")
    gloo = Fix(
        f"{'Use' if elsewhere else 'Or use'} gloo in your script, `torch.distributed.init_process_group('gloo')`; this shows whether it is there",
        (in_target_python(target_python, "-c", "import torch.distributed as d; print(d.is_gloo_available())"),),
    )
    build = install_torch(target_python, driver, gpus, pci, machine, packages)
    if torch.cpu_only and nvidia_hardware(pci, gpus, driver) is None:
        build = _build_for_other_hosts(target_python)
    why = f", by which {plural(ranks, 'rank')} would talk to each other" if ranks > 1 else ""
    yield Finding.of(
        f"torch {torch.version} was built without NCCL{why or (', as all builds for the CPU are' if torch.cpu_only else '')}",
        told(torch, "nccl_available", "torch has no NCCL"),
        torch_version(torch),
        None if elsewhere else build,
        gloo,
        severity=WARN if elsewhere or alone else FAIL,
    )


@check("torch-distributed-missing", severity=FAIL, owner=Owner.USER)
def torch_distributed_missing(
    torch: Torch,
    target_python: TargetPython,
    plan: Plan,
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    pci: Maybe[Pci],
    machine: Maybe[Machine],
    packages: Maybe[Packages],
) -> Iterator[Finding]:
    """torch was built without torch.distributed.

    ## What breaks
    torchrun, DistributedDataParallel and everything built on them fail with an AttributeError or ImportError.

    ## Why
    Somebody built it with USE_DISTRIBUTED=0: older Jetson and some distributions' packages are made so.

    ## Fix
    Install PyTorch's own build, or build with `USE_DISTRIBUTED=1`.
    """
    requires(torch.installed, "torch is not installed")
    if known(torch.distributed_available):
        return
    yield Finding.of(
        f"torch {torch.version} was built without torch.distributed: no DDP, no torchrun",
        told(torch, "distributed_available", "torch has no torch.distributed"),
        torch_version(torch),
        install_torch(target_python, driver, gpus, pci, machine, packages),
        severity=FAIL if plan.nproc > 1 else WARN,
    )


@log_check("torch-version-bug", severity=FAIL, owner=Owner.USER)
def torch_version_bug(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """This release of torch has a known bug that stops the run.

    ## What breaks
    `init_process_group("gloo")` ends with "makeDeviceForHostname(): unsupported gloo device" on every rank, whatever the
    settings.

    ## Why
    Some builds of torch were made without a transport for gloo: Windows wheels of single releases (2.8 among them), and builds
    that somebody made without libuv.

    ## Fix
    Install another release: the next one, or the last one that worked. Settings of gloo or of the network change nothing.
    """
    return Finding.of(
        f"gloo can't open any device in this build of torch: {word(seen, 'function')}(): unsupported gloo device",
        Fix(
            "See which release it is, and where it came from",
            ('python -c "import torch; print(torch.__version__, torch.__file__)"',),
        ),
        Fix("Install another release of torch", ("pip install --force-reinstall torch",)),
    )
