"""NVIDIA Apex: whether what is installed fits this torch, and how to build it here (`ddpdoctor explain apex`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from shlex import quote

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix
from ddpdoctor.base.text import dotted, listed
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.torch.extensions import cudart_major, other_python, unresolved
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.extensions import Apex, Extensions, SharedObject
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Nvcc, Toolchain
from ddpdoctor.facts.torch import Torch
from ddpdoctor.facts.visible import needs_certain_order, visible_gpus
from ddpdoctor.knowledge.building import build_commands, gcc_limit, home_of, matching_nvcc, serves, too_new
from ddpdoctor.knowledge.cuda_stack import needs_cuda_build
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.nvidia import NO_GPU, called, compute_capability, without
from ddpdoctor.logs.analyze.false_positives import builds_tried_again
from ddpdoctor.logs.analyze.sightings import word

USES = {
    "amp_C": "FusedAdam, FusedLAMB, FusedSGD and clip_grad_norm_",
    "fused_layer_norm_cuda": "FusedLayerNorm and FusedRMSNorm",
    "mlp_cuda": "apex.mlp",
    "fused_dense_cuda": "apex.fused_dense",
    "syncbn": "SyncBatchNorm",
    "apex_C": "flattening in apex.parallel",
}
"""What each core extension is for, those whose absence raises first."""

FALL_BACK = ("syncbn", "apex_C")
"""Without these Apex goes on with slower Python."""


def installed(extensions: Extensions, torch: Torch) -> Apex:
    """The NVIDIA Apex that would be imported; ends the check where there is none, or where AMD's own rules hold."""
    requires(torch.installed, "torch is not installed")
    found = known(extensions.apex)
    requires(found, "Apex is not installed")
    requires(found[0].kind == "nvidia", "the apex that is installed is not NVIDIA's: see apex-wrong-package")
    requires(torch.hip is None, "torch is built for ROCm")
    return found[0]


def for_this_python(apex: Apex, target_python: TargetPython) -> list[SharedObject]:
    """The extensions that the target Python would load; ends the check where there are none."""
    found = [extension for extension in apex.objects if not other_python(extension, target_python)]
    requires(found, "Apex is installed without extensions: see apex-missing-ext")
    return found


UNASKED = Unknown("not asked")


def prescription_for(target_python: TargetPython, torch: Maybe[Torch], nvcc: Maybe[Nvcc | None] = UNASKED) -> Fix:
    """The command that works out how to build Apex for this target Python, announced as what it will say.

    Args:
        target_python: whose Apex it is.
        torch: what it is to go with.
        nvcc: that of torch's CUDA version, where it was looked for.
    """
    named = ["--python", target_python.python] if target_python.chosen_by == "--python" else []
    if isinstance(torch, Torch) and torch.installed and torch.hip is not None:
        text = "Build AMD's fork of Apex, which goes with this torch for ROCm: this prints the commands"
    elif isinstance(torch, Torch) and torch.cpu_only:
        text = "See what torch itself has in place of Apex, which has nothing to offer a torch without CUDA"
    elif nvcc is None:
        text = "See what is to be done before NVIDIA's Apex can be built here, and what torch has in its place"
    else:
        text = "Build NVIDIA's Apex, where this host has what that takes: this prints the commands, or what is lacking"
    return Fix(text, (shlex.join(["ddpdoctor", "explain", "apex", *named]),))


def removal(target_python: TargetPython) -> Fix:
    return Fix("Remove this Apex", (uninstall(target_python, "apex"),))


def where(apex: Apex) -> Evidence:
    return Evidence(f"Apex {apex.version}".strip() + f" in {apex.location}", "apex folder and its .so files")


def _told_by_apex(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Apex's setup.py has compared before it built anything."""
    cuda = word(seen, "torch_cuda")
    home = (f"export CUDA_HOME=/usr/local/cuda-{quote(cuda)}",) if cuda else ()
    return Particulars(
        f"Apex wasn't built: nvcc is of another CUDA than torch, which is of {cuda or 'another'}",
        (
            Fix(
                f"Point CUDA_HOME to the toolkit of torch's version{f', {cuda}' if cuda else ''}, and build again", home
            ),
            Fix("Or install the torch that was made for the nvcc that is there"),
            Fix("See which toolkits are here, and which commands build it", ("ddpdoctor explain apex",)),
        ),
        "Apex's setup.py builds its extensions only with a toolkit of torch's own version, down to the minor one. It compares first:"
        " nothing was built.",
    )


@check("apex-wrong-package", severity=FAIL)
def apex_wrong_package(extensions: Extensions, target_python: TargetPython, torch: Maybe[Torch]) -> Iterator[Finding]:
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
            summary=f"The apex {found[0].version} that is installed is PyPI's web toolkit, not NVIDIA's Apex",
            evidence=(where(found[0]),),
            fixes=(removal(target_python), prescription_for(target_python, torch)),
        )


