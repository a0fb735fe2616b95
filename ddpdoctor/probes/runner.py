"""Runs the probes side by side and puts the Snapshot together."""

from __future__ import annotations

import importlib
import math
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, Final

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.snapshot import EXPERIMENTS, GROUPS, Snapshot
from ddpdoctor.probes.context import Context

DEADLINE = 20.0
"""Seconds for a probe that doesn't name its own."""


OF_THEIR_OWN_ROOM: Final = ("checkpoints", "processes")
"""Groups whose probe is ddpdoctor/GROUP/probe.py, found by that name: it uses what lies above this room."""


class _Running:
    """One probe in a thread of its own. A daemon thread: one that hangs in the kernel must not keep us from ending."""

    def __init__(self, group: str, context: Context, done: Callable[[str], None], until: float) -> None:
        self.result: Facts | Unknown | None = None
        self._group = group
        self._context = context
        self._done = done
        self._finished = threading.Event()
        self._started = time.monotonic()
        self._until = until
        self._deadline = DEADLINE
        threading.Thread(target=self._run, name=f"probe {group}", daemon=True).start()

    def _run(self) -> None:
        try:
            room = f"{self._group}.probe" if self._group in OF_THEIR_OWN_ROOM else f"probes.{self._group}"
            module: Any = importlib.import_module(f"ddpdoctor.{room}")
            self._deadline = getattr(module, "DEADLINE", DEADLINE)
            self.result = module.probe(self._context)
        except Exception as crash:
            where = traceback.extract_tb(crash.__traceback__)[-1]
            self.result = Unknown(
                f"the probe of {self._group.replace('_', ' ')} failed: {type(crash).__name__}: {crash} "
                f"({where.name}, line {where.lineno})"
            )
        self._finished.set()
        self._done(self._group)

    def wait(self) -> Facts | Unknown:
        while not self._finished.is_set():
            now = time.monotonic()
            left = min(self._started + self._deadline, self._until) - now
            if left <= 0:
                return Unknown(f"no answer within {min(self._deadline, now - self._started):.0f} s")
            self._finished.wait(min(left, 0.5))
        assert self.result is not None
        return self.result


def take_snapshot(
    context: Context,
    groups: Iterable[str] = GROUPS,
    done: Callable[[str], None] = lambda group: None,
    until: float = math.inf,
) -> Snapshot:
    """Probe the host.

    done: called with the group's name, from any thread, as each probe ends. until: when to wait no longer, by the monotonic clock, even
    where probes may take longer by their own deadlines.
    """
    running: dict[str, _Running] = {}
    lock = threading.Lock()

    def ask(group: str) -> Facts | Unknown:
        with lock:
            if group not in running:
                running[group] = _Running(group, context, done, until)
        return running[group].wait()

    context.answered_by(ask)
    # The target Python's import of torch takes longest, and then the watch over running jobs, so they start first.
    first = ("torch", "libraries", "processes")
    wanted = sorted(set(groups) - set(EXPERIMENTS), key=lambda group: (group not in first, GROUPS.index(group)))
    with lock:
        for group in wanted:
            running.setdefault(group, _Running(group, context, done, until))
    facts: dict[str, Any] = {group: ask(group) for group in wanted}
    return redact_facts(
        Snapshot(
            tool_version=__version__,
            taken_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            **facts,
        )
    )
