"""Files that a command writes beside its report: one that can't be written costs neither the report nor the other files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import typer


def announce_unwritable(*paths: str | None) -> None:
    """Say at once which files can't be written, as far as that is seen beforehand; the look itself goes on.

    Args:
        paths: of the files; None where none was asked for.
    """
    from ddpdoctor.api.errors import write_problem
    from ddpdoctor.base.error_lines import complain
    from ddpdoctor.base.text import one_line
    from ddpdoctor.base.whole_files import check_writable

    for path in paths:
        if path is None:
            continue
        try:
            check_writable(path)
        except OSError as error:
            complain(
                one_line(
                    f"{write_problem(path, error, 'it cannot be written there')}. The report will be shown all the same"
                )
            )


def write_all(writes: Iterable[Callable[[], object]]) -> tuple[str, ...]:
    """Write each file, whatever became of the others; returns why some were not written, a sentence each."""
    from ddpdoctor.api.errors import WriteError

    problems = []
    for write in writes:
        try:
            write()
        except WriteError as error:
            problems.append(str(error))
    return tuple(problems)


def leave(problems: Iterable[str], code: int) -> NoReturn:
    """End with the code of the report, which has been shown; with 2, and the reasons, where a file was not written.

    Raises:
        typer.Exit: always.
    """
    from ddpdoctor.base.error_lines import complain
    from ddpdoctor.base.text import one_line

    told = [one_line(problem) for problem in problems]
    for problem in told:
        complain(problem)
    raise typer.Exit(2 if told else code)