@check("apex-missing-ext", severity=WARN)
def apex_missing_ext(extensions: Extensions, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
    """Apex was installed without its compiled extensions.

    ## What breaks
    `FusedAdam` and the other fused optimizers stop with "apex.optimizers.FusedAdam requires cuda extensions" or "No
    module named 'amp_C'", `FusedLayerNorm` with "No module named 'fused_layer_norm_cuda'". SyncBatchNorm and
    apex.parallel go on with slower Python code.

    ## Why
    A plain `pip install` of the repository builds the Python part only. The options that ask for the extensions are
    easily lost: for a project with a pyproject.toml pip ignores `--global-option`, and a build in isolation doesn't see
    torch.

    ## Fix
    In a clone of the repository:
    `APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir .`
    """
    apex = installed(extensions, torch)
    needs_cuda_build(torch)
    fitting = [extension for extension in apex.objects if not other_python(extension, target_python)]
    present = {extension.module for extension in fitting}
    missing = [name for name in USES if name not in present]
    if not missing:
        return
    tags = sorted({version for extension in apex.objects if (version := other_python(extension, target_python))})
    if not fitting and tags:
        summary = f"Apex's extensions are built for Python {listed(tags)}; this is {target_python.version}"
    elif not fitting:
        summary = "Apex is installed without its compiled extensions: its fused optimizers and norms won't work"
    else:
        summary = f"Apex lacks {listed(missing)}, part of its compiled extensions"
    raising = [USES[name] for name in missing if name not in FALL_BACK]
    slower = [USES[name] for name in missing if name in FALL_BACK]
    yield Finding(
        summary=summary,
        cause=" ".join(
            [f"These stop with an error: {listed(raising)}."] * bool(raising)
            + [f"These get slower: {listed(slower)}."] * bool(slower)
        ),
        evidence=(where(apex), Evidence(f"compiled modules: {listed(sorted(present)) or 'none'}", apex.location)),
        fixes=(prescription_for(target_python, torch),),
    )


@check("apex-cuda-mismatch", severity=FAIL, log=LogTraits(particulars=_told_by_apex))
def apex_cuda_mismatch(extensions: Extensions, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
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
    loadable = for_this_python(apex, target_python)
    version = torch.cuda or ""
    for extension in loadable:
        major = cudart_major(extension)
        name = extension.path.rpartition("/")[2]
        needs = [*extension.missing, *(library for library in extension.needed if library.startswith("libcudart"))]
        if not torch.cuda and extension.missing:
            summary = f"Apex's {extension.module} needs {listed(extension.missing, 2)}; torch {torch.version} is built without CUDA"
        elif major and torch.cuda and major != version.partition(".")[0]:
            summary = (
                f"Apex's {extension.module} was built for CUDA {major}; torch {torch.version} is for CUDA {version}"
            )
        else:
            continue
        yield Finding(
            summary=summary,
            evidence=(Evidence(f"{name} needs {listed(needs)}", extension.path), torch_version(torch)),
            fixes=(removal(target_python), prescription_for(target_python, torch)),
        )
        return


@check("apex-undefined-symbol", severity=FAIL)
def apex_undefined_symbol(extensions: Extensions, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
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
    loadable = for_this_python(apex, target_python)
    for extension in loadable:
        if extension.missing or cudart_major(extension) not in ("", (torch.cuda or "").partition(".")[0]):
            continue  # Of another CUDA, which apex-cuda-mismatch says.
        broken = f"can't be loaded: {extension.error}"
        found = (broken, broken) if extension.error else unresolved(extension, torch)
        if found is None:
            continue
        summary, evidence = found
        yield Finding(
            summary=f"Apex's {extension.module} {summary}",
            evidence=(Evidence(evidence, extension.path), torch_version(torch)),
            fixes=(removal(target_python), prescription_for(target_python, torch)),
        )
        return


@check("apex-arch-missing", severity=FAIL)
def apex_arch_missing(
    extensions: Extensions, torch: Torch, gpus: Gpus, target_python: TargetPython, environment: Maybe[Environment]
) -> Iterator[Finding]:
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
    loadable = [extension for extension in for_this_python(apex, target_python) if extension.architectures]
    requires(loadable, "no extension of Apex tells which GPUs it has code for")
    requires(gpus.vendor != "amd" and gpus.answering, NO_GPU)
    usable = [visible_gpu.gpu for visible_gpu in visible_gpus(gpus, environment)]
    requires(usable, "no GPU is visible to torch")
    lacking = [
        (gpu, extension, gpu.compute_capability)
        for gpu in usable
        for extension in loadable
        if isinstance(gpu.compute_capability, tuple)
        and not any(serves(architecture, gpu.compute_capability) for architecture in extension.architectures)
    ]
    if lacking:
        bad = [gpu for gpu in usable if any(gpu is lacking_gpu for lacking_gpu, _, _ in lacking)]
        fixes = [prescription_for(target_python, torch)]
        if len(bad) < len(usable):
            needs_certain_order(gpus, environment)
            # Each once, though a GPU may stand there for several slices.
            shown = {gpu.index: gpu for gpu in usable}.values()
            others = ("export CUDA_DEVICE_ORDER=PCI_BUS_ID", without(shown, bad))
            fixes.append(Fix(f"Or leave {called(bad)} out", others))
        gpu, one, capability = lacking[0]
        yield Finding(
            summary=f"Apex's {one.module} is built for {listed(one.architectures)}, not for GPU {gpu.index}, "
            f"{gpu.name} (sm_{capability[0]}{capability[1]})",
            severity=WARN if len(bad) < len(usable) else FAIL,
            evidence=(
                Evidence(f"{one.module}: {listed(one.architectures)}", f"fat binary of {one.path}"),
                Evidence(f"GPU {gpu.index} has compute capability {dotted(capability)}", "NVML"),
            ),
            fixes=tuple(fixes),
        )
        return
    for gpu in usable:
        compute_capability(gpu)  # One that doesn't tell leaves the check untested.


@check("apex-build-isolation", severity=INFO, log=LogTraits(recovered=builds_tried_again))
def apex_build_isolation(
    toolchain: Toolchain, extensions: Extensions, target_python: TargetPython, torch: Torch
) -> Iterator[Finding]:
    """A plain `pip install` builds Apex, and others whose setup.py imports torch, where there is no torch.

    ## What breaks
    The build stops with "No module named 'torch'", or it ends well and has built no extensions. Of flash-attn, and of
    any other package whose setup.py imports torch, the former holds, too.

    ## Why
    pip and uv build in an environment of their own, without torch, unless told `--no-build-isolation`; and a
    torch that the same command is to install isn't there yet. pip ignores `--global-option` for a project with a
    pyproject.toml, so that Apex's extensions are left out silently.

    ## Fix
    Install torch by a command of its own, then what is built against it: `pip install torch`, then
    `pip install --no-build-isolation flash-attn`. Apex:
    `APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir .`; for an older tree, whose
    setup.py doesn't read these variables,
    `--config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext"`.
    """
    requires(torch.installed, "torch is not installed")
    requires(toolchain.apex_source, "no Apex source tree in the working folder")
    found = extensions.apex
    if not isinstance(found, Unknown) and any(
        not other_python(extension, target_python) for apex in found for extension in apex.objects
    ):
        return  # It was built, and with its extensions.
    pip = known(target_python.pip_version)
    requires(pip, "there is no pip: see pip-missing")
    nvcc = matching_nvcc(toolchain, torch.cuda) if torch.cuda else None
    limit = gcc_limit(nvcc) if nvcc else None
    compilers = (toolchain.compiler, toolchain.nvcc_compiler)
    refused = limit is not None and any(too_new(compiler, limit) for compiler in compilers)
    yield Finding(
        summary=f"A plain `pip install` of the Apex source in {toolchain.apex_source} fails, or builds no extensions",
        cause=f"pip {pip} builds in an environment without torch, and leaves the extensions out, unless told otherwise.",
        evidence=(
            told(toolchain, "apex_source", f"an Apex source tree lies in {toolchain.apex_source}"),
            target_python.seen("pip_version"),
        ),
        fixes=(Fix("Build it with these commands", build_commands(toolchain, target_python, home_of(nvcc))),)
        if nvcc and not refused
        else (prescription_for(target_python, torch, nvcc),),
    )
