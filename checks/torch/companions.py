"""The packages that are built against one release of torch: do they go with the target Python's?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix, Severity
from ddpdoctor.base.text import dotted, listed
from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.engine.registry import LogSign, SignRole, check, requires
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.cuda_stack import requirement_in
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.python_commands import pip_install
from ddpdoctor.knowledge.wheels import index_options, numbers, release, tag_cuda


@check(
    "torch-torchvision-mismatch",
    severity=FAIL,
    log_signs=(
        LogSign(
            "operator torchvision::nms does not exist",
            why="torchvision's Python met a torch into which its library can't be loaded",
            source="made to happen with torch 2.9.1 and torchvision 0.20.1",
        ),
        LogSign(
            "No such operator torchvision::nms",
            why="The same in older releases",
            source="torch 1.13.1: libtorch_cpu.so; PyTorch forum",
        ),
        LogSign(
            "were compiled with different CUDA ",
            pattern=r"^(?!.{0,80}\b(?:WARN|WARNING|INFO|\w*Warning)\b).*PyTorch and (?P<companion>torchvision|TorchAudio) were compiled with different CUDA (?:major )?versions",
            why="torchvision's own words, at its import, and torchaudio's; in a warning somebody goes on without them",
            source="torchvision 0.8 and 0.22: torchvision/extension.py; torchaudio's as reported in public",
        ),
        LogSign(
            "Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision",
            why="torchvision's own words, at the first use of an operator; its library could not be loaded",
            source="torchvision 0.8 and 0.22: torchvision/extension.py",
        ),
        LogSign(
            "Could not run 'torchvision::",
            pattern=r"Could not run 'torchvision::(?P<operator>\w+)' with arguments from the 'CUDA' backend",
            why="torchvision without CUDA beside a torch with it",
            source="torch's dispatcher, with torchvision's names of its operators; as reported in public",
        ),
        LogSign(
            "partially initialized module 'torchvision' has no attribute 'extension'",
            why="torchvision's library could not be loaded at the first import, and a second one meets what is left of that",
            source="torchvision 0.17 to 0.21: torchvision/_meta_registrations.py; pytorch/torchchat issue 1158",
        ),
        *(
            LogSign(
                text,
                why="torchvision's library for images could not be loaded, of which it only warned: another torch, or libjpeg or libpng is missing",
                role=SignRole.HINTS,
                source="torch 1.13.1: torch/csrc/jit/python/init.cpp; torch 2.13.0: torch/_ops.py; as reported in public",
            )
            for text in ("No such operator image::", "'_OpNamespace' 'image' object has no attribute '")
        ),
        LogSign(
            "undefined symbol: ",
            pattern=r"/(?:torchvision|torchaudio)/\S+\.so: undefined symbol: (?:_Z|(?:aoti_)?torch_)",
            why="The library of torchvision or torchaudio was built for another torch",
            source="glibc's ld.so; the packages' folder names",
        ),
    ),
)
def torch_torchvision_mismatch(torch: Torch, packages: Packages, target_python: TargetPython) -> Iterator[Finding]:
    """torchvision or torchaudio was built for another torch.

    ## What breaks
    "operator torchvision::nms does not exist", or an undefined symbol when torchaudio is imported.

    ## Why
    Each release of torchvision is compiled against one release of torch. `pip install torch` moves the one and leaves the
    other; two indexes give one with CUDA and the other without.

    ## Fix
    Install both in one command from one index, and let pip choose the pair.
    """
    requires(torch.installed, "torch is not installed")
    companions = [one for name in ("torchvision", "torchaudio") for one in packages.named(name)[:1]]
    requires(companions, "neither torchvision nor torchaudio is installed")
    version = release(torch.version)
    if version is None:
        raise NotKnown(
            f"torch's version {torch.version} is no usual one" if torch.version else "torch doesn't tell its version"
        )
    for companion in companions:
        judged = _not_its_torch(companion, version) or _not_its_cuda(companion, torch)
        if judged:
            severity, reason = judged
            base = version.base_version if not version.is_devrelease else str(version.public)
            yield Finding(
                summary=f"{companion.name} {companion.version} doesn't go with torch {torch.version}: {reason}",
                severity=severity,
                evidence=(
                    torch_version(torch),
                    told(
                        packages,
                        "installed",
                        f"{companion.name} {companion.version}, which requires {listed(companion.requires) or 'no certain torch'}",
                    ),
                ),
                fixes=(
                    Fix(
                        f"Let pip find the {companion.name} that belongs to this torch",
                        (
                            pip_install(
                                target_python,
                                "--force-reinstall",
                                f"torch=={base}",
                                companion.name,
                                *index_options(torch.version or ""),
                            ),
                        ),
                    ),
                ),
            )


def _not_its_torch(companion: Package, torch: Version) -> tuple[Severity, str] | None:
    for text in companion.requires:
        required, requirement = requirement_in(text) or ("", None)
        if required != "torch" or requirement is None or requirement.specifier.contains(torch, prereleases=True):
            continue
        # Nightlies of neighbouring days, and source builds, often work together: not certain to fail.
        certain = not torch.is_prerelease
        return (FAIL if certain else WARN), f"it requires torch{requirement.specifier}"
    return None


def _not_its_cuda(companion: Package, torch: Torch) -> tuple[Severity, str] | None:
    tag = companion.version.partition("+")[2]
    cuda = tag_cuda(tag)
    if torch.cpu_only and cuda:
        return FAIL, f"it is built for CUDA {dotted(cuda)}, torch without CUDA"
    if torch.cuda and tag == "cpu":
        return WARN, "it is the CPU build, and its operators can't take GPU tensors"
    if torch.cuda and cuda and cuda[0] != numbers(torch.cuda)[0]:
        return FAIL, f"it is built for CUDA {dotted(cuda)}, torch for {torch.cuda}"
    return None
