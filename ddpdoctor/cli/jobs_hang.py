"""`ddpdoctor jobs --hang`: where the ranks of one job stand, and why it doesn't go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import typer


def show_hang(
    name: str | None,
    *,
    watched: bool,
    dumps: Sequence[str],
    ras: bool,
    seconds: int,
    as_json: bool,
    strict: bool,
    verbose: bool,
    quiet: bool,
) -> NoReturn:
    """The whole command: looks, judges, prints, and ends.

    name: the job, None where there is only one. watched: False to read the dumps alone. dumps: what the flight recorders have written, if it isn't to be looked for. ras: ask NCCL's RAS, too.
    """
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.cli.refusal import refuse
    from ddpdoctor.hang.examining import NotExaminedError, examined, show

    try:
        examination = examined(name, catalogue(), dumps, seconds, watched=watched, ras=ras)
    except NotExaminedError as error:
        refuse(str(error), error.host, as_json=as_json)
    if as_json:
        from ddpdoctor.hang.judging import hang_of
        from ddpdoctor.report.contract import build_report, to_json

        print(to_json(build_report("jobs", [examination], with_facts=verbose, hang=hang_of(examination))))
    else:
        show(examination, verbose=verbose, quiet=quiet)
    raise typer.Exit(examination.verdict.exit_code(strict=strict))
