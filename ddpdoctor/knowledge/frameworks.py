"""Training frameworks, by the calls that a log or a stack shows: which it is, what its loop is at (its training step, validation, reduce of
metrics, checkpoint), and how an advice is spelt for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

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


DEEPSPEED: Final = "DeepSpeed"
FSDP: Final = "FSDP"
DCP: Final = "torch.distributed.checkpoint"

TRAINING: Final = "training step"
BACKWARD: Final = "backward pass"
OPTIMISING: Final = "optimizer step"
VALIDATION: Final = "validation"
METRICS: Final = "reduce of metrics"
SAVING: Final = "saving of a checkpoint"
LOADING: Final = "loading of a checkpoint"
DATA: Final = "loading of data"
CLIPPING: Final = "clipping of gradients"
PREPARING: Final = "preparation of model and data"
WAITING: Final = "wait for everyone"
GATHERING: Final = "gathering of parameters"
REDUCING: Final = "reduce of gradients"

_PACKAGES: Final = {
    LIGHTNING: r"(?:lightning/pytorch|pytorch_lightning|lightning/fabric|lightning_fabric)",
    ACCELERATE: "accelerate",
    TRAINER: "transformers",
    DEEPSPEED: "deepspeed",
    FSDP: "torch/distributed/fsdp",
    DCP: "torch/distributed/checkpoint",
}


class PhaseRow(NamedTuple):
    """A framework's file, its functions (none: all of them), and what the loop is at there."""

    framework: str
    file: str
    functions: frozenset[str]
    phase: str


def _row(framework: str, file: str, functions: str, phase: str) -> PhaseRow:
    return PhaseRow(framework, file, frozenset(functions.split()), phase)


