"""Mistakes about batches, labels and losses, told from their log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Finding, Fix
from ddpdoctor.engine.registry import LogSign, SignRole, check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import lines, said_by, sightings, word


@check(
    "batchnorm-batch-of-one",
    severity=FAIL,
    log_signs=(
        LogSign(
            "Expected more than 1 value per channel when training",
            why="only the normalisation layers say so, of a batch of which each channel has one value; a report may leave out its size",
            pattern=r"when training(?:,? got input size (?P<size>torch\.Size\(\[[\d, ]*\]\)|\[[\d, ]*\]|\d+)|\W*$)",
            source="made to happen with torch 2.13.0: torch/nn/functional.py; a list or a number in older releases, as reported in public",
        ),
    ),
)
def batchnorm_batch_of_one(log: Log) -> Iterator[Finding]:
    """A batch of a single sample came to a BatchNorm layer.

    ## What breaks
    The forward pass ends with "Expected more than 1 value per channel when training", mostly at the end of an epoch, on one
    rank or on all; the others wait or lose the connection.

    ## Why
    The data don't divide by the number of ranks and the batch size, and one sample is left over; or the batch of each GPU is
    one. A single value has no variance.

    ## Fix
    `DataLoader(..., drop_last=True)`, a larger batch for each rank, or SyncBatchNorm, which counts the samples of all ranks.
    """
    seen = sightings(log, "batchnorm-batch-of-one")
    if not seen:
        return
    size = word(seen, "size")
    yield Finding(
        summary="BatchNorm got a batch with one value per channel" + (f": {size}" if size else ""),
        evidence=lines(log, seen),
        fixes=(
            Fix("Leave the incomplete last batch out: DataLoader(..., drop_last=True)"),
            Fix("Or count over all ranks: model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"),
        ),
        rank=said_by(seen),
    )


@check(
    "user-label-out-of-range",
    severity=FAIL,
    log_signs=(
        LogSign(
            "Assertion `t >= 0 && t < n_classes",
            why="the assertion of the loss's kernel: a label is not below the number of classes",
            source="torch 2.9.1: aten/src/ATen/native/cuda/Loss.cu",
        ),
        LogSign(
            "Assertion `srcIndex < srcSelectDimSize` failed",
            why="the assertion of the kernel behind embeddings: an index is not below the table's size",
            source="public reports from torch 1.x and 2.x: aten/src/ATen/native/cuda/Indexing.cu",
        ),
        LogSign(
            "] Assertion ",
            why="a kernel's assertion about an index, with the place of the thread; Markdown takes its backticks away",
            pattern=r"thread: \[\d+,\d+,\d+\] Assertion (?:`?(?:.*index out of bounds|cur_target >= 0 && cur_target < n_classes)"
            r"|t >= 0 && t < n_classes|srcIndex < srcSelectDimSize failed)",
            source="torch 2.9.1 and 1.13.1: aten/src/ATen/native/cuda/IndexKernel.cu, ClassNLLCriterion.cu in reports from torch 1.x",
        ),
        LogSign(
            "] Assertion `input_val >= zero && input_val <= one` failed",
            why="BCELoss's kernel: an input isn't between 0 and 1, for lack of a sigmoid; or it is NaN",
            role=SignRole.HINTS,
            pattern=r"thread: \[\d+,\d+,\d+\] Assertion `(?P<input>input_val) >= zero",
            source="aten/src/ATen/native/cuda/Loss.cu, as reported in public",
        ),
        LogSign(
            "is out of bounds.",
            why="the same mistake on the CPU: the loss names the label",
            pattern=r"IndexError: Target (?P<label>-?\d+) is out of bounds\.",
            source="made to happen with torch 2.13.0: aten/src/ATen/native/LossNLL.cpp",
        ),
        LogSign(
            "index out of range in self",
            why="an embedding on the CPU was asked for a row that it doesn't have",
            pattern=r"IndexError: index out of range in self",
            source="made to happen with torch 2.13.0: aten/src/ATen/native/TensorAdvancedIndexing.cpp",
        ),
        LogSign(
            "CUDA error: device-side assert triggered",
            why="a kernel's assertion failed; which one stands in another line, and labels or indices are the usual ones",
            role=SignRole.HINTS,
            source="torch 2.9.1: c10/cuda/CUDAException.cpp with the CUDA runtime's text",
        ),
        LogSign(
            ") : device-side assert triggered",
            why="the same in older releases of torch",
            role=SignRole.HINTS,
            pattern=r"cuda runtime error \(\d+\) : device-side",
            source="torch 1.0 to 1.9: aten/src/THC/THCGeneral.cpp, as reported in public",
        ),
    ),
)
def user_label_out_of_range(log: Log) -> Iterator[Finding]:
    """A label or an index is larger than the layer that it is for.

    ## What breaks
    On a GPU the rank dies with "device-side assert triggered", at some later call; what NCCL's watchdog says after that, and
    the lost connections of the others, follow from it. On the CPU it is an IndexError.

    ## Why
    Labels that count from 1, an ignored class of 255 without `ignore_index`, a tokenizer with more words than the model's
    embedding has rows, or positions beyond the longest sequence. BCELoss wants inputs between 0 and 1 ("input_val >= zero"): after a
    sigmoid, and no NaN.

    ## Fix
    Check labels and indices as they are loaded: `assert 0 <= y.min() and y.max() < classes`. To see the true line, run once with
    CUDA_LAUNCH_BLOCKING=1, or on the CPU. After new tokens: `model.resize_token_embeddings(len(tokenizer))`.
    """
    seen = sightings(log, "user-label-out-of-range")
    if not seen:
        return
    label = word(seen, "label")
    certain = any(one.role is SignRole.NAMES for one in seen)
    summary = "An assertion of a GPU kernel failed: a label or index out of range, mostly"
    where_said = Fix("See the line of the script that is to blame", ("export CUDA_LAUNCH_BLOCKING=1",))
    fixes: tuple[Fix, ...] = (
        Fix("Check what is loaded: assert 0 <= y.min() and y.max() < num_classes"),
        where_said,
        Fix("After tokens were added: model.resize_token_embeddings(len(tokenizer))"),
    )
    if certain:
        summary = f"Label {label} is out of range" if label else "A label or an index is out of range"
    elif word(seen, "input"):
        summary = "An input of BCELoss is not between 0 and 1, or is NaN"
        wanted = Fix("Take BCEWithLogitsLoss, with no sigmoid before it, and see that what it gets is finite")
        fixes = (wanted, where_said)
    yield Finding(
        summary=summary,
        evidence=lines(log, seen),
        fixes=fixes,
        rank=said_by(seen),
    )


OTHERS = ("val", "valid", "validation", "eval", "evaluation", "test", "dev", "best", "lowest", "previous")
NOT_OF_TRAINING = "".join(rf"(?<!\b{word}{mark} )" for word in OTHERS for mark in ("", ":"))
"""Before a loss: that it isn't one of a training step, and so may be unknown yet."""


