"""Illnesses of a host's file systems that only a log shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word


@log_check("stale-file-handle", severity=FAIL, owner=Owner.UNKNOWN)
def stale_file_handle(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A file on a network file system was removed or replaced while it was in use.

    ## What breaks
    "OSError: [Errno 116] Stale file handle", at whatever touches the file next: a cache of datasets, a lock, a checkpoint, a log.

    ## Why
    NFS and its kin know a file by a handle. Another host, another job or another rank has removed the file, or put a new one in its
    place; or the server was started anew, and knows none of the old handles. Ranks that all build the same cache do that to one
    another.

    ## Fix
    Start again. If it comes back: let one rank of all build caches and files while the others wait, or give each host a folder of its
    own on a local disk. If every file of the mount says so, it has to be mounted anew.
    """
    path = word(seen, "path")
    return Finding.of(
        f"A file on a network file system was removed or replaced while it was in use{f': {path}' if path else ''}",
        Fix(
            'See on each host whether it is there now; if this says "Stale file handle", too, the folder has to be mounted anew',
            (f"ls -ld {shlex.quote(path)}" if path else "ls -ld FOLDER",),
        ),
        Fix(
            "Let nobody share caches over that file system: a folder on a local disk for each host",
            ("export HF_DATASETS_CACHE=/tmp/$USER/datasets TRITON_CACHE_DIR=/tmp/$USER/triton",),
        ),
        Fix("Or let one rank of all build what is shared, before the others open it"),
    )
