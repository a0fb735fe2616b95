"""`ddpdoctor fix-checkpoint`: take the device pins out of checkpoints, without running them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.cli.asking import ask

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.cli.checkpoint_results import Ledger
    from ddpdoctor.cli.checkpoint_targets import Target
    from ddpdoctor.cli.progress import FilesProgress
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


def fix_checkpoint(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Checkpoint files, sharded indexes, or folders of them.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; exit 1 if there is something to fix.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore what was fixed in place, byte for byte, from its undo file.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="OUT", help="Write a new file (of several: into a folder) instead."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--to", metavar="DEVICE", help="Pin to this device. Default: cpu.", show_default=False)
    ] = None,
    prefixes: Annotated[
        list[str] | None,
        typer.Option(
            "--strip-prefix", metavar="PREFIX", help="Take this off the keys: module. or _orig_mod. Repeatable."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEYS", help="With -o: only these top-level keys (comma-separated or repeated)."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="KEYS", help="With -o: all but these, as in --drop optimizer.")
    ] = None,
    params_only: Annotated[
        bool, typer.Option("--params-only", help="With -o: the model's tensors and nothing else.")
    ] = False,
    to_safetensors: Annotated[
        bool, typer.Option("--to-safetensors", help="With -o: the tensors, as a safetensors file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take the device pins out of checkpoints, without loading or running them: in place, in milliseconds.

    Saved on GPU 3, a checkpoint says cuda:3: eight ranks then fill that one GPU, and fewer GPUs can't load it at all.

    Nothing in it is run, so that a malicious file does no harm here. An undo file takes a change back.

    Exit code: 0 done, or nothing to do; 1 --dry-run found something to fix; 2 a file could not be handled.
    """
    from ddpdoctor.cli.checkpoint_results import Ledger
    from ddpdoctor.cli.fix_options import make_wishes

    wishes = make_wishes(
        paths,
        to=device,
        prefixes=prefixes,
        keep=keep,
        drop=drop,
        params_only=params_only,
        to_safetensors=to_safetensors,
        output=output,
        undo=undo,
    )
    ledger = Ledger(paths)
    try:
        chosen, handle = _choose(paths, output, wishes, undo=undo, dry_run=dry_run, ask=not as_json)
        if as_json:
            _run(chosen, handle, lambda outcome: None, wishes.strip_prefixes, ledger)
            with ledger.telling():
                _print_json(ledger.outcomes)
        else:
            _run_and_show(chosen, handle, wishes, paths, ledger)
    except StoppedBySignal as stopped:
        stopped.text = f"Stopped. {ledger.words()}"
        raise
    raise typer.Exit(_exit_code(ledger.outcomes))


Handle = Callable[["Target", "FilesProgress"], "CheckpointOutcome"]


def _choose(
    paths: Sequence[str], output: str | None, wishes: EditOptions, *, undo: bool, dry_run: bool, ask: bool
) -> tuple[list[Target], Handle]:
    """Which files are to be handled, and how."""
    from ddpdoctor.base.status_line import StatusLine
    from ddpdoctor.cli.checkpoint_targets import choose_targets, make_folders, undo_targets

    line = StatusLine(lambda seconds: f"looking for checkpoints ({seconds:.0f} s)", 1.0)
    try:
        chosen = undo_targets(paths) if undo else choose_targets(paths, output, wishes)
    finally:
        line.close()
    if undo:
        return chosen, _undoing(dry_run=dry_run)
    if not dry_run:
        make_folders(chosen)
    return chosen, _fixing(wishes, dry_run=dry_run, ask=ask)


def _undoing(*, dry_run: bool) -> Handle:
    from ddpdoctor.checkpoints.fixing import undo
    from ddpdoctor.cli.checkpoint_targets import nothing_to_undo

    def handle(target: Target, progress: FilesProgress) -> CheckpointOutcome:
        return nothing_to_undo(target.path) or undo(target.path, dry_run=dry_run)

    return handle


def _fixing(wishes: EditOptions, *, dry_run: bool, ask: bool) -> Handle:
    from msgspec.structs import replace

    from ddpdoctor.checkpoints.fixing import fix

    def handle(target: Target, progress: FilesProgress) -> CheckpointOutcome:
        outcome = fix(target.path, wishes, out=target.out, dry_run=dry_run, progress=progress.update)
        if outcome.choices and ask and sys.stdin.isatty() and sys.stderr.isatty():
            progress.pause()
            chosen = _ask(outcome)
            progress.resume()
            if chosen is not None:
                named = replace(wishes, keep=(chosen,))
                outcome = fix(target.path, named, out=target.out, dry_run=dry_run, progress=progress.update)
        return outcome

    return handle


def _ask(outcome: CheckpointOutcome) -> str | None:
    """Which of the choices the user means; None for none of them."""
    for number, one in enumerate(outcome.choices, start=1):
        print(f"  {number}  {one or '(the whole file)'}", file=sys.stderr)
    while True:
        answer = ask(f"Which are the model's parameters of {outcome.path}? [none] ").strip()
        if not answer:
            return None
        if answer in outcome.choices:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(outcome.choices):
            return outcome.choices[int(answer) - 1]


def _run(
    chosen: Sequence[Target],
    handle: Handle,
    tell: Callable[[CheckpointOutcome], None],
    prefixes: Sequence[str],
    ledger: Ledger,
) -> None:
    """Handles one file after the other, and tells of each as soon as it is done; then the indexes of what was written."""
    from ddpdoctor.cli.progress import FilesProgress

    progress = FilesProgress(len(chosen))
    try:
        for target in chosen:
            progress.begin(target.path.name)
            ledger.begin(target)
            outcome = handle(target, progress)
            ledger.enter(outcome)
            progress.pause()
            with ledger.telling():
                tell(outcome)
    finally:
        progress.close()
    if any(target.folder for target in chosen):
        from ddpdoctor.checkpoints.index_copies import copy_indexes

        for outcome in copy_indexes(ledger.outcomes, prefixes):
            ledger.enter(outcome)
            with ledger.telling():
                tell(outcome)


def _run_and_show(
    chosen: Sequence[Target], handle: Handle, wishes: EditOptions, paths: Sequence[str], ledger: Ledger
) -> None:
    from pathlib import Path

    from ddpdoctor.checkpoints.kinds.framework_folders import framework_folders
    from ddpdoctor.checkpoints.render_terminal import show_folder, show_line, show_one, show_sum
    from ddpdoctor.report.screen import screen_for

    screen = screen_for(sys.stdout, os.environ)
    for folder in framework_folders(map(Path, paths)):
        with ledger.telling():
            show_folder(screen, folder)
    if len(chosen) == 1:
        _run(chosen, handle, lambda outcome: show_one(screen, outcome, wishes), wishes.strip_prefixes, ledger)
        return
    _run(chosen, handle, lambda outcome: show_line(screen, outcome), wishes.strip_prefixes, ledger)
    with ledger.telling():
        show_sum(screen, ledger.outcomes, paths)


def _print_json(outcomes: Sequence[CheckpointOutcome]) -> None:
    from ddpdoctor.checkpoints.render_json import fixing_report
    from ddpdoctor.checks.catalogue import select
    from ddpdoctor.report.contract import to_json

    print(to_json(fixing_report(outcomes, select(["checkpoint"]))))


def _exit_code(outcomes: Sequence[CheckpointOutcome]) -> int:
    from ddpdoctor.report.reported_checkpoints import Action

    actions = {outcome.action for outcome in outcomes}
    if Action.REFUSED in actions:
        return 2
    return 1 if actions & {Action.WOULD_FIX, Action.WOULD_UNDO} else 0
