"""What a job script loads before it trains: environments of conda, modules of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word

MODULES: Final = Fix(
    "See which there are, by which other modules they are found, and load one of those",
    ("module avail", "module spider NAME"),
)
CONDA_HOOK: Final = Fix(
    "Load conda in the job script itself, before conda activate",
    ('eval "$(conda shell.bash hook)"', "conda activate NAME"),
)
ENVIRONMENTS: Final = Fix("See which environments there are, as the user of the job", ("conda env list",))
WHOLE_PATH: Final = Fix("Or start that environment's Python by its whole path", ("/path/to/env/bin/python train.py",))
STOP: Final = Fix("Let the job script end where a line of it fails, before it trains with something else", ("set -e",))


TORCH_MISSING: Final = "torch-missing"


def _without_what_it_lacks(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Drop that torch is missing where this tells why: the environment that has it wasn't activated."""
    lacking = {match.line for match in seen if match.slug == slug and "No module named" in match.sign}
    return [match for match in seen if match.slug != TORCH_MISSING or match.line not in lacking]


@log_check("environment-not-loaded", severity=FAIL, owner=Owner.USER, log=LogTraits(revises=_without_what_it_lacks))
def environment_not_loaded(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The job script couldn't load the environment or the module that the run needs.

    ## What breaks
    The script goes on with whatever Python, CUDA and MPI are there without it: "No module named 'torch'", "command not found".

    ## Why
    conda activate is a function that conda puts into the start files of a shell that a person logs in by; a job's shell doesn't read
    those. Or the environment or the module is called otherwise on this cluster, or is found only once another one is loaded.

    ## Fix
    In the job script `eval "$(conda shell.bash hook)"` before `conda activate NAME`, or that environment's Python by its whole path;
    `module spider NAME` tells which modules there are. With `set -e` the script ends where something can't be loaded.
    """
    if module := word(seen, "module"):
        return Finding.of(f"There is no module {module} to load", MODULES, STOP)
    if any("module(s)" in match.sign for match in seen):
        below = next((match.after[0].text.strip().strip('"') for match in seen if match.after), "")
        return Finding.of(
            f"There is no module {below} to load" if below else "A module to load isn't there", MODULES, STOP
        )
    if environment := word(seen, "environment"):
        return Finding.of(f"There is no conda environment {environment}", ENVIRONMENTS, WHOLE_PATH, STOP)
    return Finding.of(
        "conda isn't set up in the job's shell, so its environment wasn't activated", CONDA_HOOK, WHOLE_PATH, STOP
    )
