"""The command line: `ddpdoctor COMMAND`. One small module a command, loaded once it is asked for; here what they share."""

# Annotations are values here, as in check.py.
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from ddpdoctor.base.version import __version__

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_COMMANDS = {
    "check": "check",
    "netcheck": "netcheck",
    "smoke": "smoke",
    "jobs": "jobs",
    "watch": "watch",
    "zombies": "zombies",
    "diagnose-log": "diagnose_log",
    "run": "run",
    "lint": "lint",
    "gate": "gate",
    "fix-checkpoint": "fix_checkpoint",
    "fleet": "fleet",
    "snapshot": "snapshot",
    "list": "list_checks",
    "explain": "explain",
}
"""A command's name to that of its module and of the function in it."""

_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


@cache
def _load(name: str) -> Any:
    function = _COMMANDS[name]
    module = import_module(f"ddpdoctor.cli.{function}")
    only = typer.Typer(add_completion=False, **_SETTINGS)
    settings = getattr(module, "CONTEXT", None)
    only.command(name, cls=getattr(module, "COMMAND", None), context_settings=settings)(getattr(module, function))
    return typer.main.get_command(only)


class _Commands(Mapping[str, Any]):
    """Imports a command's module, and what that needs, when the command is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast("MutableMapping[str, Any]", _Commands())


app = typer.Typer(
    name="ddpdoctor",
    cls=_Group,
    help="The doctor for PyTorch multi-GPU and multi-node training.",
    no_args_is_help=True,
    **_SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddpdoctor {__version__}")
        raise typer.Exit


def _trust_everybody(wanted: bool) -> None:
    if wanted:
        from ddpdoctor.api.target_python import trust_everybody

        trust_everybody()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    as_root: Annotated[
        bool,
        typer.Option(
            "--as-root",
            callback=_trust_everybody,
            help="For root: run the Python, programs and libraries of other users as root, not as their owners.",
        ),
    ] = False,
) -> None:
    """The doctor for PyTorch multi-GPU and multi-node training."""
