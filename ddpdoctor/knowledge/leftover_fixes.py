"""The command that ends leftovers, as the fix of a finding. Only what is proven is for ddpdoctor to end itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ddpdoctor.findings import Fix
from ddpdoctor.knowledge.leftovers import Leftover
from ddpdoctor.wording import plural

MOST_NAMED = 32


def fix_of(leftovers: Iterable[Leftover], proven_by: str = "") -> tuple[Fix, ...]:
    """The fix that ends the proven ones of these, and one that shows why the others are left alone; none where there are none."""
    all_of_them = tuple(leftovers)
    proven = [one for one in all_of_them if one.proven]
    fixes = []
    if proven:
        fixes.append(Fix(_text(proven), (command_of(proven),), appliable=True, proven_by=proven_by))
    if len(proven) < len(all_of_them):
        others = "the others" if proven else "it" if len(all_of_them) == 1 else "them"
        fixes.append(Fix(f"See why ddpdoctor itself leaves {others} alone", ("ddpdoctor zombies",)))
    return tuple(fixes)


def command_of(leftovers: Sequence[Leftover]) -> str:
    """`ddpdoctor zombies --kill` with their pids and paths."""
    named = [str(one.pid or one.path) for one in leftovers[:MOST_NAMED]]
    return shlex.join(["ddpdoctor", "zombies", "--kill", *named])


def _text(proven: Sequence[Leftover]) -> str:
    processes = sum(bool(one.pid) for one in proven[:MOST_NAMED])
    segments = len(proven[:MOST_NAMED]) - processes
    parts = [f"End {plural(processes, 'process', 'processes')} that a dead run left behind"] if processes else []
    if segments:
        verb = "remove" if parts else "Remove"
        parts.append(f"{verb} {plural(segments, 'segment')} that no process uses")
    return ", and ".join(parts)
