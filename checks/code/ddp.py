"""Mistakes in a training script that DDP stumbles over, told from their log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.frameworks import FIND_UNUSED, LIGHTNING, framework_of
from ddpdoctor.logs.analyze.sightings import lines, sightings, word

_TWO_COUNTS: Final = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent ([1-9]\d{0,5})(?!\d)")


@log_check("unused-parameters", severity=FAIL, owner=Owner.USER, of_rank=True)
def unused_parameters(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """Parameters of the model got no gradient in a step, and DDP waits for theirs.

    ## What breaks
    The step after ends with "Expected to have finished reduction in the prior iteration"; on other paths through the model
    the ranks hang instead.

    ## Why
    DDP expects a gradient for every parameter in every step. A layer that isn't used, a branch that isn't taken in this
    step, or an output that isn't part of the loss leaves some without.

    ## Fix
    Remove or freeze (`requires_grad_(False)`) what is never used; where branches differ from step to step,
    `DDP(model, find_unused_parameters=True)`, without `static_graph=True`, which promises the same parameters in every step.
    Lightning: `Trainer(strategy="ddp_find_unused_parameters_true")`; transformers' Trainer:
    `TrainingArguments(ddp_find_unused_parameters=True)`; accelerate: `DistributedDataParallelKwargs` in `kwargs_handlers`.
    `TORCH_DISTRIBUTED_DEBUG=INFO` has torch name them.
    """
    if word(seen, "static"):
        return _other_graph(log, seen)
    framework = LIGHTNING if any("LightningModule" in match.sign for match in seen) else framework_of(log)
    names, indices = word(seen, "names"), word(seen, "indices").strip()
    which = f": {names}" if names else f": numbers {indices} of model.parameters()" if indices else ""
    return Finding.of(
        f"Parameters got no gradient, which DDP does not allow{which}",
        Fix("Remove or freeze layers that are never used, and take all outputs of forward() into the loss"),
        Fix(f"Where the parameters that are used change from step to step: {FIND_UNUSED[framework]}"),
        None if names else Fix("See their names in the next run", ("export TORCH_DISTRIBUTED_DEBUG=INFO",)),
    )


def _other_graph(log: Log, seen: Sequence[SignMatch]) -> Finding:
    return Finding.of(
        "With static_graph=True other parameters took part in this step than in the first one",
        Fix("Drop static_graph=True; find_unused_parameters=True beside it changes nothing"),
        Fix(f"Without it, where some parameters are unused in some steps: {FIND_UNUSED[framework_of(log)]}"),
        Fix("Or let all take part in every step: add 0.0 * output.sum() of the branch that wasn't taken to the loss"),
        cause="DDP(static_graph=True) keeps which parameters get a gradient, and how often, from the first step. A branch that depends"
        " on the data or on the step's number, or a layer that is frozen or freed later, changes that.",
    )


@log_check("ddp-reentrant-checkpoint", severity=FAIL, owner=Owner.USER, of_rank=True)
def ddp_reentrant_checkpoint(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A parameter's gradient came twice in one step: reentrant activation checkpointing under DDP, mostly.

    ## What breaks
    The first backward pass ends with "Expected to mark a variable ready only once".

    ## Why
    Reentrant checkpointing runs a backward pass of its own within the backward pass. Together with
    `find_unused_parameters=True`, or where one layer is called twice, DDP then sees the same parameter twice.

    ## Fix
    `checkpoint(..., use_reentrant=False)`; with transformers
    `gradient_checkpointing_kwargs={"use_reentrant": False}`. Or drop `find_unused_parameters=True`, or, where the graph is the
    same in every step, `DDP(model, static_graph=True)`.
    """
    name = word(seen, "name") or (f"number {word(seen, 'index')}" if word(seen, "index") else "")
    which = f"parameter {name}" if name else "a parameter"
    return Finding.of(
        f"The gradient of {which} came twice in one step",
        Fix("Checkpoint without reentrance: torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"),
        Fix('In transformers: TrainingArguments(gradient_checkpointing_kwargs={"use_reentrant": False})'),
        Fix("Or drop find_unused_parameters=True, or use DDP(model, static_graph=True) where every step is the same"),
        Fix("See the parameter's name in the next run", ("export TORCH_DISTRIBUTED_DEBUG=INFO",)),
    )


