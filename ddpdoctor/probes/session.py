"""Looks at this host for a command: chooses the target Python, starts all probes, shows progress on a terminal's stderr."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from ddpdoctor.base.error_lines import remark
from ddpdoctor.base.ownership import ROOT
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.run_as import OPTION, remarks
from ddpdoctor.probes.target_python.asking import ask
from ddpdoctor.probes.target_python.choice import choose_python

if TYPE_CHECKING:
    from ddpdoctor.base.time_limit import TimeLimit
    from ddpdoctor.facts.snapshot import Snapshot

OWNER_SECONDS = 5.0


def start_probes(
    python: str | None,
    *,
    quick: bool = False,
    checkpoints: Sequence[str] = (),
    patience: float | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Context:
    """Choose the target Python and have it import torch at once: that takes longest, and all else happens meanwhile.

    Args:
        python: as the user named it, None where not.
        quick: don't import torch.
        checkpoints: paths of files and folders, as the user typed them.
        patience: seconds for that import, if not the usual ones.
        settings: to be looked at as if they were in the environment; with "" as if they were not.
    """
    path, chosen_by = choose_python(python, os.environ)
    # The file system may not answer; then nothing of it is run either, as the probes will say.
    saying = threading.Thread(target=say_as_whom, args=(path, chosen_by), daemon=True)
    saying.start()
    saying.join(OWNER_SECONDS)
    if saying.is_alive():
        remark(f"ddpdoctor: whose {path} is could not be found out: no answer within {OWNER_SECONDS:.0f} s.")
    environ = {name: value for name, value in {**os.environ, **settings}.items() if value or name not in settings}
    context = Context(path, chosen_by, quick=quick, environ=environ, checkpoints=tuple(checkpoints))
    if not quick:
        threading.Thread(target=ask, args=(context, "torch", patience), daemon=True).start()
    return context


def say_as_whom(path: str, chosen_by: str) -> None:
    """Tell where the environment, or the working folder, has led to what others could have put there, and what is done about it."""
    otherwise = f" ({OPTION} before the command runs everything as root.)" if os.geteuid() == ROOT else ""
    for text in remarks(path, chosen_by, os.environ):
        remark(f"ddpdoctor: {text}.{otherwise}")


def collect_facts(context: Context, groups: Iterable[str], known: str = "", limit: TimeLimit | None = None) -> Snapshot:
    """Take a snapshot of this host. known: what somebody at a terminal is to read meanwhile. limit: of the whole command, if it has one."""
    # Here and not above: the import of torch shall be under way before the many modules of the probes are loaded.
    from ddpdoctor.facts.snapshot import EXPERIMENTS
    from ddpdoctor.probes.runner import take_snapshot

    wanted = set(groups) - set(EXPERIMENTS)
    waiting = set(wanted)

    def words(seconds: float) -> str:
        names = ", ".join(group.replace("_", " ") for group in sorted(waiting))
        return f"{known}Looking at this host ({seconds:.0f} s), waiting for: {names or 'nothing more'}"

    line = StatusLine(words, delay=0.3)
    try:
        until = math.inf
        if limit:
            until, limit.stage = limit.look_until, "looking at this host"
        return take_snapshot(context, wanted, done=waiting.discard, until=until)
    finally:
        line.close()
