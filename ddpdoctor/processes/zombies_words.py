"""The words for leftovers: what each holds, how long it has been there, and the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind


def holds(leftover: Leftover) -> str:
    """ "1.5 GiB of GPU 3, port 29500, 2 segments in /dev/shm, 210 MiB of memory"; "" where it holds nothing."""
    return ", ".join(_parts(leftover))


def _parts(leftover: Leftover) -> Iterator[str]:
    if leftover.gpus and leftover.pid:
        named = f"GPU{'' if len(leftover.gpus) == 1 else 's'} {listed(leftover.gpus)}"
        yield f"{human(leftover.gpu_memory)} of {named}" if leftover.gpu_memory else named
    elif leftover.kind is LeftoverKind.MEMORY:
        yield f"{human(leftover.size)} of its memory"
    if leftover.path:
        yield human(leftover.size)
    if leftover.ports:
        yield f"port{'' if len(leftover.ports) == 1 else 's'} {listed(leftover.ports)}"
    if leftover.segments:
        yield f"{plural(len(leftover.segments), 'segment')} in /dev/shm"
    if leftover.memory:
        yield f"{human(leftover.memory)} of memory"


def of_whom(leftover: Leftover) -> str:
    """ "ann's, for 3 h"."""
    parts = [f"{leftover.owner}'s"] if leftover.owner else []
    if leftover.age is not None:
        parts.append(f"{lasting(leftover.age)} old")
    if leftover.children:
        parts.append(f"with {plural(len(leftover.children), 'child', 'children')}")
    return ", ".join(parts)


def lasting(seconds: float) -> str:
    """90061.0 is "25 h", 61.0 is "61 s"."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def gathered(leftovers: Sequence[Leftover]) -> list[tuple[Leftover, ...]]:
    """One process by itself, segments of which the same is to be said together."""
    found: dict[object, list[Leftover]] = {}
    for number, leftover in enumerate(leftovers):
        key = (leftover.certainty, leftover.doubts, leftover.owner) if leftover.kind is LeftoverKind.SEGMENT else number
        found.setdefault(key, []).append(leftover)
    return [tuple(alike) for alike in found.values()]


def summed(leftovers: Sequence[Leftover], spots: Sequence[str]) -> str:
    """The last line. spots: where nobody could look."""
    if not leftovers:
        return "Nothing is left over, as far as could be seen." if spots else "Nothing is left over."
    counts = [(sum(leftover.certainty is which for leftover in leftovers), which) for which in Certainty]
    words = {
        Certainty.PROVEN: "proven to be left over",
        Certainty.DOUBT: "in doubt, and left alone",
        Certainty.NOT_OURS: "not yours, and left alone",
    }
    return f"{listed(f'{count} {words[which]}' for count, which in counts if count)}."
