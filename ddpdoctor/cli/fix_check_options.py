"""Options of `check --fix`, and the arguments with which `check` and `smoke` are run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import typer

from ddpdoctor.knowledge.launchers import current_launch


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


def refuse_options(*, fixing: bool, yes: bool, dry_run: bool, as_json: bool, as_markdown: bool, judged: bool) -> None:
    """Refuse options that contradict each other. judged: --snapshot names a file.

    Raises:
        typer.BadParameter: they do.
    """
    if not fixing:
        if yes or dry_run:
            raise typer.BadParameter(f"{'--yes' if yes else '--dry-run'} goes with --fix")
        return
    if judged:
        raise typer.BadParameter("--fix changes things on this host; --snapshot judges a file instead")
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


def not_ours(environ: Mapping[str, str]) -> str:
    """Why this process is not the one to apply fixes, "" where it is: the tasks of a launcher would all write the same
    file, and ask on one terminal."""
    launch = current_launch(environ)
    # A pod, or a shell with RANK in it, is its user's own.
    if launch is None or launch.launcher in ("Kubernetes", "settings") or not launch.rank:
        return ""
    return (
        f"Rank {launch.rank} of {launch.launcher}: rank 0 alone applies fixes, and nothing was looked at here. "
        f"For this host, or where {launch.launcher}'s settings are left over, run it in a shell without them."
    )


def _repeated(option: str, values: Sequence[str] | None) -> Iterator[str]:
    for value in values or ():
        yield f"{option}={value}"
