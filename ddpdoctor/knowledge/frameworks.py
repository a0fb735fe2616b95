"""Which framework trained, by the calls that a log shows; and how an advice is spelt for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