@check(
    "nan-loss",
    severity=WARN,
    log_signs=(
        LogSign(
            "returned nan values in its",
            why="only torch's anomaly detection says so, and names the operation",
            pattern=r"Function '(?P<function>\w+)' returned nan values in its \d+(?:th|st|nd|rd) output",
            source="made to happen with torch 2.13.0: torch/csrc/autograd/engine.cpp",
        ),
        LogSign(
            "nan",
            why="the script printed a training loss that is no number; of a validation's or a best one nothing is said",
            pattern=rf"(?i)(?<![\w.]){NOT_OF_TRAINING}(?:train(?:ing)?[ _/])?(?:total[ _])?loss['\"]?\s*(?:(?:[:=|]|is\b)\s*)?(?:tensor\()?['\"]?nan\b(?!.*\bskip)",
            source="made to happen with torch 2.13.0",
        ),
        LogSign(
            "tensor(nan",
            why="a dict of training losses was printed, and one of them is no number",
            pattern=r"(?<![\w.])loss_(?!val|eval|test|best|dev)\w+['\"]: tensor\(nan\b",
            source="detectron2: engine/train_loop.py, as reported in public",
        ),
        LogSign(
            "Loss became infinite or NaN at iteration",
            why="detectron2's trainer, and those made after it, look at each step's loss and end with this",
            fatal=True,
            source="detectron2: engine/train_loop.py",
        ),
        LogSign(
            "stopping training",
            why="scripts made after torchvision's, DETR and MAE look at each step's loss and end so",
            pattern=r"\bLoss is -?(?:nan|inf),? stopping training",
            source="torchvision: references/detection/engine.py, as reported in public",
            fatal=True,
        ),
        LogSign(
            "contains NaN or Inf. Stop training",
            why="ignite's handler looks at what each step gives back, and ends the run with this",
            pattern=r"['})] contains NaN or Inf\. Stop training",
            fatal=True,
            source="ignite: handlers/terminate_on_nan.py, as reported in public",
        ),
        LogSign(
            "probability tensor contains either `inf`, `nan`",
            why="what is to be sampled from is no number: the weights are lost, or fp16 overflows; a mask that leaves nothing does so, too",
            role=SignRole.HINTS,
            pattern=r"(?P<sampled>probability tensor) contains",
            source="torch 2.13.0: aten/src/ATen/native/Distributions.cpp, as reported in public",
        ),
        LogSign(
            "found NaN in local ",
            why="Megatron looks at loss and gradients of each rank before they are summed, and ends with this",
            pattern=r"found NaN in local (?:forward loss calculation|grad norm)",
            fatal=True,
            source="Megatron-LM: pretrain_gpt.py, core/distributed/param_and_grad_buffer.py",
        ),
        LogSign(
            "Current loss scale already at minimum - cannot decrease scale anymore",
            why="DeepSpeed gives up: gradients overflow in fp16 at the smallest loss scale, too",
            pattern=r"(?P<scale>Current loss scale already at minimum)",
            fatal=True,
            source="deepspeed: runtime/fp16/loss_scaler.py",
        ),
        LogSign(
            "Minimum loss scale reached",
            why="fairseq and flashlight give up: gradients overflow in fp16 at the smallest loss scale, too",
            pattern=r"(?P<scale>Minimum loss scale reached)(?: \(|: )[\d.e-]+",
            fatal=True,
            source="fairseq: optim/fp16_optimizer.py, optim/amp_optimizer.py",
        ),
        LogSign(
            "reducing loss scale to",
            why="apex lowers it from 65536 in a run's first steps; below 0.1 it has found nothing that doesn't overflow, as with NaN",
            pattern=r"Gradient overflow\..{0,60} (?P<scale>reducing loss scale to (?:0\.0\d*|\d(?:\.\d+)?e-\d+))\s*$",
            source="apex: amp/handle.py",
        ),
        LogSign(
            "reducing loss scale to",
            why="the steps before overflowed, too, the last one with nothing scaled; where the loss is a sum, single steps of healthy runs may",
            pattern=r"Gradient overflow\..{0,60} (?P<scale>reducing loss scale to 0\.\d+)\s*$",
            near="reducing loss scale to 1.0",
            within=20,
            source="apex: amp/handle.py",
        ),
        LogSign(
            "setting loss scale to",
            why="fairseq sums the loss over tokens, so that healthy runs may come below 1; at 0.0001 it gives up, a few steps from here",
            pattern=r"verflow detected,(?: ignoring gradient,)? setting loss (?P<scale>scale to:? (?:0\.000\d*|\d(?:\.\d+)?e-\d+))\s*$",
            source="fairseq: trainer.py, optim/dynamic_loss_scaler.py; and trainers made after it",
        ),
        LogSign(
            "Attempted loss scale: 1, reducing to 1",
            why="DeepSpeed lowers it from 65536 in a run's first steps; at 1, its minimum, nothing is scaled, and it overflows nevertheless",
            pattern=r"(?P<scale>Attempted loss scale: 1, reducing to 1)(?:\.0)?\s*$",
            source="deepspeed: runtime/zero/stage_1_and_2.py, runtime/fp16/loss_scaler.py",
        ),
        LogSign(
            "grad norm: nan",
            why="Megatron took a step with a gradient that is no number; steps that it skipped don't count, with fp16 healthy runs begin with some",
            pattern=r"^(?=.*?\biteration )(?:(?!\| grad norm: nan).)*\| (?P<norm>grad norm: nan) \|.*number of skipped iterations: +0 \|",
            source="Megatron-LM: training/training.py",
        ),
        LogSign(
            "'loss': 0.0, 'grad_norm': nan",
            why="the Trainer leaves losses that are no number out of its mean, by default: 0 is left when all of them were",
            pattern=r"'(?P<norm>grad_norm': nan)\b",
            source="transformers 4.38 to 4.57: trainer.py, logging_nan_inf_filter",
        ),
        LogSign(
            "'loss': '0', 'grad_norm': 'nan'",
            why="the same in releases that print their numbers as words",
            pattern=r"'(?P<norm>grad_norm': 'nan)'",
            source="transformers 5.23.0: trainer.py, logging_nan_inf_filter",
        ),
    ),
)
def nan_loss(log: Log) -> Iterator[Finding]:
    """The loss became NaN.

    ## What breaks
    Nothing stops: the training goes on with weights that are lost. With anomaly detection it ends with "returned nan values".
    With fp16 every step is skipped, and the loss scale falls to its minimum.

    ## Why
    Mostly a learning rate that is too high for the batch of all ranks together, an overflow of fp16, or a division by zero or
    logarithm of zero in the loss. Where one GPU alone trains well: peer-to-peer copies that garble data, or a defective GPU.

    ## Fix
    A lower learning rate with a warm-up, bf16 instead of fp16, `clip_grad_norm_`. `torch.autograd.set_detect_anomaly(True)`
    names the operation. `ddpdoctor smoke` checks whether the ranks' sums are right.
    """
    seen = sightings(log, "nan-loss")
    if not seen:
        return
    function = word(seen, "function")
    bf16 = Fix(
        "Train in bf16 in place of fp16, on GPUs from Ampere on: it reaches as far as float32, and needs no loss scale"
    )
    yield Finding(
        summary=_how_it_shows(seen, function),
        evidence=lines(log, seen),
        fixes=(
            *((bf16,) if word(seen, "scale") else ()),
            Fix("Lower the learning rate, warm it up, and clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
            Fix("Find the operation: torch.autograd.set_detect_anomaly(True), in a short run"),
            Fix("Where it only happens with several GPUs, see whether their sums are right", ("ddpdoctor smoke",)),
        ),
        rank=said_by(seen),
    )  # fmt: skip


def _how_it_shows(seen: Sequence[SignMatch], function: str) -> str:
    if function:
        return f"{function} made NaN in the backward pass"
    if word(seen, "scale"):
        return "The gradients overflow in fp16 at any loss scale: the loss diverged or became NaN"
    if word(seen, "sampled"):
        return "What the model says is NaN or infinite: its weights may have become NaN in training"
    return "The gradients became NaN" if word(seen, "norm") else "The loss became NaN"
