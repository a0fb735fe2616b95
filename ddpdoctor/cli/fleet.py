"""`ddpdoctor fleet SNAPSHOTS`: many hosts judged and compared, and the odd ones out."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ddpdoctor.cli.options import (
    IgnoreOption,
    JsonAloneOption,
    MarkdownOption,
    QuietOption,
    SelectOption,
    StrictOption,
    VerboseOption,
)
from ddpdoctor.cli.output import ReportForm


def fleet(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="SNAPSHOTS...",
            help="Files and folders of snapshots. - reads a pipe: one a line, as srun, mpirun, pdsh, clush or kubectl logs hand them on.",
        ),
    ],
    group_by: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What hosts that should be alike have in common: gpu, partition, or a fact's path (machine.kernel).",
        ),
    ] = "gpu",
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The snapshot of a good host, or a saved profile: what differs from it fails."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The snapshots of the last sweep: say what is new, healed or changed."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A file with the hosts that should answer, or their list: node[001-064]."),
    ] = None,
    nodes_out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write passing_nodes.txt and failing_nodes.txt there, for srun --exclude."),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page with a filter and a heat map of hosts by check.")
    ] = None,
    save_profile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write what most hosts have, for --baseline of a later sweep.")
    ] = None,
    chosen: SelectOption = None,
    ignored: IgnoreOption = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks planned on each host. Default: the number of GPUs."),
    ] = None,
    as_json: JsonAloneOption = False,
    as_markdown: MarkdownOption = False,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Judge the snapshots of many hosts, compare hosts that should be alike, and name the odd ones out.

    Exit code: 0 nothing failed, 1 something did or a host did not answer (or
    warned, with --strict), 2 wrong usage, no verdict, or a file that could not
    be written.
    """
    from ddpdoctor.api import fleet_comparison
    from ddpdoctor.api.errors import refuse_empty
    from ddpdoctor.api.node_lists import paths_in
    from ddpdoctor.cli.beside_report import announce_unwritable, leave, write_all

    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    with form.refusals():
        refuse_empty(nodes_out=nodes_out, html=html, save_profile=save_profile)
    announce_unwritable(nodes_out and paths_in(nodes_out)[0], html, save_profile)
    with form.refusals():
        result = fleet_comparison.fleet(
            inputs,
            group_by=group_by,
            baseline=baseline,
            since=since,
            expect=expect,
            select=chosen or (),
            ignore=ignored or (),
            nproc=nproc,
        )
    wanted = ((nodes_out, result.write_nodes), (html, result.write_html), (save_profile, result.write_profile))
    # Before the report: who reads that may end before it does.
    problems = write_all(partial(write, path) for path, write in wanted if path is not None)
    form.print(result)
    leave(problems, result.exit_code(strict=strict))
