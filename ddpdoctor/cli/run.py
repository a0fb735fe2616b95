"""`ddpdoctor run -- COMMAND`: the command as it is, and a diagnosis where it fails or falls silent."""

from __future__ import annotations

import math
import os
import secrets
import signal
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

CONTEXT = {"allow_interspersed_args": False}
"""What follows the command's name is the command's own."""

HANG_AFTER = 300.0


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="[--] COMMAND...", help="As it is started without ddpdoctor.", show_default=False),
    ],
    hang_after: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0,
            help="After so many seconds without output look where the ranks stand, and say so; 0: never.",
        ),
    ] = HANG_AFTER,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the kept part of the output into this file, when the command has ended.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings/--no-settings",
            help="Set torch's flight recorder and Python's fault handler on, unless you have set them yourself.",
        ),
    ] = True,
) -> None:
    """Start a command, torchrun say, and diagnose it if it fails or falls silent.

    The command runs as it would without: its output, its terminal, the signals
    it gets and its exit code are the same. If it fails, what it said is
    diagnosed, on standard error. If it falls silent, its ranks are looked at
    while they run on, and nothing is done to them.

    Exit code: the command's own. 127: there is no such command, 126: it can't
    be run.
    """
    from ddpdoctor.running.diagnosing import diagnose, dumps_of_run, killed_so_far, look_at, looks_at_jobs, one_of_many
    from ddpdoctor.running.settings import settings_for
    from ddpdoctor.running.supervising import Orders, supervise

    if not command[0]:
        raise typer.BadParameter("the command is empty; is the variable in it set?")
    if math.isnan(hang_after):
        raise typer.BadParameter("--hang-after is no number")
    if keep is not None and not keep.strip():
        raise typer.BadParameter("--keep is empty; is the variable in it set?")
    if keep is not None and (problem := _not_to_be_written(Path(keep))):
        raise typer.BadParameter(f"--keep {keep}: {problem}")
    before = dict(os.environ)
    dumps = f"{tempfile.gettempdir()}/ddpdoctor-run-{secrets.token_hex(4)}-rank_"
    added = settings_for(command, before, dumps) if settings else {}
    environ = {**before, **added}
    many, killed = one_of_many(before), killed_so_far()
    code = supervise(
        Orders(
            command=command,
            environ=environ,
            hang_after=hang_after if looks_at_jobs(before) else 0.0,
            keep=keep or "",
            brief=bool(many),
            ignored=_ignored(),
            mask=signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            look=lambda pid, seconds: look_at(pid, seconds, many),
            diagnose=lambda ended: diagnose(ended, many, environ, killed, keep or ""),
        )
    )
    if not code and dumps in added.values():
        for path in dumps_of_run(added, 0):
            with suppress(OSError):
                Path(path).unlink()
    raise typer.Exit(code)


def _not_to_be_written(path: Path) -> str:
    """Why no file can be written there, before a run of hours is in vain; "" if one can. What is in it stays until then."""
    try:
        if path.is_dir():
            return "it is a folder"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "it may not be written"
        folder = path.parent
        if not folder.is_dir():
            return f"there is no folder {folder}"
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"no file may be made in {folder}"
    except OSError as error:
        return error.strerror or str(error)


def _ignored() -> Collection[int]:
    """The signals that whoever started us had ignored, as nohup does; what Python itself ignores is another matter."""
    now = {one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return now - {signal.SIGPIPE, signal.SIGXFSZ}
