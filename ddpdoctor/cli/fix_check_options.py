"""Options of `check --fix`, and the arguments with which `check` and `smoke` are run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import typer


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The user's wishes. look, train: arguments by which `check` and `smoke` are run again, as they were given;
    checkpoints: as the user named them."""

    yes: bool
    dry_run: bool
    as_json: bool
    verbose: bool
    quiet: bool
    strict: bool
    nproc: int | None
    look: tuple[str, ...]
    train: tuple[str, ...]
    checkpoints: tuple[str, ...]


def refuse_options(
    *,
    fixing: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    as_markdown: bool,
    judged: bool,
    reads_scripts: bool,
) -> None:
    """Refuse options that contradict each other. judged: --snapshot names a file. reads_scripts: --script names one.

    Raises:
        typer.BadParameter: they do.
    """
    if not fixing:
        if yes or dry_run:
            raise typer.BadParameter(f"{'--yes' if yes else '--dry-run'} goes with --fix")
        return
    if judged:
        raise typer.BadParameter("--fix changes things on this host; --snapshot judges a file instead")
    if reads_scripts:
        raise typer.BadParameter("--fix changes things on this host; scripts are changed by `ddpdoctor lint --fix`")
    if as_markdown:
        raise typer.BadParameter("--fix and --markdown exclude each other")
    if as_json and not yes and not dry_run:
        raise typer.BadParameter("--fix --json can't ask: add --yes, or --dry-run to see what would be done")


def arguments_again(
    python: str,
    nproc: int | None,
    *,
    chosen: Sequence[str] | None,
    ignored: Sequence[str] | None,
    checkpoints: Sequence[str] | None,
    quick: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of the second `check`, and those of `smoke`: it trains on this host alone, and doesn't join the job of whose
    launcher the variables may be those of a shell that it gave to its user."""
    shared = (f"--python={python}", *(() if nproc is None else (f"--nproc={nproc}",)))
    look = (
        *shared,
        *_repeated("--select", chosen),
        *_repeated("--ignore", ignored),
        *_repeated("--checkpoint", checkpoints),
        *(("--quick",) if quick else ()),
    )
    return look, (*shared, "--nnodes=1", "--node-rank=0")


def _repeated(option: str, values: Sequence[str] | None) -> Iterator[str]:
    for value in values or ():
        yield f"{option}={value}"
