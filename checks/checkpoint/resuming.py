"""Whether a checkpoint fits the job that is to resume from it: its keys' names, and how many ranks wrote it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Final

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import listed, plural
from ddpdoctor.checkpoints.finding_words import RANDOM_NUMBERS, paths, readable, seen, subject
from ddpdoctor.checkpoints.model_wrappers import WRITERS, prefix_parts, writers
from ddpdoctor.checks.checkpoint.contents import all_read
from ddpdoctor.checks.checkpoint.key_lists import with_lists_compared
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, judged_apart
from ddpdoctor.facts.checkpoints import PICKLE, CheckpointFile, Checkpoints, KeyPrefix, RankFiles
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.knowledge.launchers import current_launch, several_nodes
from ddpdoctor.logs.analyze.sightings import word


def _prefixed_by(prefix: str) -> str:
    """Empty for a prefix of a known wrapper, of which the page tells."""
    if all(part in WRITERS for part in prefix_parts(prefix)):
        return ""
    return f"The one state dict is of a module that holds the other one's as its {prefix.removesuffix('.')}: it fits only one built so."


def _prefixes(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Name the prefix, and the side that has it, where both lists of keys stand in the log."""
    model, saved = word(seen, "model_prefix"), word(seen, "saved_prefix")
    if saved and not model:
        return Particulars(
            f"The checkpoint's keys begin with {saved}, and the model's are the same without it",
            (
                Fix(
                    "Take the prefix off, once for all",
                    (f"ddpdoctor fix-checkpoint --strip-prefix {quote(saved)} FILE",),
                ),
                Fix(
                    "Or while it is loaded",
                    (f"model.load_state_dict({{k.removeprefix({saved!r}): v for k, v in state.items()}})",),
                ),
            ),
            _prefixed_by(saved),
        )
    if model and not saved:
        path = ["model", *model.removesuffix(".").split(".")]
        inner = (f"{'.'.join(path)}.load_state_dict(state)",) if all(map(str.isidentifier, path)) else ()
        return Particulars(
            f"The model's keys begin with {model}, and the checkpoint's are the same without it",
            (
                Fix("Load it before the model is wrapped, or into the model within the wrapper", inner),
                Fix(
                    "Or put the prefix before the keys while it is loaded",
                    (f"model.load_state_dict({{{model!r} + k: v for k, v in state.items()}})",),
                ),
            ),
            _prefixed_by(model),
        )
    if not model:
        return Particulars()
    return Particulars(
        f"The model's keys begin with {model}, and the same ones of the checkpoint with {saved}",
        (
            Fix(
                "Put the one in the other's place while it is loaded",
                (f"model.load_state_dict({{{model!r} + k.removeprefix({saved!r}): v for k, v in state.items()}})",),
            ),
            Fix("Or wrap the model, where it is loaded, as it was wrapped when it was saved"),
        ),
    )


@check(
    "ckpt-module-prefix",
    severity=INFO,
    owner=Owner.USER,
    log=LogTraits(revises=with_lists_compared, particulars=_prefixes),
)
def ckpt_module_prefix(checkpoints: Checkpoints) -> Iterator[Finding]:
    """The keys of a state dict have a wrapper's prefix that the model's don't have, or lack it.

    ## What breaks
    `load_state_dict` of the bare model ends with 'Missing key(s) in state_dict' and 'Unexpected key(s) in state_dict:
    "module.'. With `strict=False` it is worse: nothing is loaded, and training starts from random weights without a word.

    ## Why
    The state dict is that of the wrapper (DistributedDataParallel, torch.compile, Lightning Fabric), whose keys begin with
    `module.`, `_orig_mod.` or `_forward_module.`. It fits a model that is wrapped in the same way when it is loaded, and no other.

    ## Fix
    Where it is to be loaded before the model is wrapped: `ddpdoctor fix-checkpoint --strip-prefix module. FILE`. To save it
    without: `torch.save(model.module.state_dict(), ...)`.
    """
    by_prefix: dict[str, list[tuple[CheckpointFile, KeyPrefix]]] = {}
    for file in readable(checkpoints):
        for prefix in (key_prefix for key_prefix in file.prefixes if not key_prefix.may_be_models):
            by_prefix.setdefault(prefix.prefix, []).append((file, prefix))
    for name, found in by_prefix.items():
        yield prefixed(name, found)
    all_read(checkpoints)


def prefixed(prefix: str, found: Sequence[tuple[CheckpointFile, KeyPrefix]]) -> Finding:
    files = list(dict.fromkeys(file for file, _ in found))
    wrapper = writers(prefix)
    lines = [
        listed(
            (
                f"all {plural(at.keys, 'key')} of {at.where or 'the top level'}"
                for holder, at in found
                if holder == file
            ),
            6,
        )
        for file in files
    ]
    options = " ".join(f"--strip-prefix {shlex.quote(part)}" for part in prefix_parts(prefix))
    return Finding.of(
        f"{subject(files)}: all {sum(where.keys for _, where in found)} keys begin with {prefix}; "
        f"fits only a model wrapped by {wrapper} when loaded",
        seen(files, (f"{line} begin with {prefix}" for line in lines)),
        Fix(
            "Only where you load it into a bare model: take the prefix off",
            (f"ddpdoctor fix-checkpoint {options} {paths(files)}",),
        ),
        cause=f"It was saved from a model wrapped by {wrapper}. That is right where the model is wrapped before load_state_dict.",
    )


class World(msgspec.Struct, frozen=True):
    """The ranks of the planned job. certain: something says over how many nodes it runs."""

    size: int
    source: str
    certain: bool


