"""`ddpdoctor netcheck`: why the ranks don't meet, with the culprit's name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.probing import PythonOption, refuse_others_python, refuse_what_is_no_python
from ddpdoctor.knowledge.netcheck_command import DOTS, TOKEN_VARIABLE

if TYPE_CHECKING:
    from ddpdoctor.base.findings import Finding
    from ddpdoctor.facts.smoke import Smoke
    from ddpdoctor.network_check.results import RunResult

WAIT = 60.0
"""Seconds."""


def netcheck(
    master_addr: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="Where rank 0 runs: MASTER_ADDR. Default: the launcher's.", show_default=False
        ),
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="MASTER_PORT. Default: the launcher's, or 29500.", show_default=False),
    ] = None,
    nnodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Nodes of the job. Default: the launcher's; without any, look from here alone.",
            show_default=False,
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            metavar="I",
            help="This node, from 0. Default: the launcher's, else by order of arrival.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar=TOKEN_VARIABLE,
            show_envvar=False,
            help="Let in only nodes that give the same. Better set DDPDOCTOR_TOKEN, which other users of the host can't read. "
            "Default: from the job's id; by hand none on a private address, so that whoever reaches the port may take part; "
            "else node 0 makes one up.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=1, max=86400, metavar="SECONDS", help="For nodes that aren't there yet.")
    ] = WAIT,
    python: PythonOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without torch: no real store, no collectives. Node 0's counts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="On node 0: show latency and bandwidth between all pairs.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 for warnings, too, on all nodes. Node 0's counts.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name what passed and what had nothing to test.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")] = False,
) -> None:
    """Find out why the ranks don't meet: run this on every node of the job, in any order.

    By hand, or under srun, mpirun, torchrun or a Kubernetes indexed job, whose
    settings it reads. Node 0 prints the whole verdict, every other node its own
    part. With --master-addr alone it tests what one side can see.

    Exit code, the same on every node: 0 nothing failed, 1 something did (or
    warned, with --strict on node 0), 2 wrong usage or no verdict on any node.
    """
    import os

    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")
    for name, value in (("--master-addr", master_addr), ("--token", token), ("--python", python)):
        if value is not None and not value.strip():
            raise typer.BadParameter(f"{name} is empty; is the variable in it set?")
    if wait != wait:
        raise typer.BadParameter("--wait is no number of seconds")
    if token is not None and token.strip() == DOTS:
        raise typer.BadParameter(f"the dots in {TOKEN_VARIABLE}={DOTS} stand for the token that node 0 prints")
    from ddpdoctor.network_check.job import Flags, JobError, job_of

    options = _options(wait=wait, quick=quick, python=python, strict=strict)
    flags = Flags(master=master_addr, port=master_port, nnodes=nnodes, node_rank=node_rank, options=options)
    try:
        job = job_of(flags, os.environ)
    except JobError as error:
        raise typer.BadParameter(str(error)) from error
    if job.local_rank:
        typer.echo(f"Local rank {job.local_rank}: local rank 0 speaks for this node.", err=True)
        return
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.network_check.results import NetcheckOptions
    from ddpdoctor.network_check.run import run
    from ddpdoctor.network_check.task import Netcheck
    from ddpdoctor.network_check.views import make_view
    from ddpdoctor.probes.target_python.choice import choose_python

    path, chosen_by = choose_python(python, os.environ)
    if not quick:
        refuse_others_python(path, chosen_by)
    if python is not None:
        # Before the other nodes are made to wait for a node that couldn't take part in the collectives.
        refuse_what_is_no_python(python, path)
    wishes = NetcheckOptions(
        job=job,
        options=options,
        token=token,
        wait=wait,
        purpose=Netcheck(catalogue(), quick=quick),
        strict=strict,
        python=path,
        chosen_by=chosen_by,
    )
    view = make_view()
    try:
        end = run(wishes, view)
    finally:
        view.close()
    if as_json:
        print_json(end, verbose=verbose)
    else:
        print_report(end, matrix=matrix, verbose=verbose, quiet=quiet)
    for note in end.notes:
        typer.echo(note, err=True)
    if matrix and end.part is not None:
        typer.echo("--matrix has no effect here: node 0 shows it", err=True)
    raise typer.Exit(end.exit_code)


def _options(*, wait: float, quick: bool, python: str | None, strict: bool) -> tuple[str, ...]:
    """What a command for another node takes over: all that isn't the default, as `facts.meeting.Meeting.options`."""
    return (
        *([f"--wait {wait:g}"] if wait != WAIT else []),
        *(["--quick"] if quick else []),
        *([f"--python {python}"] if python else []),
        *(["--strict"] if strict else []),
    )


def print_json(end: RunResult, *, verbose: bool, command: str = "netcheck", smoke: Smoke | None = None) -> None:
    """smoke: what a training came to, on node 0 that of all nodes."""
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.report.contract import build_report, to_json

    report = build_report(
        command,
        end.examinations,
        end.problems,
        with_facts=verbose,
        fleet=end.fleet,
        seconds=end.seconds,
        of_all=Verdict(end.part.verdict) if end.part else Verdict.UNKNOWN if end.exit_code == 2 else None,
        smoke=smoke,
    )
    print(to_json(report))


def print_report(
    end: RunResult, *, matrix: bool = False, verbose: bool, quiet: bool, smoke: Smoke | None = None
) -> None:
    """smoke: as for `print_json`."""
    from ddpdoctor.network_check.render_terminal import show_alone, show_part, show_verdict
    from ddpdoctor.report.terminal import make_console
    from ddpdoctor.smoke_training.section import section_of

    console = make_console(sys.stdout)
    training = section_of(smoke) if smoke is not None else None
    end = _with_token(end)
    if end.fleet is not None:
        show_verdict(
            console,
            fleet=end.fleet,
            examinations=end.examinations,
            meeting=end.meeting,
            matrix=matrix,
            training=training,
            verbose=verbose,
            quiet=quiet,
        )
    elif end.part is not None:
        show_part(console, end.part, examination=end.examinations[0], training=training, verbose=verbose, quiet=quiet)
    else:
        show_alone(
            console,
            examination=end.examinations[0],
            meeting=end.meeting,
            problems=end.problems,
            no_verdict=end.exit_code == 2,
            verbose=verbose,
            quiet=quiet,
        )


def _with_token(end: RunResult) -> RunResult:
    """With the token in all commands: what is shown here is for the eyes of this node's user."""
    import msgspec

    from ddpdoctor.knowledge.netcheck_command import with_token

    replace = msgspec.structs.replace

    def told(finding: Finding) -> Finding:
        fixes = [
            replace(fix, commands=tuple(with_token(command, end.token) for command in fix.commands))
            for fix in finding.fixes
        ]
        return replace(finding, fixes=tuple(fixes))

    return replace(
        end,
        examinations=tuple(
            replace(
                examination,
                results=tuple(replace(two, findings=tuple(map(told, two.findings))) for two in examination.results),
            )
            for examination in end.examinations
        ),
    )
