"""Ends of a host's processes, told from the log."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import LogTraits
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.false_positives import is_end_told
from ddpdoctor.logs.analyze.sightings import said_by, word

HANDING_OVER = (
    "ConnectionResetError: [Errno 104]",
    "ConnectionRefusedError: [Errno 111]",
    "FileNotFoundError: [Errno 2]",
    "EOFError",
)
"""How it ends as a batch is fetched from a worker that is gone."""


@log_check("dataloader-worker-killed", severity=FAIL, log=LogTraits(refuted=is_end_told))
def dataloader_worker_killed(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A DataLoader's worker process died.

    ## What breaks
    Its rank stops with "DataLoader worker ... is killed by signal" or "exited unexpectedly", or with a ConnectionResetError in
    `rebuild_storage_fd`, and takes the others down.

    ## Why
    By the signal. Killed: the host or the job's limit ran out of memory, and the kernel chose the worker. Segmentation fault,
    Aborted: a library that the data set uses (an image or video decoder, OpenCV, h5py) crashed, or doesn't bear a fork. An
    exit code: something in the worker called exit, often a library after an error.

    ## Fix
    Killed: fewer workers, a smaller `prefetch_factor`, more memory for the job. Else `num_workers=0` in one run shows the
    error where it happens, and `multiprocessing_context="spawn"` helps libraries that don't bear a fork.
    """
    signal, code = word(seen, "signal"), word(seen, "code")
    how = f"by signal: {signal}" if signal else f"with exit code {code}" if code else "and nothing says of what"
    show_it = Fix("Run once with num_workers=0: the error then has a traceback of its own")
    memory = Fix(
        "See whether the kernel killed it for want of memory, and what the limit is",
        ("ddpdoctor check --select host-oom-killed,cgroup-memory-limit,memory-low",),
    )
    fewer = Fix("Then use fewer workers and a smaller prefetch_factor, or ask for more memory")
    forked = Fix('Or start the workers afresh: DataLoader(..., multiprocessing_context="spawn")')
    return Finding(
        summary=f"A DataLoader's worker died {how}",
        fixes=(memory, fewer, show_it)
        if not signal and not code and any(match.sign in HANDING_OVER for match in seen)
        else (memory, fewer)
        if signal == "Killed"
        else (show_it, forked, memory)
        if not code
        else (show_it,),
        rank=said_by(seen),
    )
