"""A checkpoint that doesn't fit the model, told from the log."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.checkpoint.key_lists import holder
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word


@log_check("ckpt-arch-mismatch", severity=FAIL, owner=Owner.USER)
def ckpt_arch_mismatch(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The checkpoint is of another model than the one that is to take it.

    ## What breaks
    `load_state_dict()` ends with "size mismatch for ..." or with lists of missing and unexpected keys.

    ## Why
    The model was built from another config (width, depth, number of classes, vocabulary), the code has changed since it was saved, or
    one rank builds another model than the rest. Or what was loaded is not the model's state, but the dict that holds it beside the
    epoch and the optimizer's.

    ## Fix
    Build the model from the config that was saved with the checkpoint. Where only the head differs, as in fine-tuning, take its keys
    out of the state before loading, and say `strict=False`.
    """
    key, saved, wanted = (word(seen, name) for name in ("key", "saved", "wanted"))
    missing, unexpected = word(seen, "missing"), word(seen, "unexpected")
    if word(seen, "groups"):
        return OTHER_OPTIMIZER
    if word(seen, "shards"):
        return _not_all_parts(seen)
    if not (key or missing or unexpected):
        return NO_LIST
    if not key and (within := holder(seen)):
        return Finding.of(
            f"load_state_dict() was given the whole checkpoint: the model's state lies in it under {within}",
            Fix("Load that part of it", (f'model.load_state_dict(checkpoint["{within}"])',)),
        )
    if key:
        summary = f"The checkpoint's {key} is {saved}, the model's {wanted}"
    elif missing:
        summary = f"The model has {missing}, and the checkpoint doesn't"
    else:
        summary = f"The checkpoint has {unexpected}, and the model doesn't"
    return Finding.of(
        summary if len(summary) <= 160 else "The checkpoint's tensors have other shapes than the model's",
        Fix("Build the model from the config with which the checkpoint was saved"),
        Fix(
            "Where only some tensors differ on purpose, load the others, and see that these are most of them",
            (
                "fitting = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}  # own = model.state_dict()",
                'assert 2 * len(fitting) > len(own), f"only {len(fitting)} of {len(own)} fit"  # strict=False would hide it',
                "model.load_state_dict(fitting, strict=False)",
            ),
        ),
    )


NO_LIST = Finding.of(
    "load_state_dict() refused the checkpoint, and the log doesn't show for which keys",
    Fix(
        "See what differs",
        (
            "own = model.state_dict(); print(sorted(own.keys() ^ state.keys())[:20])",
            "print([(k, own[k].shape, v.shape) for k, v in state.items() if k in own and own[k].shape != v.shape][:20])",
        ),
    ),
    Fix(
        "Where all keys differ by module. or _orig_mod. alone, it is only a wrapper's prefix",
        ("ddpdoctor explain ckpt-module-prefix",),
    ),
    Fix("Else build the model from the config with which the checkpoint was saved"),
    cause="It lists missing and unexpected keys and other shapes behind these words; here they are cut off.",
)


OTHER_OPTIMIZER = Finding.of(
    "The optimizer's state in the checkpoint is of other parameters than the optimizer's",
    Fix("Freeze and group the parameters as they were when it was saved, before the optimizer is made"),
    Fix("To go on with the model alone, load its state and begin with a new optimizer"),
    cause="An optimizer knows its parameters by their number alone: others were frozen, added or put into groups when it was saved.",
)


def _not_all_parts(seen: Sequence[SignMatch]) -> Finding:
    return Finding.of(
        f"Megatron's ranks don't name all parts of what they are to load: {word(seen, 'shards')} are missing",
        Fix("Build the model with the number of layers and of pipeline stages with which the checkpoint was saved"),
        Fix(
            "Where it is turned into another format, give the converter the arguments that were saved with it, not those of a default"
        ),
        cause="The model that was built here says that an object has more parts, mostly one for each layer, than its ranks ask for. The"
        " checkpoint itself may well be whole.",
    )
