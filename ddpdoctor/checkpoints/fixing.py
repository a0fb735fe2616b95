"""Fixing one checkpoint: look, edit, prove the edit, write, read back what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ddpdoctor.base.shell import quoted
from ddpdoctor.checkpoints.errors import Busy, CheckpointError, Refused, Stale, Untrusted
from ddpdoctor.checkpoints.formats.layouts import DATA, Change, Layout
from ddpdoctor.checkpoints.formats.opening import FilePart, open_layout, read_parts
from ddpdoctor.checkpoints.inspection import describe, inspect, refuse_torn, unread
from ddpdoctor.checkpoints.kinds.file_head import BUSY
from ddpdoctor.checkpoints.named_paths import recognise
from ddpdoctor.checkpoints.pickles.editing import Edit, EditOptions, carry_out, propose
from ddpdoctor.checkpoints.pickles.gc_paused import without_collection
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.facts.checkpoints import CheckpointFile
from ddpdoctor.report.reported_checkpoints import Action, CheckpointOutcome, Moved

__all__ = ["Action", "CheckpointOutcome", "EditOptions", "Moved", "fix", "undo"]

Progress = Callable[[int, int], None]
"""Called with the bytes written so far, and those to write in all."""


def fix(
    path: Path,
    options: EditOptions,
    *,
    out: Path | None = None,
    dry_run: bool = False,
    progress: Progress = lambda done, total: None,
) -> CheckpointOutcome:
    """Fix a checkpoint in place, or in the new file `out`.

    Whatever stands against it is the outcome; nothing is raised but what ends the process.
    """
    from ddpdoctor.checkpoints.writing.lock_retry import retry_while_busy

    attempt = _Attempt(path, options, out, dry_run, progress)
    try:
        return retry_while_busy(path, attempt.run, alone=out is None)
    except CheckpointError as error:
        from ddpdoctor.checkpoints.writing.undo_advice import torn_under_other_name

        torn = None if isinstance(error, Busy) else torn_under_other_name(path)
        return attempt.refused(torn or error)


def undo(path: Path, *, dry_run: bool = False) -> CheckpointOutcome:
    """Restore what was fixed in place, to the bit; a dry run only says that it could be."""
    from ddpdoctor.checkpoints.writing import in_place
    from ddpdoctor.checkpoints.writing.lock_retry import retry_while_busy

    try:
        changes = retry_while_busy(path, lambda: in_place.undo(path, dry_run=dry_run), alone=True)
    except CheckpointError as error:
        return _refused(path, error)
    if dry_run:
        return CheckpointOutcome(path=str(path), action=Action.WOULD_UNDO, before=inspect(path), undone=changes)
    return CheckpointOutcome(path=str(path), action=Action.UNDONE, after=inspect(path), undone=changes)


def _refused(path: Path, error: CheckpointError) -> CheckpointOutcome:
    return CheckpointOutcome(
        path=str(path), action=Action.REFUSED, error=error.text, advice=error.advice, commands=error.commands
    )


class _Plan(NamedTuple):
    """The edits to be made. kept: the storages' keys, if some go; None if all stay."""

    edits: list[Edit]
    kept: frozenset[str] | None
    dropped: tuple[str, ...]
    moved: tuple[Moved, ...]

    def __bool__(self) -> bool:
        return self.kept is not None or any(self.edits)

    @property
    def renamed(self) -> int:
        return sum(len(edit.renamings.keys) for edit in self.edits)


