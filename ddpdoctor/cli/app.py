"""The command line: `ddpdoctor COMMAND`. One small module a command; here only what they share."""

from __future__ import annotations

from typing import Annotated

import typer

from ddpdoctor import __version__
from ddpdoctor.cli.check import check
from ddpdoctor.cli.explain import explain
from ddpdoctor.cli.list_checks import list_checks
from ddpdoctor.cli.snapshot import snapshot

app = typer.Typer(
    name="ddpdoctor",
    help="The doctor for PyTorch multi-GPU and multi-node training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(check)
app.command()(snapshot)
app.command("list")(list_checks)
app.command()(explain)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddpdoctor {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The doctor for PyTorch multi-GPU and multi-node training."""
