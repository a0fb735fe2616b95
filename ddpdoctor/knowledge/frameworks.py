"""Training frameworks, by the calls that a log or a stack shows: which it is, what its loop is at (its training step, validation, reduce of
metrics, checkpoint), and how an advice is spelt for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import msgspec

from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.log import Log

TRAINER: Final = "transformers' Trainer"
ACCELERATE: Final = "accelerate"
LIGHTNING: Final = "Lightning"

_LIES_IN: Final = (
    # The Trainer works through accelerate, so it comes first.
    (TRAINER, ("/transformers/trainer.py", "/trl/trainer/")),
    (LIGHTNING, ("/lightning/", "/pytorch_lightning/", "/lightning_fabric/")),
    (ACCELERATE, ("/accelerate/accelerator.py", "/accelerate/utils/operations.py", "/accelerate/commands/launch.py")),
)
"""Files of a framework's training loop; of accelerate its launcher's, too: who uses that prepares the model with it, as a rule."""

FIND_UNUSED: Final = {
    TRAINER: "TrainingArguments(ddp_find_unused_parameters=True)",
    ACCELERATE: "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])",
    LIGHTNING: 'Trainer(strategy="ddp_find_unused_parameters_true")',
    "": "DDP(model, find_unused_parameters=True)",
}
"""How DDP is told to look for parameters without a gradient."""


def first_raised_in(log: Log, lies_in: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The first name with a part of whose paths a call of the log's exceptions lies; "" for none."""
    paths = [frame.path for raised in log.raised for frame in raised.frames]
    return next((name for name, parts in lies_in if any(part in path for path in paths for part in parts)), "")


def framework_of(log: Log) -> str:
    """Name the framework in whose calls the log's exceptions were raised; "" for none."""
    return first_raised_in(log, _LIES_IN)


class _Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Phase of a framework's loop in a file, or in some functions of it, separated by blanks."""

    file: str
    phase: str
    functions: str = ""


class _FrameworkRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Row of frameworks.json: a framework, its package's folders as a pattern, and its phases: of one call the first that fits."""

    name: str
    package: str
    phases: tuple[_Phase, ...]

    def phase_of(self, path: str, function: str) -> str:
        """The phase of one call; "" where it tells none."""
        found = re.search(rf"(?:^|/){self.package}/(.+)$", path)
        return next(
            (
                row.phase
                for row in (self.phases if found else ())
                if found and found[1] == row.file and (not row.functions or function in row.functions.split())
            ),
            "",
        )


@cache
def _rows() -> tuple[_FrameworkRow, ...]:
    """Names are those of Lightning 2.6, accelerate 1.15, transformers 5.0 and torch 2.13; DeepSpeed's of 0.16, and not tested."""
    return read_table(__name__, "frameworks.json", tuple[_FrameworkRow, ...])


@cache
def _inside() -> re.Pattern[str]:
    return re.compile(rf"(?:^|/)(?:{'|'.join(row.package for row in _rows())})/")


def is_of_framework(path: str) -> bool:
    """Whether a call of that file is of a framework's own loop."""
    return bool(_inside().search(path))


def phase_of(calls: Iterable[tuple[str, str]]) -> str:
    """Tell by calls, (file, function) of each, the innermost first, what a framework's loop is at: "the reduce of metrics of Lightning";
    "" where no call tells."""
    calls = tuple(calls)
    for path, function in calls:
        for row in _rows() if is_of_framework(path) else ():
            if phase := row.phase_of(path, function.rpartition(".")[2]):
                # The Trainer works through accelerate.
                trains = row.name == ACCELERATE and any("/transformers/" in f"/{other_path}" for other_path, _ in calls)
                return f"the {phase} of {TRAINER if trains else row.name}"
    return ""