def planned_world(plan: Plan, environment: Environment) -> World:
    """A launcher's word, for as many ranks on each of its nodes as are planned on this one; else this node alone."""
    launch = current_launch(environment)
    if launch and launch.world_size:
        if launch.local_world_size and launch.world_size % launch.local_world_size == 0:
            nodes = launch.world_size // launch.local_world_size
            return World(nodes * plan.nproc, f"{launch.launcher}: {plural(nodes, 'node')}; {plan.source}", True)
        return World(launch.world_size, f"{launch.launcher}'s world size", True)
    return World(plan.nproc, plan.source, several_nodes(environment) == "")


_PART: Final = "part"
"""The word of a sign that is the number in a file's name."""


def _lacks_no_part_of_its_own(match: SignMatch, log: Log) -> bool:
    """Whether it is another rank's file, or rank 0 lacks its own, too: then the folder isn't there."""
    if _PART not in match.words:
        return False
    of_rank_0 = any(not other.quoted and int(other.words.get(_PART, 1)) == 0 for other in log.sightings)
    return of_rank_0 or match.line.rank not in (None, int(match.words[_PART]))


@check("ckpt-world-size-mismatch", severity=WARN, owner=Owner.USER, log=LogTraits(refuted=_lacks_no_part_of_its_own))
def ckpt_world_size_mismatch(checkpoints: Checkpoints, environment: Environment, plan: Plan) -> Iterator[Finding]:
    """A checkpoint of which every rank wrote a part is of another number of ranks, or lacks some of them.

    ## What breaks
    DeepSpeed ends with "The checkpoint being loaded used a DP world size of 8 but the current world size is 4"; the Trainer of
    transformers goes on with other random numbers; other programs wait for a file that isn't there.

    ## Why
    Each rank saved its share of the optimizer's state, or its random numbers, under its own number. Another number of ranks
    has other shares. Single files are missing where a rank was killed while it saved, or where nodes wrote to disks of
    their own.

    ## Fix
    Resume with as many ranks as wrote it, or turn it into one file for any number of ranks first (DeepSpeed:
    `zero_to_fp32.py` in the checkpoint's folder for the weights, a universal checkpoint for the optimizer's state, too; Megatron:
    `tools/checkpoint/convert.py` for another tensor or pipeline size). Copy missing files from the other nodes' disks.
    """
    found: dict[RankFiles, CheckpointFile] = {}
    for file in readable(checkpoints):
        for ranks in file.rank_files:
            found.setdefault(ranks, file)
    yield from judged_apart(_mismatch(ranks, file, environment, plan) for ranks, file in found.items())
    all_read(checkpoints)


def _mismatch(ranks: RankFiles, file: CheckpointFile, environment: Environment, plan: Plan) -> Iterator[Finding]:
    if ranks.missing:
        yield incomplete(ranks, file)
        return
    world = planned_world(plan, environment)
    if ranks.world_size != world.size:
        yield of_other_ranks(ranks, file, world, plan)


def is_optimizer_state(ranks: RankFiles) -> bool:
    """Whether it is DeepSpeed's share of the optimizer, without which it stops; others make do, or may."""
    return "zero_pp_rank_" in ranks.pattern


def incomplete(ranks: RankFiles, file: CheckpointFile) -> Finding:
    names = listed((ranks.pattern.replace("*", str(rank)) for rank in ranks.missing), 4)
    if ranks.pattern.count("*") > 1:
        names = f"{ranks.pattern} of {plural(len(ranks.missing), 'rank')}"
    return Finding.of(
        f"{ranks.pattern} is of {ranks.world_size} ranks, and {plural(len(ranks.missing), 'is missing', 'are missing')}: "
        f"{listed(ranks.missing, 6)}",
        Evidence(f"beside or in {file.path}: no {names}", "the folder"),
        Fix("Copy them from the other nodes' disks, if each node wrote to its own"),
        Fix("Otherwise resume from the checkpoint before it: this one was not saved to the end"),
        severity=FAIL if is_optimizer_state(ranks) else WARN,
    )


def of_other_ranks(ranks: RankFiles, file: CheckpointFile, world: World, plan: Plan) -> Finding:
    wrote = ranks.world_size
    nodes, rest = divmod(wrote, plan.nproc)
    # Nobody says over how many nodes the job is to run, and there is a number that fits.
    may_fit = not world.certain and nodes > 1 and rest == 0
    random = ranks.pattern.startswith(RANDOM_NUMBERS)
    severity: Severity = INFO if may_fit or random else FAIL if is_optimizer_state(ranks) else WARN
    on_nodes = f"Resume it on {nodes} nodes with {plural(plan.nproc, 'rank')} each"
    fixes = [Fix(on_nodes if may_fit else f"Resume it with {wrote} ranks in all")]
    if is_optimizer_state(ranks):
        fixes.append(Fix("Or convert it for any number of ranks first; DeepSpeed calls that a universal checkpoint"))
    return Finding.of(
        f"{ranks.pattern} is of {plural(wrote, 'rank')}, and {world.size} {'is' if world.size == 1 else 'are'} planned",
        Evidence(f"{file.path}: {ranks.pattern} of {wrote} ranks", PICKLE),
        Evidence(f"ranks planned: {world.size}", world.source),
        fixes,
        cause="These are the ranks' random numbers: the model and its optimizer are whole. A rank without such a file goes on with "
        "other random numbers."
        if random
        else "Every rank wrote its own share, and another number of ranks would need other shares.",
        severity=severity,
    )
