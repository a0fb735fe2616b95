"""NVIDIA Apex: whether what is installed fits this torch, and how to build it here (`ddpdoctor explain apex`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import dotted, listed
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.checks.torch.extensions import cudart_major, other_python, unresolved
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, required, requires
from ddpdoctor.facts.extensions import Apex, Extensions, SharedObject
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.facts.snapshot import Environment, Gpus, TargetPython, Torch
from ddpdoctor.facts.toolchain import Nvcc, Toolchain
from ddpdoctor.facts.visible import needs_certain_order, visible_gpus
from ddpdoctor.knowledge.building import build_commands, home_of, limit_exceeded, matching_nvcc, serves
from ddpdoctor.knowledge.cuda_stack import needs_cuda_build
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.nvidia import NO_GPU, called, compute_capability, without
from ddpdoctor.logs.analyze.false_positives import may_be_of_one, trains_behind
from ddpdoctor.logs.analyze.sightings import lines, where, word

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
    """The command that works out how to build Apex for this target Python; `nvcc`: that of torch's CUDA, where it was looked for."""
    named = ["--python", target_python.python] if target_python.chosen_by == "--python" else []
    if isinstance(torch, Torch) and torch.installed and torch.hip is not None:
        text = "Build AMD's fork of Apex, which fits this torch for ROCm: this prints the commands"
    elif isinstance(torch, Torch) and torch.cpu_only:
        text = "See what torch itself has in place of Apex, which needs a torch with CUDA"
    elif nvcc is None:
        text = "See what is to be done before NVIDIA's Apex can be built here, and what torch has in its place"
    else:
        text = "Build NVIDIA's Apex: this prints the commands, or what this host lacks for it"
    return Fix(text, (shlex.join(["ddpdoctor", "explain", "apex", *named]),))


def _another(target_python: TargetPython, torch: Maybe[Torch]) -> tuple[Fix, Fix]:
    remove = Fix("Remove this Apex", (uninstall(target_python, "apex"),))
    return remove, prescription_for(target_python, torch)


def _place(apex: Apex) -> Evidence:
    return Evidence(f"Apex {apex.version}".strip() + f" in {apex.location}", "apex folder and its .so files")


