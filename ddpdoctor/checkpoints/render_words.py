"""The words on one checkpoint after `fix-checkpoint`: what was done, how to undo it, how to load it, what to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import capital, clip_middle, human, listed, one_line, plural
from ddpdoctor.checkpoints.model_wrappers import writers
from ddpdoctor.report.reported_checkpoints import Action

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.facts.checkpoints import CheckpointFile
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome

COMMAND = "ddpdoctor fix-checkpoint"
_MAX_NAMES = 6
"""So many names of a kind are shown; a hostile file may hold thousands."""

_MAX_NAME_CHARACTERS = 160
"""Characters of a name; what is longer is cut in its middle."""


class LabelledPart(NamedTuple):
    """A label, a paragraph beside it, and commands below to be copied. style: of the label, "" for none."""

    label: str
    text: str
    commands: tuple[str, ...] = ()
    style: str = "dim"


def paragraphs(outcome: CheckpointOutcome, wishes: EditOptions) -> list[list[LabelledPart]]:
    """All that is said of a file below the heading and the table: the dangers, what was done, what to know."""
    if outcome.action is Action.REFUSED:
        groups = [[*_advice(outcome)], [*_dangers(outcome)]]
    else:
        done = [*_advice(outcome), *_done(outcome, wishes)]
        facts = _facts_now(outcome)
        if facts is not None and outcome.action in (Action.CLEAN, Action.FIXED, Action.WRITTEN):
            done += _load(outcome, facts)
        groups = [[*_dangers(outcome)], done, [*_to_know(outcome, facts)] if facts else []]
    return [parts for parts in groups if parts]


def _facts_now(outcome: CheckpointOutcome) -> CheckpointFile | None:
    """The facts of the file as it is now; None where it is as it always was, and nobody asked."""
    return None if outcome.action in (Action.UNDONE, Action.WOULD_UNDO) else outcome.after or outcome.before


def loud_parts(outcome: CheckpointOutcome) -> list[LabelledPart]:
    """Say what must be said of a file even where a line is enough for all else; nothing, of most."""
    if outcome.action is not Action.REFUSED:
        return [*_dangers(outcome), *_code_devices(outcome)]
    return [LabelledPart("why", _sentence(outcome.error)), *_advice(outcome), *_dangers(outcome)]


def heading(outcome: CheckpointOutcome) -> str:
    """Name the file: "ckpt.pt, a PyTorch checkpoint (zip), 4.7 MiB"."""
    facts = outcome.before
    if outcome.action is Action.REFUSED:
        return f"{outcome.path}: {_sentence(outcome.error)}"
    name = f"{outcome.written}, made from {outcome.path}" if outcome.written else outcome.path
    if facts is None:
        return name
    size = human(facts.size)
    if outcome.after is not None and human(outcome.after.size) != size:
        size += f" -> {human(outcome.after.size)}"
    return f"{name}, {facts.called}, {size}" if facts.size else f"{name}, {facts.called}"


def pins(outcome: CheckpointOutcome) -> list[tuple[str, str, str, str]]:
    """The table's rows: device, tensors, bytes, and where it is restored now ("" where that is the same).

    Where something was left out, they are of the new file.
    """
    facts = outcome.after if outcome.dropped and outcome.after is not None else outcome.before
    moves = {moved.device_from: moved.device_to for moved in outcome.moved} if facts is outcome.before else {}
    return [
        (one_line(pin.device), f"{pin.tensors:,}", human(pin.bytes), one_line(moves.get(pin.device, "")))
        for pin in (facts.pins if facts else ())
    ]


def brief(outcome: CheckpointOutcome) -> str:
    """One line of one file among many."""
    moves = [(plural(moved.tensors, "tensor"), f"{moved.device_from} -> {moved.device_to}") for moved in outcome.moved]
    # How many tensors went is known only where none was left out.
    what = [where if outcome.dropped else f"{tensors} {where}" for tensors, where in moves]
    what += _edits(outcome, "renamed", "left out")
    facts = outcome.before
    if facts is not None and outcome.action in (Action.LEFT, Action.REFUSED):
        what.append(facts.called)
    if facts is not None and facts.size:
        what.append(human((outcome.after if outcome.written and outcome.after else facts).size))
    return f"{outcome.written or outcome.path}: {', '.join(what)}".removesuffix(": ")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _edits(outcome: CheckpointOutcome, rename: str, leave_out: str) -> list[str]:
    """List what else was done than moving, in the words for it."""
    edits = []
    if outcome.renamed:
        edits.append(f"{rename} {plural(outcome.renamed, 'key')}")
    if outcome.dropped:
        edits.append(f"{leave_out} {listed(map(_clipped, outcome.dropped), _MAX_NAMES)}")
    return edits


def _clipped(name: str) -> str:
    """A key may have thousands of characters."""
    return clip_middle(name, _MAX_NAME_CHARACTERS)


def _advice(outcome: CheckpointOutcome) -> Iterator[LabelledPart]:
    if outcome.action is Action.REFUSED:
        said = "othing was changed" in f"{outcome.error}{outcome.advice}"
        yield from _notes(outcome)
        if outcome.before is not None and not outcome.before.problem and not said:
            yield LabelledPart("", f"{'Otherwise the' if outcome.notes else 'The'} file was not changed.")
        if outcome.choices:
            named = "".join(f"\n- {choice or 'the top level'}" for choice in outcome.choices)
            yield LabelledPart("found", f"These could be the model's parameters:{named}")
    elif outcome.action is not Action.LEFT:
        return
    advice, commands = outcome.advice, outcome.commands
    if not advice and not commands and outcome.before is not None:
        advice, commands = outcome.before.advice, outcome.before.commands
    if advice or commands:
        label = "fix" if outcome.action is Action.REFUSED else "note"
        yield LabelledPart(label, advice and _sentence(advice), commands)


def _done(outcome: CheckpointOutcome, wishes: EditOptions) -> Iterator[LabelledPart]:
    moved = sum(moved.tensors for moved in outcome.moved)
    which = "what stays" if outcome.dropped else plural(moved, "tensor")
    planned = outcome.action is Action.WOULD_FIX
    edits = [f"{'move' if planned else 'moved'} {which} to {wishes.to}"] if moved else []
    edits += _edits(outcome, "rename", "leave out") if planned else _edits(outcome, "renamed", "left out")
    what = listed(edits)
    if planned:
        yield LabelledPart("to do", f"{capital(what)}. This was a dry run: nothing was changed.")
    elif outcome.action is Action.FIXED:
        yield LabelledPart("done", f"{capital(what)}, in place; read back and verified.")
        if outcome.undo_file:
            text = f"To go back, byte for byte ({one_line(outcome.undo_file)} may be deleted once all is well):"
            yield LabelledPart("undo", text, (f"{COMMAND} --undo {quoted(outcome.path)}",))
    elif outcome.action is Action.WRITTEN:
        done = capital(what) if what else "Nothing in it had to be changed"
        yield LabelledPart("done", f"{done}; the new file was read back and verified, and the original is untouched.")
    elif outcome.action is Action.CLEAN:
        tied = outcome.before is not None and outcome.before.pinned
        why = f"what is tied to a device is on {wishes.to} already" if tied else "no tensor in it is tied to a device"
        yield LabelledPart("done", f"Nothing to do: {why}. The file was not changed.")
    elif outcome.action is Action.WOULD_UNDO:
        undone = plural(outcome.undone, "change")
        yield LabelledPart("to do", f"{undone} can be taken back. This was a dry run: nothing was changed.")
    elif outcome.action is Action.UNDONE:
        several = f"{outcome.undone} changes were taken back, the last one first: every"
        which = several if outcome.undone > 1 else "Every"
        yield LabelledPart("done", f"{which} byte is as it was before it was fixed.")
    yield from _code_devices(outcome)
    yield from _notes(outcome)


def _notes(outcome: CheckpointOutcome) -> Iterator[LabelledPart]:
    for note in outcome.notes:
        yield LabelledPart("note", _sentence(note))


def _code_devices(outcome: CheckpointOutcome) -> Iterator[LabelledPart]:
    """Warn of what stays tied to a device in a TorchScript file, whatever was done to its tensors."""
    facts = _facts_now(outcome)
    if facts is not None and facts.code_devices:
        devices = listed(dict.fromkeys(place.rpartition(": ")[2] for place in facts.code_devices), _MAX_NAMES)
        places = listed((_clipped(place.rpartition(": ")[0]) for place in facts.code_devices), _MAX_NAMES)
        text = (
            f"But its code still names {devices} ({places}), which can't be rewritten: where there is no such device "
            "it fails when it is run. Trace or script the model anew on the CPU, and move it after loading."
        )
        yield LabelledPart("WARN", text, style="bold yellow")


def _dangers(outcome: CheckpointOutcome) -> Iterator[LabelledPart]:
    facts = _facts_now(outcome)
    if facts is None:
        return
    dangerous = [global_ for global_ in facts.globals if global_.dangerous]
    if dangerous:
        lines = _named([f"{global_name.name} {global_name.meaning}" for global_name in dangerous])
        text = f"Whoever loads this file may run what its author wants. Few honest checkpoints hold that:{lines}"
        yield LabelledPart("DANGER", text, style="bold red")
    foreign = [global_ for global_ in facts.globals if not global_.dangerous]
    # torch.jit.load imports nothing.
    if foreign and outcome.action is not Action.REFUSED and facts.kind != "torchscript":
        also = "also " if dangerous else ""
        lines = _named([f"{global_name.name}: {global_name.meaning}".removesuffix(": ") for global_name in foreign])
        text = f"Loading it with weights_only=False {also}imports, and mostly calls, what tensors don't need:{lines}"
        yield LabelledPart("WARN", text, style="bold yellow")


def _named(lines: list[str]) -> str:
    more = [f"and {len(lines) - _MAX_NAMES} more (--json names them all)"] if len(lines) > _MAX_NAMES else []
    return "".join(f"\n- {line}" for line in [*lines[:_MAX_NAMES], *more])


def _load(outcome: CheckpointOutcome, facts: CheckpointFile) -> Iterator[LabelledPart]:
    from ddpdoctor.checkpoints.weights_only import ALL, DO_NOT_LOAD, preparation

    path = outcome.written or outcome.path
    text = ""
    commands: tuple[str, ...] = ()
    if any(global_.dangerous for global_ in facts.globals):
        text = f"{DO_NOT_LOAD}."
        if facts.kind != "torchscript":
            text += " Its tensors can be had without running anything:"
            tensors = quoted(path.rpartition(".")[0] + ".safetensors")
            commands = (f"{COMMAND} {quoted(path)} --params-only --to-safetensors -o {tensors}",)
    elif facts.kind == "torchscript":
        commands = (f"torch.jit.load({path!r})",)
    elif facts.kind == "safetensors" and outcome.action is Action.WRITTEN:
        commands = (f"safetensors.torch.load_file({path!r})",)
    elif facts.kind not in ("zip", "legacy"):
        return
    elif not facts.weights_only_blockers:
        commands = (f"torch.load({path!r}, weights_only=True)",)
    else:
        # As `check` says it.
        text = f"weights_only=True stops at {listed(facts.weights_only_blockers, _MAX_NAMES)}."
        if prepared := preparation(facts.weights_only_blockers):
            text += f" {prepared.text}:"
            commands = (*prepared.lines, f"torch.load({path!r}, weights_only=True)")
        else:
            text += f" Only {ALL}:"
            commands = (f"torch.load({path!r}, weights_only=False)",)
    yield LabelledPart("load", text, commands)


def _to_know(outcome: CheckpointOutcome, facts: CheckpointFile) -> Iterator[LabelledPart]:
    path = outcome.written or outcome.path
    if facts.whole_module:
        text = f"It holds a whole pickled {facts.whole_module}, and loading it needs that class's code as it was"
        yield LabelledPart("note", f"{text}: a model.state_dict() lasts longer.")
    for prefix in facts.prefixes:
        where = f" of {_clipped(prefix.where)}" if prefix.where else ""
        by = "" if prefix.may_be_models else f" ({writers(prefix.prefix)} put it there)"
        which = f"All {prefix.keys:,} keys{where} begin" if prefix.keys > 1 else f"The only key{where} begins"
        text = f'{which} with "{prefix.prefix}"{by}. If your model lacks it, take it off:'
        yield LabelledPart("hint", text, (f"{COMMAND} {quoted(path)} --strip-prefix {quoted(prefix.prefix)}",))
    if facts.rng_states:
        devices = listed((_clipped(pin.device) for pin in facts.pinned), _MAX_NAMES)
        how = "without map_location, or with 'cpu'"
        if devices:
            how = f"with map_location='cpu' (without, what is tied to {devices} goes there)"
        states = listed(map(_clipped, facts.rng_states), _MAX_NAMES)
        text = f"It holds random number generators' states ({states}), which torch can't restore from a GPU: load it {how}."
        yield LabelledPart("hint", text)
    if facts.device_texts:
        places = (f"{_clipped(place.where)} = {_clipped(place.device)}" for place in facts.device_texts)
        texts = listed(places, _MAX_NAMES)
        yield LabelledPart("hint", f"Your own code may read these devices, so they were left as they are: {texts}.")
