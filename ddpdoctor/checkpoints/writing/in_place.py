"""Changing a checkpoint where it lies, taking such changes back, and cleaning up after a run that was killed.

Whatever happens, the file holds the old bytes or the new ones, or the undo file says how to get the old ones back: it is
on disk before the first byte of the checkpoint changes, and what is appended is on disk before the first patch is written.
Inode, mode, owner and date of the checkpoint stay as they were.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from ddpdoctor.base.text import plural
from ddpdoctor.checkpoints.errors import Busy, CheckpointError, Refused, Stale
from ddpdoctor.checkpoints.formats.layouts import Change
from ddpdoctor.checkpoints.writing import journal
from ddpdoctor.checkpoints.writing.exclusive_open import (
    ExclusiveFile,
    defer_signals,
    open_exclusively,
    open_folder,
    opened_in,
    refuse_unopened,
)
from ddpdoctor.checkpoints.writing.journal import JournalRecord, JournalStage, JournalState, Layer, undo_file
from ddpdoctor.checkpoints.writing.undo_advice import (
    COPY_ADVICE,
    NEVER_BEGUN,
    Recovery,
    ending_of,
    fail_half_changed,
    reason,
    refuse_missing_checkpoint,
    refuse_untidy,
    refuse_unwritten,
    refuse_without_undo,
    stale,
    torn_earlier,
)


def change_in_place(path: Path, change: Change, *, aside: str = "") -> Path:
    """Apply the change and return the undo file. The caller has closed the checkpoint, and called `recover` before.

    A signal that comes before the end takes the change back, and is delivered then; a later one when all is complete. Damaged
    is raised in the one case in which the old bytes could not be brought back either: the undo file is then left for `undo`.
    aside: the new name of an undo file of other content, once the new one is written.

    Raises:
        Refused: the file must not be changed, has changed since it was read, or could not be: then it is as it was.
    """
    with defer_signals() as signals, ExitStack() as stack:
        with _naming_a_copy():
            file = stack.enter_context(open_exclusively(path))
        stack.enter_context(_read_errors_in_words())
        _ensure_unchanged(file, change)
        with _naming_a_copy():
            _ensure_settled(path, file, is_stale=bool(aside))
        record = _record(file, journal.layer_of(file.file, change), aside)
        try:
            if not signals:
                _apply(file.file, change)
                _ensure(file.file, record.layer, JournalState.AFTER)
                _keep_date(file.file, record.layer)
                journal.ensure_there(file, record)
        except OSError as error:
            _roll_back(path, file, record, reason(error))
            text = f"The change could not be written: {reason(error)}. The file is as it was"
            refuse_unwritten(text, error, file.folder)
        except BaseException:
            _roll_back(path, file, record, "until the program failed")
            raise
        stopped = bool(signals)
        if stopped:
            _roll_back(path, file, record, "until a signal came")
        else:
            _mark_complete(file, record)
    if stopped:
        # Mostly the signal itself has raised something by now.
        raise Refused("A signal came while the file was being changed. The file is as it was")
    return undo_file(path)


def recover(path: Path, *, dry_run: bool = False) -> Recovery | None:
    """Finish or take back what a killed run left; None if there is nothing to be done. Called before anything else.

    Refused is raised, with nothing touched, if the undo file is not one: Stale if it belongs to other content than the file
    now has, Torn if the file may be a half changed one all the same. A dry run only says what would be done.
    """
    with open_folder(path) as folder:
        found = _unsettled(path, folder)
    if found is None or dry_run:
        return found and found._replace(is_planned=True)
    with defer_signals(), open_exclusively(path) as file, _read_errors_in_words():
        draft = journal.remove_draft(file)
        records = journal.read(file)
        ending = _settle(path, file, records[-1]) if records else None
        return ending or (NEVER_BEGUN if draft else None)


def undo(path: Path, *, only_last: bool = False, dry_run: bool = False) -> int:
    """Take all changes back, the last one first, or only that one. The undo file goes with the first change.

    Refused is raised if there is no undo file, or it belongs to other content; Damaged if the old bytes could not be written
    back: the undo file then still holds them. Returns how many changes these are; a dry run only counts them.
    """
    with open_folder(path) as folder:
        if not os.path.lexists(f"/proc/self/fd/{folder}/{path.name}{journal.SUFFIX}"):
            refuse_without_undo(path, folder)
        with _looked_at(path, folder) as file:
            records = journal.read(file)
            if not records:
                refuse_without_undo(path, folder)
            _state(path, file.file, records[-1])
    if not dry_run:
        with defer_signals(), open_exclusively(path) as file, _read_errors_in_words():
            journal.remove_draft(file)
            records = journal.read(file)
            _take_back(path, file, records[-1:] if only_last else records)
    return 1 if only_last else len(records)


def _take_back(path: Path, file: ExclusiveFile, records: Sequence[JournalRecord]) -> None:
    # The last one first. What is raised says how far it came.
    for done, record in enumerate(reversed(records)):
        try:
            _state(path, file.file, record)
            try:
                journal.mark(file, record, JournalStage.UNDOING)
            except OSError as error:
                text = f"The undo file {undo_file(path).name} can't be written: {reason(error)}. Nothing was changed"
                raise Refused(text) from None
            _roll_back(path, file, record, "by an undo that failed")
        except CheckpointError as error:
            raise (error.after(f"{plural(done, 'change')} taken back.") if done else error) from None


@contextmanager
def _naming_a_copy() -> Iterator[None]:
    try:
        yield
    except Busy:
        raise
    except Refused as refused:
        advice = f"{refused.advice}; or write a new file: add -o and its name" if refused.advice else COPY_ADVICE
        raise type(refused)(refused.text, advice, refused.commands) from None


@contextmanager
def _read_errors_in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"The disk could not be read: {reason(error)}") from None


def _unsettled(path: Path, folder: int) -> Recovery | None:
    """Look for what there is to be done; nothing is touched."""
    here = f"/proc/self/fd/{folder}/{path.name}"
    if not any(os.path.lexists(here + suffix) for suffix in (journal.SUFFIX, journal.DRAFT_SUFFIX)):
        return None
    with suppress(OSError):
        if not stat.S_ISREG(Path(here).stat().st_mode):
            return None  # What it is, is said later.
    with _looked_at(path, folder) as file:
        records = journal.read(file)
        found = ending_of(records[-1].stage, _state(path, file.file, records[-1])) if records else None
        return NEVER_BEGUN if found is None and journal.has_draft(file) else found


@contextmanager
def _looked_at(path: Path, folder: int) -> Iterator[ExclusiveFile]:
    # The checkpoint, open for reading.
    with ExitStack() as stack:
        try:
            file = stack.enter_context(opened_in(folder, path.name))
        except FileNotFoundError:
            refuse_missing_checkpoint(path, folder)
        except OSError as error:
            refuse_unopened(path, error)
        yield ExclusiveFile(file, folder, path.name)


def _state(path: Path, file: int, record: JournalRecord) -> JournalState:
    state = journal.state(file, record.layer)
    if state is JournalState.FOREIGN:
        raise torn_earlier(path) if journal.may_be_torn(file, record) else stale(path)
    return state


def _settle(path: Path, file: ExclusiveFile, record: JournalRecord) -> Recovery | None:
    ending = ending_of(record.stage, _state(path, file.file, record))
    if ending is None:
        return None
    if ending.finished:
        os.fsync(file.file)
        _keep_date(file.file, record.layer)
        _mark_complete(file, record)
    else:
        _roll_back(path, file, record, "by a run that was killed")
    return ending


def _ensure_settled(path: Path, file: ExclusiveFile, *, is_stale: bool) -> None:
    # is_stale: the undo file is known to be of other content.
    records = journal.read(file)
    if not records:
        return
    try:
        settled = _state(path, file.file, records[-1]) is JournalState.AFTER and not is_stale
    except Stale:
        if not is_stale:
            raise
        settled = True
    if not settled:
        raise Busy("Another run has worked on the file meanwhile", "Run the command again")


def _ensure_unchanged(file: ExclusiveFile, change: Change) -> None:
    same = os.fstat(file.file).st_size == change.size and all(
        journal.read_exactly(file.file, len(patch.old), patch.offset) == patch.old for patch in change.patches
    )
    if not same:
        raise Busy("The file was changed while it was being read", "Run the command again when its writer is done")


def _record(file: ExclusiveFile, layer: Layer, aside: str) -> JournalRecord:
    """Write the undo record, durably. Refused is raised if that can't be, with nothing changed."""
    name = file.name + journal.SUFFIX
    try:
        with _naming_a_copy():
            journal.remove_draft(file)
            return journal.add(file, layer, aside)
    except OSError as error:
        text = f"The undo file {name} can't be written beside it: {reason(error)}. Nothing was changed"
        refuse_unwritten(text, error, file.folder)


