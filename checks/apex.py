"""NVIDIA Apex: whether what is installed fits this torch, and how to build it here (`ddpdoctor explain apex`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.building import architecture_list, jobs, minor_only, rejects, serves, toolkit_fixes, wheel_fix
from ddpdoctor.checks.extensions import cudart_major, other_python, unresolved
from ddpdoctor.facts.base import Maybe, Unknown, known
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.extensions import Apex, Extensions, SharedObject
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.patient import Patient
from ddpdoctor.facts.toolchain import Toolchain
from ddpdoctor.facts.torch import Torch
from ddpdoctor.findings import FAIL, INFO, WARN, Evidence, Finding, Fix
from ddpdoctor.registry import LogSign, check, prescription, requires
from ddpdoctor.wording import dotted, in_patient, listed, pip_install

REPOSITORY = "https://github.com/NVIDIA/apex"
EXPLAIN = Fix("The build command worked out for this host", ("ddpdoctor explain apex",))

USES = {
    "amp_C": "FusedAdam, FusedLAMB, FusedSGD and clip_grad_norm_",
    "fused_layer_norm_cuda": "FusedLayerNorm and FusedRMSNorm",
    "mlp_cuda": "apex.mlp",
    "fused_dense_cuda": "apex.fused_dense",
    "syncbn": "a faster SyncBatchNorm",
    "apex_C": "faster flattening in apex.parallel",
}
"""What each core extension is for, those whose absence raises first."""

FALL_BACK = ("syncbn", "apex_C")
"""Without these Apex goes on with slower Python."""


def installed(extensions: Extensions, torch: Torch) -> Apex:
    """The NVIDIA Apex that would be imported; ends the check where there is none, or where AMD's own rules hold."""
    requires(torch.installed, "torch is not installed")
    found = known(extensions.apex)
    requires(found, "Apex is not installed")
    requires(found[0].kind == "nvidia", "the apex that is installed is not NVIDIA's")
    requires(torch.hip is None, "torch is built for ROCm")
    return found[0]


def where(apex: Apex) -> Evidence:
    return Evidence(f"Apex {apex.version}".strip() + f" in {apex.location}", "apex folder and its .so files")


@check(
    "apex-wrong-package",
    severity=FAIL,
    log_signs=(LogSign("cannot import name 'UnencryptedCookieSessionFactoryConfig'"),),
)
def apex_wrong_package(extensions: Extensions, patient: Patient) -> Iterator[Finding]:
    """The package "apex" is not NVIDIA's.

    ## What breaks
    `from apex import amp` or `from apex.optimizers import FusedAdam` ends with an ImportError that names things of a
    web framework, such as UnencryptedCookieSessionFactoryConfig.

    ## Why
    On PyPI the name belongs to an unrelated toolkit for web applications. NVIDIA's Apex isn't on PyPI, so
    `pip install apex` always brings the wrong one.

    ## Fix
    `pip uninstall apex`, then build NVIDIA's from its repository (`ddpdoctor explain apex` gives the command for this
    host), or use what torch has instead.
    """
    found = known(extensions.apex)
    requires(found, "Apex is not installed")
    if found[0].kind != "nvidia":
        yield Finding(
            summary=f"The apex {found[0].version} that is installed is PyPI's web toolkit, not NVIDIA's Apex".replace(
                "  ", " "
            ),
            evidence=(where(found[0]),),
            fixes=(Fix("Remove it", (in_patient(patient, "-m", "pip", "uninstall", "-y", "apex"),)), EXPLAIN),
        )


