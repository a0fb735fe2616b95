"""`ddpdoctor snapshot`: take the facts, judge nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddpdoctor.base.error_lines import complain
from ddpdoctor.cli.probing import CheckpointOption, PythonOption, begin
from ddpdoctor.probes.session import collect_facts


def snapshot(
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write. Default, and for -: standard output.",
            show_default=False,
        ),
    ] = None,
    python: PythonOption = None,
    checkpoints: CheckpointOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not import torch.")] = False,
) -> None:
    """Take the facts of this host and judge nothing. Passwords and tokens are left out.

    Judge it anywhere with `ddpdoctor check --snapshot FILE`.
    """
    context = begin(python, quick=quick, checkpoints=checkpoints or ())
    from ddpdoctor.base.shell import quoted
    from ddpdoctor.base.text import one_line
    from ddpdoctor.engine.snapshots import SnapshotError, encode_snapshot, write_snapshot
    from ddpdoctor.facts.snapshot import GROUPS

    taken = collect_facts(context, GROUPS)
    if output is None or output == "-":
        sys.stdout.write(encode_snapshot(taken).decode())
        return
    try:
        write_snapshot(taken, Path(output))
    except SnapshotError as error:
        complain(one_line(str(error)))
        raise typer.Exit(2) from error
    command = f"ddpdoctor check --snapshot {quoted(output)}"
    print(one_line(f"{output}: the facts of {taken.host}. Judge them anywhere: {command}"), file=sys.stderr)
