"""The ranks of a job by their own words, before their training, and the calls that they tried together: what `preflight()` gathers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Source
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.smoke import OWN_WORDS

GROUP = "group"
"""The first of the calls that the ranks try together: the making of their group."""
CURRENT_DEVICE = "torch.cuda.current_device()"
"""The source of a device that nobody has chosen: it is 0 until somebody sets it."""


class PreflightRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank by its own words. Versions are None where the thing isn't there."""

    rank: int
    host: str
    pid: int = 0
    world_size: int = 0
    """Ranks of the job, as this one has it."""
    backend: str = ""
    """Of its process group, or the one that is to be made: "nccl", "cpu:gloo,cuda:nccl"; "" where neither is known."""
    python: str = ""
    """Path of its interpreter."""
    python_version: str = ""
    torch: str = ""
    """"2.13.0+cu130"."""
    cuda: str | None = None
    """The CUDA that torch was built for."""
    nccl: str | None = None
    driver: str | None = None
    settings: tuple[Setting, ...] = ()
    """Those that matter to the other ranks."""
    device: str = ""
    """"cuda:3", "cuda" or "cpu"; "" where the rank has not chosen one yet."""
    device_source: str = ""
    """What says so: "device", "init_process_group(device_id=...)", or CURRENT_DEVICE."""
    gpu: str = ""
    """What tells its GPU from the others of the host: a UUID, or what CUDA_VISIBLE_DEVICES calls it; "" without a GPU."""
    no_gpu: str = ""
    """Why there is no such GPU as `device` names, as the end of a sentence; "" where there is, or nobody knows."""
    gpu_scope: str = ""
    """Within which `gpu` means the same GPU: "" for a UUID, else the host and the cgroup, since containers and tasks number their own."""
    problem: str = ""
    """What an attempt to learn all this raised: type and message."""


class TriedCall(msgspec.Struct, frozen=True, kw_only=True):
    """How far one rank came in the calls that all ranks tried together.

    call: the last that it began: GROUP, "barrier", "all_reduce of 4 B" ...
    words: of torch, where it failed.
    waited: it failed for want of an answer from another rank.
    """

    rank: int
    call: str
    ok: bool
    words: str = ""
    waited: bool = False
    seconds: float = 0.0


class Preflight(Facts, frozen=True, kw_only=True):
    """The ranks of one job. Without any where no job was looked at from within."""

    ranks: Annotated[tuple[PreflightRank, ...], Source(OWN_WORDS)] = ()
    """Those that answered, in their order."""
    world_size: Annotated[int, Source("the process group, or WORLD_SIZE")] = 0
    """By the rank that judges."""
    absent: Annotated[tuple[int, ...], Source("the job's store")] = ()
    """Ranks of which nothing had come when the time for it was over."""
    waited: Annotated[float, Source("the clock of the rank that judges")] = 0.0
    """Seconds for those."""
    store: Annotated[str, Source("MASTER_ADDR and MASTER_PORT, or the process group")] = ""
    """Where the ranks' words go through, in words: "10.0.0.1 port 29500"."""
    store_failure: Annotated[str, Source("the job's store")] = ""
    """Why they could not: torch's words, or that there was no answer."""
    calls: Annotated[tuple[TriedCall, ...], Source("a gloo group beside the job's own")] = ()
    """What came of the calls, in the ranks' order."""
    untried: Annotated[str, Source("a gloo group beside the job's own")] = ""
    """Why none were tried."""
    silent: Annotated[tuple[int, ...], Source("the job's store")] = ()
    """Ranks that began the calls, and said nothing any more."""