@check(
    "apex-missing-ext",
    severity=WARN,
    log_signs=(
        LogSign("No module named 'amp_C'"),
        LogSign("No module named 'fused_layer_norm_cuda'"),
        LogSign("No module named 'apex_C'"),
        LogSign(
            "Warning:  multi_tensor_applier fused unscale kernel is unavailable", why="not verified against a release"
        ),
    ),
)
def apex_missing_ext(extensions: Extensions, torch: Torch, patient: Patient) -> Iterator[Finding]:
    """Apex was installed without its compiled extensions.

    ## What breaks
    `FusedAdam` and the other fused optimizers stop with "apex.optimizers.FusedAdam requires cuda extensions" or "No
    module named 'amp_C'", `FusedLayerNorm` with "No module named 'fused_layer_norm_cuda'". SyncBatchNorm and
    apex.parallel go on with slower Python code.

    ## Why
    A plain `pip install` of the repository builds the Python part only. The options that ask for the extensions are
    easily lost: pip 23.1 and later pass `--global-option` on no more, and a build in isolation doesn't see torch.

    ## Fix
    In a clone of the repository:
    `APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir .`
    """
    apex = installed(extensions, torch)
    requires(torch.cuda, "torch is a CPU-only build")
    fitting = [one for one in apex.objects if not other_python(one, patient)]
    present = {one.module for one in fitting}
    missing = [name for name in USES if name not in present]
    if not missing:
        return
    tags = sorted({version for one in apex.objects if (version := other_python(one, patient))})
    if not fitting and tags:
        summary = f"Apex's extensions are built for Python {listed(tags)}; this is {patient.version}"
    elif not fitting:
        summary = "Apex is installed without its compiled extensions; its fused optimizers and norms will not work"
    else:
        summary = f"Apex lacks {listed(missing)}, part of its compiled extensions"
    raising = [USES[name] for name in missing if name not in FALL_BACK]
    slower = [USES[name] for name in missing if name in FALL_BACK]
    yield Finding(
        summary=summary,
        cause=f"Will raise: {listed(raising) or 'nothing'}. Will be slower: {listed(slower) or 'nothing'}.",
        evidence=(where(apex), Evidence(f"compiled modules: {listed(sorted(present)) or 'none'}", apex.location)),
        fixes=(EXPLAIN,),
    )


@check(
    "apex-cuda-mismatch",
    severity=FAIL,
    log_signs=(
        LogSign(
            "Cuda extensions are being compiled with a version of Cuda that does not match the version used to compile "
            "Pytorch binaries"
        ),
    ),
)
def apex_cuda_mismatch(extensions: Extensions, torch: Torch, patient: Patient) -> Iterator[Finding]:
    """Apex's extensions were built for another CUDA than torch's.

    ## What breaks
    Importing amp_C or fused_layer_norm_cuda ends with "libcudart.so.11.0: cannot open shared object file"; or, where
    that old runtime is still installed, two CUDA runtimes run in one process.

    ## Why
    The extensions name the runtime they were built for. Changing torch to a build for another major version of CUDA,
    or to one without CUDA, leaves them behind.

    ## Fix
    Remove Apex and build it again with the toolkit of torch's version; its setup.py takes no other.
    """
    apex = installed(extensions, torch)
    requires(apex.objects, "Apex is installed without extensions")
    version = torch.cuda or ""
    for one in apex.objects:
        major = cudart_major(one)
        name = one.path.rpartition("/")[2]
        if not torch.cuda and one.missing:
            summary = f"Apex's {one.module} needs {listed(one.missing, 2)}; torch {torch.version} is built without CUDA"
        elif major and torch.cuda and major != version.partition(".")[0]:
            summary = f"Apex's {one.module} was built for CUDA {major}; torch {torch.version} is for CUDA {version}"
        else:
            continue
        yield Finding(
            summary=summary,
            evidence=(
                Evidence(f"{name} needs {listed([*one.missing, *_runtime(one)])}", one.path),
                torch.seen("version"),
            ),
            fixes=(Fix("Remove it", (in_patient(patient, "-m", "pip", "uninstall", "-y", "apex"),)), EXPLAIN),
        )
        return


def _runtime(one: SharedObject) -> list[str]:
    return [name for name in one.needed if name.startswith("libcudart")]


