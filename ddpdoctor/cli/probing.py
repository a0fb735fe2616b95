"""Looking at this host on a command's behalf: the choice of the target Python, and progress on a terminal's stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ddpdoctor.api.errors import refuse_empty
from ddpdoctor.cli.output import refusals
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.session import start_probes

PythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The Python in which training runs. Default: the active environment's.",
        show_default=False,
    ),
]

CheckpointOption = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Look into this checkpoint, too; it is read as data and never run. A file or a folder. Repeatable.",
    ),
]


def begin(python: str | None, *, quick: bool = False, checkpoints: Sequence[str] = ()) -> Context:
    """As `start_probes`, for what was typed: an empty --python or --checkpoint is refused."""
    with refusals(as_json=False):
        refuse_empty(python=python, checkpoint=checkpoints)
    return start_probes(python, quick=quick, checkpoints=checkpoints)
