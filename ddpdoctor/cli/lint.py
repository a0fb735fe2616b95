"""`ddpdoctor lint`: the mistakes of training scripts, before they waste a night."""

# Annotations are values here, as in check.py.
from typing import Annotated

import typer

from ddpdoctor.cli.options import JsonAloneOption, MarkdownOption, QuietOption, StrictOption, VerboseOption
from ddpdoctor.cli.output import ReportForm


def lint(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Scripts, notebooks, folders of them, or - for standard input."),
    ],
    chosen: Annotated[
        list[str] | None, typer.Option("--select", help="Only these checks (comma-separated or repeated).")
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", help="Not these checks.")] = None,
    as_json: JsonAloneOption = False,
    as_markdown: MarkdownOption = False,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the mistakes of distributed training in scripts: what hangs, what tears a checkpoint, what trains on the same data twice.

    A script is read with the files of its own project that it imports; nothing of it is run or imported, and nothing is sent. A line that
    ends in `# ddpdoctor: ignore[NAME]` is not told of that check; [tool.ddpdoctor.lint] in the project's pyproject.toml may select, ignore
    and exclude.

    Exit code: 0 nothing that breaks was found, 1 something was (or a warning, with --strict), 2 wrong usage, or a file could not be read.
    """
    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    from ddpdoctor.api import script_linting

    with form.refusals():
        result = script_linting.lint(paths, select=chosen or (), ignore=ignored or ())
    form.print(result)
    raise typer.Exit(result.exit_code(strict=strict))