@check(
    "apex-undefined-symbol",
    severity=FAIL,
    log_signs=(
        LogSign("fused_layer_norm_cuda", why="any error that names this module; read on for the symbol"),
        LogSign("amp_C.cpython", why="not verified against a release"),
    ),
)
def apex_undefined_symbol(extensions: Extensions, torch: Torch, patient: Patient) -> Iterator[Finding]:
    """Apex's extensions were built against another torch.

    ## What breaks
    Importing amp_C, or anything of Apex that uses it, ends with "undefined symbol: _ZN3c10..." or "_ZN2at...".

    ## Why
    torch's C++ functions change from release to release; the extensions look for ones that this torch doesn't have.
    It happens whenever torch is upgraded under an Apex that was built before.

    ## Fix
    Remove Apex and build it again in this environment, with `--no-build-isolation --no-cache-dir`.
    """
    apex = installed(extensions, torch)
    requires(apex.objects, "Apex is installed without extensions")
    for one in apex.objects:
        if (
            other_python(one, patient)
            or one.missing
            or cudart_major(one) not in ("", (torch.cuda or "").partition(".")[0])
        ):
            continue  # Of another Python or CUDA, which other checks say.
        broken = f"can't be read: {one.error}"
        found = (broken, broken) if one.error else unresolved(one, torch)
        if found is None:
            continue
        summary, evidence = found
        yield Finding(
            summary=f"Apex's {one.module} {summary}"[:160],
            evidence=(Evidence(evidence, one.path), torch.seen("version")),
            fixes=(Fix("Remove it", (in_patient(patient, "-m", "pip", "uninstall", "-y", "apex"),)), EXPLAIN),
        )
        return


@check(
    "apex-arch-missing",
    severity=FAIL,
    log_signs=(LogSign("no kernel image is available for execution on the device", why="torch itself says this too"),),
)
def apex_arch_missing(extensions: Extensions, torch: Torch, gpus: Gpus) -> Iterator[Finding]:
    """Apex's extensions hold no code for this GPU.

    ## What breaks
    The first fused optimizer step or layer norm ends with "no kernel image is available for execution on the device".

    ## Why
    nvcc compiles for the architectures that it is told: by default those of the GPUs in the machine that builds. An
    Apex built on an A100 has nothing for an RTX 4090 of another major version, unless PTX was added.

    ## Fix
    Build it again with `TORCH_CUDA_ARCH_LIST` naming every GPU it shall run on: `TORCH_CUDA_ARCH_LIST="8.0;9.0"`.
    """
    apex = installed(extensions, torch)
    requires(any(one.architectures for one in apex.objects), "Apex is installed without extensions")
    requires(gpus.vendor != "amd" and gpus.answering, "no NVIDIA GPU on this host")
    for gpu in gpus.answering:
        capability = known(gpu.compute_capability)
        for one in apex.objects:
            if one.architectures and not any(serves(each, capability) for each in one.architectures):
                yield Finding(
                    summary=f"Apex's {one.module} is built for {listed(one.architectures)}, not for GPU {gpu.index}, "
                    f"{gpu.name} (sm_{capability[0]}{capability[1]})",
                    evidence=(
                        Evidence(f"{one.module}: {listed(one.architectures)}", f"fat binary of {one.path}"),
                        Evidence(f"GPU {gpu.index} has compute capability {dotted(capability)}", "NVML"),
                    ),
                    fixes=(EXPLAIN,),
                )
                return


