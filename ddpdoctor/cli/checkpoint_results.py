"""A ledger of what `fix-checkpoint` has done by now, to be said even if it is stopped, or its report can't be written."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from ddpdoctor.report.reported_checkpoints import Action

if TYPE_CHECKING:
    from ddpdoctor.api.checkpoint_targets import Target
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


class _Begun(NamedTuple):
    """A file that is being handled, and what was beside it before."""

    target: Target
    undo_size: int
    out_existed: bool


class Ledger:
    """The outcomes so far. paths: as the user named them."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.outcomes: list[CheckpointOutcome] = []
        self._paths = paths
        self._begun: _Begun | None = None

    def begin(self, target: Target) -> None:
        from ddpdoctor.checkpoints.writing.journal import undo_size

        self._begun = _Begun(target, undo_size(target.path), target.out is not None and os.path.lexists(target.out))

    def enter(self, outcome: CheckpointOutcome) -> None:
        """An outcome: of the file that was begun, if one was."""
        self.outcomes.append(outcome)
        self._begun = None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Around all that writes the report. If that fails (the disk is full), what was done is said on stderr.

        Raises:
            typer.Exit: it failed.
        """
        try:
            yield
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # What is still in its buffer can't be written later either.
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            with suppress(OSError):
                print(f"The report could not be written: {error.strerror}.", self.words(), file=sys.stderr)
            raise typer.Exit(2) from error

    def words(self) -> str:
        """Say what was done by now, and how to take it back."""
        fixed = [Path(outcome.path) for outcome in self.outcomes if outcome.action is Action.FIXED]
        done = [outcome.written or outcome.path for outcome in self.outcomes if outcome.action in _CHANGING]
        unread = ""
        if self._begun is not None:
            from ddpdoctor.checkpoints.writing.journal import undo_size

            target, size_before, out_existed = self._begun
            size = undo_size(target.path)
            if size != size_before:
                done.append(str(target.path))
            if size > size_before:
                fixed.append(target.path)
            if target.out is not None and not out_existed and os.path.lexists(target.out):
                done.append(str(target.out))
                unread = ", but not yet read back"
        if not done:
            return "Nothing was changed."
        from ddpdoctor.base.text import one_line
        from ddpdoctor.checkpoints.render import undo_command

        last = f"{one_line(done[-1])}{unread}"
        which = last if len(done) == 1 else f"{len(done)} files, the last of them {last}"
        text = f"Done by then, and whole: {which}. All else is as it was.{' To go back:' if fixed else ''}"
        told = textwrap.fill(text, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
        return f"{told}\n    {undo_command(fixed, self._paths)}" if fixed else told


_CHANGING = (Action.FIXED, Action.WRITTEN, Action.UNDONE)
