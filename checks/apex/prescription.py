"""The prescription of `ddpdoctor explain apex`: how to build Apex here, or what torch has in its place."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import Finding, Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import prescription, requires
from ddpdoctor.facts.snapshot import Cgroup, Driver, Environment, Gpus, Machine, Packages, TargetPython, Torch
from ddpdoctor.facts.toolchain import Nvcc, Toolchain
from ddpdoctor.knowledge.building import (
    architecture_list,
    build_commands,
    gcc_fixes,
    home_of,
    jobs,
    limit_exceeded,
    matching_nvcc,
    minor_only,
    toolkit_fixes,
    wheel_fix,
)
from ddpdoctor.knowledge.evidence import nvcc_version, told, torch_cuda, torch_version
from ddpdoctor.knowledge.python_commands import pip_install

REPLACEMENTS = (
    Fix(
        "Mixed precision: apex.amp is no longer maintained",
        (
            "# before: model, opt = amp.initialize(model, opt, opt_level='O1')",
            "# after:  with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(batch)   # float16: and torch.amp.GradScaler",
        ),
    ),
    Fix(
        "Optimizers",
        (
            "# before: apex.optimizers.FusedAdam(model.parameters(), lr=1e-4)",
            "# after:  torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)",
        ),
    ),
    Fix(
        "Normalisation",
        (
            "# before: apex.normalization.FusedLayerNorm(1024), FusedRMSNorm(1024)",
            "# after:  torch.nn.LayerNorm(1024), torch.nn.RMSNorm(1024)   # under torch.compile they are fused",
        ),
    ),
    Fix(
        "SyncBatchNorm and DistributedDataParallel",
        (
            "# before: apex.parallel.convert_syncbn_model(model)",
            "# after:  torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        ),
    ),
)


@prescription("apex")
def apex(
    target_python: TargetPython,
    torch: Torch,
    toolchain: Maybe[Toolchain],
    gpus: Maybe[Gpus],
    machine: Maybe[Machine],
    cgroup: Maybe[Cgroup],
    driver: Maybe[Driver],
    packages: Maybe[Packages],
    environment: Maybe[Environment],
) -> Iterator[Finding]:
    """How to get NVIDIA Apex to work in this environment, or what to use in its place.

    ## What breaks
    Apex isn't on PyPI; it is built where it is used, against one torch, with the nvcc of exactly that torch's CUDA version.
    Most failed installations come from a difference there, from pip's isolated builds, or from memory running out.

    ## Why
    Its setup.py compares nvcc's version with `torch.version.cuda` and stops at any difference; the present one runs nvcc even
    when no extension was asked for, so without CUDA_HOME not even the Python part installs. Each of some dozen CUDA
    files takes some 3 GiB to compile, by our reckoning, and ninja compiles as many at once as there are cores.

    ## Fix
    `ddpdoctor explain apex` says what to type on this host. Where all you need is mixed precision, a fused AdamW,
    SyncBatchNorm or layer norm, torch has them itself: nothing to build, and nothing that breaks at the next upgrade.
    """
    requires(torch.installed, "torch is not installed")
    if torch.hip is not None:
        yield _rocm(target_python, torch)
    elif torch.cuda is None:
        yield _without_cuda(torch, gpus)
        return
    elif isinstance(toolchain, Unknown):
        yield Finding.of(
            f"Whether Apex can be built here isn't known: {toolchain.reason}",
            torch_version(torch),
            torch_cuda(torch),
            Fix(f"It takes an nvcc of exactly CUDA {minor_only(torch.cuda)}", ("nvcc --version",)),
        )
    elif nvcc := matching_nvcc(toolchain, torch.cuda):
        yield _build(target_python, torch, toolchain, nvcc, architecture_list(gpus, environment), machine, cgroup)
    elif toolchain.nvcc is None or toolchain.nvcc.version in ("", minor_only(torch.cuda)):
        yield _toolkit_first(target_python, torch, torch.cuda, toolchain)
    else:
        wheel = wheel_fix(target_python, toolchain.nvcc.version, torch, driver, gpus, machine, packages)
        ways = "There are two ways out; then" if wheel else "Once there is one of torch's version,"
        yield Finding.of(
            f"Apex can't be built yet: nvcc is of CUDA {toolchain.nvcc.version}, torch of CUDA {torch.cuda}",
            torch_cuda(torch),
            nvcc_version(toolchain.nvcc),
            toolkit_fixes(toolchain, target_python, torch.cuda),
            wheel,
            cause=f"Apex's setup.py stops at any difference. {ways} ask again for the build command.",
        )
    yield Finding.of(
        "torch itself has what most programs use Apex for",
        torch_version(torch),
        REPLACEMENTS,
        cause="Nothing to build, and nothing that breaks when torch is upgraded.",
    )


def _rocm(target_python: TargetPython, torch: Torch) -> Finding:
    build = (
        pip_install(target_python, "-v", "--no-build-isolation", "--no-cache-dir", "--config-settings")
        + ' "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext" .'
    )
    return Finding.of(
        f"torch {torch.version} is built for ROCm: AMD's fork of Apex is the one to build",
        told(torch, "hip", f"torch is built for ROCm (HIP {torch.hip})"),
        Fix("Build AMD's Apex", ("git clone https://github.com/ROCm/apex && cd apex", build)),
        cause="Its branches follow torch's releases; take the one that its README names for this torch.",
    )


def _without_cuda(torch: Torch, gpus: Maybe[Gpus]) -> Finding:
    has_gpu = not isinstance(gpus, Unknown) and gpus.vendor == "nvidia" and bool(gpus.devices)
    first = " There is an NVIDIA GPU here: install a torch with CUDA first (`ddpdoctor check`)." if has_gpu else ""
    return Finding.of(
        f"torch {torch.version} is built without CUDA, which Apex needs",
        torch_version(torch),
        REPLACEMENTS,
        cause=f"All of Apex's kernels are CUDA kernels. What torch has itself runs on a CPU too.{first}",
    )


def _toolkit_first(target_python: TargetPython, torch: Torch, cuda: str, toolchain: Toolchain) -> Finding:
    """There is no nvcc that could be used."""
    nvcc = toolchain.nvcc
    found = "there is no nvcc where torch looks for it"
    if nvcc:
        found = f"{toolchain.cuda_home} lacks {nvcc.lacks}" if nvcc.version else f"{nvcc.path} fails: {nvcc.error}"
    return Finding.of(
        f"Apex needs an nvcc of CUDA {minor_only(cuda)}, and {found}",
        torch_cuda(torch),
        told(toolchain, "cuda_home", f"folder in which torch looks for nvcc: {toolchain.cuda_home or 'none'}"),
        toolkit_fixes(toolchain, target_python, cuda),
    )


def _build(
    target_python: TargetPython,
    torch: Torch,
    toolchain: Toolchain,
    nvcc: Nvcc,
    architectures: str | None,
    machine: Maybe[Machine],
    cgroup: Maybe[Cgroup],
) -> Finding:
    """The command that builds with this nvcc."""
    room = jobs(machine, cgroup)
    unknown = [] if architectures else ["the GPUs (set TORCH_CUDA_ARCH_LIST yourself if you build for another machine)"]
    unknown += [] if room else ["memory and cores (set MAX_JOBS to a third of the free GiB)"]
    notes = [f"MAX_JOBS={room[0]} fits this host: {room[1]}."] if room else []
    notes += [f"Not known: {listed(unknown)}."] if unknown else []
    limit = limit_exceeded(toolchain, nvcc)
    commands = build_commands(toolchain, target_python, home_of(nvcc), architectures, room and room[0])
    return Finding.of(
        f"Apex can be built here: nvcc {nvcc.version} is of torch's CUDA version",
        torch_cuda(torch),
        nvcc_version(nvcc),
        gcc_fixes(limit, machine) if limit else None,
        Fix("Build it, then check that it loads", commands),
        cause=" ".join(notes),
    )