_ROWS: Final = (
    _row(LIGHTNING, "trainer/connectors/logger_connector/result.py", "", METRICS),
    _row(LIGHTNING, "trainer/connectors/logger_connector/logger_connector.py", "", METRICS),
    _row(LIGHTNING, "callbacks/model_checkpoint.py", "", SAVING),
    _row(LIGHTNING, "trainer/connectors/checkpoint_connector.py", "dump_checkpoint hpc_save save_checkpoint", SAVING),
    _row(LIGHTNING, "trainer/connectors/checkpoint_connector.py", "", LOADING),
    _row(LIGHTNING, "trainer/trainer.py", "save_checkpoint", SAVING),
    _row(LIGHTNING, "core/module.py", "backward manual_backward", BACKWARD),
    _row(LIGHTNING, "strategies/strategy.py", "backward", BACKWARD),
    _row(LIGHTNING, "strategies/strategy.py", "training_step", TRAINING),
    _row(LIGHTNING, "strategies/strategy.py", "validation_step test_step predict_step", VALIDATION),
    _row(LIGHTNING, "strategies/ddp.py", "configure_ddp _setup_model", PREPARING),
    _row(LIGHTNING, "loops/fetchers.py", "", DATA),
    _row(LIGHTNING, "loops/evaluation_loop.py", "setup_data", DATA),
    _row(LIGHTNING, "loops/fit_loop.py", "setup_data", DATA),
    _row(LIGHTNING, "loops/evaluation_loop.py", "", VALIDATION),
    _row(LIGHTNING, "loops/optimization/automatic.py", "_training_step", TRAINING),
    _row(LIGHTNING, "loops/optimization/automatic.py", "closure backward_fn", BACKWARD),
    _row(LIGHTNING, "loops/optimization/automatic.py", "_optimizer_step", OPTIMISING),
    _row(LIGHTNING, "loops/optimization/manual.py", "", TRAINING),
    _row(LIGHTNING, "loops/training_epoch_loop.py", "advance", TRAINING),
    _row(ACCELERATE, "accelerator.py", "backward", BACKWARD),
    _row(ACCELERATE, "accelerator.py", "clip_grad_norm_ clip_grad_value_", CLIPPING),
    _row(ACCELERATE, "accelerator.py", "gather gather_for_metrics reduce pad_across_processes", METRICS),
    _row(ACCELERATE, "accelerator.py", "save_state save_model save get_state_dict", SAVING),
    _row(ACCELERATE, "accelerator.py", "load_state", LOADING),
    _row(ACCELERATE, "accelerator.py", "wait_for_everyone", WAITING),
    _row(ACCELERATE, "accelerator.py", "prepare prepare_model prepare_data_loader", PREPARING),
    _row(ACCELERATE, "optimizer.py", "step", OPTIMISING),
    _row(ACCELERATE, "data_loader.py", "", DATA),
    _row(TRAINER, "trainer.py", "_save_checkpoint save_model _save _save_rng_state _save_optimizer_and_scheduler", SAVING),
    _row(TRAINER, "trainer.py", "_load_from_checkpoint _load_rng_state _load_optimizer_and_scheduler _load_best_model", LOADING),
    _row(TRAINER, "trainer.py", "_nested_gather nested_gather gather_function compute_metrics", METRICS),
    _row(TRAINER, "trainer.py", "evaluation_loop evaluate _evaluate predict prediction_loop prediction_step", VALIDATION),
    _row(TRAINER, "trainer.py", "get_batch_samples", DATA),
    _row(TRAINER, "trainer.py", "training_step compute_loss", TRAINING),
    _row(TRAINER, "trainer_pt_utils.py", "", METRICS),
    _row(DEEPSPEED, "runtime/engine.py", "save_checkpoint save_16bit_model _save_checkpoint _save_zero_checkpoint", SAVING),
    _row(DEEPSPEED, "runtime/engine.py", "load_checkpoint _load_checkpoint", LOADING),
    _row(DEEPSPEED, "runtime/engine.py", "allreduce_gradients", REDUCING),
    _row(DEEPSPEED, "runtime/engine.py", "backward", BACKWARD),
    _row(DEEPSPEED, "runtime/engine.py", "step _take_model_step", OPTIMISING),
    _row(DEEPSPEED, "runtime/engine.py", "forward", TRAINING),
    _row(DEEPSPEED, "runtime/zero/partitioned_param_coordinator.py", "", GATHERING),
    _row(FSDP, "_fully_shard/_fsdp_param_group.py", "unshard wait_for_unshard pre_forward pre_backward", GATHERING),
    _row(FSDP, "_fully_shard/_fsdp_param_group.py", "post_backward finalize_backward backward", REDUCING),
    _row(FSDP, "_runtime_utils.py", "_unshard _pre_forward_unshard _pre_backward_hook", GATHERING),
    _row(FSDP, "_runtime_utils.py", "_post_backward_hook _reduce_grad", REDUCING),
    _row(FSDP, "_state_dict_utils.py", "", SAVING),
    _row(DCP, "state_dict_saver.py", "", SAVING),
    _row(DCP, "state_dict_loader.py", "", LOADING),
)  # fmt: skip
"""Of one call the first that fits. Names of Lightning 2.6, accelerate 1.15, transformers 5.0 and torch 2.13; DeepSpeed's are of
0.16, and not tested."""

_INSIDE: Final = re.compile(rf"(?:^|/)(?:{'|'.join(_PACKAGES.values())})/")
# The Trainer works through accelerate.
_OF: Final = {name: re.compile(rf"(?:^|/){package}/(?P<file>.+)$") for name, package in _PACKAGES.items()}


def is_of_framework(path: str) -> bool:
    """Whether a call of that file is of a framework's own loop."""
    return bool(_INSIDE.search(path))


def phase_of(calls: Iterable[tuple[str, str]]) -> str:
    """ "the reduce of metrics of Lightning"; "" where no call tells.

    Args:
        calls: (file, function) of each one, the innermost first.
    """
    calls = tuple(calls)
    for path, function in calls:
        if not is_of_framework(path):
            continue
        name = function.rpartition(".")[2]
        for row in _ROWS:
            found = _OF[row.framework].search(path)
            if found and found["file"] == row.file and (not row.functions or name in row.functions):
                trains = row.framework == ACCELERATE and any(_OF[TRAINER].search(path) for path, _ in calls)
                return f"the {row.phase} of {TRAINER if trains else row.framework}"
    return ""
