"""Mistakes in starting a run that only its log shows."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word


@log_check("local-rank-arg-mismatch", severity=FAIL, owner=Owner.USER)
def local_rank_arg_mismatch(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The script doesn't know the argument by which its launcher tells the local rank.

    ## What breaks
    Every rank ends at once with "unrecognized arguments: --local-rank=0".

    ## Why
    `python -m torch.distributed.launch` adds `--local-rank=N` (before torch 2.0 `--local_rank=N`), `deepspeed`
    `--local_rank=N`. The script declares the other spelling, or none.

    ## Fix
    Start with `torchrun`, or `deepspeed --no_local_rank`, which add nothing, and read `int(os.environ["LOCAL_RANK"])`. Or
    declare both:
    `parser.add_argument("--local-rank", "--local_rank", type=int)`.
    """
    argument = word(seen, "argument")
    deepspeed = log.launcher == "deepspeed"
    start = "deepspeed --no_local_rank" if deepspeed else "torchrun"
    return Finding.of(
        f"The script doesn't know {argument}, which {'deepspeed' if deepspeed else 'torch.distributed.launch'} adds",
        Fix(f'Read it from the environment, and start with {start}: local_rank = int(os.environ["LOCAL_RANK"])'),
        Fix('Or declare both spellings: parser.add_argument("--local-rank", "--local_rank", type=int, default=0)'),
    )


@log_check("libuv-missing", severity=FAIL, owner=Owner.USER)
def libuv_missing(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """torch was built without libuv, which its store is told to use.

    ## What breaks
    torchrun and `init_process_group` end at once with "use_libuv was requested but PyTorch was built without libuv support".

    ## Why
    Since torch 2.4 the store, by which the ranks find each other, uses libuv unless told otherwise. Wheels for Windows come without
    it, as do some builds that people make themselves.

    ## Fix
    `USE_LIBUV=0` in the environment of every rank, or `init_method="env://?use_libuv=0"`. torchrun's own store ignores both, up to
    torch 2.13 at least: on a single host start the ranks by `mp.spawn` in its place, or run it in WSL or on Linux, whose wheels have
    libuv.
    """
    launcher = any("elastic" in frame.path for exception in log.raised for frame in exception.frames)
    unset = Fix("Tell the store of every rank to work without it; on Windows", ("set USE_LIBUV=0",))
    spawn = Fix(
        "torchrun's own store ignores USE_LIBUV: on a single host start the ranks by torch.multiprocessing.spawn, and in each",
        (
            'os.environ.update(USE_LIBUV="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")',
            'dist.init_process_group("gloo", rank=rank, world_size=world_size)',
        ),
    )
    return Finding.of(
        "This build of torch has no libuv, but its store, at which the ranks meet, needs it",
        None if launcher else unset,
        spawn,
        Fix("Or run it in WSL or on Linux, whose wheels have libuv, and NCCL as well"),
    )