class _Attempt:
    """One fix(), with what is already known when it has to give up. It may run several times."""

    def __init__(self, path: Path, options: EditOptions, out: Path | None, dry_run: bool, progress: Progress) -> None:
        self.path = path
        self.options = options
        self.out = out
        self.dry_run = dry_run
        self.progress = progress
        self.recovered: list[str] = []
        """What was done about earlier runs that were cut short, in any run."""
        self._forget()

    def _forget(self) -> None:
        self.before: CheckpointFile | None = None
        self.notes: list[str] = []
        self.stale = False
        """The undo file beside it belongs to content that is gone."""
        self.untrusted: Untrusted | None = None
        """Why what lies in place of the undo file isn't believed."""

    @without_collection()
    def run(self) -> CheckpointOutcome:
        self._forget()
        if self.out is not None or self.dry_run:
            refuse_torn(self.path)
        if self.out is None:
            self._recover()
        recognised = recognise(self.path)
        if not recognised.rewritable:
            self.before = unread(self.path, recognised)
            if recognised.kind == BUSY:
                raise Busy(recognised.problem, recognised.advice)
            if recognised.problem:
                raise CheckpointError(recognised.problem, recognised.advice, recognised.commands)
            if self.out is not None:
                raise Refused(f"It is {recognised.called}, which is not rewritten, so {self.out} was not made")
            return self._outcome(Action.LEFT)
        with open_layout(self.path, recognised.kind) as layout:
            parts = read_parts(layout)
            self.before = describe(self.path, recognised, layout, parts)
            if self.options.to_safetensors:
                return self._to_safetensors(layout, parts)
            plan = self._plan(layout, parts)
            if self.dry_run or (not plan and self.out is None):
                self._note_stale(put_aside=bool(plan) and self.out is None)
                return self._outcome(Action.WOULD_FIX if plan else Action.CLEAN, plan)
            new = [carry_out(edit) for edit in plan.edits]
            if self.out is not None:
                return self._write(layout, plan, new, self.out)
            change = layout.change({part.name: part.data for part in new})
        return self._change_in_place(plan, new, change)

    def refused(self, error: CheckpointError) -> CheckpointOutcome:
        if isinstance(error, Untrusted):
            self.untrusted = None
        return replace(
            _refused(self.path, error),
            before=self.before,
            notes=self._all_notes(),
            choices=getattr(error, "choices", ()),
        )

    def _all_notes(self) -> tuple[str, ...]:
        untrusted = [f"{self.untrusted.text}. It was left alone."] if self.untrusted else []
        return (*self.recovered, *untrusted, *self.notes)

    def _recover(self) -> None:
        from ddpdoctor.checkpoints.writing import in_place

        try:
            recovery = in_place.recover(self.path, dry_run=self.dry_run)
        except Stale:
            self.stale = True
        except Untrusted as error:
            self.untrusted = error
        except Refused as refused:
            if not self.dry_run:
                raise
            self.notes.append(f"It could not be fixed in place yet: {refused.text}.")
        else:
            if recovery is not None:
                self.recovered.append(f"{recovery.text}.")

    def _note_stale(self, *, put_aside: bool) -> None:
        if not self.stale:
            return
        from ddpdoctor.checkpoints.writing.journal import undo_file

        old = undo_file(self.path)
        what = f"The undo file {old.name} belongs to former content of this file, which was saved anew or replaced"
        if put_aside:
            self.notes.append(f"{what}: it will be renamed, and a new one begun.")
        else:
            self.notes.append(f"{what}. If you don't need that, `rm {quoted(old)}` deletes it.")

    def _plan(self, layout: Layout, parts: list[FilePart]) -> _Plan:
        kept: frozenset[str] | None = None
        dropped: tuple[str, ...] = ()
        if self.options.cuts:
            from ddpdoctor.checkpoints.pickles.cutting import cut

            if layout.kind == "torchscript":
                raise Refused("It is a TorchScript program: nothing can be taken out of it without breaking it")
            done = cut(
                parts[0].data,
                self.options.keep,
                self.options.drop,
                params_only=self.options.params_only,
                tensors_only=self.options.to_safetensors,
            )
            parts = [FilePart(parts[0].name, done.pickle, scan(done.pickle))]
            kept, dropped = done.storages, done.dropped
            self.notes += done.notes
        edits = [
            propose(part, self.options if part.name == DATA else EditOptions(to=self.options.to)) for part in parts
        ]
        self.notes += (note for edit in edits for note in edit.renamings.notes)
        if self.options.strip_prefixes and not any(edit.renamings for edit in edits):
            self.notes.append(f"No key begins with {' or '.join(map(repr, self.options.strip_prefixes))}.")
        return _Plan(edits, kept, dropped, self._moved(edits))

    def _moved(self, edits: list[Edit]) -> tuple[Moved, ...]:
        assert self.before is not None
        if not any(edit.moves for edit in edits):
            return ()
        return tuple(
            Moved(device_from=pin.device, device_to=self.options.to, tensors=pin.tensors, bytes=pin.bytes)
            for pin in self.before.pins
            if self.options.moves(pin.device)
        )

    def _change_in_place(self, plan: _Plan, new: list[FilePart], change: Change) -> CheckpointOutcome:
        from ddpdoctor.checkpoints.writing import in_place
        from ddpdoctor.checkpoints.writing.journal import undo_file
        from ddpdoctor.checkpoints.writing.trust import free_name

        aside = free_name(undo_file(self.path)) if self.stale else None
        in_place.change_in_place(self.path, change, aside=aside.name if aside else "")
        if aside:
            self.notes.append(
                f"The undo file that was there belongs to former content of this file, which was saved anew or replaced. "
                f"It is now {aside.name}; if you don't need it, `rm {quoted(aside)}` deletes it."
            )
        try:
            after = self._verified(self.path, new)
        except CheckpointError:
            in_place.undo(self.path, only_last=True)
            raise
        if change.appended:
            self.notes.append(
                "Its pickle could not be replaced where it stands, so the new one was put behind the old end."
            )
        return replace(self._outcome(Action.FIXED, plan), after=after, undo_file=str(undo_file(self.path)))

    def _write(self, layout: Layout, plan: _Plan, new: list[FilePart], out: Path) -> CheckpointOutcome:
        fits = all(len(part.data) == len(edit.part.data) for part, edit in zip(new, plan.edits, strict=True))
        pickles = {part.name: part.data for part in new}
        if plan.kept is not None or (layout.kind == "legacy" and not fits):
            from ddpdoctor.checkpoints.writing.rebuilding import rebuild

            rebuild(layout, pickles, plan.kept, out, self.progress)
        else:
            from ddpdoctor.checkpoints.writing.copying import write_copy

            write_copy(self.path, layout.change(pickles), out, self.progress)
        try:
            after = self._verified(out, new)
        except CheckpointError:
            out.unlink()
            raise
        return replace(self._outcome(Action.WRITTEN, plan), after=after, written=str(out))

    def _verified(self, written: Path, new: list[FilePart]) -> CheckpointFile:
        # The facts of what was written, read back from there.
        recognised = recognise(written)
        with open_layout(written, recognised.kind) as layout:
            if layout.pickles() != {part.name: part.data for part in new}:
                raise Refused("What was written is not what reads back, and was taken back. Is the disk failing?")
            return describe(written, recognised, layout, new)

    def _to_safetensors(self, layout: Layout, parts: list[FilePart]) -> CheckpointOutcome:
        from ddpdoctor.checkpoints.writing.safetensors import plan_safetensors, write_safetensors

        plan = self._plan(layout, parts)
        program = carry_out(plan.edits[0]).program
        if self.dry_run:
            self.notes += plan_safetensors(layout, program).notes
            return self._outcome(Action.WOULD_FIX, plan)
        assert self.out is not None
        self.notes += write_safetensors(layout, program, self.out, self.progress)
        return replace(self._outcome(Action.WRITTEN, plan), after=inspect(self.out), written=str(self.out))

    def _outcome(self, action: Action, plan: _Plan | None = None) -> CheckpointOutcome:
        return CheckpointOutcome(
            path=str(self.path),
            action=action,
            before=self.before,
            moved=plan.moved if plan else (),
            renamed=plan.renamed if plan else 0,
            dropped=plan.dropped if plan else (),
            notes=self._all_notes(),
        )
