"""`ddpdoctor check`: look at this host and the Python in which training runs, and say what is wrong."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.probing import CheckpointOption, PythonOption, begin
from ddpdoctor.probes.session import collect_facts

if TYPE_CHECKING:
    from ddpdoctor.base.time_limit import TimeLimit
    from ddpdoctor.engine.examination import Examination
    from ddpdoctor.engine.registry import Check
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.probes.context import Context


def check(
    python: PythonOption = None,
    chosen: Annotated[
        list[str] | None, typer.Option("--select", help="Only these checks or families (comma-separated or repeated).")
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option("--ignore", help="Not these checks or families.")] = None,
    snapshots: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            help="Judge this saved snapshot (- for standard input), not this host. Repeatable.",
        ),
    ] = None,
    checkpoints: CheckpointOption = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks planned on this host. Default: the number of GPUs.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a bug report, without names of people and hosts.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not import torch.")] = False,
    fixing: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Apply settings, free ports and checkpoint fixes, end leftovers: shown, asked for one by one, and proved.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --fix: show it all and change nothing.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name what passed and what had nothing to test.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")] = False,
) -> None:
    """Look at this host and at the Python in which training runs, and say what is wrong with them.

    Exit code: 0 nothing failed, 1 something did (or warned, with --strict), 2 wrong usage or no verdict.
    """
    if as_json and as_markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")
    if snapshots and (python is not None or quick):
        raise typer.BadParameter("--python and --quick look at this host; --snapshot judges a file instead")
    if snapshots and checkpoints:
        raise typer.BadParameter("--checkpoint looks at a file of this host; --snapshot judges another file instead")
    if fixing or yes or dry_run:
        from ddpdoctor.cli.fix_check_options import not_ours, refuse_options

        refuse_options(
            fixing=fixing, yes=yes, dry_run=dry_run, as_json=as_json, as_markdown=as_markdown, judged=bool(snapshots)
        )
        if not dry_run and (silent := not_ours(os.environ)):
            # No failure: a launcher would end rank 0 for it.
            typer.echo(silent, err=True)
            raise typer.Exit(0)
    from ddpdoctor.base.time_limit import TimeLimit

    with nullcontext() if snapshots else TimeLimit("choosing the Python to look at") as limit:
        # Whether a selection needs torch is known only once the checks are loaded; the whole of them does.
        context = None if limit is None or chosen else begin(python, quick=quick, checkpoints=checkpoints or ())
        seen = _look_at_everything(context, limit) if limit and context and not ignored else None
        checks = _selected(chosen, ignored)
        if checkpoints and not any("checkpoints" in one.groups for one in checks):
            raise typer.BadParameter("--select and --ignore leave no check that looks into the --checkpoint")
        if limit is None:
            taken, problems = _read(snapshots or [])
        else:
            context = context or _begin(python, quick, checkpoints or (), checks)
            taken, problems = [seen or collect_facts(context, _groups(checks), limit=limit)], []
            limit.stage = "judging what was seen"
        from ddpdoctor.engine.examination import conclusion, examine

        examinations = [examine(snapshot, nproc, checks) for snapshot in taken]
    if fixing:
        assert context is not None
        from ddpdoctor.cli.check_fix import treat
        from ddpdoctor.cli.fix_check_options import Wish, arguments_again

        again, training = arguments_again(
            context.python, nproc, chosen=chosen, ignored=ignored, checkpoints=checkpoints, quick=quick
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
        raise typer.Exit(treat(examinations[0], checks, wish))
    _print(examinations, problems, as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)
    code = conclusion(examinations).exit_code(strict=strict)
    raise typer.Exit(2 if problems and code == 0 else code)


def _look_at_everything(context: Context, limit: TimeLimit) -> Snapshot:
    """A snapshot for all checks. They are loaded, and the report's modules, while the probes wait for programs to answer."""
    from ddpdoctor.facts.snapshot import GROUPS

    # Modules leave nothing to be collected, and looking for it again and again while they load takes a twentieth of the time.
    gc.disable()
    threading.Thread(target=_load_checks, daemon=True).start()
    return collect_facts(context, GROUPS, limit=limit)


def _load_checks() -> None:
    try:
        from ddpdoctor.checks.catalogue import all_checks

        all_checks()
        import ddpdoctor.report.terminal  # noqa: F401
    finally:
        gc.enable()


def _begin(python: str | None, quick: bool, checkpoints: Sequence[str], checks: tuple[Check, ...]) -> Context:
    needs_import = bool({"torch", "libraries"} & _groups(checks))
    return begin(python, quick=quick or not needs_import, checkpoints=checkpoints)


def _selected(chosen: list[str] | None, ignored: list[str] | None) -> tuple[Check, ...]:
    from ddpdoctor.checks.catalogue import select
    from ddpdoctor.engine.registry import UnknownSelection

    try:
        checks = select(_names(chosen), _names(ignored))
    except UnknownSelection as error:
        raise typer.BadParameter(str(error)) from error
    if not checks:
        raise typer.BadParameter("--select and --ignore leave no check")
    return checks


def _names(values: list[str] | None) -> list[str]:
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    if values and not names:
        raise typer.BadParameter("--select or --ignore is empty; is the variable in it set?")
    return names


def _groups(checks: tuple[Check, ...]) -> set[str]:
    """What the checks need, and what the report's heading says of any host."""
    heading = {"target_python", "machine", "container", "gpus", "environment"}
    return heading.union(*(one.groups for one in checks))


def _read(paths: list[str]) -> tuple[list[Snapshot], list[str]]:
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot

    taken, problems = [], []
    for path in paths:
        try:
            taken.append(read_snapshot(path))
        except SnapshotError as error:
            problems.append(str(error))
    return taken, problems


def _print(
    examinations: list[Examination],
    problems: list[str],
    *,
    as_json: bool,
    as_markdown: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    if as_json:
        from ddpdoctor.engine.examination import conclusion
        from ddpdoctor.report.contract import build_report, to_json

        of_all = conclusion(examinations)
        print(to_json(build_report("check", examinations, problems, with_facts=verbose, of_all=of_all)))
    elif as_markdown:
        from ddpdoctor.report.markdown import to_markdown

        print(to_markdown(examinations, problems), end="")
    else:
        from ddpdoctor.report.terminal import make_console, show

        show(make_console(sys.stdout), examinations, problems, verbose=verbose, quiet=quiet)