def _apply(file: int, change: Change) -> None:
    if change.appended:
        journal.write_exactly(file, change.appended, change.size)
        os.fsync(file)
    for patch in change.patches:
        journal.write_exactly(file, patch.new, patch.offset)
    if change.patches:
        os.fsync(file)


def _ensure(file: int, layer: Layer, state: JournalState) -> None:
    if journal.state(file, layer) is not state:
        raise OSError(errno.EIO, "what was written doesn't read back the same")


def _mark_complete(file: ExclusiveFile, record: JournalRecord) -> None:
    # If that fails or gets lost, the next run does it again.
    with suppress(OSError, Refused):
        journal.mark(file, record, JournalStage.COMPLETE)


def _keep_date(file: int, layer: Layer) -> None:
    os.utime(file, ns=(os.fstat(file).st_atime_ns, layer.mtime_ns))
    os.fsync(file)


def _roll_back(path: Path, file: ExclusiveFile, record: JournalRecord, why: str) -> None:
    """Bring the bytes from before the record's change back, and take the record off.

    Damaged is raised if the bytes can't be brought back, Refused if only the date or the undo file can't be put right.
    why: what stopped the change, for the sentence of the error.
    """
    layer = record.layer
    try:
        changed = [
            patch
            for patch in layer.patches
            if journal.read_exactly(file.file, len(patch.old), patch.offset) != patch.old
        ]
        for patch in changed:
            journal.write_exactly(file.file, patch.old, patch.offset)
        # Not only for what was just written: a recovery may have been killed before it came to this.
        with suppress(OSError) if not changed else nullcontext():
            os.fsync(file.file)
        if layer.appended:
            os.ftruncate(file.file, layer.size)
        _ensure(file.file, layer, JournalState.BEFORE)
    except OSError as error:
        fail_half_changed(path, why, error)
    try:
        _keep_date(file.file, layer)
        journal.pop(file, record)
    except Refused as refused:
        raise refused.after("The content is as it was.") from None
    except OSError as error:
        refuse_untidy(error)
