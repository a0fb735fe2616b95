"""Mistakes about batches, labels and losses, told from their log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import LogTraits, SignRole
from ddpdoctor.facts.log import Log, LogLine, SignMatch
from ddpdoctor.logs.analyze.false_positives import trains_behind
from ddpdoctor.logs.analyze.sightings import shown_by, word


@log_check("batchnorm-batch-of-one", severity=FAIL, owner=Owner.USER, of_rank=True)
def batchnorm_batch_of_one(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A batch of a single sample came to a BatchNorm layer.

    ## What breaks
    The forward pass ends with "Expected more than 1 value per channel when training", mostly at the end of an epoch, on one
    rank or on all; the others wait or lose the connection.

    ## Why
    The number of samples isn't a multiple of ranks times batch size, and one sample is left over; or the batch of each GPU is
    one. A single value has no variance.

    ## Fix
    `DataLoader(..., drop_last=True)`, a larger batch for each rank, or SyncBatchNorm, which counts the samples of all ranks.
    """
    size = word(seen, "size")
    return Finding.of(
        f"BatchNorm got a batch with one value per channel{f': {size}' if size else ''}",
        Fix("Leave the incomplete last batch out: DataLoader(..., drop_last=True)"),
        Fix("Or count over all ranks: model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"),
    )


