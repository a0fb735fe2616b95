"""`ddpdoctor run -- COMMAND`: the command as it is, and a diagnosis where it fails or falls silent."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Collection
from typing import Annotated

import typer

CONTEXT = {"allow_interspersed_args": False}
"""Options that follow the command's name are the command's own."""

HANG_AFTER = 300.0


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="[--] COMMAND...", help="As it is started without ddpdoctor."),
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
        ),
    ] = None,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings/--no-settings",
            help="Set torch's flight recorder and Python's fault handler on, unless you have set them yourself.",
        ),
    ] = True,
    debug_server: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            help="Start torch's debug server (2.10 or later) in the ranks, which has no password: "
            "jobs --hang --debug-server asks it.",
        ),
    ] = None,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember/--no-remember",
            help="Keep what kinds of lines a run prints that ends well, and compare the command's next failure with it.",
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
    from ddpdoctor.run.added_settings import folder_for_dumps, settings_for
    from ddpdoctor.run.debug_server import debug_server_settings
    from ddpdoctor.run.diagnosis import count_oom_kills, looks_at_jobs, one_of_many
    from ddpdoctor.run.output_file import OutputFile, OutputFileError
    from ddpdoctor.run.supervisor import RunOptions, supervise

    if not command[0]:
        raise typer.BadParameter("the command is empty; is the variable in it set?")
    if math.isnan(hang_after):
        raise typer.BadParameter("--hang-after is no number")
    if keep is not None and not keep.strip():
        raise typer.BadParameter("--keep is empty; is the variable in it set?")
    try:
        kept = OutputFile(keep) if keep else None
    except OutputFileError as error:
        raise typer.BadParameter(f"--keep {keep}: {error}") from None
    before = dict(os.environ)
    folder = folder_for_dumps(before) if settings else ""
    added = settings_for(command, before, f"{folder}/rank_" if folder else "") if settings else {}
    many = one_of_many(before)
    if debug_server is not None:
        served = debug_server_settings(debug_server, command, before)
        added.update(served.settings)
        if not many:
            print(served.note, file=sys.stderr, flush=True)
    code = supervise(
        RunOptions(
            command=command,
            environ={**before, **added},
            hang_after=hang_after if looks_at_jobs(before) else 0.0,
            keep=kept,
            many=many,
            dumps=folder,
            remember=remember,
            killed=count_oom_kills(),
            ignored=_ignored(),
            mask=signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        )
    )
    raise typer.Exit(code)


def _ignored() -> Collection[int]:
    """The signals that whoever started us had ignored, as nohup does; what Python itself ignores is another matter."""
    now = {valid_signal for valid_signal in signal.valid_signals() if signal.getsignal(valid_signal) is signal.SIG_IGN}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return now - {signal.SIGPIPE, signal.SIGXFSZ}