@check(
    "apex-build-isolation",
    severity=INFO,
    log_signs=(
        LogSign("ModuleNotFoundError: No module named 'torch'"),
        LogSign("--build-option and --global-option are deprecated"),
        LogSign("Arguments to --config-settings must be of the form KEY=VAL", why="not verified against a release"),
    ),
)
def apex_build_isolation(
    toolchain: Toolchain, extensions: Extensions, patient: Patient, torch: Torch
) -> Iterator[Finding]:
    """An Apex source tree lies here, and a plain `pip install .` would not build it right.

    ## What breaks
    The build stops with "No module named 'torch'", or it ends well and has built no extensions.

    ## Why
    pip builds in an environment of its own that has no torch in it, unless told `--no-build-isolation`. And from 23.1
    on it no longer hands `--global-option` to a project with a pyproject.toml, so the extensions are left out silently.

    ## Fix
    `APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir .`; for an older tree, whose
    setup.py doesn't read these variables,
    `--config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext"`.
    """
    requires(torch.installed, "torch is not installed")
    requires(toolchain.apex_source, "no Apex source tree in the working folder")
    found = extensions.apex
    requires(isinstance(found, Unknown) or not any(one.objects for one in found), "Apex is built already")
    pip = known(patient.pip_version)
    requires(pip, "the patient has no pip")
    yield Finding(
        summary=f"The Apex source in {toolchain.apex_source} needs --no-build-isolation and its options spelt out",
        cause=f"pip {pip} builds in isolation, without torch, and leaves the extensions out unless told both.",
        evidence=(toolchain.seen("apex_source"), patient.seen("pip_version")),
        fixes=(Fix("Build it", build_commands(toolchain, patient, None, None)),),
    )


def build_commands(
    toolchain: Toolchain, patient: Patient, architectures: str | None, count: int | None
) -> tuple[str, ...]:
    """The commands that build Apex for this patient, from the source tree at hand or a fresh clone."""
    folder = toolchain.apex_source
    settings = [f"CUDA_HOME={toolchain.cuda_home}"] if toolchain.cuda_home else []
    settings += [f"TORCH_CUDA_ARCH_LIST={shlex.quote(architectures)}"] if architectures else []
    settings += [f"MAX_JOBS={count}"] if count else []
    options = ["-v", "--no-build-isolation", "--no-cache-dir"]
    if folder and toolchain.apex_source_style == "options":
        pip = patient.pip_version if isinstance(patient.pip_version, str) else "24"
        for flag in ("--cpp_ext", "--cuda_ext"):
            old = [int(part) for part in pip.split(".")[:2] if part.isdecimal()] < [23, 1]
            options += [f"--global-option={flag}"] if old else ["--config-settings", f"--build-option={flag}"]
    else:
        settings += ["APEX_CPP_EXT=1", "APEX_CUDA_EXT=1"]
    return (
        pip_install(patient, "packaging", "setuptools", "wheel", "ninja"),
        f"cd {shlex.quote(folder)}" if folder else f"git clone {REPOSITORY} && cd apex",
        " ".join([*settings, pip_install(patient, *options, ".")]),
        in_patient(patient, "-c", "import torch, amp_C, apex_C, fused_layer_norm_cuda, syncbn"),
    )


