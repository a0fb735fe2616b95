"""The options that say how a report is printed, and its printing: the same for all commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddpdoctor.api.errors import UnsafeError
    from ddpdoctor.api.results import CommandResult

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown for a bug report, without names of people and hosts.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")]


def refuse_two_forms(*, as_json: bool, as_markdown: bool, verbose: bool = False, quiet: bool = False) -> None:
    """Refuse options of which each asks for another form of the report.

    Raises:
        typer.BadParameter: there are two.
    """
    if as_json and as_markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")
    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")


def print_result(
    result: CommandResult, *, as_json: bool, as_markdown: bool, verbose: bool = False, quiet: bool = False
) -> None:
    """Print the report in the form that was asked for; JSON with the facts where `verbose`."""
    if as_json:
        print(result.to_json(with_facts=verbose))
    elif as_markdown:
        print(result.to_markdown(), end="")
    else:
        result.show(sys.stdout, verbose=verbose, quiet=quiet)


@contextmanager
def refusals(*, as_json: bool) -> Iterator[None]:
    """Around a call of the API: what it refuses becomes a sentence and an exit code.

    Raises:
        typer.BadParameter: the options can't be meant so.
        typer.Exit: there was nothing to judge, or nothing may be run.
    """
    from ddpdoctor.api.errors import NoVerdictError, SpokenForError, UnsafeError, UsageError

    try:
        yield
    except UsageError as error:
        again = f": {_typed(error.lacking)}" if error.lacking else ""
        raise typer.BadParameter(f"{error}{again}") from error
    except SpokenForError as error:
        # No failure: a launcher would end the others for it.
        typer.echo(str(error), err=True)
        raise typer.Exit(0) from error
    except UnsafeError as error:
        from ddpdoctor.base.error_lines import complain

        complain(f"{error}{_as_whom(error)}")
        raise typer.Exit(2) from error
    except NoVerdictError as error:
        from ddpdoctor.base.error_lines import complain
        from ddpdoctor.base.text import one_line

        if as_json:
            from msgspec.structs import replace

            from ddpdoctor.report.contract import to_json

            report = error.report()
            print(to_json(replace(report, problems=tuple(map(one_line, report.problems)))))
        for problem in error.problems:
            complain(one_line(problem))
        raise typer.Exit(2) from error


def _typed(more: Sequence[str] = (), before: Sequence[str] = ()) -> str:
    """The command as it was typed, with what it lacks."""
    return shlex.join(["ddpdoctor", *before, *sys.argv[1:], *more])


def _as_whom(error: UnsafeError) -> str:
    if error.owner is None:
        return ""
    from ddpdoctor.probes.run_as import OPTION, sudo

    return (
        f". Run it as {error.owner.name}:\n  {sudo(error.owner)} {_typed(error.lacking)}\n"
        f"Or, if nobody else uses this host, as in many containers:\n  {_typed(before=[OPTION])}"
    )
