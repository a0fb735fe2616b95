"""The words for leftovers: what each holds, how long it has been there, and the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind


def holds(one: Leftover) -> str:
    """ "1.5 GiB of GPU 3, port 29500, 2 segments in /dev/shm, 210 MiB of memory"; "" where it holds nothing."""
    return ", ".join(_parts(one))


def _parts(one: Leftover) -> Iterator[str]:
    if one.gpus and one.pid:
        named = f"GPU{'' if len(one.gpus) == 1 else 's'} {listed(one.gpus)}"
        yield f"{human(one.gpu_memory)} of {named}" if one.gpu_memory else named
    elif one.kind is LeftoverKind.MEMORY:
        yield f"{human(one.size)} of its memory"
    if one.path:
        yield human(one.size)
    if one.ports:
        yield f"port{'' if len(one.ports) == 1 else 's'} {listed(one.ports)}"
    if one.segments:
        yield f"{plural(len(one.segments), 'segment')} in /dev/shm"
    if one.memory:
        yield f"{human(one.memory)} of memory"


def of_whom(one: Leftover) -> str:
    """ "ann's, for 3 h"."""
    parts = [f"{one.owner}'s"] if one.owner else []
    if one.age is not None:
        parts.append(f"{lasting(one.age)} old")
    if one.children:
        parts.append(f"with {plural(len(one.children), 'child', 'children')}")
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
    for number, one in enumerate(leftovers):
        key = (one.certainty, one.doubts, one.owner) if one.kind is LeftoverKind.SEGMENT else number
        found.setdefault(key, []).append(one)
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
