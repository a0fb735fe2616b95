"""The mount table: which file system is mounted where."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.context import Context


class Mount(msgspec.Struct, frozen=True):
    """A mounted file system. root: the folder of it that is mounted. source, options: as it was given them, "" where there are none."""

    point: str = ""
    root: str = ""
    kind: str = ""
    source: str = ""
    options: str = ""


def read_mounts(context: Context) -> tuple[Mount, ...] | Unknown:
    """Read the table, in its order."""
    text = context.read("/proc/self/mountinfo")
    if isinstance(text, Unknown):
        return text
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, system = before.split(), after.split()
        if len(fields) > 4 and system:
            # A blank in a path stands there as \040.
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            found.append(Mount(point, fields[3], *system[:3]))
    return tuple(found)


def mount_of(path: str, table: Iterable[Mount]) -> Mount:
    """The mount on which an absolute path without links lies; of two on the same point the later one covers the earlier."""
    best = Mount()
    for mount in table:
        if len(mount.point) >= len(best.point) and f"{path}/".startswith(f"{mount.point.rstrip('/')}/"):
            best = mount
    return best
