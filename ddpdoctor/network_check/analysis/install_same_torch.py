"""The commands that give a node the torch that another node has: the same release, of the same build. Pure."""

from __future__ import annotations

import re
import shlex

from packaging.version import Version

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.fleet import Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.installing import replacing
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.knowledge.node_words import called
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.version_agreement import BUILD, torch_build, torch_release
from ddpdoctor.knowledge.wheels import DRIVER_FLOOR, index_url, older, release, tag_cuda

NEW_ENVIRONMENT = "ddp-env"


def same_torch(
    pattern: Node, own: Node, meeting: Meeting, target_python: Maybe[TargetPython], packages: Maybe[Packages]
) -> tuple[Fix, ...]:
    """Install on `own` what `pattern` has. target_python, packages: of `own`."""
    if isinstance(target_python, Unknown) or not isinstance(pattern.torch, str):
        return ()
    wanted = release(pattern.torch)
    # conda-forge calls its builds "2.5.1.post300"; no wheel has such a version.
    if wanted is not None and wanted.post is not None and not wanted.local:
        return _from_conda(pattern, own, wanted, meeting, target_python)
    if wanted is None or wanted.is_prerelease or (wanted.local and not BUILD.fullmatch(wanted.local)):
        text = f"No index has torch {pattern.torch} (built by hand, overnight or by a vendor): copy the environment, or the wheel, from"
        return (
            Fix(
                f"{text} {called(pattern)}; this shows where it lies there",
                (in_target_python(target_python, "-c", "import torch; print(torch.__file__)"),),
            ),
        )
    text = f"Install on {called(own)} what {called(pattern)} has"
    # A build that carries no tag and was made without CUDA is like the CPU build, which PyPI has only for ARM.
    build = torch_build(pattern) or ("cpu" if pattern.cuda is None else "")
    options = ("--index-url", index_url(build)) if build else ()
    torch = f"torch=={torch_release(pattern.torch)}"
    if target_python.externally_managed:
        return (_new_environment(text, (torch, *options), own, meeting, target_python),)
    commands: tuple[str, ...] = ()
    arguments = replacing(packages, torch)
    condas = not isinstance(packages, Unknown) and any(
        package.installer == "conda" for package in packages.named("torch")
    )
    if condas and target_python.environment_kind == "conda":
        # Were pip to write over it, conda would bring it back. It is called pytorch there.
        commands = (f"conda remove -y -p {shlex.quote(target_python.prefix)} pytorch",)
        arguments = tuple(argument for argument in arguments if argument != "--force-reinstall")
    commands = (*commands, pip_install(target_python, *arguments, *options))
    if target_python.pip_version is None:
        commands = (in_target_python(target_python, "-m", "ensurepip", "--upgrade"), *commands)
    cuda = tag_cuda(build)
    floor = DRIVER_FLOOR.get(cuda[0]) if cuda else None
    if floor and isinstance(own.driver, str) and older(own.driver, floor):
        text += f" (first its driver, {own.driver}, must be updated: CUDA {cuda[0] if cuda else ''} needs {floor})"
    return (Fix(text, commands),)


def _new_environment(
    text: str, install: tuple[str, ...], own: Node, meeting: Meeting, target_python: TargetPython
) -> Fix:
    python = f"{NEW_ENVIRONMENT}/bin/python"
    return Fix(
        f"{text}, in an environment, since this system keeps pip out of its own Python (PEP 668), and run netcheck with its "
        "Python",
        (
            in_target_python(target_python, "-m", "venv", NEW_ENVIRONMENT),
            shlex.join([python, "-m", "pip", "install", *install]),
            netcheck_command(meeting, meeting.nnodes or 2, own.rank, (f"--python {python}",)),
        ),
    )


def _from_conda(
    pattern: Node, own: Node, wanted: Version, meeting: Meeting, target_python: TargetPython
) -> tuple[Fix, ...]:
    kind = "cuda" if isinstance(pattern.cuda, str) else "cpu"
    torch = f"pytorch={wanted.base_version}=*{kind}*"
    text = f"Install on {called(own)} what {called(pattern)} has, from conda-forge"
    if target_python.environment_kind == "conda":
        command = f"conda install -p {shlex.quote(target_python.prefix)} -c conda-forge {shlex.quote(torch)}"
        return (Fix(text, (command,)),)
    minor = re.match(r"\d+\.\d+", pattern.python) if isinstance(pattern.python, str) else None
    python = f" python={minor[0]}" if minor else ""
    return (
        Fix(
            f"{text}, in an environment of conda's, and run netcheck with its Python",
            (
                f"conda create -y -p ./{NEW_ENVIRONMENT} -c conda-forge{python} {shlex.quote(torch)}",
                netcheck_command(meeting, meeting.nnodes or 2, own.rank, (f"--python {NEW_ENVIRONMENT}/bin/python",)),
            ),
        ),
    )
