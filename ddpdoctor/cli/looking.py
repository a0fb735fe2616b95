"""Looking at this host on a command's behalf: the choice of the patient, and progress on a terminal's stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.probes.context import Context
from ddpdoctor.probes.patient.asking import ask
from ddpdoctor.probes.patient.choice import choose_python

if TYPE_CHECKING:
    from ddpdoctor.facts.snapshot import Snapshot


CheckpointOption = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Look into this checkpoint, too; it is read as data and never run. A file or a folder. Repeatable.",
    ),
]


def begin(python: str | None, *, quick: bool = False, checkpoints: Sequence[str] = ()) -> Context:
    """Chooses the patient and has it import torch at once: that takes longest, and all else happens meanwhile."""
    if python is not None and not python.strip():
        raise typer.BadParameter("--python is empty; is the variable in it set?")
    if not all(one.strip() for one in checkpoints):
        raise typer.BadParameter("--checkpoint is empty; is the variable in it set?")
    path, chosen_by = choose_python(python, os.environ)
    context = Context(path, chosen_by, quick=quick, checkpoints=tuple(checkpoints))
    if not quick:
        threading.Thread(target=ask, args=(context, "torch"), daemon=True).start()
    return context


def look(context: Context, groups: Iterable[str]) -> Snapshot:
    """Takes a snapshot of this host."""
    # Here and not above: the import of torch shall be under way before the many modules of the probes are loaded.
    from ddpdoctor.probes.runner import take_snapshot

    wanted = set(groups)
    progress = _Progress(wanted) if sys.stderr.isatty() else None
    try:
        return take_snapshot(context, wanted, done=progress.done if progress else lambda group: None)
    finally:
        if progress:
            progress.close()


class _Progress:
    """One line on stderr that says what we still wait for; gone when we are done."""

    _DELAY = 0.3
    """Seconds before it shows: what is quick needs no progress."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._waiting = dict.fromkeys(groups)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def done(self, group: str) -> None:
        with self._lock:
            self._waiting.pop(group, None)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(1)

    def _show(self) -> None:
        shown = False
        while not self._closed.wait(self._DELAY):
            with self._lock:
                waiting = [group.replace("_", " ") for group in self._waiting]
            seconds = time.monotonic() - self._started
            text = f"Looking at this host ({seconds:.0f} s), waiting for: {', '.join(waiting) or 'nothing more'}"
            sys.stderr.write("\r\x1b[K" + text[: _terminal_width() - 1])
            sys.stderr.flush()
            shown = True
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _terminal_width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 80
