"""Looking at this host on a command's behalf: the choice of the target Python, and progress on a terminal's stderr."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.base.error_lines import complain
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.run_as import OPTION, NotRunError, code_of, identity_for, sudo
from ddpdoctor.probes.session import say_as_whom, start_probes
from ddpdoctor.probes.target_python.asking import ask

if TYPE_CHECKING:
    pass


IS_IT_PYTHON_SECONDS = 1.5

PythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The Python in which training runs. Default: the active environment's.",
        show_default=False,
    ),
]

CheckpointOption = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Look into this checkpoint, too; it is read as data and never run. A file or a folder. Repeatable.",
    ),
]


def refuse_others_python(path: str, chosen_by: str) -> None:
    """For commands that train: where root would run another user's Python. As that user, the command does.

    Raises:
        typer.Exit: with the command to run instead.
    """
    try:
        identity = identity_for(code_of(path))
        # Neither sudo nor a login keeps the setting that led there.
        named = () if chosen_by == "--python" else ("--python", path)
        again = shlex.join(["ddpdoctor", *sys.argv[1:], *named])
        words = (
            ""
            if identity is None
            else f"it, or what it loads, belongs to {identity.name}. Run it as {identity.name}:\n  {sudo(identity)} {again}\n"
            f"Or, if nobody else uses this host, as in many containers:\n  {shlex.join(['ddpdoctor', OPTION, *sys.argv[1:]])}"
        )
    except NotRunError as error:
        words = str(error)
    if words:
        complain(f"Root does not train with {path} ({chosen_by} led there): {words}")
        raise typer.Exit(2)
    say_as_whom(path, chosen_by)


def refuse_what_is_no_python(python: str, path: str) -> None:
    """Where --python names something else. One that is slow, on a loaded host or a hung file system, is let pass: what it
    is, the test itself will say, and nobody is to wait for that here."""
    answer = ask(Context(path), "interpreter", IS_IT_PYTHON_SECONDS)
    if answer.state not in ("ok", "hangs"):
        no_python = "it is no Python: " if answer.state == "not-python" else ""
        raise typer.BadParameter(f"--python {python}: {no_python}{answer.detail}")


def begin(
    python: str | None,
    *,
    quick: bool = False,
    checkpoints: Sequence[str] = (),
    patience: float | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Context:
    """As `start_probes`, for what was typed: an empty --python or --checkpoint is refused."""
    if python is not None and not python.strip():
        raise typer.BadParameter("--python is empty; is the variable in it set?")
    if not all(checkpoint.strip() for checkpoint in checkpoints):
        raise typer.BadParameter("--checkpoint is empty; is the variable in it set?")
    return start_probes(python, quick=quick, checkpoints=checkpoints, patience=patience, settings=settings)