def _told_by_apex(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Apex's setup.py has compared before it built anything."""
    cuda = word(seen, "torch_cuda")
    home = (f"export CUDA_HOME=/usr/local/cuda-{quote(cuda)}",) if cuda else ()
    toolkit = f"the toolkit of torch's version{f', {cuda}' if cuda else ''}"
    return Particulars(
        f"Apex wasn't built: nvcc is of another CUDA than torch{f', which is of {cuda}' if cuda else ''}",
        (
            Fix(f"Point CUDA_HOME to {toolkit}, and build again", home),
            Fix("Or install the torch that was made for the nvcc that is there"),
            Fix("See which toolkits are here, and which commands build it", ("ddpdoctor explain apex",)),
        ),
        "Apex's setup.py builds its extensions only with a toolkit of torch's own version, down to the minor one. It compares first:"
        " nothing was built.",
    )


@check("apex-wrong-package", severity=FAIL, owner=Owner.USER)
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
        yield Finding.of(
            f"The apex {found[0].version} that is installed is PyPI's web toolkit, not NVIDIA's Apex",
            _place(found[0]),
            _another(target_python, torch),
        )


@check("apex-missing-ext", severity=WARN, owner=Owner.USER)
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
    of_others = {extension: if_known(other_python, extension, target_python, default="") for extension in apex.objects}
    fitting = [extension for extension, version in of_others.items() if not version]
    present = {extension.module for extension in fitting}
    missing = [name for name in USES if name not in present]
    if not missing:
        for_this_python(apex, target_python)  # Whose version may not be known.
        return
    tags = sorted(set(filter(None, of_others.values())))
    summary = f"Apex lacks {listed(missing)}, part of its compiled extensions"
    if not fitting:
        summary = "Apex is installed without its compiled extensions: its fused optimizers and norms won't work"
        if tags:
            summary = f"Apex's extensions are built for Python {listed(tags)}; this is {target_python.version}"
    raising = listed(USES[name] for name in missing if name not in FALL_BACK)
    slower = listed(USES[name] for name in missing if name in FALL_BACK)
    effects = (
        f"These stop with an error: {raising}." if raising else "",
        f"These get slower: {slower}." if slower else "",
    )
    yield Finding.of(
        summary,
        _place(apex),
        Evidence(f"compiled modules: {listed(sorted(present)) or 'none'}", apex.location),
        prescription_for(target_python, torch),
        cause=" ".join(filter(None, effects)),
    )


@check("apex-cuda-mismatch", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_told_by_apex))
def apex_cuda_mismatch(extensions: Extensions, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
    """Apex's extensions were built for another CUDA than torch's.

    ## What breaks
    Importing amp_C or fused_layer_norm_cuda ends with "libcudart.so.11.0: cannot open shared object file"; or, where
    that old runtime is still installed, two CUDA runtimes run in one process.

    ## Why
    The extensions name the runtime they were built for. Changing torch to a build for another major version of CUDA,
    or to one without CUDA, leaves them as they were.

    ## Fix
    Remove Apex and build it again with the toolkit of torch's version; its setup.py takes no other.
    """
    apex = installed(extensions, torch)
    for extension in for_this_python(apex, target_python):
        major = cudart_major(extension)
        needs = [*extension.missing, *(library for library in extension.needed if library.startswith("libcudart"))]
        if not torch.cuda and extension.missing:
            fault = f"needs {listed(extension.missing, 2)}; torch {torch.version} is built without CUDA"
        elif major and torch.cuda and major != torch.cuda.partition(".")[0]:
            fault = f"was built for CUDA {major}; torch {torch.version} is for CUDA {torch.cuda}"
        else:
            continue
        yield Finding.of(
            f"Apex's {extension.module} {fault}",
            Evidence(f"{extension.path.rpartition('/')[2]} needs {listed(needs)}", extension.path),
            torch_version(torch),
            _another(target_python, torch),
        )
        return


@check("apex-undefined-symbol", severity=FAIL, owner=Owner.USER)
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
    for extension in for_this_python(apex, target_python):
        if extension.missing or cudart_major(extension) not in ("", (torch.cuda or "").partition(".")[0]):
            continue  # Of another CUDA, which apex-cuda-mismatch says.
        broken = f"can't be loaded: {extension.error}"
        fault = (broken, broken) if extension.error else unresolved(extension, torch)
        if fault is None:
            continue
        summary, evidence = fault
        yield Finding.of(
            f"Apex's {extension.module} {summary}",
            Evidence(evidence, extension.path),
            torch_version(torch),
            _another(target_python, torch),
        )
        return


@check("apex-arch-missing", severity=FAIL, owner=Owner.USER)
def apex_arch_missing(
    extensions: Extensions, torch: Torch, gpus: Gpus, target_python: TargetPython, environment: Maybe[Environment]
) -> Iterator[Finding]:
    """Apex's extensions hold no code for this GPU.

    ## What breaks
    The first fused optimizer step or layer norm ends with "no kernel image is available for execution on the device".

    ## Why
    nvcc compiles for the architectures that it is given: by default those of the GPUs in the machine that builds. An
    Apex built on an A100 has nothing for an RTX 4090 of another major version, unless PTX was added.

    ## Fix
    Build it again with `TORCH_CUDA_ARCH_LIST` naming every GPU that it should run on: `TORCH_CUDA_ARCH_LIST="8.0;9.0"`.
    """
    apex = installed(extensions, torch)
    loadable = [extension for extension in for_this_python(apex, target_python) if extension.architectures]
    requires(loadable, "no extension of Apex tells which GPUs it has code for")
    requires(gpus.vendor != "amd" and gpus.answering, NO_GPU)
    usable = [visible_gpu.gpu for visible_gpu in visible_gpus(gpus, environment)]
    requires(usable, "no GPU is visible to torch")
    lacking = [
        (gpu, extension, capability)
        for gpu in usable
        for extension in loadable
        if isinstance(capability := gpu.compute_capability, tuple)
        and not any(serves(architecture, capability) for architecture in extension.architectures)
    ]
    if not lacking:
        for gpu in usable:
            compute_capability(gpu)  # One that doesn't tell leaves the check untested.
        return
    bad = [gpu for gpu in usable if any(gpu is lacking_gpu for lacking_gpu, _, _ in lacking)]
    leave_out = None
    if len(bad) < len(usable):
        needs_certain_order(gpus, environment)
        # Each once, though a GPU may stand there for several slices.
        others = without({gpu.index: gpu for gpu in usable}.values(), bad)
        leave_out = Fix(f"Or leave {called(bad)} out", ("export CUDA_DEVICE_ORDER=PCI_BUS_ID", others))
    gpu, extension, capability = lacking[0]
    module, built_for = extension.module, listed(extension.architectures)
    yield Finding.of(
        f"Apex's {module} is built for {built_for}, not for GPU {gpu.index}, {gpu.name} (sm_{capability[0]}{capability[1]})",
        Evidence(f"{module}: {built_for}", f"fat binary of {extension.path}"),
        Evidence(f"GPU {gpu.index} has compute capability {dotted(capability)}", "NVML"),
        prescription_for(target_python, torch),
        leave_out,
        severity=WARN if leave_out else FAIL,
    )
    for gpu in usable:
        compute_capability(gpu)


_UNPACKED: Final = compile_lazily(r"/pip-install-[^/]+/([\w.-]+?)(?:-[0-9a-f]{16,})?/")


def _builds_tried_again(build: Sequence[SignMatch], log: Log) -> list[LoggedException]:
    """List what builds without torch raised, of a package that was then installed, by another try, or that a training
    did without. build: signs of such builds, and of what was installed."""
    done = [match for match in build if match.sign == "Successfully installed "]
    lines = {match.line.order for match in build if match.role is not SignRole.NOISE}
    failed = [raised for raised in log.raised if raised.line.order in lines]
    return [
        raised
        for raised in failed
        if trains_behind(raised.line, log) or any(_is_of_package(raised, match) for match in done)
    ]


def _is_of_package(raised: LoggedException, done: SignMatch) -> bool:
    """Whether the exception is of a package that was installed: pip's folder of it is called after it."""
    installed = {_plain(package.rpartition("-")[0]) for package in done.words.get("packages", "").split()}
    folders = {found[1] for frame in raised.frames if (found := _UNPACKED.search(_plain(frame.path)))}
    return may_be_of_one(raised.line, done.line) and done.line.order > raised.line.order and bool(installed & folders)


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")


@check("apex-build-isolation", severity=INFO, owner=Owner.USER, log=LogTraits(recovered=_builds_tried_again))
def apex_build_isolation(
    toolchain: Toolchain, extensions: Extensions, target_python: TargetPython, torch: Torch
) -> Iterator[Finding]:
    """A plain `pip install` builds Apex, and others whose setup.py imports torch, where there is no torch.

    ## What breaks
    The build stops with "No module named 'torch'", or it succeeds without building the extensions. The former is true
    of flash-attn, too, and of any other package whose setup.py imports torch.

    ## Why
    pip and uv build in an environment of their own, without torch, unless told `--no-build-isolation`; and a
    torch that the same command is to install isn't there yet. pip ignores `--global-option` for a project with a
    pyproject.toml, so that Apex's extensions are left out silently.

    ## Fix
    Install torch in a separate command, then what is built against it: `pip install torch`, then
    `pip install --no-build-isolation flash-attn`. Apex:
    `APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir .`; for an older tree, whose
    setup.py doesn't read these variables,
    `--config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext"`.
    """
    requires(torch.installed, "torch is not installed")
    requires(toolchain.apex_source, "no Apex source tree in the working folder")
    built = [extension for apex in known_or(extensions.apex, ()) for extension in apex.objects]
    if any(not other_python(extension, target_python) for extension in built):
        return  # It was built, and with its extensions.
    pip = required(known(target_python.pip_version), "there is no pip: see pip-missing")
    nvcc = matching_nvcc(toolchain, torch.cuda) if torch.cuda else None
    yield Finding.of(
        f"A plain `pip install` of the Apex source in {toolchain.apex_source} fails, or builds no extensions",
        told(toolchain, "apex_source", f"an Apex source tree lies in {toolchain.apex_source}"),
        target_python.seen("pip_version"),
        Fix("Build it with these commands", build_commands(toolchain, target_python, home_of(nvcc)))
        if nvcc and not limit_exceeded(toolchain, nvcc)
        else prescription_for(target_python, torch, nvcc),
        cause=f"pip {pip} builds in an environment without torch, and leaves the extensions out, unless told otherwise.",
    )


COMPILER = re.compile(r"\.\w+(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal |catastrophic )?error:? (?:#error -- )?(?P<what>\S.*)")
"""As gcc and nvcc report an error: after the place in a source file."""


BUILD_WITH_A_LOG = (
    "MAX_JOBS=2 APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir . 2>&1 | tee build.log",
    "grep -n -m 5 'error:' build.log",
)


@log_check("apex-build-failed", severity=FAIL, owner=Owner.USER, log=LogTraits(sums_up=True))
def apex_build_failed(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NVIDIA Apex could not be built.

    ## What breaks
    `pip install` ends with "Failed building wheel for apex", and nothing is installed.

    ## Why
    The reason is further up, in the first line with "error:": a compiler that nvcc doesn't take, a header that this torch no
    longer has (an Apex too old for it), another CUDA than torch's, or too little memory ("Killed").

    ## Fix
    Look for the first "error:" of the build. `ddpdoctor explain apex` gives the commands that fit this host. For most uses torch
    itself has what Apex had: `torch.amp`, `torch.optim.AdamW(fused=True)`, `torch.nn.SyncBatchNorm`.
    """
    said = sorted((*log.errors, *(sighting.line for sighting in log.sightings)), key=lambda line: line.order)
    of_compiler = ((line, COMPILER.search(line.text)) for line in said if line.order < seen[-1].line.order)
    line, found = next(((line, found) for line, found in of_compiler if found), (None, None))
    reason = f", {' '.join(found['what'].split())}" if found else ""
    return Finding.of(
        f"Apex could not be built: the first line with error: above says why{reason}",
        Evidence(line.text.strip(), where(log, line)) if line else None,
        lines(log, seen),
        Fix("See whether toolkit, compiler and torch fit, and which commands build it", ("ddpdoctor explain apex",)),
        Fix("Build with few jobs, so that the first error stands alone and memory suffices", BUILD_WITH_A_LOG),
    )
