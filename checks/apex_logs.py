"""A build of Apex that failed, told from its output."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import FAIL, Finding, Fix
from ddpdoctor.knowledge.log_sightings import lines, sightings
from ddpdoctor.registry import LogSign, check


@check(
    "apex-build-failed",
    severity=FAIL,
    log_signs=(
        LogSign(
            "Failed building wheel for apex",
            pattern=r"Failed building wheel for apex\b",
            why="pip's own words, with the package's name",
            source="pip 23.2: pip/_internal/operations/build/wheel.py; made to happen",
        ),
    ),
)
def apex_build_failed(log: Log) -> Iterator[Finding]:
    """NVIDIA Apex could not be built.

    ## What breaks
    `pip install` ends with "Failed building wheel for apex", and nothing is installed.

    ## Why
    The reason stands above, in the first line with "error:": a compiler that nvcc doesn't take, a header that this torch no
    longer has (an Apex too old for it), another CUDA than torch's, or too little memory ("Killed").

    ## Fix
    Look for the first "error:" of the build. `ddpdoctor explain apex` gives the commands that fit this host. For most uses torch
    itself has what Apex had: `torch.amp`, `torch.optim.AdamW(fused=True)`, `torch.nn.SyncBatchNorm`.
    """
    seen = sightings(log, "apex-build-failed")
    if not seen:
        return
    yield Finding(
        summary="Apex could not be built: the first line with error: above says why",
        evidence=lines(log, seen),
        fixes=(
            Fix("See whether toolkit, compiler and torch fit, and which commands build it here", ("ddpdoctor explain apex",)),
            Fix(
                "Build with few jobs, so that the first error stands alone and memory suffices",
                (
                    "MAX_JOBS=2 APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation --no-cache-dir . 2>&1"
                    " | tee build.log",
                    "grep -n -m 5 'error:' build.log",
                ),
            ),
        ),
    )  # fmt: skip
