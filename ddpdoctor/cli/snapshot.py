"""`ddpdoctor snapshot`: take the facts, judge nothing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ddpdoctor.cli.options import CheckpointOption, PythonOption, QuickOption
from ddpdoctor.cli.output import refusals


def snapshot(
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write. Default, and for -: standard output.",
        ),
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointOption = None,
    quick: QuickOption = False,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            help="Print it packed into short lines, as under srun and mpirun: these cut long lines and mix those of several hosts.",
        ),
    ] = False,
) -> None:
    """Take the facts of this host and judge nothing. Passwords and tokens are left out.

    Judge it anywhere with `ddpdoctor check --snapshot FILE`, and those of many hosts with `ddpdoctor fleet`.
    """
    from ddpdoctor.api import host_snapshot
    from ddpdoctor.api.errors import write_problem
    from ddpdoctor.base.error_lines import complain
    from ddpdoctor.base.shell import quoted
    from ddpdoctor.base.text import one_line
    from ddpdoctor.base.whole_files import check_writable

    if lines and output not in (None, "-"):
        raise typer.BadParameter("--lines prints them; --output writes a file")
    if output not in (None, "", "-"):
        # Before a look that takes its time: it would be for nothing.
        try:
            check_writable(output)
        except OSError as error:
            complain(one_line(write_problem(output, error, "the snapshot was not written")))
            raise typer.Exit(2) from error
    with refusals():
        taken = host_snapshot.snapshot(python, checkpoints=checkpoints or (), quick=quick)
    if output is None or output == "-":
        if lines or host_snapshot.is_mixed_with_others(1):
            sys.stdout.write(taken.to_lines())
        else:
            sys.stdout.write(taken.to_json() if sys.stdout.isatty() else taken.to_json_line())
        return
    try:
        taken.write(output)
    except host_snapshot.SnapshotError as error:
        complain(one_line(str(error)))
        raise typer.Exit(2) from error
    command = f"ddpdoctor check --snapshot {quoted(output)}"
    print(one_line(f"{output}: the facts of {taken.facts.host}. Judge them anywhere: {command}"), file=sys.stderr)