@log_check("ddp-buffer-inplace", severity=FAIL, owner=Owner.USER, of_rank=True)
def ddp_buffer_inplace(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """DDP has overwritten the model's buffers between a forward pass and its backward pass.

    ## What breaks
    backward() ends with "one of the variables needed for gradient computation has been modified by an inplace operation",
    although the same script runs on one GPU.

    ## Why
    Before each forward pass DDP copies rank 0's buffers (BatchNorm's means, position ids) over those of the other ranks. With
    two forward passes before one backward pass (two crops, two sentences, a GAN) the second one overwrites what the first saved.
    torch 2.13 keeps track of that, and no longer fails.

    ## Fix
    `DDP(model, broadcast_buffers=False)`, with SyncBatchNorm where BatchNorm's means are to be the same on all ranks; or
    concatenate both inputs into one forward pass.
    """
    return Finding.of(
        f"A buffer was overwritten between forward and backward: {word(seen, 'tensor')}",
        Fix("Let DDP leave the buffers alone: DDP(model, broadcast_buffers=False)"),
        Fix("Or make one forward pass of the two: model(torch.cat([first, second])).chunk(2)"),
        Fix("If that doesn't help, see which operation it was: torch.autograd.set_detect_anomaly(True)"),
        cause="With two forward passes before one backward pass DDP overwrites it. Otherwise look for optimizer.step() or an"
        " in-place operation between forward() and backward().",
    )


@log_check("ddp-param-mismatch", severity=FAIL, owner=Owner.USER, of_rank=True)
def ddp_param_mismatch(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The ranks have built different models.

    ## What breaks
    DDP() ends on some ranks with "DDP expects same model across all ranks" or "appears not to match sizes of the same param",
    and on the others with a lost connection.

    ## Why
    Something on which the model depends differs between ranks: the size of a vocabulary or the number of classes counted
    from each rank's own shard, a configuration file of another node, a layer under `if rank == 0:`, another version of the
    script or of a library. "inconsistent 0 params", or a number of millions, means something else: that rank had
    failed, or was in another collective, whose bytes were read as the number.

    ## Fix
    Count on one rank and send the result to all (`dist.broadcast_object_list`), or store it with the data. Print
    `sum(p.numel() for p in model.parameters())` on every rank before DDP().
    """
    counts = _counts(log, seen)
    odd = _odd_one_out(counts)
    return Finding.of(
        _how_they_differ(seen) if odd is None else _odd_one(odd, counts),
        Fix(
            "Print on every rank what differs, before DDP(): [(n, tuple(p.shape)) for n, p in model.named_parameters()]"
        ),
        Fix("Decide about sizes on rank 0, and send them to all: dist.broadcast_object_list([sizes], src=0)"),
        Fix(
            "Where nodes may have other versions: netcheck, run on every node, compares them",
            ("ddpdoctor netcheck --help",),
        ),
        rank=odd,
    )


def _counts(log: Log, seen: Sequence[SignMatch]) -> dict[int, int]:
    """Numbers of parameters by rank, as far as the messages tell: each names two ranks."""
    counts: dict[int, int] = {}
    for text in (*(match.line.text for match in seen), *(exception.message for exception in log.raised)):
        if found := _TWO_COUNTS.search(text):
            rank, own, other, theirs = map(int, found.groups())
            counts |= {rank: own, other: theirs}
    return counts


def _odd_one_out(counts: Mapping[int, int]) -> int | None:
    """The one rank that has another number than all others, of which there are several."""
    numbers = Counter(counts.values())
    alone = [rank for rank, number in counts.items() if numbers[number] == 1]
    return alone[0] if len(numbers) == 2 and len(alone) == 1 and len(counts) > 2 else None


def _odd_one(rank: int, counts: Mapping[int, int]) -> str:
    others = next(number for holder, number in counts.items() if holder != rank)
    return f"Rank {rank} has {counts[rank]} parameters, the other ranks have {others}: rank {rank} built another model"


def _how_they_differ(seen: Sequence[SignMatch]) -> str:
    if word(seen, "own"):
        return (
            f"Rank {word(seen, 'rank')} has {word(seen, 'own')} parameters, rank {word(seen, 'other')} has "
            f"{word(seen, 'theirs')}: the ranks built different models"
        )
    if word(seen, "number"):
        return f"Parameter {word(seen, 'number')} with sizes {word(seen, 'sizes')} differs from rank 0's: the ranks built different models"
    return "DDP found different models on the ranks"


@check("ddp-grad-stride-warning", severity=INFO, owner=Owner.USER)
def ddp_grad_stride_warning(log: Log) -> Iterator[Finding]:
    """DDP warns that a gradient has another memory layout than its bucket: harmless.

    ## What breaks
    Nothing. One more copy of that gradient in each step.

    ## Why
    A 1x1 convolution, channels_last, or a transposed parameter makes a gradient whose strides differ from the
    parameter's.

    ## Fix
    None is needed. `.contiguous()` on a parameter that was transposed stops the warning.
    """
    seen = sightings(log, "ddp-grad-stride-warning")
    if seen:
        yield Finding.of(
            "DDP warns of a gradient's strides: harmless, a small cost at most",
            lines(log, seen, most=1),
            Fix("None is needed; .contiguous() on a transposed parameter stops the warning"),
        )


@log_check("fsdp-mixed-parameters", severity=FAIL, owner=Owner.USER, of_rank=True)
def fsdp_mixed_parameters(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """FSDP can't put the parameters of a unit into one tensor: their types differ, or some of them are frozen.

    ## What breaks
    `FSDP(model)`, or the Trainer's or accelerate's start, ends with "Must flatten tensors with uniform dtype" or "with uniform
    `requires_grad`".

    ## Why
    FSDP makes one flat tensor of all parameters that it wraps together. LoRA's adapters in float32 on a model in bfloat16 are the usual
    case (peft makes them so), or norms that were left in float32; or adapters that train on a frozen base. Weights of 4 or 8 bits
    (bitsandbytes) are stored as integers, of which it makes no flat tensor.

    ## Fix
    One type before it is wrapped: `model.to(torch.bfloat16)`, with peft `get_peft_model(..., autocast_adapter_dtype=False)`; or load
    all in float32 and let `MixedPrecision` do the rest; FSDP2 wants one type of what trains, too. For frozen parameters `use_orig_params=True`, or FSDP2, `fully_shard`.
    """
    if word(seen, "whole"):
        return _quantised(seen)
    one, other = word(seen, "one"), word(seen, "other")
    types = (
        Fix("Give all parameters one type before they are wrapped: model.to(torch.bfloat16)"),
        Fix(
            "With LoRA let peft keep the adapters in the model's type: get_peft_model(..., autocast_adapter_dtype=False)"
        ),
    )
    frozen: tuple[Fix, ...] = (
        Fix("Let frozen and trained parameters share a unit: FSDP(..., use_orig_params=True)"),
        Fix("Or use FSDP2, which has no flat tensor: torch.distributed.fsdp.fully_shard(module)"),
    )
    if word(seen, "older"):
        frozen = (Fix("Take torch 2.1 or newer: before that no option lets them share a unit"), *frozen)
    return Finding.of(
        f"FSDP got parameters of {one} and {other} in one unit, which must be of one type"
        if one
        else "FSDP got frozen and trained parameters in one unit, without use_orig_params=True",
        types if one else frozen,
    )


def _quantised(seen: Sequence[SignMatch]) -> Finding:
    return Finding.of(
        "FSDP got integer parameters, as quantised weights are, of which it makes no flat tensor",
        Fix(
            "With 4 bits (QLoRA): store them in the type of all other parameters, and load the model in that type, too",
            ("BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)",),
        ),
        Fix("With 8 bits: train with DDP, or without quantisation"),
        Fix("Leave parameters that hold no weights out: FSDP(..., ignored_states=[...])"),
        cause="bitsandbytes keeps weights of 4 bits in uint8, unless told otherwise, and those of 8 bits in int8.",
    )
