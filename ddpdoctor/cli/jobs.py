"""`ddpdoctor jobs`: the training jobs that run on this host, and what is wrong with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.refusal import refuse
from ddpdoctor.probes.session import collect_facts

if TYPE_CHECKING:
    from ddpdoctor.processes.overview import Overview


def jobs(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|JOB]",
            help="Only this job: the pid of its launcher, a rank, a worker, or the script around them.",
            show_default=False,
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
    seconds: Annotated[
        int | None,
        typer.Option(metavar="S", min=1, max=600, help="How long --hang watches.  [default: 3]", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A row for every rank, and what passed and had nothing to test.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")] = False,
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
    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")
    if job is not None and not job.strip():
        raise typer.BadParameter("the job is empty; is the variable in it set?")
    if dumps is not None and not all(dump.strip() for dump in dumps):
        raise typer.BadParameter("--dumps is empty; is the variable in it set?")
    if seconds is not None and not hang:
        raise typer.BadParameter("--seconds is for --hang")
    if ras and not hang:
        raise typer.BadParameter("--ras is for --hang")
    if hang or dumps:
        from ddpdoctor.cli.jobs_hang import show_hang
        from ddpdoctor.hang.examining import SECONDS

        show_hang(
            job,
            watched=hang or job is not None,
            dumps=tuple(dumps or ()),
            ras=ras,
            seconds=seconds or SECONDS,
            as_json=as_json,
            strict=strict,
            verbose=verbose,
            quiet=quiet,
        )
    overview = _overview(job, as_json=as_json)
    if as_json:
        from ddpdoctor.processes.jobs_json import jobs_report
        from ddpdoctor.report.contract import to_json

        print(to_json(jobs_report(overview, with_facts=verbose)))
    else:
        from ddpdoctor.processes.jobs_terminal import show_jobs
        from ddpdoctor.report.terminal import make_console

        show_jobs(make_console(sys.stdout), overview, verbose=verbose, quiet=quiet)
    raise typer.Exit(overview.verdict.exit_code(strict=strict))


def _overview(job: str | None, *, as_json: bool) -> Overview:
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.probes.context import Context
    from ddpdoctor.processes.overview import UnknownJobError, checks_of_jobs, groups_of, overview

    checks = checks_of_jobs(catalogue())
    asked = int(job) if job and job.strip().isascii() and job.strip().isdecimal() else 0
    snapshot = collect_facts(Context(sys.executable, "ddpdoctor", quick=True, asked=asked), groups_of(checks))
    try:
        return overview(snapshot, checks, job)
    except UnknownJobError as error:
        refuse(str(error), snapshot.host, as_json=as_json)
