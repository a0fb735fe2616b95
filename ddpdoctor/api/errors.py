"""Why a call came to no result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpdoctor.probes.run_as import RunAsUser
    from ddpdoctor.report.contract import Report


class UsageError(ValueError):
    """Arguments that can't be meant so; nothing was looked at, and nothing changed.

    Args:
        text: why.
        lacking: arguments of the command line with which it could be meant.
    """

    def __init__(self, text: str, lacking: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.lacking = tuple(lacking)


class NoVerdictError(Exception):
    """There was nothing to judge: no such job, no log that can be read.

    Args:
        command: which came to nothing.
        problems: why, a sentence each.
        host: this one's name, if it was looked at.
    """

    def __init__(self, command: str, problems: Sequence[str], host: str = "") -> None:
        super().__init__("\n".join(problems))
        self.command = command
        self.problems = tuple(problems)
        self.host = host

    def report(self) -> Report:
        """The same as the commands' JSON has it."""
        from msgspec.structs import replace

        from ddpdoctor.report.contract import build_report

        return replace(build_report(self.command, [], self.problems), host=self.host)


class SpokenForError(NoVerdictError):
    """Another rank of this host speaks for it: this one was started beside it by a launcher."""


class UnsafeError(Exception):
    """Root would run what another user could have put there; nothing was run.

    Args:
        text: what, and whose.
        owner: as whom it may be run; None where nobody knows.
        lacking: arguments of the command line that lead the owner there, too.
    """

    def __init__(self, text: str, owner: RunAsUser | None = None, lacking: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.owner = owner
        self.lacking = tuple(lacking)


class WriteError(Exception):
    """A file that can't be written; the text says why."""


def write_problem(path: str | os.PathLike[str], error: OSError, what: str = "it was not written") -> str:
    """Say why a file is not written, and what to do where its folder isn't there.

    Args:
        path: of the file.
        error: that writing it raised.
        what: became of it.
    """
    from ddpdoctor.base.shell import quoted

    folder = os.path.dirname(path) or "."  # noqa: PTH120
    why = error.strerror or str(error)
    if isinstance(error, FileNotFoundError) and not os.path.lexists(folder):
        why = f"there is no folder {os.fspath(folder)}; make it: mkdir -p {quoted(folder)}"
    return f"{os.fspath(path)}: {what}: {why}"


def refuse_other_ranks(command: str, environ: Mapping[str, str]) -> None:
    """Refuse to change this host where a launcher has started the command beside others: all would write the same file, and ask on
    one terminal.

    Args:
        command: whose it is to change something.
        environ: the settings by which launchers tell.

    Raises:
        SpokenForError: this is another rank than 0. It is no failure: a launcher would end rank 0 for it.
    """
    from ddpdoctor.knowledge.launchers import current_launch

    launch = current_launch(environ)
    # A pod, or a shell with RANK in it, is its user's own.
    if launch and launch.launcher not in ("Kubernetes", "settings") and launch.rank:
        text = (
            f"Rank {launch.rank} of {launch.launcher}: rank 0 alone applies fixes, and nothing was looked at here. "
            f"For this host, or where {launch.launcher}'s settings are left over, run it in a shell without them."
        )
        raise SpokenForError(command, [text])


def refuse_empty(**arguments: str | Sequence[str] | None) -> None:
    """Refuse what is empty: mostly a variable that isn't set.

    Args:
        arguments: by the name of their option; None where it wasn't given.

    Raises:
        UsageError: one of them is "", or has "" in it.
    """
    for name, value in arguments.items():
        values = (value,) if isinstance(value, str) else value or ()
        if not all(text.strip() for text in values):
            raise UsageError(f"--{name.replace('_', '-')} is empty; is the variable in it set?")
