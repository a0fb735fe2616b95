"""Advises what to do with a file that is imported in place of torch, or of a module that torch needs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from sys import stdlib_module_names

from ddpdoctor.base.findings import Fix
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.python_commands import in_target_python


def why_in_the_way(torch: Torch) -> str:
    """In a sentence, where `torch.in_the_way` is known."""
    path = torch.in_the_way
    name = path.rpartition("/")[2].removesuffix(".py")
    whose = "Python's own" if name in stdlib_module_names else "the installed"
    return f"{path} hides {whose} module of that name: Python looks in the script's folder and PYTHONPATH first."


def another_name(path: str) -> Fix:
    """For a file, or the folder of a package."""
    what = "file" if path.endswith(".py") else "folder"
    to = f"{path.removesuffix('.py')}_of_mine{'.py' if what == 'file' else ''}"
    words = f"If that {what} is yours, give it another name, and change what imports it"
    return Fix(words, (shlex.join(["mv", path, to]),))


def torch_itself(torch: Torch, target_python: TargetPython) -> Iterator[Fix]:
    """Advise where something else than the installed torch is found by its name."""
    # A whole checkout of PyTorch keeps its name: it is left, not renamed.
    if torch.version is None and not torch.location.endswith("/pytorch/torch"):
        yield another_name(torch.location)
    if torch.found_through == "PYTHONPATH":
        yield Fix("Unset PYTHONPATH, or take that folder out of it", ("unset PYTHONPATH",))
    else:
        yield Fix(
            "Start training from another folder; this shows which torch is found there",
            (f"cd ~ && {in_target_python(target_python, '-c', 'import torch; print(torch.__file__)')}",),
        )
