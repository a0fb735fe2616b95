"""`ddpdoctor jobs`: the training jobs that run on this host, and what is wrong with them."""

from __future__ import annotations

from typing import Annotated

import typer

from ddpdoctor.cli.options import JsonOption, MarkdownOption, QuietOption, StrictOption
from ddpdoctor.cli.output import ReportForm


def jobs(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|JOB]",
            help="Only this job: the pid of its launcher, a rank, a worker, or the script around them.",
        ),
    ] = None,
    hang: Annotated[
        bool, typer.Option("--hang", help="Why it is stuck: where each rank stands, and what the others wait for.")
    ] = False,
    dumps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="Dumps of torch's flight recorder: a folder, files, or a pattern; also from other hosts. Repeatable.",
        ),
    ] = None,
    ras: Annotated[
        bool,
        typer.Option(
            "--ras",
            help="With --hang, ask NCCL's RAS (2.29.2 or later), too; a job that sets up process groups just then could crash.",
        ),
    ] = False,
    debug_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --hang, ask torch's debug server for the ranks of all hosts, instead of this host's processes.",
        ),
    ] = None,
    seconds: Annotated[
        int | None,
        typer.Option(metavar="S", min=1, max=600, help="How long --hang watches.  [default: 3]"),
    ] = None,
    as_json: JsonOption = False,
    as_markdown: MarkdownOption = False,
    strict: StrictOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A row for every rank, and what passed and had nothing to test.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Show the training jobs that run on this host: each rank, and what stands out.

    It only looks: no process is stopped, signalled or attached to. With --hang
    it reads the stacks of one job's ranks while they run on; --dumps alone works
    after a job has died, too.

    A rank that only stays where it is may have a slow step: --hang warns of it,
    and fails it where nothing of the job moved for --seconds 30 or longer.

    Exit code: 0 nothing failed, 1 something did (or warned, with --strict), 2
    wrong usage, no such job, or the processes could not be seen.
    """
    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    from ddpdoctor.api import running_jobs

    with form.refusals():
        result = running_jobs.jobs(
            job, hang=hang, dumps=dumps or (), ras=ras, debug_server=debug_server, seconds=seconds
        )
    form.print(result)
    raise typer.Exit(result.exit_code(strict=strict))
