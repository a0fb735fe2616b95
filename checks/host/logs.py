"""What happened to processes of a host, told from the log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.engine.registry import LogSign, LogTraits, SignRole, check
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.false_positives import is_end_told
from ddpdoctor.logs.analyze.sightings import lines, said_by, sightings, word

HANDING_OVER = (
    "ConnectionResetError: [Errno 104]",
    "ConnectionRefusedError: [Errno 111]",
    "FileNotFoundError: [Errno 2]",
    "EOFError",
)
"""How it ends as a batch is fetched from a worker that is gone."""
SEEN = "made to happen with torch 2.13.0"


@check(
    "dataloader-worker-killed",
    severity=FAIL,
    log=LogTraits(refuted=is_end_told),
    log_signs=(
        LogSign(
            "is killed by signal: ",
            why="torch's word on a worker that ended so; a bus error is shared memory's: shm-too-small",
            pattern=r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<signal>(?!Bus error)[A-Z][\w ]*\w)",
            source=SEEN,
        ),
        LogSign(
            "exited unexpectedly with exit code",
            why="torch's word on a worker that ended itself",
            pattern=r"DataLoader worker \(pid (?P<pid>\d+)\) exited unexpectedly with exit code (?P<code>-?\d+)",
            source=SEEN,
        ),
        LogSign(
            "Unexpected segmentation fault encountered in worker",
            why="the worker's own words before it dies",
            source=SEEN,
        ),
        LogSign(
            "Unexpected floating-point exception encountered in worker",
            why="the worker's own words before it dies",
            source="torch 2.13.0: torch/csrc/DataLoader.cpp",
        ),
        *(
            LogSign(
                error,
                why="who receives a tensor fetches it from the worker that made it, and that one is gone: killed, or ended with the training itself",
                role=SignRole.HINTS,
                pattern=rf"^{re.escape(error)}",
                near="in rebuild_storage_fd",
                within=300,
                source="made to happen with torch 2.13.0: a worker that was killed; torch/multiprocessing/reductions.py",
            )
            for error in HANDING_OVER
        ),
        LogSign(
            ") exited unexpectedly",
            why="a worker is gone, and what ended it is said elsewhere, or by nobody",
            role=SignRole.HINTS,
            pattern=r"DataLoader worker \(pid\(s\) (?P<pid>\d+)(?!\d)[\d, ]*\) exited unexpectedly",
            source=SEEN,
        ),
    ),
)
def dataloader_worker_killed(log: Log) -> Iterator[Finding]:
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
    seen = sightings(log, "dataloader-worker-killed")
    if not seen:
        return
    signal, code = word(seen, "signal"), word(seen, "code")
    how = f"by signal: {signal}" if signal else f"with exit code {code}" if code else "and nothing says of what"
    show_it = Fix("Run once with num_workers=0: the error then has a traceback of its own")
    memory = Fix(
        "See whether the kernel killed it for want of memory, and what the limit is",
        ("ddpdoctor check --select host-oom-killed,cgroup-memory-limit,memory-low",),
    )
    fewer = Fix("Then use fewer workers and a smaller prefetch_factor, or ask for more memory")
    forked = Fix('Or start the workers afresh: DataLoader(..., multiprocessing_context="spawn")')
    yield Finding(
        summary=f"A DataLoader's worker died {how}",
        evidence=lines(log, seen),
        fixes=(memory, fewer, show_it)
        if not signal and not code and any(one.sign in HANDING_OVER for one in seen)
        else (memory, fewer)
        if signal == "Killed"
        else (show_it, forked, memory)
        if not code
        else (show_it,),
        rank=said_by(seen),
    )
