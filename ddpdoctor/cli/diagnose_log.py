"""`ddpdoctor diagnose-log`: from the logs of a run to what failed first, on which rank, and what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from ddpdoctor.cli.options import JsonOption, PythonOption
from ddpdoctor.cli.output import ReportForm


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
        ),
    ] = None,
    python: PythonOption = None,
    signs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.toml",
            help="Also log signs of your site's own, from this file or folder. Repeatable.",
        ),
    ] = None,
    good: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Compare with this log, or folder, of a run that ended well. Repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
    as_markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="Print Markdown for a bug report, without names of people and of hosts that are known as such.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also the traceback, what tells the rank, each kind of effect, and why noise is harmless.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The verdict in one line.")] = False,
) -> None:
    """Find in the logs of a run what failed first, on which rank and host, why, and what to do.

    Logs of torchrun (folders of --log-dir, too), srun, mpirun, kubectl and
    others, of any size, also compressed by gzip. What only followed, and what
    healthy runs print as well, is told apart from the cause; with --good that
    is learned from the log of a run that ended well. Nothing in a log is run,
    and nothing is sent.

    Exit code: 1 the report names an illness, an ordinary error of the script,
    or an end from outside. 0 nothing in it speaks of a failure. 2 no verdict:
    something failed that is not known here, only what followed was logged, it
    stops earlier than good runs without a word, or a log could not be read; or
    wrong usage.
    """
    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    from ddpdoctor.api import log_diagnosis

    with form.refusals():
        result = log_diagnosis.diagnose_log(
            paths, here=here, snapshot=snapshot, python=python, signs=signs or (), good=good or ()
        )
    form.print(result)
    raise typer.Exit(result.exit_code())
