"""`ddpdoctor diagnose-log`: from the logs of a run to what failed first, on which rank, and what to do."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ddpdoctor.base.error_lines import complain
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.base.text import human
from ddpdoctor.cli.probing import PythonOption, begin
from ddpdoctor.probes.session import collect_facts

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.logs.diagnosis import LogJudgement

STDIN = "-"


def diagnose_log(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Logs of one run, folders of them, or - for standard input."),
    ],
    here: Annotated[
        bool, typer.Option("--here", help="Hold what the log says against the facts of this host.")
    ] = False,
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Hold it against this saved snapshot of the host that failed.",
            show_default=False,
        ),
    ] = None,
    python: PythonOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Also the traceback, each kind of effect, and why noise is harmless."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The verdict in one line.")] = False,
) -> None:
    """Find in the logs of a run what failed first, on which rank and host, why, and what to do.

    Logs of torchrun (folders of --log-dir, too), srun, mpirun, kubectl and
    others, of any size, also compressed by gzip. What only followed, and what
    healthy runs print as well, is told apart from the cause. Nothing in a log
    is run, and nothing is sent.

    Exit code: 1 the report names an illness, an ordinary error of the script,
    or an end from outside. 0 nothing in it speaks of a failure. 2 no verdict:
    something failed that is not known here, only what followed was logged, or
    a log could not be read; or wrong usage.
    """
    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")
    if here and snapshot is not None:
        raise typer.BadParameter("--here looks at this host; --snapshot takes a saved one instead")
    if python is not None and not here:
        raise typer.BadParameter("--python is for --here")
    if snapshot is not None and not snapshot.strip():
        raise typer.BadParameter("--snapshot is empty; is the variable in it set?")
    if not all(path.strip() for path in paths):
        raise typer.BadParameter("the name of a log is empty; is the variable in it set?")
    if [*paths, snapshot].count(STDIN) > 1:
        raise typer.BadParameter("standard input (-) can be read once only")
    from ddpdoctor.logs.parse.reading import NO_TEXT

    host = None if snapshot is None else _saved(snapshot, as_json=as_json)
    log = _read(list(dict.fromkeys(paths)))
    if not any(file.bytes and not file.problem.startswith(NO_TEXT) for file in log.files):
        _refuse(
            [f"{_name(file.name)}: {file.problem or 'there is nothing in it'}" for file in log.files], as_json=as_json
        )
    judgement = _judged(log, host, here=here, python=python)
    _print(judgement, as_json=as_json, verbose=verbose, quiet=quiet)
    from ddpdoctor.logs.render_words import judged_as

    raise typer.Exit(judged_as(judgement).exit_code(strict=True))


def _saved(path: str, *, as_json: bool) -> Snapshot:
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot

    try:
        return read_snapshot(path)
    except SnapshotError as error:
        _refuse([str(error)], as_json=as_json)


def _refuse(problems: Sequence[str], *, as_json: bool) -> NoReturn:
    """Says why there is nothing to judge, and ends."""
    from ddpdoctor.base.text import one_line

    if as_json:
        from ddpdoctor.logs.render_json import refusal
        from ddpdoctor.report.contract import to_json

        print(to_json(refusal([one_line(problem) for problem in problems])))
    for problem in problems:
        complain(one_line(problem))
    raise typer.Exit(2)


def _name(path: str) -> str:
    return "standard input" if path == STDIN else path


class _Reading:
    """How far it is, for the status line."""

    def __init__(self) -> None:
        self._now = ("", 0, 0)
        self._files = 0

    def told(self, name: str, done: int, size: int) -> None:
        self._files += name != self._now[0]
        self._now = (name, done, size)

    def words(self, seconds: float) -> str:
        name, done, size = self._now
        if not name:
            return ""
        from ddpdoctor.base.text import one_line

        of = f" of {human(size)}" if size else ""
        earlier = f", {self._files - 1} read before" if self._files > 1 else ""
        return f"Reading {one_line(_name(name))}: {human(done)}{of} ({seconds:.0f} s{earlier})"


def _read(paths: Sequence[str]) -> Log:
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.logs.match.wanted_signs import vocabulary
    from ddpdoctor.logs.parse.reading import read_logs

    reading = _Reading()
    line = StatusLine(reading.words, delay=1.0)
    try:
        if STDIN not in paths:
            return read_logs(paths, stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()), progress=reading.told)
        if os.isatty(0):
            print(
                "Waiting for a log on standard input: paste it, then press Ctrl-D on a line by itself", file=sys.stderr
            )
        with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
            return read_logs(paths, stdin=stdin, vocabulary=vocabulary(catalogue()), progress=reading.told)
    except StoppedBySignal as stopped:
        stopped.text = "Stopped while the log was read; no verdict."
        raise
    finally:
        line.close()


def _judged(log: Log, host: Snapshot | None, *, here: bool, python: str | None) -> LogJudgement:
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.logs.analyze.settings import settings_of
    from ddpdoctor.logs.diagnosis import groups_that_decide, judge_log

    if here and (groups := groups_that_decide(log, catalogue())):
        context = begin(
            python, quick=not {"torch", "libraries"} & groups, settings=settings_of(log, os.environ, catalogue())
        )
        host = collect_facts(context, groups | {"machine", "container"})
    return judge_log(log, catalogue(), host)


def _print(judgement: LogJudgement, *, as_json: bool, verbose: bool, quiet: bool) -> None:
    if as_json:
        from ddpdoctor.logs.render_json import log_report
        from ddpdoctor.report.contract import to_json

        print(to_json(log_report(judgement, with_facts=verbose)))
    else:
        from ddpdoctor.logs.render_terminal import show_log
        from ddpdoctor.report.terminal import make_console

        show_log(make_console(sys.stdout), judgement, verbose=verbose, quiet=quiet)
