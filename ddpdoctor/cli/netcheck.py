"""`ddpdoctor netcheck`: why the ranks don't meet, with the culprit's name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.network_checking import WAIT_SECONDS
from ddpdoctor.cli.job_options import PANEL, MasterAddrOption, MasterPortOption, TokenOption, WaitOption
from ddpdoctor.cli.options import JsonOption, MarkdownOption, PythonOption, QuietOption, VerboseOption
from ddpdoctor.cli.output import ReportForm

if TYPE_CHECKING:
    from ddpdoctor.api.network_checking import NetcheckResult


def netcheck(
    master_addr: MasterAddrOption = None,
    master_port: MasterPortOption = None,
    nnodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Nodes of the job. Default: the launcher's; without any, look from here alone.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            metavar="I",
            help="This node, from 0. Default: the launcher's, else by order of arrival.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    token: TokenOption = None,
    wait: WaitOption = WAIT_SECONDS,
    python: PythonOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without torch: no real store, no collectives. Node 0's counts.")
    ] = False,
    as_json: JsonOption = False,
    as_markdown: MarkdownOption = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="On node 0: show latency and bandwidth between all pairs.")
    ] = False,
    nodes_out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="On node 0: write passing_nodes.txt and failing_nodes.txt there, for srun --exclude.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 for warnings, too, on all nodes. Node 0's counts.")
    ] = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find out why the ranks don't meet: run this on every node of the job, in any order.

    By hand, or under srun, mpirun, torchrun or a Kubernetes indexed job, whose
    settings it reads. Node 0 prints the whole verdict, every other node its own
    part. With --master-addr alone it tests what one side can see.

    Exit code, the same on every node: 0 nothing failed, 1 something did (or
    warned, with --strict on node 0), 2 wrong usage or no verdict on any node.
    """
    from ddpdoctor.api import network_checking
    from ddpdoctor.api.errors import refuse_empty
    from ddpdoctor.base.text import one_line
    from ddpdoctor.cli.beside_report import leave, write_all
    from ddpdoctor.report.live import show_on

    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    with form.refusals():
        refuse_empty(nodes_out=nodes_out)
        result = network_checking.netcheck(
            master_addr,
            master_port=master_port,
            nnodes=nnodes,
            node_rank=node_rank,
            token=token,
            wait=wait,
            python=python,
            quick=quick,
            strict=strict,
            listen=lambda progress: show_on(sys.stderr, progress),
            tell=lambda text: typer.echo(f"ddpdoctor: {text}", err=True),
        )
    remarks: list[str] = []
    # Before the report: who reads that may end before it does.
    problems = write_all([lambda: remarks.extend(result.write_nodes(nodes_out))] if nodes_out is not None else ())
    if form.option:
        form.print(result)
    else:
        from ddpdoctor.report.terminal import screen_for

        screen_for(sys.stdout).show(result.document(matrix=matrix, verbose=verbose, quiet=quiet))
    print_notes(result)
    if matrix and result.run.part is not None:
        typer.echo("--matrix has no effect here: node 0 shows it", err=True)
    for remark in remarks:
        typer.echo(one_line(remark), err=True)
    leave(problems, result.exit_code())


def print_notes(result: NetcheckResult) -> None:
    """Print on standard error what was asked for here and had no effect."""
    for note in result.run.notes:
        typer.echo(note, err=True)
