"""In which form a report is printed, and what is printed where the API refuses: the same for all commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ddpdoctor.api.errors import UnsafeError
    from ddpdoctor.api.results import CommandResult


class ReportForm:
    """The form that was asked for.

    Args:
        as_json: JSON, with the facts where `verbose`.
        as_markdown: Markdown.
        verbose: also what is mostly left out.
        quiet: in brief.

    Raises:
        typer.BadParameter: two options ask for two forms.
    """

    def __init__(self, *, as_json: bool, as_markdown: bool, verbose: bool = False, quiet: bool = False) -> None:
        if as_json and as_markdown:
            raise typer.BadParameter("--json and --markdown exclude each other")
        if verbose and quiet:
            raise typer.BadParameter("-v and -q exclude each other")
        self.as_json = as_json
        self.as_markdown = as_markdown
        self.verbose = verbose
        self.quiet = quiet

    @property
    def option(self) -> str:
        """The option by which another form than a terminal's was asked for; "" if none was."""
        return "--json" if self.as_json else "--markdown" if self.as_markdown else ""

    def refusals(self) -> AbstractContextManager[None]:
        """Turn refusals of the API into errors of the command line."""
        return refusals(as_json=self.as_json)

    def print(self, result: CommandResult) -> None:
        """Print the report."""
        if self.as_json:
            print(result.to_json(with_facts=self.verbose))
        elif self.as_markdown:
            print(result.to_markdown(), end="")
        else:
            result.show(sys.stdout, verbose=self.verbose, quiet=self.quiet)


@contextmanager
def refusals(*, as_json: bool = False) -> Iterator[None]:
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
    from ddpdoctor.api.target_python import OPTION, sudo

    return (
        f". Run it as {error.owner.name}:\n  {sudo(error.owner)} {_typed(error.lacking)}\n"
        f"Or, if nobody else uses this host, as in many containers:\n  {_typed(before=[OPTION])}"
    )
