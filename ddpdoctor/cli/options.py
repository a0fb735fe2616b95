"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")]
JsonAloneOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown for a bug report, without names of people and hosts.")
]
SelectOption = Annotated[
    list[str] | None, typer.Option("--select", help="Only these checks or families (comma-separated or repeated).")
]
IgnoreOption = Annotated[list[str] | None, typer.Option("--ignore", help="Not these checks or families.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Name what passed and what had nothing to test.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Do not import torch.")]
PythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The Python in which training runs. Default: the active environment's.",
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
ScriptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--script",
        metavar="FILE",
        help="Read this training script, too, as `lint` does; it is never run. A file or a folder. Repeatable.",
    ),
]
