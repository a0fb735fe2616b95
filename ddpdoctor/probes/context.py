"""Context of a probe: the target Python's interpreter, the settings, and the other probes' facts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ddpdoctor.base.unknown import Facts, Unknown

G = TypeVar("G", bound=Facts)

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""What /proc/self/ns/pid links to outside of any container: the kernel's fixed number for the first namespace."""


class Context:
    """One look at one host.

    Args:
        python: the target Python's interpreter.
        chosen_by: who chose it.
        quick: don't import torch.
        environ: the environment that a rank started now would inherit.
        checkpoints: paths of files and folders, as the user typed them.
        asked: the pid of a process by which the user means a job, 0 for none.
        root: where /proc, /sys, /etc and /dev are looked for; tests put a made-up tree there. Use `path("/proc/modules")`.
    """

    def __init__(
        self,
        python: str,
        chosen_by: str = "--python",
        *,
        quick: bool = False,
        environ: Mapping[str, str] | None = None,
        checkpoints: tuple[str, ...] = (),
        asked: int = 0,
        root: Path = Path("/"),
    ) -> None:
        self.python = python
        self.chosen_by = chosen_by
        self.quick = quick
        self.environ = dict(os.environ) if environ is None else dict(environ)
        self.checkpoints = checkpoints
        self.asked = asked
        self.root = root
        self._ask: Callable[[str], Facts | Unknown] | None = None
        self._once: dict[str, Any] = {}
        self._once_locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def path(self, absolute: str) -> Path:
        """`/proc/modules` below this context's root."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str | Unknown:
        """The text of a small file, undecodable bytes replaced; `Unknown` with the reason if it can't be read."""
        try:
            return self.path(absolute).read_bytes().decode("utf-8", "replace")
        except OSError as error:
            return Unknown(f"{absolute}: {error.strerror or error}")

    def facts(self, group: type[G]) -> G | Unknown:
        """Another probe's facts, waited for. Cycles are a bug: keep the probes' needs a tree."""
        if self._ask is None:
            return Unknown("not looked at")
        found = self._ask(group.__module__.rsplit(".", 1)[-1])
        assert isinstance(found, (group, Unknown))
        return found

    def answered_by(self, ask: Callable[[str], Facts | Unknown]) -> None:
        """Name who answers `facts()`: the runner of all probes, or a test."""
        self._ask = ask

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make()` gives, made once for all probes that share it (one run of the target Python serves several)."""
        with self._lock:
            lock = self._once_locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._once:
                self._once[name] = make()
            return self._once[name]
