"""Ends what is proven to be left over. Each process is pinned by a pidfd before it is judged a second time, so that what is
signalled is what was judged, whoever has its pid by then."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity, ProcessRole
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.probes.proc import Proc
from ddpdoctor.processes.leftovers.all_kinds import leftovers_of
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.signs_of_life import worked_between
from ddpdoctor.report.reported_leftovers import Fate

SECONDS_BETWEEN_LOOKS: Final = 5.0
"""Time between the look that found them and the one right before the signal."""
SIGTERM_SECONDS: Final = 5.0
"""Time after SIGTERM. A rank that sleeps in a collective has nothing to save, and most don't even handle it."""
SIGKILL_SECONDS: Final = 10.0
"""Time after SIGKILL: the driver may take some to give a GPU's memory back."""
SHM_FOLDER: Final = "/dev/shm"


class LeftoverLook(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the host."""

    processes: Maybe[Processes]
    gpus: Maybe[Gpus]
    shared_memory: Maybe[SharedMemory]
    at: float
    """time.monotonic() when it had ended."""

    @property
    def listed(self) -> tuple[Process, ...]:
        return () if isinstance(self.processes, Unknown) else self.processes.listed

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        return leftovers_of(self.processes, self.gpus, self.shared_memory)


class LeftoverEnding(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one leftover, and why."""

    leftover: Leftover
    fate: Fate
    reason: str = ""


class Endings:
    """What was done by now, also where we are stopped in the middle of it."""

    def __init__(self) -> None:
        self.all: list[LeftoverEnding] = []
        self.freed: list[str] = []
        """What is free again, in words."""
        self.signalled: set[ProcessIdentity] = set()

    @property
    def done(self) -> list[LeftoverEnding]:
        return [ending for ending in self.all if ending.fate in (Fate.ENDED, Fate.KILLED, Fate.REMOVED)]

    def add(self, leftover: Leftover, fate: Fate, reason: str = "") -> None:
        self.all.append(LeftoverEnding(leftover=leftover, fate=fate, reason=reason))

    def describe(self) -> str:
        """Say what is true by now, for whoever stops us; "" where nothing was done."""
        named = [str(ending.leftover.pid or ending.leftover.path) for ending in self.done]
        known = {ending.leftover.identity for ending in self.all}
        asked = [str(identity.pid) for identity in sorted(self.signalled) if identity not in known]
        parts = [f"ended: {', '.join(named)}"] if named else []
        parts += [f"asked to end (SIGTERM), and perhaps still there: {', '.join(asked)}"] if asked else []
        return "; ".join(parts)


class PinnedProcess:
    """A process that can't be mistaken for another.

    Raises:
        ProcessLookupError: it is gone, or its pid is another's by now.
        OSError: the kernel, or a filter of system calls, knows no pidfd.
    """

    def __init__(self, identity: ProcessIdentity) -> None:
        self.identity = identity
        if not hasattr(os, "pidfd_open"):
            raise OSError("this Python knows no pidfd")
        self._descriptor = os.pidfd_open(identity.pid)
        # The pid was pinned now. Whether it is that of the one that was judged, its start tells.
        if not self.is_same():
            self.close()
            raise ProcessLookupError("its pid is another process's by now")

    def is_same(self) -> bool:
        stat = Proc().stat(self.identity.pid)
        return not isinstance(stat, Unknown) and stat.start == self.identity.start and not self.has_ended()

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it has ended, waited for that long; one that nobody collects has ended, too."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        os.close(self._descriptor)


def end(chosen: Sequence[Leftover], first: LeftoverLook, look: Callable[[], LeftoverLook], ending: Endings) -> None:
    """End those of the chosen that another look proves as well. first: the look by which they were chosen. ending: gets what became of
    each, at once."""
    pinned: dict[Leftover, list[PinnedProcess]] = {}
    try:
        for leftover in chosen:
            if leftover.identity and leftover.proven:
                _pin(leftover, leftover.identity, pinned, ending)
        time.sleep(max(0.0, first.at + SECONDS_BETWEEN_LOOKS - time.monotonic()))
        second = look()
        again = {leftover.identity or leftover.path: leftover for leftover in second.leftovers if leftover.proven}
        agreed = []
        for leftover, pins in pinned.items():
            if all(pin.has_ended() for pin in pins):
                ending.add(leftover, Fate.GONE, "it has ended by itself")
            elif reason := _why_not_agreed(leftover, again.get(leftover.identity or ""), first, second):
                ending.add(leftover, Fate.LEFT, reason)
            else:
                agreed.append(leftover)
        _end_all({leftover: pinned[leftover] for leftover in agreed}, second, ending)
        for leftover in chosen:
            if leftover.path and leftover.proven:
                _remove(leftover, again.get(leftover.path), ending)
    finally:
        for pins in pinned.values():
            for pin in pins:
                pin.close()
    if ending.done:
        ending.freed += _freed(second, look(), ending)


def _pin(
    leftover: Leftover, identity: ProcessIdentity, pinned: dict[Leftover, list[PinnedProcess]], ending: Endings
) -> None:
    pins: list[PinnedProcess] = []
    try:
        pins.append(PinnedProcess(identity))
        for child in leftover.children:
            with suppress(ProcessLookupError):
                pins.append(PinnedProcess(child))
    except ProcessLookupError:
        ending.add(leftover, Fate.GONE, "it has ended by itself")
    except OSError as error:
        for pin in pins:
            pin.close()
        text = error.strerror or str(error)
        ending.add(leftover, Fate.LEFT, f"it can't be pinned, so its pid might be another's: {text}")
    else:
        pinned[leftover] = pins


def _why_not_agreed(leftover: Leftover, again: Leftover | None, first: LeftoverLook, second: LeftoverLook) -> str:
    """Say why the second look doesn't agree; "" where it does."""
    if again is None:
        found = next((other for other in second.leftovers if other.identity == leftover.identity), None)
        if found and found.doubts:
            return f"a second look doubts it: {found.doubts[0]}"
        return "a second look doesn't find it"
    if not set(again.children) <= set(leftover.children):
        return "it has started another process meanwhile"
    if isinstance(first.processes, Unknown) or isinstance(second.processes, Unknown):
        return "the processes can't be seen any more"
    before = {process.identity: process for process in first.listed}
    for now in second.listed:
        if now.identity in (leftover.identity, *leftover.children, *leftover.mates) and not now.has_ended:
            earlier = before.get(now.identity)
            if earlier is None or worked_between(earlier, now, second.at - first.at):
                return f"{now.name} (pid {now.pid}) has used the processor meanwhile"
            if earlier.stack != now.stack:
                return f"{now.name} (pid {now.pid}) stands elsewhere by now"
    return ""


def _end_all(pinned: dict[Leftover, list[PinnedProcess]], second: LeftoverLook, ending: Endings) -> None:
    """End all at once: the ranks of a job wait for each other."""
    helpers = {process.identity for process in second.listed if process.role is ProcessRole.HELPER}
    for pins in pinned.values():
        for pin in pins:
            # A helper ends, and clears up, when those that it helps are gone.
            if pin.identity not in helpers and pin.is_same():
                ending.signalled.add(pin.identity)
                pin.send(signal.SIGTERM)
    late = _wait(pinned, SIGTERM_SECONDS)
    for pin in late:
        pin.send(signal.SIGKILL)
    stay = {pin.identity for pin in _wait(pinned, SIGKILL_SECONDS)}
    killed = {pin.identity for pin in late} - helpers
    for leftover, pins in pinned.items():
        identities = {pin.identity for pin in pins}
        if identities & stay:
            ending.add(
                leftover, Fate.STAYS, "it was killed, and is still there: the kernel, or a driver, doesn't let it go"
            )
        elif identities & killed:
            ending.add(leftover, Fate.KILLED, f"it took no notice of SIGTERM for {SIGTERM_SECONDS:.0f} s")
        else:
            ending.add(leftover, Fate.ENDED)


def _wait(pinned: dict[Leftover, list[PinnedProcess]], seconds: float) -> list[PinnedProcess]:
    """Wait that long; return those that are still there."""
    until = time.monotonic() + seconds
    return [pin for pins in pinned.values() for pin in pins if not pin.has_ended(until - time.monotonic())]


def _remove(leftover: Leftover, again: Leftover | None, ending: Endings) -> None:
    """Remove a segment, if it has the same inode: by now another file may have its name."""
    path = Path(leftover.path)
    if not path.exists():
        ending.add(leftover, Fate.GONE, "it was removed by somebody else")
    elif again is None or again.inode != leftover.inode:
        ending.add(leftover, Fate.LEFT, "a second look doesn't find it unused")
    elif os.fspath(path.parent) != SHM_FOLDER:
        ending.add(leftover, Fate.LEFT, f"it isn't in {SHM_FOLDER}")
    else:
        try:
            state = path.lstat()
            if (state.st_dev, state.st_ino) != leftover.inode:
                ending.add(leftover, Fate.LEFT, "another file has its name by now")
                return
            path.unlink()
        except OSError as error:
            ending.add(leftover, Fate.LEFT, error.strerror or str(error))
        else:
            ending.add(leftover, Fate.REMOVED)


def _freed(before: LeftoverLook, after: LeftoverLook, ending: Endings) -> Iterator[str]:
    """Say what the ended ones held and is free again, as far as a look afterwards shows it."""
    ended = [done.leftover for done in ending.done]
    yield from _gpu_memory(before, after, {gpu for leftover in ended for gpu in leftover.gpus})
    listening = {port for process in after.listed if isinstance(process.listens, tuple) for port in process.listens}
    ports = sorted({port for leftover in ended for port in leftover.ports} - listening)
    if ports:
        yield f"{'port' if len(ports) == 1 else 'ports'} {listed(ports)}"
    segments = [leftover for leftover in ended if leftover.path]
    if segments:
        size = human(sum(segment.size for segment in segments))
        yield f"{size} of {SHM_FOLDER} ({plural(len(segments), 'segment')})"
    memory = sum(leftover.memory for leftover in ended)
    if memory:
        yield f"{human(memory)} of memory"


def _gpu_memory(before: LeftoverLook, after: LeftoverLook, held: set[int]) -> Iterator[str]:
    if isinstance(before.gpus, Unknown) or isinstance(after.gpus, Unknown):
        return
    now = {gpu.index: gpu.memory_used for gpu in after.gpus.devices}
    for gpu in before.gpus.devices:
        used = now.get(gpu.index) if gpu.index in held else None
        if isinstance(gpu.memory_used, int) and isinstance(used, int) and used < gpu.memory_used:
            yield f"{human(gpu.memory_used - used)} of GPU {gpu.index} ({human(gpu.memory_used)} were in use, {human(used)} are)"
