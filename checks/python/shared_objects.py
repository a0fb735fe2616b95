"""Compiled libraries that the dynamic loader refuses."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.loader_messages import loader_fault


def _unless_others_know_more(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Leave out the lines that another check knows: of torch's own libraries, CUDA's, or extensions."""
    known = {match.line.order for match in seen if match.slug != slug}
    return [match for match in seen if match.slug != slug or match.line.order not in known]


@log_check("shared-object-unloadable", severity=FAIL, owner=Owner.USER, log=LogTraits(revises=_unless_others_know_more))
def shared_object_unloadable(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The dynamic loader refuses a compiled library.

    ## What breaks
    An import, or `ctypes.CDLL`, ends with the path of a `.so` and the loader's word: "failed to map segment from shared object", "cannot
    allocate memory in static TLS block", "cannot open shared object file", "file too short", "undefined symbol" and others.

    ## Why
    The script is not at fault. The file system is mounted `noexec`, the file is damaged, was never built, was built for other libraries than
    those that are here, or was loaded too late: each message means something else.

    ## Fix
    See what the file is, and where it lies: `ls -l FILE`, `findmnt -T FILE`, `ldd FILE`. From a file system that is mounted `noexec` move it
    to another one; what is damaged, missing or doesn't fit, install or build again in this environment; for a static TLS block that is used
    up, load that library first: `export LD_PRELOAD=FILE"${LD_PRELOAD:+:$LD_PRELOAD}"`.
    """
    fault = next((fault for match in seen if (fault := loader_fault(match.line.text))), None)
    if fault is None:
        return Finding.of("A compiled library can't be loaded")
    return Finding.of(fault.summary, *fault.fixes, cause=fault.message.cause)
