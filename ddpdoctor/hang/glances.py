"""What the kernel says of a process at one moment: nothing that could hold it up, and nothing that waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import masked
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.hang import NOT_COUNTED, Frame, RankLook
from ddpdoctor.facts.processes import ProcessIdentity
from ddpdoctor.probes.proc import Proc
from ddpdoctor.processes.signs_of_life import polling_rate

ENDED = frozenset("ZX")
HEARTBEATS: Final = ("pt_tcpstore", "pt_nccl_")
"""Threads that talk to each other once a second all the while, whatever the job does: NCCL's watchdogs ask the store."""


class ProcessGlance(msgspec.Struct, frozen=True, kw_only=True):
    """As in `RankLook`, and tracer: a debugger's pid, 0 without one."""

    state: str
    waits_in: str = ""
    cpu_seconds: float = 0.0
    switches: int = 0
    main_wakes: Maybe[int] = NOT_COUNTED
    other_wakes: Maybe[int] = NOT_COUNTED
    transferred: int = 0
    tracer: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def look(
        self, seconds: float, frames: Sequence[Frame], others: Sequence[tuple[str, tuple[Frame, ...]]], source: str
    ) -> RankLook:
        """With what is known of its stack."""
        return RankLook(
            seconds=round(seconds, 3),
            frames=tuple(frames),
            others=tuple(others),
            source=source,
            state=self.state,
            waits_in=self.waits_in,
            cpu_seconds=round(self.cpu_seconds, 3),
            switches=self.switches,
            main_wakes=self.main_wakes,
            other_wakes=self.other_wakes,
            transferred=self.transferred,
        )


def glance(one: ProcessIdentity, proc: Proc) -> ProcessGlance | None:
    """None where that process is gone, even if another has its pid now."""
    stat = proc.stat(one.pid)
    if isinstance(stat, Unknown) or stat.start != one.start:
        return None
    if stat.state in ENDED:
        return ProcessGlance(state=stat.state)
    spent = proc.spent(one.pid)
    if isinstance(spent, Unknown):
        return None
    status = proc.status(one.pid)
    tracer, wakes = status.get("TracerPid", "0"), status.get("voluntary_ctxt_switches", "")
    names = dict(proc.thread_names(one.pid))
    others = {thread: spent.threads[thread] for thread in spent.threads if not polling_rate(names.get(thread, ""))}
    said = sum(_transferred(one.pid, thread, proc) for thread, name in names.items() if name.startswith(HEARTBEATS))
    return ProcessGlance(
        state=stat.state,
        waits_in=_waits_in(one.pid, proc),
        cpu_seconds=sum(cpu for cpu, _ in others.values()),
        switches=spent.switches,
        main_wakes=int(wakes) if wakes.isdecimal() else NOT_COUNTED,
        other_wakes=sum(switches for thread, (_, switches) in others.items() if thread != one.pid),
        transferred=0 if isinstance(spent.transferred, Unknown) else max(0, spent.transferred - said),
        tracer=int(tracer) if tracer.isdecimal() else 0,
    )


def _transferred(pid: int, thread: int, proc: Proc) -> int:
    bytes_of_thread = proc.transferred(pid, thread)
    return 0 if isinstance(bytes_of_thread, Unknown) else bytes_of_thread


def _waits_in(pid: int, proc: Proc) -> str:
    """The kernel writes "0" of one that runs, and to whoever may not know."""
    content = proc.read(f"{pid}/wchan", 200)
    text = "" if isinstance(content, Unknown) else masked(content.decode("utf-8", "replace")).strip()
    return "" if text == "0" else text
