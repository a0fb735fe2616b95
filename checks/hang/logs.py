"""Ranks that wait, told from the log they left."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import capital, listed, ranks_named
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import lines, sightings, where

NCCL_VERSION = re.compile(r"\bNCCL version (\d+\.\d+(?:\.\d+)?)")
"""As torch ends the first line of NCCL's errors."""


@log_check("checkpoint-save-timeout", severity=FAIL, owner=Owner.UNKNOWN)
def checkpoint_save_timeout(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The group timed out while a checkpoint was being saved.

    ## What breaks
    The ranks that wait for rank 0 are ended by the watchdog (after 10 minutes over NCCL, 30 over gloo), the half-written
    checkpoint stays behind, and so it goes at every save.

    ## Why
    Rank 0 gathers and writes a large model alone, to a slow disk or network file system, while the others have gone on to the
    next collective.

    ## Fix
    A longer timeout: `init_process_group(timeout=timedelta(hours=2))`, with transformers `ddp_timeout=7200`. Better, save in
    shards (`torch.distributed.checkpoint`, FSDP's SHARDED_STATE_DICT), which takes a fraction of the time.
    """
    return Finding.of(
        "The group timed out while a checkpoint was being saved",
        Fix("Allow for the save: init_process_group(timeout=timedelta(hours=2)); transformers: ddp_timeout=7200"),
        Fix("Save in shards, on all ranks: torch.distributed.checkpoint, or FSDP's SHARDED_STATE_DICT"),
        Fix("If it hangs again, see what rank 0 does while the others wait", ("ddpdoctor jobs --hang",)),
        cause=_who_was_saving(log, seen),
    )


def _who_was_saving(log: Log, seen: Sequence[SignMatch]) -> str:
    """Name the few ranks that don't say that they waited; empty where too many, or all, say so."""
    all_timeouts = (*seen, *sightings(log, "nccl-watchdog-timeout"))
    waited = {timeout.line.rank for timeout in all_timeouts if timeout.line.rank is not None}
    everybody = {*log.ranks, *range(max(log.world_size or 0, *(rank + 1 for rank in waited), 0))}
    missing = everybody - waited
    if len(waited) < 2 or not missing or len(missing) * 4 > len(everybody):
        return ""
    say = "says" if len(missing) == 1 else "say"
    return (
        f"{capital(ranks_named(waited))} waited in vain, and {ranks_named(missing)} {say} nothing of it: mostly that is who gathers and"
        " writes a large model alone, to a slow disk or network file system."
    )


@log_check("nccl-message-truncated", severity=FAIL, owner=Owner.USER)
def nccl_message_truncated(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL got a message of another size than it expected.

    ## What breaks
    A rank stops with "Message truncated : received ... bytes instead of ...", over InfiniBand "collective mismatch error", at the
    start or at the first collectives.

    ## Why
    The nodes have different versions of NCCL, or different NCCL_* settings (NCCL_PROTO, NCCL_ALGO and the like), so that they
    speak different protocols; or the ranks call one collective with tensors of different sizes.

    ## Fix
    The same container image, torch and exported NCCL_* on all nodes; then look for a size that differs between ranks, with
    TORCH_DISTRIBUTED_DEBUG=DETAIL.
    """
    versions = {
        found[1]: exception.line
        for exception in reversed(log.raised)
        if (found := NCCL_VERSION.search(exception.message))
    }
    differ = len(versions) > 1
    return Finding.of(
        "NCCL got a message of another size than it expected"
        + (f": the ranks have NCCL {listed(sorted(versions), 3)}, which must be one and the same" if differ else ""),
        lines(log, seen),
        (Evidence(line.text, where(log, line)) for line in list(versions.values())[:3] if differ),
        Fix("Install the same torch, or the same nvidia-nccl package, on all nodes") if differ else None,
        Fix("Compare the nodes' versions and settings: run netcheck on every node", ("ddpdoctor netcheck --help",)),
        None
        if differ
        else Fix("Let torch compare the sizes of every call", ("export TORCH_DISTRIBUTED_DEBUG=DETAIL",)),
    )
