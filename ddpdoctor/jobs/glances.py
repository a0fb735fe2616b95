"""What the kernel says of a process at one moment: nothing that could hold it up, and nothing that waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.hang import Frame, Look
from ddpdoctor.facts.processes import Identity
from ddpdoctor.probes.patient.asking import printable
from ddpdoctor.probes.proc import Proc

ENDED = frozenset("ZX")


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """As in `Look`, and tracer: a debugger's pid, 0 without one."""

    state: str
    waits_in: str = ""
    cpu_seconds: float = 0.0
    switches: int = 0
    transferred: int = 0
    tracer: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def look(
        self, seconds: float, frames: Sequence[Frame], others: Sequence[tuple[str, tuple[Frame, ...]]], source: str
    ) -> Look:
        """With what is known of its stack."""
        return Look(
            seconds=round(seconds, 3),
            frames=tuple(frames),
            others=tuple(others),
            source=source,
            state=self.state,
            waits_in=self.waits_in,
            cpu_seconds=round(self.cpu_seconds, 3),
            switches=self.switches,
            transferred=self.transferred,
        )


def glance(one: Identity, proc: Proc) -> Glance | None:
    """None where that process is gone, even if another has its pid now."""
    stat = proc.stat(one.pid)
    if isinstance(stat, Unknown) or stat.start != one.start:
        return None
    if stat.state in ENDED:
        return Glance(state=stat.state)
    spent = proc.spent(one.pid)
    if isinstance(spent, Unknown):
        return None
    tracer = proc.status(one.pid).get("TracerPid", "0")
    return Glance(
        state=stat.state,
        waits_in=_waits_in(one.pid, proc),
        cpu_seconds=spent.cpu,
        switches=spent.switches,
        transferred=0 if isinstance(spent.transferred, Unknown) else spent.transferred,
        tracer=int(tracer) if tracer.isdecimal() else 0,
    )


def _waits_in(pid: int, proc: Proc) -> str:
    """The kernel writes "0" of one that runs, and to whoever may not know."""
    content = proc.read(f"{pid}/wchan", 200)
    text = "" if isinstance(content, Unknown) else printable(content.decode("utf-8", "replace")).strip()
    return "" if text == "0" else text