REPLACEMENTS = (
    Fix(
        "Mixed precision: apex.amp is no longer maintained",
        (
            "# before: model, opt = amp.initialize(model, opt, opt_level='O1')",
            "# after:  with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(batch)",
        ),
    ),
    Fix(
        "Optimizers",
        (
            "# before: apex.optimizers.FusedAdam(model.parameters(), lr=1e-4)",
            "# after:  torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)",
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
    patient: Patient,
    torch: Torch,
    toolchain: Maybe[Toolchain],
    gpus: Maybe[Gpus],
    machine: Maybe[Machine],
    cgroup: Maybe[Cgroup],
) -> Iterator[Finding]:
    """How to get NVIDIA Apex to work in this very environment, or what to use in its stead.

    ## What breaks
    Apex isn't on PyPI; it is built on the spot, against one torch, with the nvcc of exactly that torch's CUDA version.
    Most failed installations come from a difference there, from pip's isolated builds, or from memory running out.

    ## Why
    Its setup.py compares nvcc's version with `torch.version.cuda` and stops at any difference; today's runs nvcc even
    when no extension was asked for, so without CUDA_HOME not even the Python part installs. Each of some dozen CUDA
    files takes up to 3 GiB to compile, and ninja compiles as many at once as there are cores.

    ## Fix
    Below stands what to type on this host. Where all you need is mixed precision, a fused AdamW, SyncBatchNorm or layer
    norm, torch has them itself: nothing to build, and nothing that breaks at the next upgrade.
    """
    requires(torch.installed, "torch is not installed")
    if torch.hip is not None:
        yield _rocm(patient, torch)
    elif torch.cuda is None:
        yield _without_cuda(torch)
        return
    elif isinstance(toolchain, Unknown):
        yield Finding(
            summary=f"Whether Apex can be built here isn't known: {toolchain.reason}"[:160],
            evidence=(torch.seen("version"), torch.seen("cuda")),
            fixes=(Fix(f"It takes an nvcc of exactly CUDA {minor_only(torch.cuda)}", ("nvcc --version",)),),
        )
    else:
        yield _with_cuda(patient, torch, torch.cuda, toolchain, gpus, machine, cgroup)
    yield Finding(
        summary="torch itself has what most programs use Apex for",
        evidence=(torch.seen("version"),),
        fixes=REPLACEMENTS,
    )


def _rocm(patient: Patient, torch: Torch) -> Finding:
    return Finding(
        summary=f"torch {torch.version} is built for ROCm: AMD's fork of Apex is the one to build",
        cause="Its branches follow torch's releases; take the one that its README names for this torch.",
        evidence=(torch.seen("hip"),),
        fixes=(
            Fix(
                "Build AMD's Apex",
                (
                    "git clone https://github.com/ROCm/apex && cd apex",
                    pip_install(patient, "-v", "--no-build-isolation", "--no-cache-dir", "--config-settings")
                    + ' "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext" .',
                ),
            ),
        ),
    )


def _without_cuda(torch: Torch) -> Finding:
    return Finding(
        summary=f"torch {torch.version} is built without CUDA; Apex has nothing to offer there",
        cause="All of Apex's kernels are CUDA kernels. What torch has itself runs on a CPU too.",
        evidence=(torch.seen("version"),),
        fixes=REPLACEMENTS,
    )


def _with_cuda(
    patient: Patient,
    torch: Torch,
    cuda: str,
    toolchain: Toolchain,
    gpus: Maybe[Gpus],
    machine: Maybe[Machine],
    cgroup: Maybe[Cgroup],
) -> Finding:
    """The build command, or the two ways out where nvcc and torch differ."""
    nvcc = toolchain.nvcc
    if nvcc is None or not nvcc.version:
        found = f"{nvcc.path} can't be run ({nvcc.error})" if nvcc else "there is no nvcc where torch looks for it"
        return Finding(
            summary=f"Apex needs an nvcc of CUDA {minor_only(cuda)}, and {found}"[:160],
            evidence=(torch.seen("cuda"), toolchain.seen("cuda_home", toolchain.cuda_home or "not found")),
            fixes=toolkit_fixes(toolchain, patient, cuda),
        )
    evidence = (
        torch.seen("cuda"),
        Evidence(f"{nvcc.path} is of CUDA {nvcc.version} (found by {nvcc.found_by})", "nvcc --version"),
    )
    if rejects("apex", nvcc.version, cuda):
        wheel = wheel_fix(patient, nvcc.version)
        return Finding(
            summary=f"Apex can't be built yet: nvcc is of CUDA {nvcc.version}, torch of CUDA {cuda}",
            cause="Apex's setup.py stops at any difference. There are two ways out; then ask again for the build command.",
            evidence=evidence,
            fixes=(*toolkit_fixes(toolchain, patient, cuda), *((wheel,) if wheel else ())),
        )
    architectures = architecture_list(gpus)
    room = jobs(machine, cgroup)
    unknown = [] if architectures else ["the GPUs (set TORCH_CUDA_ARCH_LIST yourself if you build for another machine)"]
    unknown += [] if room else ["memory and cores (set MAX_JOBS to a third of the free GiB)"]
    notes = [f"MAX_JOBS by {room[1]}."] if room else []
    notes += [f"Not known: {listed(unknown)}."] if unknown else []
    return Finding(
        summary=f"Apex can be built here: nvcc {nvcc.version} is of torch's CUDA version",
        cause=" ".join(notes),
        evidence=evidence,
        fixes=(
            Fix(
                "Build it, then see that it loads", build_commands(toolchain, patient, architectures, room and room[0])
            ),
        ),
    )
