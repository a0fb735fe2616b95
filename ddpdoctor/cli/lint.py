"""`ddpdoctor lint`: the mistakes of training scripts, before they waste a night."""

from enum import Enum

# Annotations are values here, as in check.py.
from typing import Annotated

import typer

from ddpdoctor.cli.options import JsonAloneOption, MarkdownOption, QuietOption, StrictOption, VerboseOption
from ddpdoctor.cli.output import ReportForm


class LintFormat(str, Enum):
    """Forms of the report that other programs read."""

    GITHUB = "github"
    SARIF = "sarif"
    CONCISE = "concise"


def lint(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Scripts, notebooks, folders of them, or - for standard input."),
    ],
    chosen: Annotated[
        list[str] | None, typer.Option("--select", help="Only these checks (comma-separated or repeated).")
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", help="Not these checks.")] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Show changes that certainly are right as a diff, ask, and write them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: write without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --fix: only show what would be written.")] = False,
    line_format: Annotated[
        LintFormat | None,
        typer.Option(
            "--format", help="Annotations of GitHub Actions, SARIF 2.1.0, or file:line:column: severity slug message."
        ),
    ] = None,
    as_json: JsonAloneOption = False,
    as_markdown: MarkdownOption = False,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the mistakes of distributed training in scripts: what hangs, what tears a checkpoint, what trains on the same data twice.

    A script is read with the files of its own project that it imports; nothing
    of it is run or imported, and nothing is sent. A line that ends in
    `# ddpdoctor: ignore[NAME]` is not told of that check; the table
    tool.ddpdoctor.lint of the project's pyproject.toml may select, ignore and
    exclude.

    Exit code: 0 nothing that breaks was found, 1 something was (or a warning,
    with --strict), 2 wrong usage, a file could not be read, or there was none.
    """
    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    if line_format and form.option:
        raise typer.BadParameter(f"--format and {form.option} exclude each other")
    from ddpdoctor.cli.lint_fix import refuse_options

    refuse_options(paths, fixing=fix, yes=yes, dry_run=dry_run, form="--format" if line_format else form.option)
    from ddpdoctor.api import script_linting

    with form.refusals():
        result = script_linting.lint(paths, select=chosen or (), ignore=ignored or ())
    if line_format is None:
        form.print(result)
    elif line_format is LintFormat.GITHUB:
        print(result.to_github(), end="")
    elif line_format is LintFormat.SARIF:
        print(result.to_sarif(), end="")
    else:
        print(result.to_concise(), end="")
    if fix:
        from ddpdoctor.cli.lint_fix import mend

        code = mend(result, paths, chosen or (), ignored or (), yes=yes, dry_run=dry_run, strict=strict)
        raise typer.Exit(code)
    raise typer.Exit(result.exit_code(strict=strict))
