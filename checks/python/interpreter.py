"""The Python that training runs in: can it be asked, and does it find the torch that it should."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import clip_middle, listed
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.python_commands import in_target_python
from ddpdoctor.knowledge.shadowed_modules import torch_itself

ANOTHER = Fix("Name the Python that training runs in", ('ddpdoctor check --python "$(command -v python3)"',))


@check("python-unusable", severity=FAIL)
def python_unusable(target_python: TargetPython) -> Iterator[Finding]:
    """The Python that training should run in can't be used.

    ## What breaks
    Nothing starts. Nor can anything be said of torch and its packages, since only that Python can say where they are.

    ## Why
    The path is wrong, the virtual environment's base Python was removed or upgraded, the interpreter is older than
    Python 3.8, or something that runs at every start (sitecustomize, a .pth file, PYTHONHOME) stops it.

    ## Fix
    Name the right one with `ddpdoctor check --python PATH` (a path, a command, or a virtual environment's folder), or
    make a new environment with `python3 -m venv`.
    """
    if target_python.state == "ok":
        return
    yield Finding(
        summary=f"{_short(target_python.python)} can't be used: {_short(target_python.detail, 80)}",
        cause=_CAUSES.get(target_python.state, ""),
        evidence=(
            told(target_python, "state", f"{target_python.python}: {target_python.detail}"),
            target_python.seen("chosen_by"),
        ),
        fixes=(*_repairs(target_python), ANOTHER),
    )


_CAUSES = {
    "missing": "The name is misspelt, or what it named was removed. A virtual environment only links to the Python that "
    "it was made from: when that is removed or upgraded, the environment is dead.",
    "not-executable": "The system refuses to run it.",
    "too-old": "No torch of the last years runs on it. Where `python` is still Python 2, `python3` is the right name.",
    "not-python": "It runs, but doesn't do what Python does when it is given a script.",
    "hangs": "It doesn't get through its own start: a file system that doesn't answer, or a sitecustomize or .pth file "
    "that waits for something.",
    "dies": "It doesn't get through its own start. PYTHONHOME or PYTHONPATH of another Python, a broken "
    "sitecustomize, or a damaged installation do that.",
}


def _repairs(target_python: TargetPython) -> Iterator[Fix]:
    python = shlex.quote(target_python.python)
    gone = target_python.state == "missing" and "doesn't exist any more" in target_python.detail
    if gone and target_python.python.endswith("/bin/python"):
        folder = shlex.quote(target_python.python.removesuffix("/bin/python"))
        yield Fix("Make the environment anew, and install its packages again", (f"python3 -m venv --clear {folder}",))
    elif target_python.chosen_by == "VIRTUAL_ENV":
        yield Fix("Leave the active environment", ("deactivate",))
    elif target_python.chosen_by == "CONDA_PREFIX":
        yield Fix("Leave the active environment", ("conda deactivate",))
    if target_python.state == "not-executable" and "may not execute" in target_python.detail:
        yield Fix("If it really is a Python, make it executable", (f"chmod +x {python}",))
    if target_python.state == "not-executable" and "may not enter" in target_python.detail:
        yield Fix(
            "See who owns that folder, and ask to be let in; or take an environment of this user's own",
            (f"namei -l {python}",),
        )
    if target_python.state in ("hangs", "dies"):
        yield Fix(
            "See whether it starts without settings, site-packages and sitecustomize", (f"{python} -I -S -c pass",)
        )
        yield Fix("If it does, see at which module it stops with them", (f"{python} -v -c pass 2>&1 | tail -n 20",))
    if target_python.state == "dies":
        yield Fix("Try it without PYTHONHOME and PYTHONPATH", (f"env -u PYTHONHOME -u PYTHONPATH {python} -c pass",))


def _short(text: str, most: int = 56) -> str:
    """Long paths lose their middle: the summary is one line."""
    return clip_middle(text, most)


@check("torch-shadowed", severity=FAIL)
def torch_shadowed(torch: Torch, target_python: TargetPython, packages: Maybe[Packages]) -> Iterator[Finding]:
    """Something else by the name of torch is found before the installed one.

    ## What breaks
    `import torch` brings a file of yours, PyTorch's source tree or another version: attributes are missing, or the
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
    yield Finding(
        summary=f"import torch finds {what} through {torch.found_through}{behind}",
        cause="" if torch.hidden else "Nor is PyTorch itself installed in this Python.",
        severity=FAIL if not_torch else WARN,
        evidence=(
            told(torch, "location", f"import torch finds {torch.location}"),
            told(torch, "found_through", f"it is found through {torch.found_through}"),
            *([told(torch, "hidden", f"it hides {torch.hidden}")] if torch.hidden else []),
        ),
        fixes=tuple(torch_itself(torch, target_python)),
    )


def _described(hidden: str, packages: Maybe[Packages]) -> str:
    folder = hidden.rpartition("/")[0]
    installed = () if isinstance(packages, Unknown) else packages.named("torch")
    version = next((package.version for package in installed if package.location == folder), "")
    return f"the installed {version}" if version else "the installed one"


@check("user-site-shadows", severity=WARN)
def user_site_shadows(target_python: TargetPython, packages: Packages) -> Iterator[Finding]:
    """Packages in your home hide those of the environment.

    ## What breaks
    torch, or what has to fit it, comes in another version than the one in the environment or in the container's image:
    imports fail with undefined symbols, or ranks on other nodes run another version.

    ## Why
    `pip install --user` puts packages into `~/.local`, and Python looks there before the site-packages of a conda
    environment or a container. Apptainer and Slurm set-ups carry the home directory everywhere.

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
    yield Finding(
        summary=f"~/.local hides the environment's {listed(behind, 2)}",
        evidence=(
            told(target_python, "user_site", f"packages in your home: {target_python.user_site}"),
            *(
                told(packages, "installed", f"{package.name} {package.version} in {package.location}")
                for pair in pairs
                for package in pair
            ),
        ),
        fixes=(
            Fix("Keep Python out of ~/.local, in every job", ("export PYTHONNOUSERSITE=1",), appliable=True),
            Fix(
                "Or remove those in ~/.local, which pip finds first",
                (uninstall(target_python, *(package.name for package, _ in pairs)),),
            ),
        ),
    )


_FIT_TOGETHER = compile_lazily(
    r"torch|torchvision|torchaudio|triton|nvidia-.+-cu\d+|apex|deepspeed|flash-attn|transformer-engine|xformers"
)


@check("pip-missing", severity=INFO)
def pip_missing(target_python: TargetPython) -> Iterator[Finding]:
    """The environment has no pip.

    ## What breaks
    Nothing in training. Commands of the form `python -m pip install ...`, as in the fixes of other findings, don't run.

    ## Why
    uv makes environments without pip, and so does `python -m venv --without-pip`; Debian ships it in a package of its own.

    ## Fix
    `python -m ensurepip --upgrade`.
    """
    if known(target_python.pip_version) is not None:
        return
    if target_python.environment_kind == "conda":
        fix = Fix(
            "Install pip with conda", (shlex.join(["conda", "install", "--prefix", target_python.prefix, "pip"]),)
        )
    elif target_python.externally_managed:
        fix = Fix(
            "Make a virtual environment, which has pip (on Debian and Ubuntu the package python3-venv must be there)",
            (in_target_python(target_python, "-m", "venv", "ddp-env"), "ddpdoctor check --python ddp-env/bin/python"),
        )
    else:
        fix = Fix(
            "Install the pip that comes with Python", (in_target_python(target_python, "-m", "ensurepip", "--upgrade"),)
        )
    yield Finding(
        summary=f"{_short(target_python.python)} has no pip",
        evidence=(
            told(target_python, "pip_version", "no package called pip is found"),
            told(target_python, "environment_kind", f"kind of environment: {target_python.environment_kind}"),
        ),
        fixes=(fix,),
    )
