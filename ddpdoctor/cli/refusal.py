"""How the commands on jobs say that none is judged."""

from __future__ import annotations

from typing import NoReturn

import typer

from ddpdoctor.base.error_lines import complain


def refuse(why: str, host: str, *, as_json: bool) -> NoReturn:
    """Says why no job is judged, and ends."""
    from ddpdoctor.base.text import one_line

    if as_json:
        from ddpdoctor.processes.jobs_json import refusal
        from ddpdoctor.report.contract import to_json

        print(to_json(refusal(host, one_line(why))))
    complain(one_line(why))
    raise typer.Exit(2)
