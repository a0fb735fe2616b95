"""`ddpdoctor fix-checkpoint`: take the device pins out of checkpoints, without running them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.checkpoint_fixing import FixingObserver
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.base.text import human
from ddpdoctor.cli.asking import ask
from ddpdoctor.cli.checkpoint_results import Ledger
from ddpdoctor.cli.options import JsonAloneOption, MarkdownOption
from ddpdoctor.cli.output import ReportForm

if TYPE_CHECKING:
    from ddpdoctor.api.checkpoint_targets import Target
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


BAR_COLUMNS = 20


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
        str | None, typer.Option("--to", metavar="DEVICE", help="Pin to this device. Default: cpu.")
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
    as_json: JsonAloneOption = False,
    as_markdown: MarkdownOption = False,
) -> None:
    """Take the device pins out of checkpoints, without loading or running them: in place, in milliseconds.

    Saved on GPU 3, a checkpoint says cuda:3: eight ranks then fill that one GPU, and fewer GPUs can't load it at all.

    Nothing in it is run, so that a malicious file does no harm here. An undo file takes a change back.

    Exit code: 0 done, or nothing to do; 1 --dry-run found something to fix; 2 a file could not be handled.
    """
    from ddpdoctor.api import checkpoint_fixing

    form = ReportForm(as_json=as_json, as_markdown=as_markdown)
    ledger = Ledger(paths)
    observer = _Silent(ledger) if form.option else _AtTheTerminal(ledger, paths)
    try:
        with form.refusals(), observer:
            result = checkpoint_fixing.fix_checkpoint(
                paths,
                dry_run=dry_run,
                undo=undo,
                output=output,
                to=device,
                strip_prefix=prefixes or (),
                keep=keep or (),
                drop=drop or (),
                params_only=params_only,
                to_safetensors=to_safetensors,
                observer=observer,
            )
        with ledger.telling():
            if form.option:
                form.print(result)
            else:
                observer.sum_up()
    except StoppedBySignal as stopped:
        stopped.text = f"Stopped. {ledger.words()}"
        raise
    raise typer.Exit(result.exit_code())


class _Silent(FixingObserver):
    """Enters into the ledger what is done, and shows how far it is."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._progress: FilesProgress | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.close()

    def start(self, targets: Sequence[Target], options: EditOptions) -> None:

        self._progress = FilesProgress(len(targets))

    def begin(self, target: Target) -> None:
        if self._progress:
            self._progress.begin(target.path.name)
        self._ledger.begin(target)

    def update(self, done: int, total: int) -> None:
        if self._progress:
            self._progress.update(done, total)

    def end(self, outcome: CheckpointOutcome) -> None:
        self._ledger.enter(outcome)
        if self._progress:
            self._progress.pause()

    def sum_up(self) -> None:
        """After the last file."""


class _AtTheTerminal(_Silent):
    """Tells of each file as soon as it is done, and asks which keys are meant."""

    def __init__(self, ledger: Ledger, paths: Sequence[str]) -> None:
        from ddpdoctor.report.terminal import screen_for

        super().__init__(ledger)
        self._paths = paths
        self._screen = screen_for(sys.stdout, os.environ)
        self._tell: Callable[[CheckpointOutcome], None] = lambda outcome: None
        self._files = 0

    def start(self, targets: Sequence[Target], options: EditOptions) -> None:
        from ddpdoctor.checkpoints.kinds.framework_folders import framework_folders
        from ddpdoctor.checkpoints.render import file_item, file_sections, folder_item

        for folder in framework_folders(map(Path, self._paths)):
            with self._ledger.telling():
                self._screen.write(folder_item(folder))
        super().start(targets, options)
        self._files = len(targets)
        if self._files == 1:
            self._tell = lambda outcome: self._screen.show_sections(file_sections(outcome, options))
        else:
            self._tell = lambda outcome: self._screen.write(file_item(outcome))

    def choose(self, outcome: CheckpointOutcome) -> str | None:
        if self._progress is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        self._progress.pause()
        chosen = _ask(outcome)
        self._progress.resume()
        return chosen

    def end(self, outcome: CheckpointOutcome) -> None:
        super().end(outcome)
        with self._ledger.telling():
            self._tell(outcome)

    def sum_up(self) -> None:
        if self._files != 1:
            from ddpdoctor.checkpoints.render import sum_sections
            from ddpdoctor.report.document import Paragraph

            self._screen.write(Paragraph(""))
            self._screen.show_sections(sum_sections(self._ledger.outcomes, self._paths))


def _ask(outcome: CheckpointOutcome) -> str | None:
    """Ask which of the choices the user means; None for none of them."""
    for number, key in enumerate(outcome.choices, start=1):
        print(f"  {number}  {key or '(the whole file)'}", file=sys.stderr)
    while True:
        answer = ask(f"Which are the model's parameters of {outcome.path}? [none] ").strip()
        if not answer:
            return None
        if answer in outcome.choices:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(outcome.choices):
            return outcome.choices[int(answer) - 1]


class FilesProgress:
    """A status line for several files, and for one that takes long."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._number = 0
        self._name = ""
        self._began = 0.0
        self._amount = (0, 0)
        self._paused = False
        self._line = StatusLine(self.text, 1.0)
        self.close = self._line.close

    def begin(self, name: str) -> None:
        """The next file."""
        self._number += 1
        self._name = name
        self._began = time.monotonic()
        self._amount = (0, 0)
        self._paused = False

    def pause(self) -> None:
        """Until `resume` or `begin`, the screen belongs to others."""
        self._paused = True
        self._line.clear()

    def resume(self) -> None:
        self._paused = False

    def update(self, done: int, total: int) -> None:
        """So many bytes of so many, of the present file."""
        self._amount = (done, total)

    def text(self, seconds: float) -> str:
        """Word the line so many seconds after the first file was begun; nothing while the screen belongs to others."""
        if self._paused:
            return ""
        count = f"file {self._number} of {self._files}, " if self._files > 1 else ""
        done, total = self._amount
        if not total:
            return f"{count}reading {self._name} ({seconds:.0f} s)"
        if done >= total:
            return f"{count}verifying {self._name} ({seconds:.0f} s)"
        filled = BAR_COLUMNS * done // total
        bar = "━" * filled + "─" * (BAR_COLUMNS - filled)
        left = (time.monotonic() - self._began) * (total - done) / done if done else 0
        return (
            f"{bar} {100 * done // total:3d} %, {human(done)} of {human(total)}, {left:.0f} s left, {count}{self._name}"
        )
