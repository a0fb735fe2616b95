"""Looking at this host on a command's behalf: the choice of the patient, and progress on a terminal's stderr."""

from __future__ import annotations

import math
import os
import shlex
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.base.ownership import ROOT
from ddpdoctor.cli.errors import complain
from ddpdoctor.cli.progress import StatusLine
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.run_as import OPTION, NotRunError, code_of, identity_for, remarks, sudo
from ddpdoctor.probes.target.asking import ask
from ddpdoctor.probes.target.choice import choose_python

if TYPE_CHECKING:
    from ddpdoctor.cli.time_limit import TimeLimit
    from ddpdoctor.facts.snapshot import Snapshot


IS_IT_PYTHON_SECONDS = 1.5
WHOSE_SECONDS = 5.0

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


def begin(
    python: str | None,
    *,
    quick: bool = False,
    checkpoints: Sequence[str] = (),
    patience: float | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Context:
    """Chooses the patient and has it import torch at once: that takes longest, and all else happens meanwhile.

    patience: seconds for that import, if not the usual ones. settings: to be looked at as if they were in the environment; with "" as if
    they were not.
    """
    if python is not None and not python.strip():
        raise typer.BadParameter("--python is empty; is the variable in it set?")
    if not all(one.strip() for one in checkpoints):
        raise typer.BadParameter("--checkpoint is empty; is the variable in it set?")
    path, chosen_by = choose_python(python, os.environ)
    _say_as_whom_in_time(path, chosen_by)
    environ = {name: value for name, value in {**os.environ, **settings}.items() if value or name not in settings}
    context = Context(path, chosen_by, quick=quick, environ=environ, checkpoints=tuple(checkpoints))
    if not quick:
        threading.Thread(target=ask, args=(context, "torch", patience), daemon=True).start()
    return context


def _say_as_whom_in_time(path: str, chosen_by: str) -> None:
    """The file system may not answer; then nothing of it is run either, as the probes will say."""
    saying = threading.Thread(target=say_as_whom, args=(path, chosen_by), daemon=True)
    saying.start()
    saying.join(WHOSE_SECONDS)
    if saying.is_alive():
        complain(f"ddpdoctor: whose {path} is could not be found out: no answer within {WHOSE_SECONDS:.0f} s.")


def say_as_whom(path: str, chosen_by: str) -> None:
    """Tell where the environment, or the working folder, has led to what others could have put there, and what is done about it."""
    otherwise = f" ({OPTION} before the command runs everything as root.)" if os.geteuid() == ROOT else ""
    for remark in remarks(path, chosen_by, os.environ):
        complain(f"ddpdoctor: {remark}.{otherwise}")


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


def look(context: Context, groups: Iterable[str], known: str = "", limit: TimeLimit | None = None) -> Snapshot:
    """Take a snapshot of this host.

    Args:
        context: whose facts are wanted.
        groups: which facts.
        known: what somebody at a terminal is to read meanwhile.
        limit: of the whole command, if it has one.
    """
    # Here and not above: the import of torch shall be under way before the many modules of the probes are loaded.
    from ddpdoctor.facts.snapshot import EXPERIMENTS
    from ddpdoctor.probes.runner import take_snapshot

    wanted = set(groups) - set(EXPERIMENTS)
    waiting = set(wanted)
    line = StatusLine(lambda seconds: f"{known}{_waited_for(sorted(waiting), seconds)}", delay=0.3)
    try:
        until = math.inf
        if limit:
            until, limit.stage = limit.look_until, "looking at this host"
        return take_snapshot(context, wanted, done=waiting.discard, until=until)
    finally:
        line.close()


def _waited_for(groups: list[str], seconds: float) -> str:
    names = ", ".join(group.replace("_", " ") for group in groups)
    return f"Looking at this host ({seconds:.0f} s), waiting for: {names or 'nothing more'}"
