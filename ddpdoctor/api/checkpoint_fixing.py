"""`fix_checkpoint`: take the device pins out of checkpoints, without loading or running them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.results import CommandResult

if TYPE_CHECKING:
    from ddpdoctor.api.checkpoint_targets import Target
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


class FixingObserver:
    """Whom `fix_checkpoint` tells how far it is, and asks what is meant. This one wants to know nothing, and chooses nothing."""

    def start(self, targets: Sequence[Target], options: EditOptions) -> None:
        """These files are about to be handled, in that way."""

    def begin(self, target: Target) -> None:
        """Now this one."""

    def update(self, done: int, total: int) -> None:
        """So many bytes of it are done."""

    def choose(self, outcome: CheckpointOutcome) -> str | None:
        """Choose which of `outcome.choices` are the model's parameters; None: none of them."""
        return None

    def end(self, outcome: CheckpointOutcome) -> None:
        """This came of it; or of an index beside the files that were written."""


class CheckpointResult(CommandResult):
    """The outcomes of files.

    Args:
        outcomes: one of each.
        paths: as they were named.
        options: what was to be done.
    """

    command = "fix-checkpoint"

    def __init__(self, outcomes: Sequence[CheckpointOutcome], paths: Sequence[str], options: EditOptions) -> None:
        self.outcomes = tuple(outcomes)
        self._paths = tuple(paths)
        self._options = options

    @property
    def verdict(self) -> Verdict:
        return self.report().verdict

    def exit_code(self, *, strict: bool = False) -> int:
        """0 done, or nothing to do; 1 a dry run found something to fix; 2 a file could not be handled."""
        from ddpdoctor.report.reported_checkpoints import Action

        actions = {outcome.action for outcome in self.outcomes}
        if Action.REFUSED in actions:
            return 2
        return 1 if actions & {Action.WOULD_FIX, Action.WOULD_UNDO} else 0

    def report(self, *, with_facts: bool = False) -> Report:
        """Build what the command's `--json` prints, typed; the facts of the files are always in it."""
        from ddpdoctor.checkpoints.render_json import fixing_report
        from ddpdoctor.checks.catalogue import select

        return fixing_report(self.outcomes, select(["checkpoint"]))

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.checkpoints.kinds.framework_folders import framework_folders
        from ddpdoctor.checkpoints.render import checkpoints_document

        folders = list(framework_folders(map(Path, self._paths)))
        return checkpoints_document(self.outcomes, folders, self._paths, self._options, self.verdict)


def fix_checkpoint(
    paths: Sequence[str | os.PathLike[str]],
    *,
    dry_run: bool = False,
    undo: bool = False,
    output: str | None = None,
    to: str | None = None,
    strip_prefix: Sequence[str] = (),
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    params_only: bool = False,
    to_safetensors: bool = False,
    observer: FixingObserver | None = None,
) -> CheckpointResult:
    """Take the device pins out of checkpoints: in place, in milliseconds. Nothing in them is run.

    A file that can't be handled is an outcome with its reason, and is left as it was.

    Args:
        paths: files, sharded indexes, or folders of them.
        dry_run: change nothing.
        undo: restore what was fixed in place, byte for byte, from its undo file.
        output: write a new file, of several into a folder, instead.
        to: pin to this device; None: "cpu".
        strip_prefix: take these off the keys, "module." say.
        keep: with `output`, only these top-level keys.
        drop: with `output`, all but these.
        params_only: with `output`, the model's tensors and nothing else.
        to_safetensors: with `output`, write the tensors as a safetensors file.
        observer: is told how far it is.

    Raises:
        UsageError: the arguments contradict each other; nothing was changed.
    """
    from ddpdoctor.api.checkpoint_options import edit_options

    names = [os.fspath(path) for path in paths]
    options = edit_options(
        names,
        to=to,
        prefixes=list(strip_prefix),
        keep=list(keep),
        drop=list(drop),
        params_only=params_only,
        to_safetensors=to_safetensors,
        output=output,
        undo=undo,
    )
    watcher = observer or FixingObserver()
    targets = _targets(names, output, options, undo=undo, dry_run=dry_run)
    watcher.start(targets, options)
    handle = _undo if undo else _fix
    outcomes = []
    for target in targets:
        watcher.begin(target)
        outcomes.append(handle(target, options, watcher, dry_run))
        watcher.end(outcomes[-1])
    if any(target.folder for target in targets):
        from ddpdoctor.checkpoints.shard_index_copies import copy_indexes

        for outcome in copy_indexes(tuple(outcomes), options.strip_prefixes):
            outcomes.append(outcome)
            watcher.end(outcome)
    return CheckpointResult(outcomes, names, options)


def _targets(
    paths: Sequence[str], output: str | None, options: EditOptions, *, undo: bool, dry_run: bool
) -> list[Target]:
    """Find the files to handle; the folders of new ones are made."""
    from ddpdoctor.api.checkpoint_targets import choose_targets, make_folders, undo_targets
    from ddpdoctor.base.status_line import StatusLine

    line = StatusLine(lambda seconds: f"looking for checkpoints ({seconds:.0f} s)", 1.0)
    try:
        targets = undo_targets(paths) if undo else choose_targets(paths, output, options)
    finally:
        line.close()
    if not undo and not dry_run:
        make_folders(targets)
    return targets


def _undo(target: Target, options: EditOptions, observer: FixingObserver, dry_run: bool) -> CheckpointOutcome:
    from ddpdoctor.api.checkpoint_targets import nothing_to_undo
    from ddpdoctor.checkpoints.fixing import undo

    return nothing_to_undo(target.path) or undo(target.path, dry_run=dry_run)


def _fix(target: Target, options: EditOptions, observer: FixingObserver, dry_run: bool) -> CheckpointOutcome:
    from msgspec.structs import replace

    from ddpdoctor.checkpoints.fixing import fix

    outcome = fix(target.path, options, out=target.out, dry_run=dry_run, progress=observer.update)
    if not outcome.choices or (chosen := observer.choose(outcome)) is None:
        return outcome
    named = replace(options, keep=(chosen,))
    return fix(target.path, named, out=target.out, dry_run=dry_run, progress=observer.update)
