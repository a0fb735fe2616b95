"""For the commands that train: which target Python they may run, and as whom."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddpdoctor.api.errors import UnsafeError, UsageError
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.run_as import OPTION, NotRunError, code_of, identity_for, sudo
from ddpdoctor.probes.session import say_as_whom
from ddpdoctor.probes.target_python.asking import ask

IS_IT_PYTHON_SECONDS = 1.5


def refuse_others_python(path: str, chosen_by: str, typed: Sequence[str]) -> None:
    """Refuse to train as root with another user's Python. As that user, the command does.

    Args:
        path: the Python.
        chosen_by: the option or setting that led there.
        typed: the command's arguments, to be shown as that user types them; () where no command was typed.

    Raises:
        UnsafeError: with the command to run instead.
    """
    try:
        identity = identity_for(code_of(path))
        # Neither sudo nor a login keeps the setting that led there.
        named = () if chosen_by == "--python" else ("--python", path)
        again = shlex.join(["ddpdoctor", *typed, *named])
        words = (
            ""
            if identity is None
            else f"it, or what it loads, belongs to {identity.name}"
            if not typed
            else f"it, or what it loads, belongs to {identity.name}. Run it as {identity.name}:\n  {sudo(identity)} {again}\n"
            f"Or, if nobody else uses this host, as in many containers:\n  {shlex.join(['ddpdoctor', OPTION, *typed])}"
        )
    except NotRunError as error:
        words = str(error)
    if words:
        raise UnsafeError(f"Root does not train with {path} ({chosen_by} led there): {words}")
    say_as_whom(path, chosen_by)


def refuse_what_is_no_python(python: str, path: str) -> None:
    """Refuse a --python that is something else. One that is slow, on a loaded host or a hung file system, is let pass: what it
    is, the test itself will say, and nobody is to wait for that here.

    Args:
        python: as it was given.
        path: what that led to.

    Raises:
        UsageError: it is no Python, or can't be run.
    """
    answer = ask(Context(path), "interpreter", IS_IT_PYTHON_SECONDS)
    if answer.state not in ("ok", "hangs"):
        no_python = "it is no Python: " if answer.state == "not-python" else ""
        raise UsageError(f"--python {python}: {no_python}{answer.detail}")