@log_check("user-label-out-of-range", severity=FAIL, owner=Owner.USER, of_rank=True)
def user_label_out_of_range(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A label or an index is too large for its layer.

    ## What breaks
    On a GPU the rank dies with "device-side assert triggered", at some later call; what NCCL's watchdog says after that, and
    the lost connections of the others, follow from it. On the CPU it is an IndexError.

    ## Why
    Labels that count from 1, an ignored class of 255 without `ignore_index`, a tokenizer with more words than the model's
    embedding has rows, or positions beyond the longest sequence. BCELoss needs inputs between 0 and 1 ("input_val >= zero"): after a
    sigmoid, and no NaN.

    ## Fix
    Check labels and indices as they are loaded: `assert 0 <= y.min() and y.max() < classes`. To see the true line, run once with
    CUDA_LAUNCH_BLOCKING=1, or on the CPU. After new tokens: `model.resize_token_embeddings(len(tokenizer))`.
    """
    label = word(seen, "label")
    summary = "An assertion of a GPU kernel failed: mostly a label or index out of range"
    where_said = Fix("See which line of the script causes it", ("export CUDA_LAUNCH_BLOCKING=1",))
    fixes: tuple[Fix, ...] = (
        Fix("Check what is loaded: assert 0 <= y.min() and y.max() < num_classes"),
        where_said,
        Fix("After tokens were added: model.resize_token_embeddings(len(tokenizer))"),
    )
    if any(match.role is SignRole.NAMES for match in seen):
        summary = f"Label {label} is out of range" if label else "A label or an index is out of range"
    elif all("CUBLAS_STATUS_EXECUTION_FAILED" in match.line.text for match in seen):
        summary = "A GPU kernel failed before cuBLAS was called: mostly a label or index out of range"
    elif word(seen, "input"):
        summary = "An input of BCELoss is not between 0 and 1, or is NaN"
        wanted = Fix("Use BCEWithLogitsLoss, without a sigmoid before it, and check that its inputs are finite")
        fixes = (wanted, where_said)
    return Finding.of(summary, fixes)


_SCALE: Final = compile_lazily(r"(?<![\d.e-])(\d[\d.e-]*)$")
_COLLAPSED: Final = 0.1
MANY: Final = 20
"""Batches that were left out; single ones are of a few bad samples."""
_NO_STEP: Final = compile_lazily(r"(?i)\b(?:nan|inf)\b(?!\W*(?:iterations|0\b))|skipped iterations: +[1-9]|overflow")
"""In the line of a step: a figure that is no number, or that the step was left out."""


def _trains_on(one: SignMatch, log: Log) -> bool:
    """Whether steps go on behind it whose loss is a number: one batch alone was bad, or the loss is a sum, for which the scale settles low."""
    if skipped := one.words.get("skipped"):
        return one.times < MANY or not any(skipped in last.line.text for last in log.last)
    scale = _SCALE.search(one.words.get("scale", ""))
    if log.steps is None or (scale is not None and float(scale[1]) < _COLLAPSED):
        return False
    return trains_behind(one.line, log) and not _NO_STEP.search(log.steps.text)


_AT_FIRST: Final = compile_lazily(r"(?i)\b(?:initial|starting)[ _](?:train(?:ing)?[ _])?loss\b")
"""The loss before any step."""
_OF_NAN: Final = compile_lazily(r"(?i)\bnan\b|isnan|is_?finite|infinity|invalid numeric|boxes1\[:, 2:\] >= ")
"""An exception's words, or the line that raises it, on numbers that are none; generalized_box_iou's, of the boxes that DETR's model gives."""


def _with_consequences(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Add the exceptions of numbers that are none, where the loss was none before: they come of that."""
    lost = [match.line for match in seen if match.slug == slug and match.role is SignRole.NAMES]
    known = {match.line.order for match in seen}
    return [
        *seen,
        *(
            shown_by(raised, slug, SignRole.NAMES)
            for raised in log.raised
            if any(_may_lead_to(line, raised.began) for line in lost)
            and raised.line.order not in known
            and _OF_NAN.search(f"{raised.message} {raised.frames[-1].code if raised.frames else ''}")
        ),
    ]


def _may_lead_to(one: LogLine, later: LogLine) -> bool:
    """Whether the log doesn't show that it stands behind; all ranks get it from one, with its gradients."""
    return one.file != later.file or one.order < later.order


@log_check(
    "nan-loss",
    severity=WARN,
    owner=Owner.USER,
    of_rank=True,
    log=LogTraits(refuted=_trains_on, revises=_with_consequences),
)
def nan_loss(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The loss became NaN.

    ## What breaks
    Nothing stops: the training goes on with useless weights. With anomaly detection it ends with "returned nan values".
    With fp16 every step is skipped, and the loss scale falls to its minimum. What takes the loss or the model's output for numbers may
    refuse it: "Input contains NaN", "cannot convert float NaN to integer", an assertion.

    ## Why
    Mostly a learning rate that is too high for the batch of all ranks together, an overflow of fp16, or a division by zero or
    logarithm of zero in the loss. Where one GPU alone trains well: peer-to-peer copies that corrupt data, or a defective GPU.

    ## Fix
    A lower learning rate with a warm-up, bf16 instead of fp16, `clip_grad_norm_`. `torch.autograd.set_detect_anomaly(True)`
    names the operation. `ddpdoctor smoke` checks whether the ranks' sums are right.
    """
    function = word(seen, "function")
    if function == "" and any(_AT_FIRST.search(match.line.text) for match in seen):
        return Finding.of(
            "The loss is NaN from the first value on",
            Fix(
                "Look for what is no number before the first step: torch.isfinite(x).all() on the inputs and targets, and on each parameter"
            ),
            Fix("Then for a division by zero, or a logarithm or root of zero, in the loss itself"),
            cause="No step was taken yet, so no learning rate is to blame: an input, a target or an initial weight is NaN or infinite, or the loss "
            "divides by zero for them.",
        )
    bf16 = Fix("Train in bf16, not fp16, on GPUs from Ampere on: it has the range of float32, and needs no loss scale")
    return Finding.of(
        _how_it_shows(seen, function),
        bf16 if word(seen, "scale") else None,
        Fix("Lower the learning rate, warm it up, and clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        Fix("Find the operation: torch.autograd.set_detect_anomaly(True), in a short run"),
        Fix("Where it only happens with several GPUs, see whether their sums are right", ("ddpdoctor smoke",)),
    )


def _how_it_shows(seen: Sequence[SignMatch], function: str) -> str:
    if function:
        return f"{function} made NaN in the backward pass"
    if word(seen, "scale"):
        return "The gradients overflow in fp16 at any loss scale: the loss diverged or became NaN"
    if word(seen, "sampled"):
        return "The model's output is NaN or infinite: its weights may have become NaN in training"
    if word(seen, "skipped"):
        return "One batch after the other is left out: its loss or its gradients are NaN or infinite"
    if word(seen, "norm"):
        return "The gradients became NaN"
    return "The loss became infinite" if all("infinite" in match.words for match in seen) else "The loss became NaN"
