"""Which target Python the commands may run, and as whom."""

from __future__ import annotations

from ddpdoctor.api.errors import UnsafeError, UsageError
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.run_as import OPTION as OPTION
from ddpdoctor.probes.run_as import NotRunError, code_of, identity_for
from ddpdoctor.probes.run_as import sudo as sudo
from ddpdoctor.probes.run_as import trust_everybody as trust_everybody
from ddpdoctor.probes.session import say_as_whom
from ddpdoctor.probes.target_python.asking import ask

IS_IT_PYTHON_SECONDS = 1.5


def refuse_others_python(path: str, chosen_by: str) -> None:
    """Refuse to train as root with another user's Python. As that user, the command does.

    Args:
        path: the Python.
        chosen_by: the option or setting that led there.

    Raises:
        UnsafeError: it is another user's.
    """
    refused = f"Root does not train with {path} ({chosen_by} led there)"
    try:
        identity = identity_for(code_of(path))
    except NotRunError as error:
        raise UnsafeError(f"{refused}: {error}") from error
    if identity is not None:
        # Neither sudo nor a login keeps the setting that led there.
        lacking = () if chosen_by == "--python" else ("--python", path)
        raise UnsafeError(f"{refused}: it, or what it loads, belongs to {identity.name}", identity, lacking)
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
