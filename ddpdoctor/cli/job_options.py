"""The options of `netcheck` and `smoke` that say which nodes meet, and where."""

from __future__ import annotations

from typing import Annotated

import typer

from ddpdoctor.api.network_checking import MOST_WAIT_SECONDS, TOKEN_VARIABLE

PANEL = "The job"

MasterAddrOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Where rank 0 runs: MASTER_ADDR. Default: the launcher's.",
        rich_help_panel=PANEL,
    ),
]
MasterPortOption = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="MASTER_PORT. Default: the launcher's, or 29500.",
        rich_help_panel=PANEL,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        envvar=TOKEN_VARIABLE,
        show_envvar=False,
        help="Let in only nodes that give the same. Better set DDPDOCTOR_TOKEN, which other users of the host can't read. "
        "Default: from the job's id; by hand none on a private address, so that whoever reaches the port may take part; "
        "else node 0 makes one up.",
        rich_help_panel=PANEL,
    ),
]
WaitOption = Annotated[
    float,
    typer.Option(
        min=1,
        max=MOST_WAIT_SECONDS,
        metavar="SECONDS",
        help="For nodes that aren't there yet.",
        rich_help_panel=PANEL,
    ),
]
