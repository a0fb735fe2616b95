"""A build of Apex that failed, told from its output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import LogTraits
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import lines, where

COMPILER = re.compile(r"\.\w+(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal |catastrophic )?error:? (?:#error -- )?(?P<what>\S.*)")
"""As gcc and nvcc report an error: after the place in a source file."""


@log_check("apex-build-failed", severity=FAIL, log=LogTraits(sums_up=True))
def apex_build_failed(log: Log, seen: Sequence[SignMatch]) -> Finding:
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
    said = sorted((*log.errors, *(sighting.line for sighting in log.sightings)), key=lambda line: line.order)
    of_compiler = ((line, COMPILER.search(line.text)) for line in said if line.order < seen[-1].line.order)
    line, found = next(((line, found) for line, found in of_compiler if found), (None, None))
    return Finding(
        summary=("Apex could not be built: the first line with error: above says why"
            + (f", {' '.join(found['what'].split())}" if found else "")),
        evidence=(*((Evidence(line.text.strip(), where(log, line)),) if line else ()), *lines(log, seen)),
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
