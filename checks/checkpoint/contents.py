"""Whether a checkpoint can be read at all, and what torch.load will say to the classes in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import clip, human, listed
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checkpoints.finding_words import (
    NONE_NAMED,
    is_dangerous,
    is_let_pass,
    loading,
    readable,
    seen,
    short,
    subject,
    verb,
)
from ddpdoctor.checkpoints.weights_only import ALL, DO_NOT_LOAD, needed_import, preparation
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.checkpoints import CheckpointFile, Checkpoints
from ddpdoctor.facts.snapshot import TargetPython, Torch
from ddpdoctor.knowledge.evidence import torch_version
from ddpdoctor.knowledge.python_commands import in_target_python
from ddpdoctor.knowledge.wheels import release

WEIGHTS_ONLY_BY_DEFAULT = Version("2.6")
"""The release from which on torch.load has weights_only=True unless told otherwise."""

PICKLES = ("zip", "legacy")
"""Kinds that torch.load unpickles; TorchScript goes to torch.jit.load, which imports nothing."""


NOT_TO_BE_LOADED = Fix("Do not load it at all, on any machine and with any option: see ckpt-weights-only")


def all_read(checkpoints: Checkpoints) -> None:
    """End a check whose verdict holds for a part of the files only.

    Leaves the check untested: some of the named files could not be read, so that nobody can call them fine.
    """
    unread = [file for file in checkpoints.files if file.problem]
    if len(unread) == 1:
        leave_untested(f"{short(unread[0].path)} could not be read (see ckpt-truncated)")
    if unread:
        leave_untested(
            f"{len(unread)} of the {len(checkpoints.files)} checkpoints could not be read: see ckpt-truncated"
        )


@check("ckpt-truncated", severity=FAIL, owner=Owner.USER)
def ckpt_truncated(checkpoints: Checkpoints) -> Iterator[Finding]:
    """A checkpoint can't be read: it is truncated, corrupt, or no checkpoint at all.

    ## What breaks
    `torch.load` ends with "failed finding central directory", "unexpected EOF" or "invalid load key", often hours after the
    job was queued.

    ## Why
    The save was cut short by a kill, a time limit or a full disk; several ranks wrote to one path; a download was cut short,
    or brought an error page; Git LFS left its pointer in the file's place.

    ## Fix
    `head -c 100 FILE` shows whether it is a Git LFS pointer ("version https://git-lfs": `git lfs pull`), a web page or JSON;
    `weights_only=False` changes nothing. Resume from the checkpoint before it, or fetch the file anew. So that it doesn't happen
    again: save on rank 0 alone, to a temporary name in the same folder, and `os.replace` it by the real name when it is whole.
    """
    requires(checkpoints.files, NONE_NAMED)
    alike: dict[tuple[str, str, str], list[CheckpointFile]] = {}
    for file in checkpoints.files:
        if file.problem:
            alike.setdefault((file.kind, file.problem, file.advice), []).append(file)
    groups = list(alike.values())
    # A folder of broken shards is one illness, however each of them is broken.
    if len(groups) > 3:
        groups = [[file for group in groups for file in group]]
    for files in groups:
        yield unreadable(files)


def unreadable(files: Sequence[CheckpointFile]) -> Finding:
    first = files[0]
    damaged = sum(file.damaged for file in files)
    if len(files) == 1:
        start = f"{short(first.path)} {'is damaged' if damaged else 'cannot be loaded'}: "
    else:
        outcome = "are damaged" if damaged == len(files) else "cannot be loaded"
        start = f"{len(files)} checkpoints {outcome}; {short(first.path)}: "
    lines = (
        file.problem
        if file.kind == "missing"
        else f"{file.called}{f', {human(file.size)}' if file.size else ''}: {file.problem}"
        for file in files
    )
    advice = {file.advice: file.commands for file in reversed(files) if file.advice}
    fixes = [Fix(text, commands) for text, commands in reversed(advice.items())][:3]
    if not fixes and not damaged:
        fixes.append(Fix("Name the checkpoint itself, if this is not what you meant"))
    elif not fixes:
        fixes.append(Fix("Resume from the checkpoint before it, or fetch the file anew from where it came"))
    return Finding(
        summary=start + in_short(first.problem, 160 - len(start)),
        # How a whole checkpoint comes to be damaged is the page's "Why": here, nothing of that kind happened.
        cause="" if damaged else f"torch.load reads checkpoints that torch.save wrote; here it finds {first.called}.",
        evidence=seen(files, lines, "the file's bytes"),
        fixes=tuple(fixes),
    )


def in_short(text: str, most: int) -> str:
    """Cut a sentence to what makes sense by itself: up to a clause's end, else as far as there is room."""
    if len(text) <= most:
        return text
    clauses = [place for mark in (": ", "; ", ", ", " (") if (place := text.rfind(mark, most // 3, most)) > 0]
    return text[: max(clauses)] if clauses else clip(text, most)


@check("ckpt-weights-only", severity=WARN, owner=Owner.USER)
def ckpt_weights_only(checkpoints: Checkpoints, torch: Maybe[Torch]) -> Iterator[Finding]:
    """A checkpoint holds more than tensors: torch.load stops at it, or would run what the file says.

    ## What breaks
    From torch 2.6 on `torch.load(FILE)` ends with "Weights only load failed"; before, and with `weights_only=False`, loading
    it imports and calls whatever the file names.

    ## Why
    A checkpoint is a pickle, and a pickle is a program. With `weights_only=True`, the default since 2.6, torch calls nothing
    but a short list of its own functions. Saved arguments, configurations and NumPy arrays are outside of that list.

    ## Fix
    Allow exactly the classes that are in it: `torch.serialization.add_safe_globals([...])`, or for one call
    `with torch.serialization.safe_globals([...]):`. `weights_only=False` only for a file whose origin you trust as you would
    a program's. Where a function that runs commands is named, don't load the file at all.
    """
    files = readable(checkpoints)
    # Plain pickles, too, which torch.load can't read: somebody will load them with something else.
    dangerous = [file for file in checkpoints.files if is_dangerous(file)]
    if dangerous:
        yield hostile(dangerous)
    blocked = [
        file
        for file in files
        if file.kind in PICKLES and file.weights_only_blockers and file not in dangerous and not is_let_pass(file)
    ]
    if blocked:
        torch = known(torch)
        requires(torch.installed, "torch is not installed")
        version = release(torch.version)
        if version is None:
            leave_untested("this torch doesn't tell its version")
        if version >= WEIGHTS_ONLY_BY_DEFAULT:
            # Nobody is to allow one file's classes for the sake of another.
            groups: dict[frozenset[str], list[CheckpointFile]] = {}
            for file in blocked:
                groups.setdefault(frozenset(file.weights_only_blockers), []).append(file)
            yield from (stops(alike, torch) for alike in groups.values())
    all_read(checkpoints)


def hostile(files: Sequence[CheckpointFile]) -> Finding:
    names = {name.name: name for file in files for name in file.globals if name.dangerous}
    first = next(iter(names.values()))
    means = f" ({first.meaning})" if first.meaning else ""
    lines = [listed((name.name for name in file.globals if name.dangerous), 6) for file in files]
    return Finding.of(
        f"DANGER: whoever loads {subject(files)} may run what its author wants: it names {first.name[:50]}{means}",
        seen(files, (f"names {line}" for line in lines)),
        (
            Evidence(f"{global_.name}: {global_.meaning}", "known names")
            for global_ in list(names.values())[:5]
            if global_.meaning
        ),
        Fix(DO_NOT_LOAD if len(files) == 1 else DO_NOT_LOAD.replace("this file", "these files")),
        Fix("Ask the author for the weights as safetensors; if that is you, save model.state_dict() and nothing else"),
        Fix("If a stranger's file of this kind was loaded already: change the keys and passwords that you can read"),
        cause="Few honest checkpoints hold that, and nothing in the file tells them from the others. torch.load with "
        "weights_only=False, pickle.load and joblib.load do what it says as you, with your files, keys and network.",
        severity=FAIL,
    )


def stops(files: Sequence[CheckpointFile], torch: Torch) -> Finding:
    blockers = files[0].weights_only_blockers
    return Finding.of(
        f"{subject(files)}: torch.load of torch {torch.version} stops at {listed((name[:40] for name in blockers), 3)}",
        seen(files, (f"outside of that list: {listed(file.weights_only_blockers, 8)}" for file in files)),
        torch_version(torch),
        let_pass(files, blockers),
        cause="Since torch 2.6 torch.load calls nothing but a short list of torch's own functions unless it is told otherwise."
        + (f" {files[0].loader}, which loads it at a resume, stops there, too." if files[0].loader else ""),
        severity=INFO if all(map(needed_import, blockers)) else WARN,
    )


def let_pass(files: Sequence[CheckpointFile], blockers: Sequence[str]) -> tuple[Fix, ...]:
    """From the least that is given away to the most."""
    prepared = preparation(blockers)
    if prepared is not None:
        return (Fix(prepared.text, prepared.lines),)
    return (
        Fix("Ask for the file to be saved as a dict of tensors, with torch.save's own pickle protocol"),
        Fix(f"Or, only {ALL}", (loading(files[0], 'map_location="cpu", weights_only=False'),)),
    )


@check("ckpt-whole-module", severity=WARN, owner=Owner.USER)
def ckpt_whole_module(checkpoints: Checkpoints, target_python: Maybe[TargetPython]) -> Iterator[Finding]:
    """A checkpoint holds a whole model, and not its state dict.

    ## What breaks
    `torch.load` ends with "Can't get attribute ... on module" or "No module named ..." where the model's source is not
    importable under the name that it had; from torch 2.6 on it needs `weights_only=False` besides. After the class has
    changed, it loads and fails later.

    ## Why
    `torch.save(model)` stores the names of the model's classes and all their attributes, but not their source.

    ## Fix
    Where the classes can be imported, load it once and save `model.state_dict()`; then build the model from source and
    `load_state_dict`.
    """
    by_class: dict[str, list[CheckpointFile]] = {}
    for file in readable(checkpoints):
        if file.whole_module:
            by_class.setdefault(file.whole_module, []).append(file)
    for files in by_class.values():
        yield pickled_module(files, target_python)
    all_read(checkpoints)


WRAPPERS = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "It loads only after init_process_group, in every rank.",
    "torch.nn.parallel.data_parallel.DataParallel": "It loads only where the GPUs that it was made for exist.",
}
"""Modules that want more than their source, and what."""


def pickled_module(files: Sequence[CheckpointFile], target_python: Maybe[TargetPython]) -> Finding:
    """The finding for files that hold a module of the same class."""
    name = files[0].whole_module
    named = [[global_.name for global_ in file.globals if global_.name != name] for file in files]
    others = [[global_name for global_name in names if not global_name.startswith("torch.")] for names in named]
    if name.startswith("torch.") and name not in WRAPPERS and not any(others):
        severity: Severity = INFO
        wants = "loads only with a torch like the one that saved it"
        cause = f"Its layers are torch's own, so that every torch has their source; but {name} may have gained attributes since."
    else:
        severity = WARN
        wants = "loads only where its classes can be imported"
        cause = f"torch.load imports {name} and every class below it by name. {WRAPPERS.get(name, '')}".strip()
    return Finding.of(
        f"{subject(files)} {verb(files, 'holds', 'hold')} a pickled module, {name.rpartition('.')[2][:40]}: {wants}",
        seen(files, (f"an object of {name}{f'; also named: {listed(more, 6)}' if more else ''}" for more in others)),
        as_state_dict(files[0], target_python),
        cause=cause,
        severity=severity,
    )


AS_STATE_DICT = (
    'import sys, torch; old = torch.load(sys.argv[1], map_location="cpu", weights_only=False); '
    "new = lambda x: x.state_dict() if isinstance(x, torch.nn.Module) else x; "
    "torch.save({k: new(v) for k, v in old.items()} if isinstance(old, dict) else new(old), sys.argv[2])"
)
"""Replaces each module by its state dict, whether it is the whole file or stands in its dict."""


def as_state_dict(file: CheckpointFile, target_python: Maybe[TargetPython]) -> Fix:
    if is_dangerous(file):
        return NOT_TO_BE_LOADED
    text = "If you trust its origin as you would a program's, load it once where its classes can be imported"
    distributed = file.whole_module == "torch.nn.parallel.distributed.DistributedDataParallel"
    if isinstance(target_python, Unknown) or distributed:
        return Fix(f"{text}, and save the state_dict() of the module in its place")
    return Fix(
        f"{text}, and save its state dict",
        (in_target_python(target_python, "-c", AS_STATE_DICT, file.path, f"{file.path}.state_dict.pt"),),
    )
