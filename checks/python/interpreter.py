"""The Python that training runs in: can it be asked, and does it find the torch that it should."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import clip_middle, listed
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.snapshot import Packages, TargetPython, Torch
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.python_commands import in_target_python
from ddpdoctor.knowledge.shadowed_modules import torch_itself

NAME_CHARACTERS = 56
"""Characters of a path in a summary, which is one line."""
ANOTHER = Fix("Name the Python that training runs in", ('ddpdoctor check --python "$(command -v python3)"',))


@check("python-unusable", severity=FAIL, owner=Owner.USER)
def python_unusable(target_python: TargetPython) -> Iterator[Finding]:
    """The Python that training should run in can't be used.

    ## What breaks
    Nothing starts. ddpdoctor can't check torch and its packages either, since only that Python can say where they are.

    ## Why
    The path is wrong, the virtual environment's base Python was removed or upgraded, the interpreter is older than
    Python 3.8, or something at every start (sitecustomize, a .pth file, PYTHONHOME) stops it.

    ## Fix
    Name the right one with `ddpdoctor check --python PATH` (a path, a command, or a virtual environment's folder), or
    make a new environment with `python3 -m venv`.
    """
    if target_python.state == "ok":
        return
    yield Finding.of(
        f"{clip_middle(target_python.python, NAME_CHARACTERS)} can't be used: {clip_middle(target_python.detail, 80)}",
        told(target_python, "state", f"{target_python.python}: {target_python.detail}"),
        target_python.seen("chosen_by"),
        _repairs(target_python),
        ANOTHER,
        cause=_CAUSES.get(target_python.state, ""),
    )


_CAUSES = {
    "missing": "The name is misspelt, or what it named was removed. A virtual environment only links to the Python that "
    "it was made from: when that is removed or upgraded, the environment is dead.",
    "not-executable": "The system refuses to run it.",
    "too-old": "No recent torch runs on it. Where `python` is still Python 2, `python3` is the right name.",
    "not-python": "It runs, but doesn't do what Python does when it is given a script.",
    "hangs": "It doesn't finish its own start: a file system that doesn't answer, or a sitecustomize or .pth file "
    "that waits for something.",
    "dies": "It doesn't finish its own start. PYTHONHOME or PYTHONPATH of another Python, a broken "
    "sitecustomize, or a damaged installation may be the cause.",
}


def _repairs(target_python: TargetPython) -> Iterator[Fix]:
    python = shlex.quote(target_python.python)
    gone = target_python.state == "missing" and "doesn't exist any more" in target_python.detail
    if gone and target_python.python.endswith("/bin/python"):
        folder = shlex.quote(target_python.python.removesuffix("/bin/python"))
        yield Fix("Make the environment again, and install its packages", (f"python3 -m venv --clear {folder}",))
    elif target_python.chosen_by == "VIRTUAL_ENV":
        yield Fix("Leave the active environment", ("deactivate",))
    elif target_python.chosen_by == "CONDA_PREFIX":
        yield Fix("Leave the active environment", ("conda deactivate",))
    if target_python.state == "not-executable" and "may not execute" in target_python.detail:
        yield Fix("If it really is a Python, make it executable", (f"chmod +x {python}",))
    if target_python.state == "not-executable" and "may not enter" in target_python.detail:
        text = "See who owns that folder, and ask for access; or use an environment of this user's own"
        yield Fix(text, (f"namei -l {python}",))
    if target_python.state in ("hangs", "dies"):
        yield Fix("See whether it starts without settings, packages and sitecustomize", (f"{python} -I -S -c pass",))
        yield Fix("If it does, see at which module it stops with them", (f"{python} -v -c pass 2>&1 | tail -n 20",))
    if target_python.state == "dies":
        yield Fix("Try it without PYTHONHOME and PYTHONPATH", (f"env -u PYTHONHOME -u PYTHONPATH {python} -c pass",))


@check("torch-shadowed", severity=FAIL, owner=Owner.USER)
def torch_shadowed(torch: Torch, target_python: TargetPython, packages: Maybe[Packages]) -> Iterator[Finding]:
    """Something else with the name torch is found before the installed one.

    ## What breaks
    `import torch` finds a file of yours, PyTorch's source tree or another version: attributes are missing, or the
    versions don't fit together.

    ## Why
    Python looks in the script's own folder first, then in PYTHONPATH, and only then among the installed packages.

    ## Fix
    Rename the file, start from another folder, or take the folder out of PYTHONPATH (`unset PYTHONPATH`).
    """
    requires(torch.location, "torch is not installed")
    not_torch = torch.version is None
    if not torch.found_through or not (torch.hidden or not_torch):
        return
    what = "something that isn't PyTorch" if not_torch else f"torch {torch.version}"
    behind = f", not {_described(torch.hidden, packages)}" if torch.hidden else ""
    yield Finding.of(
        f"import torch finds {what} through {torch.found_through}{behind}",
        told(torch, "location", f"import torch finds {torch.location}"),
        told(torch, "found_through", f"it is found through {torch.found_through}"),
        told(torch, "hidden", f"it hides {torch.hidden}") if torch.hidden else None,
        torch_itself(torch, target_python),
        cause="" if torch.hidden else "Nor is PyTorch itself installed in this Python.",
        severity=FAIL if not_torch else WARN,
    )


def _described(hidden: str, packages: Maybe[Packages]) -> str:
    installed = () if isinstance(packages, Unknown) else packages.named("torch")
    version = next((package.version for package in installed if package.location == hidden.rpartition("/")[0]), "")
    return f"the installed {version or 'one'}"


@check("user-site-shadows", severity=WARN, owner=Owner.USER)
def user_site_shadows(target_python: TargetPython, packages: Packages) -> Iterator[Finding]:
    """Packages in your home hide those of the environment.

    ## What breaks
    torch, or a package that has to fit it, is loaded in another version than the one in the environment or in the container's image:
    imports fail with undefined symbols, or ranks on other nodes run another version.

    ## Why
    `pip install --user` puts packages into `~/.local`, and Python looks there before the site-packages of a conda
    environment or a container. With Apptainer and Slurm the home directory is often the same everywhere.

    ## Fix
    `export PYTHONNOUSERSITE=1`, or remove them from `~/.local`.
    """
    requires(target_python.user_site, "this Python doesn't look into ~/.local")
    pairs = [
        (package, hidden)
        for package in packages.installed
        if package.location == target_python.user_site and _FIT_TOGETHER.fullmatch(package.name)
        for hidden in packages.named(package.name)[1:2]
        if hidden.version != package.version and packages.named(package.name)[0] is package
    ]
    if not pairs:
        return
    pairs.sort(key=lambda pair: (pair[0].name != "torch", pair[0].name))
    behind = (f"{package.name} {hidden.version} behind {package.version}" for package, hidden in pairs)
    remove = uninstall(target_python, *(package.name for package, _ in pairs))
    yield Finding.of(
        f"~/.local hides the environment's {listed(behind, 2)}",
        told(target_python, "user_site", f"packages in your home: {target_python.user_site}"),
        (
            told(packages, "installed", f"{package.name} {package.version} in {package.location}")
            for pair in pairs
            for package in pair
        ),
        Fix("Keep Python out of ~/.local, in every job", ("export PYTHONNOUSERSITE=1",), appliable=True),
        Fix("Or remove those in ~/.local, which pip finds first", (remove,)),
    )


_FIT_TOGETHER = compile_lazily(
    r"torch|torchvision|torchaudio|triton|nvidia-.+-cu\d+|apex|deepspeed|flash-attn|transformer-engine|xformers"
)


@check("pip-missing", severity=INFO, owner=Owner.USER)
def pip_missing(target_python: TargetPython) -> Iterator[Finding]:
    """The environment has no pip.

    ## What breaks
    Nothing in training. Commands of the form `python -m pip install ...`, as in the fixes of other findings, don't run.

    ## Why
    uv makes environments without pip, and so does `python -m venv --without-pip`; Debian has it in a separate package.

    ## Fix
    `python -m ensurepip --upgrade`.
    """
    if known(target_python.pip_version) is not None:
        return
    if target_python.environment_kind == "conda":
        fix = Fix("Install pip with conda", (f"conda install --prefix {shlex.quote(target_python.prefix)} pip",))
    elif target_python.externally_managed:
        fix = Fix(
            "Make a virtual environment, which has pip (on Debian and Ubuntu the package python3-venv must be there)",
            (in_target_python(target_python, "-m", "venv", "ddp-env"), "ddpdoctor check --python ddp-env/bin/python"),
        )
    else:
        ensure = in_target_python(target_python, "-m", "ensurepip", "--upgrade")
        fix = Fix("Install the pip that comes with Python", (ensure,))
    yield Finding.of(
        f"{clip_middle(target_python.python, NAME_CHARACTERS)} has no pip",
        told(target_python, "pip_version", "no package called pip is found"),
        told(target_python, "environment_kind", f"kind of environment: {target_python.environment_kind}"),
        fix,
    )
