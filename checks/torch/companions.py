"""The packages that are built against one release of torch: do they go with the target Python's?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import dotted, listed
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.snapshot import TargetPython, Torch
from ddpdoctor.knowledge.cuda_stack import requirement_in
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.python_commands import pip_install
from ddpdoctor.knowledge.wheels import index_options, numbers, release, tag_cuda


@check("torch-torchvision-mismatch", severity=FAIL, owner=Owner.USER)
def torch_torchvision_mismatch(torch: Torch, packages: Packages, target_python: TargetPython) -> Iterator[Finding]:
    """torchvision or torchaudio was built for another torch.

    ## What breaks
    "operator torchvision::nms does not exist", or an undefined symbol when torchaudio is imported.

    ## Why
    Each release of torchvision is compiled against one release of torch. `pip install torch` changes the one and leaves the
    other; two indexes may give one with CUDA and the other without.

    ## Fix
    Install both in one command from one index, and let pip choose the pair.
    """
    requires(torch.installed, "torch is not installed")
    companions = [package for name in ("torchvision", "torchaudio") for package in packages.named(name)[:1]]
    requires(companions, "neither torchvision nor torchaudio is installed")
    version = release(torch.version)
    if version is None:
        leave_untested(
            f"torch's version {torch.version} is unusual" if torch.version else "torch's version isn't known"
        )
    for companion in companions:
        judged = _not_its_torch(companion, version) or _not_its_cuda(companion, torch)
        if judged:
            severity, reason = judged
            base = str(version.public) if version.is_devrelease else version.base_version
            named = f"{companion.name} {companion.version}"
            wanted = ("--force-reinstall", f"torch=={base}", companion.name, *index_options(torch.version or ""))
            install = pip_install(target_python, *wanted)
            yield Finding.of(
                f"{named} doesn't fit torch {torch.version}: {reason}",
                torch_version(torch),
                told(
                    packages, "installed", f"{named}, which requires {listed(companion.requires) or 'no certain torch'}"
                ),
                Fix(f"Let pip find the {companion.name} that belongs to this torch", (install,)),
                severity=severity,
            )


def _not_its_torch(companion: Package, torch: Version) -> tuple[Severity, str] | None:
    for text in companion.requires:
        required, requirement = requirement_in(text) or ("", None)
        if required != "torch" or requirement is None or requirement.specifier.contains(torch, prereleases=True):
            continue
        # Nightlies of neighbouring days, and source builds, often work together: not certain to fail.
        return (WARN if torch.is_prerelease else FAIL), f"it requires torch{requirement.specifier}"
    return None


def _not_its_cuda(companion: Package, torch: Torch) -> tuple[Severity, str] | None:
    tag = companion.version.partition("+")[2]
    cuda = tag_cuda(tag)
    if torch.cpu_only and cuda:
        return FAIL, f"it is built for CUDA {dotted(cuda)}, torch without CUDA"
    if torch.cuda and tag == "cpu":
        return WARN, "it is the CPU build, and its operators can't take GPU tensors"
    if torch.cuda and cuda and cuda[:1] != numbers(torch.cuda)[:1]:
        return FAIL, f"it is built for CUDA {dotted(cuda)}, torch for {torch.cuda}"
    return None
