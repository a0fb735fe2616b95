"""`ddpdoctor check`: look at this host and the Python in which training runs, and say what is wrong."""

# Annotations are values here: typer would compile each text twice, which takes a tenth of the start.
import os
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.options import (
    CheckpointOption,
    IgnoreOption,
    JsonOption,
    MarkdownOption,
    PythonOption,
    QuickOption,
    QuietOption,
    ScriptOption,
    SelectOption,
    StrictOption,
    VerboseOption,
)
from ddpdoctor.cli.output import ReportForm

if TYPE_CHECKING:
    from ddpdoctor.api.checking import CheckResult


def check(
    python: PythonOption = None,
    chosen: SelectOption = None,
    ignored: IgnoreOption = None,
    snapshots: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            help="Judge this saved snapshot (- for standard input), not this host. Repeatable.",
        ),
    ] = None,
    checkpoints: CheckpointOption = None,
    scripts: ScriptOption = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks planned on this host. Default: the number of GPUs."),
    ] = None,
    as_json: JsonOption = False,
    as_markdown: MarkdownOption = False,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.prom",
            help="Also write metrics, for the textfile collector of node_exporter.",
        ),
    ] = None,
    strict: StrictOption = False,
    quick: QuickOption = False,
    fixing: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Apply settings, free ports and checkpoint fixes, end leftovers: shown, asked for one by one, and proved.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --fix: show it all and change nothing.")] = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Look at this host and at the Python in which training runs, and say what is wrong with them.

    Exit code: 0 nothing failed, 1 something did (or warned, with --strict), 2 wrong usage or no verdict.
    """
    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    if prometheus is not None:
        _refuse_other_files(prometheus, fixing=fixing, judged=bool(snapshots))
    if fixing or yes or dry_run:
        from ddpdoctor.api.errors import refuse_other_ranks
        from ddpdoctor.cli.fix_check_options import refuse_options

        refuse_options(
            fixing=fixing,
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
            as_markdown=as_markdown,
            judged=bool(snapshots),
            reads_scripts=bool(scripts),
        )
        if not dry_run:
            with form.refusals():
                refuse_other_ranks("check", os.environ)
    from ddpdoctor.api import checking

    with form.refusals():
        result = checking.check(
            python,
            select=chosen or (),
            ignore=ignored or (),
            snapshots=snapshots or (),
            checkpoints=checkpoints or (),
            scripts=scripts or (),
            nproc=nproc,
            quick=quick,
        )
    if fixing:
        from ddpdoctor.cli.check_fix import treat
        from ddpdoctor.cli.fix_check_options import Wish, arguments_again

        again, training = arguments_again(
            result.python, nproc, chosen=chosen, ignored=ignored, checkpoints=checkpoints, quick=quick
        )
        wish = Wish(
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
            verbose=verbose,
            quiet=quiet,
            strict=strict,
            nproc=nproc,
            look=again,
            train=training,
            checkpoints=tuple(checkpoints or ()),
        )
        raise typer.Exit(treat(result.examinations[0], result.checks, wish))
    # Before the report: who reads that may end before it does.
    problems = _write_metrics(result, prometheus) if prometheus is not None else ()
    form.print(result)
    if problems:
        from ddpdoctor.cli.beside_report import leave

        leave(problems, 2)
    raise typer.Exit(result.exit_code(strict=strict))


def _refuse_other_files(path: str, *, fixing: bool, judged: bool) -> None:
    if fixing or judged:
        which = "--fix changes what it would tell" if fixing else "--snapshot judges a file instead"
        raise typer.BadParameter(f"--prometheus writes the metrics of this host; {which}")
    if not path.endswith(".prom"):
        raise typer.BadParameter(f"--prometheus {path}: node_exporter reads files alone whose names end in .prom")


def _write_metrics(result: "CheckResult", path: str) -> tuple[str, ...]:
    """Write the metrics; returns why they were not written, nothing if they were."""
    from ddpdoctor.api.errors import write_problem
    from ddpdoctor.base.whole_files import write_whole

    try:
        # node_exporter runs as another user; there is nothing in it but names of checks.
        write_whole(path, result.to_prometheus().encode(), 0o644)
    except OSError as error:
        return (write_problem(path, error, "the metrics were not written"),)
    return ()
