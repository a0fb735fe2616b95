"""Looks into the checkpoints that the user named, without unpickling them."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.facts.checkpoints import Checkpoints
from ddpdoctor.probes.context import Context

DEADLINE = 120.0
"""Seconds. A sharded model has hundreds of files, and their file system may be at the other end of a network."""


def probe(context: Context) -> Checkpoints:
    """One entry a file, in the order in which they were named; of a folder, each checkpoint in it. What can't be read is an
    entry that says so."""
    if not context.checkpoints:
        return Checkpoints(files=())
    # Here, because most runs name no checkpoint and shall not wait for these modules.
    from ddpdoctor.checkpoints.inspection import inspect
    from ddpdoctor.checkpoints.kinds.framework_folders import framework_folders
    from ddpdoctor.checkpoints.named_paths import expand

    paths = tuple(map(Path, context.checkpoints))
    return Checkpoints(files=tuple(map(inspect, expand(paths))), folders=framework_folders(paths))
