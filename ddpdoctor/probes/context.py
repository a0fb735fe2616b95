"""Context of a probe: the target Python's interpreter, the settings, and the other probes' facts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.probes.files import names_in

G = TypeVar("G", bound=Facts)

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""What /proc/self/ns/pid links to outside of any container: the kernel's fixed number for the first namespace."""


def by_number(name: str) -> tuple[str, int]:
    """Sort key that puts nvidia10 behind nvidia9."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1)


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

    def read_if_there(self, absolute: str) -> str | Unknown | None:
        """The text of a small file, None where there is no such file."""
        try:
            return self.path(absolute).read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Unknown(f"{absolute}: {error.strerror or error}")

    def text(self, absolute: str) -> str:
        """The text of a small file without blanks at its ends, "" where it can't be read."""
        found = self.read(absolute)
        return found.strip() if isinstance(found, str) else ""

    def number(self, absolute: str, otherwise: int = 0) -> int:
        """The whole number in a file, decimal or as 0x...; `otherwise` where there is none."""
        try:
            return int(self.text(absolute), 0)
        except ValueError:
            return otherwise

    def link(self, absolute: str) -> str:
        """Read a link, as it is written; "" where there is none, or it can't be read."""
        try:
            return os.readlink(self.path(absolute))  # noqa: PTH115
        except OSError:
            return ""

    def names(self, absolute: str) -> list[str]:
        """Names in a folder, mlx5_10 behind mlx5_9; none where it can't be read."""
        return sorted(names_in(self.path(absolute)), key=by_number)

    def runs(self, name: str) -> bool:
        """Whether a process of that name runs; the kernel keeps 15 letters."""
        pids = (entry for entry in self.names("/proc") if entry.isdecimal())
        return any(self.text(f"/proc/{pid}/comm") == name[:15] for pid in pids)

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
