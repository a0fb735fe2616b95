"""The prescription of `ddpdoctor explain apex`: how to build Apex here, or what torch has in its stead."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import Finding, Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import prescription, requires
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Nvcc, Toolchain
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.building import (
    architecture_list,
    build_commands,
    gcc_fixes,
    gcc_limit,
    home_of,
    jobs,
    matching_nvcc,
    minor_only,
    too_new,
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
    """How to get NVIDIA Apex to work in this very environment, or what to use in its stead.

    ## What breaks
    Apex isn't on PyPI; it is built on the spot, against one torch, with the nvcc of exactly that torch's CUDA version.
    Most failed installations come from a difference there, from pip's isolated builds, or from memory running out.

    ## Why
    Its setup.py compares nvcc's version with `torch.version.cuda` and stops at any difference; today's runs nvcc even
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
        yield Finding(
            summary=f"Whether Apex can be built here isn't known: {toolchain.reason}",
            evidence=(torch_version(torch), torch_cuda(torch)),
            fixes=(Fix(f"It takes an nvcc of exactly CUDA {minor_only(torch.cuda)}", ("nvcc --version",)),),
        )
    elif nvcc := matching_nvcc(toolchain, torch.cuda):
        yield _build(target_python, torch, toolchain, nvcc, architecture_list(gpus, environment), machine, cgroup)
    elif toolchain.nvcc is None or toolchain.nvcc.version in ("", minor_only(torch.cuda)):
        yield _toolkit_first(target_python, torch, torch.cuda, toolchain)
    else:
        wheel = wheel_fix(target_python, toolchain.nvcc.version, torch, driver, gpus, machine, packages)
        yield _two_ways(target_python, torch, torch.cuda, toolchain, toolchain.nvcc, wheel)
    yield Finding(
        summary="torch itself has what most programs use Apex for",
        cause="Nothing to build, and nothing that breaks when torch is upgraded.",
        evidence=(torch_version(torch),),
        fixes=REPLACEMENTS,
    )


def _rocm(target_python: TargetPython, torch: Torch) -> Finding:
    build = (
        pip_install(target_python, "-v", "--no-build-isolation", "--no-cache-dir", "--config-settings")
        + ' "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext" .'
    )
    return Finding(
        summary=f"torch {torch.version} is built for ROCm: AMD's fork of Apex is the one to build",
        cause="Its branches follow torch's releases; take the one that its README names for this torch.",
        evidence=(told(torch, "hip", f"torch is built for ROCm (HIP {torch.hip})"),),
        fixes=(Fix("Build AMD's Apex", ("git clone https://github.com/ROCm/apex && cd apex", build)),),
    )


def _without_cuda(torch: Torch, gpus: Maybe[Gpus]) -> Finding:
    gpu = not isinstance(gpus, Unknown) and gpus.vendor == "nvidia" and bool(gpus.devices)
    return Finding(
        summary=f"torch {torch.version} is built without CUDA; Apex has nothing to offer there",
        cause="All of Apex's kernels are CUDA kernels. What torch has itself runs on a CPU too."
        + (" There is an NVIDIA GPU here: a torch with CUDA comes first (`ddpdoctor check`)." if gpu else ""),
        evidence=(torch_version(torch),),
        fixes=REPLACEMENTS,
    )


def _compiler_first(toolchain: Toolchain, nvcc: Nvcc, machine: Maybe[Machine]) -> tuple[Fix, ...]:
    """Fixes for a compiler that this nvcc won't take; none where it takes it."""
    limit = gcc_limit(nvcc)
    if limit is None or not any(too_new(compiler, limit) for compiler in (toolchain.compiler, toolchain.nvcc_compiler)):
        return ()
    return gcc_fixes(limit, machine)


def _toolkit_first(target_python: TargetPython, torch: Torch, cuda: str, toolchain: Toolchain) -> Finding:
    """There is no nvcc that could be used."""
    nvcc = toolchain.nvcc
    found = "there is no nvcc where torch looks for it"
    if nvcc:
        found = f"{toolchain.cuda_home} lacks {nvcc.lacks}" if nvcc.version else f"{nvcc.path} fails: {nvcc.error}"
    return Finding(
        summary=f"Apex needs an nvcc of CUDA {minor_only(cuda)}, and {found}",
        evidence=(
            torch_cuda(torch),
            told(toolchain, "cuda_home", f"folder in which torch looks for nvcc: {toolchain.cuda_home or 'none'}"),
        ),
        fixes=toolkit_fixes(toolchain, target_python, cuda),
    )


def _two_ways(
    target_python: TargetPython, torch: Torch, cuda: str, toolchain: Toolchain, nvcc: Nvcc, wheel: Fix | None
) -> Finding:
    """nvcc is of another version than torch: the ways to one of torch's, or to a torch of nvcc's."""
    ways = "There are two ways out; then" if wheel else "Once there is one of torch's version,"
    return Finding(
        summary=f"Apex can't be built yet: nvcc is of CUDA {nvcc.version}, torch of CUDA {cuda}",
        cause=f"Apex's setup.py stops at any difference. {ways} ask again for the build command.",
        evidence=(torch_cuda(torch), nvcc_version(nvcc)),
        fixes=(*toolkit_fixes(toolchain, target_python, cuda), *((wheel,) if wheel else ())),
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
    return Finding(
        summary=f"Apex can be built here: nvcc {nvcc.version} is of torch's CUDA version",
        cause=" ".join(notes),
        evidence=(torch_cuda(torch), nvcc_version(nvcc)),
        fixes=(
            *_compiler_first(toolchain, nvcc, machine),
            Fix(
                "Build it, then see that it loads",
                build_commands(toolchain, target_python, home_of(nvcc), architectures, room and room[0]),
            ),
        ),
    )
