"""`ddpdoctor netcheck`: why the ranks don't meet, with the culprit's name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.network_checking import WAIT_SECONDS
from ddpdoctor.cli.output import JsonOption, MarkdownOption, QuietOption, print_result, refusals, refuse_two_forms
from ddpdoctor.cli.probing import PythonOption
from ddpdoctor.knowledge.netcheck_command import TOKEN_VARIABLE

if TYPE_CHECKING:
    from ddpdoctor.api.network_checking import NetcheckResult


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
    ] = WAIT_SECONDS,
    python: PythonOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without torch: no real store, no collectives. Node 0's counts.")
    ] = False,
    as_json: JsonOption = False,
    as_markdown: MarkdownOption = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="On node 0: show latency and bandwidth between all pairs.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 for warnings, too, on all nodes. Node 0's counts.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name what passed and what had nothing to test.")
    ] = False,
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
    from ddpdoctor.network_check.progress import NetcheckProgress
    from ddpdoctor.report.live import show_on

    refuse_two_forms(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    with refusals(as_json=as_json):
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
            listen=lambda: show_on(sys.stderr, NetcheckProgress()),
        )
    if as_json or as_markdown:
        print_result(result, as_json=as_json, as_markdown=as_markdown, verbose=verbose)
    else:
        from ddpdoctor.report.terminal import screen_for

        screen_for(sys.stdout).show(result.document(matrix=matrix, verbose=verbose, quiet=quiet))
    print_notes(result)
    if matrix and result.run.part is not None:
        typer.echo("--matrix has no effect here: node 0 shows it", err=True)
    raise typer.Exit(result.exit_code())


def print_notes(result: NetcheckResult) -> None:
    """What was asked for here and had no effect, on standard error."""
    for note in result.run.notes:
        typer.echo(note, err=True)
