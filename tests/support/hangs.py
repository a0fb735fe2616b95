"""Made-up looks at the ranks of a running job, for tests of what is said of them.

hang(rank(0, *IN_BARRIER), rank(1, own("main", 30)))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import msgspec

from ddpdoctor.facts.hang import (
    Frame,
    Hang,
    RankLook,
    Recorded,
    RecordedCollective,
    RecordedGroup,
    Watched,
    WatchedRank,
)

SCRIPT = "/home/ada/train.py"
LIB = "/opt/env/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
WRAPPER = Frame("_exception_logger.<locals>.wrapper", f"{TORCH}/distributed/c10d_logger.py", 83)
BETWEEN = 5.0

Stack = tuple[Frame, ...]


@cache
def own(function: str = "main", line: int = 30, path: str = SCRIPT) -> Stack:
    """Code of the user's own, called by the script."""
    inner = () if function == "main" else (Frame(function, path, line),)
    return (*inner, Frame("main", SCRIPT, 90 if inner else line), Frame("<module>", SCRIPT, 120))


@cache
def collective(name: str = "all_reduce", line: int = 40) -> Stack:
    """A call of torch.distributed at that line of main()."""
    return (Frame(name, C10D, 3252), WRAPPER, *own("main", line))


@cache
def backward(line: int = 37) -> Stack:
    return (
        Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979),
        Frame("backward", f"{TORCH}/autograd/__init__.py", 364),
        Frame("Tensor.backward", f"{TORCH}/_tensor.py", 630),
        *own("main", line),
    )


@cache
def forward(line: int = 36) -> Stack:
    """DDP's forward, which broadcasts buffers."""
    path = f"{TORCH}/nn/parallel/distributed.py"
    names = ("_distributed_broadcast_coalesced", "_default_broadcast_coalesced", "_sync_module_buffers", "_sync_buffers", "_pre_forward", "forward")  # fmt: skip
    return (
        *(Frame(f"DistributedDataParallel.{name}", path, 2363) for name in names),
        Frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1789),
        *own("main", line),
    )


@cache
def rendezvous(line: int = 12) -> Stack:
    return (
        Frame("_create_c10d_store", f"{TORCH}/distributed/rendezvous.py", 199),
        Frame("_env_rendezvous_handler", f"{TORCH}/distributed/rendezvous.py", 280),
        Frame("init_process_group", C10D, 1892),
        WRAPPER,
        *own("main", line),
    )


@cache
def loader(line: int = 31) -> Stack:
    """A rank that waits for its DataLoader's workers."""
    path = f"{TORCH}/utils/data/dataloader.py"
    return (
        Frame("_PollLikeSelector.select", f"{LIB}/selectors.py", 415),
        Frame("wait", f"{LIB}/multiprocessing/connection.py", 947),
        Frame("Queue.get", f"{LIB}/multiprocessing/queues.py", 113),
        Frame("_MultiProcessingDataLoaderIter._try_get_data", path, 1291),
        Frame("_MultiProcessingDataLoaderIter._get_data", path, 1464),
        Frame("_MultiProcessingDataLoaderIter._next_data", path, 1505),
        Frame("_BaseDataLoaderIter.__next__", path, 725),
        *own("main", line),
    )


@cache
def in_worker(*frames: Frame) -> Stack:
    """A DataLoader's worker: below its own frames are those of the rank that it was forked from."""
    return (
        *frames,
        Frame("_MapDatasetFetcher.fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
        Frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 374),
        Frame("Popen._launch", f"{LIB}/multiprocessing/popen_fork.py", 71),
        Frame("_MultiProcessingDataLoaderIter.__init__", f"{TORCH}/utils/data/dataloader.py", 1176),
        *own("main", 31),
    )


GETS_ITEM = Frame("Images.__getitem__", "/home/ada/data.py", 7)
IDLE_WORKER: Stack = (
    Frame("Queue.get", f"{LIB}/multiprocessing/queues.py", 113),
    Frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 334),
    *own("main", 31),
)


@cache
def saving(line: int = 60) -> Stack:
    return (
        Frame("_save", f"{TORCH}/serialization.py", 1290),
        Frame("save", f"{TORCH}/serialization.py", 990),
        *own("save_checkpoint", line),
    )


@cache
def destroying(line: int = 80) -> Stack:
    return (Frame("destroy_process_group", C10D, 2440), *own("main", line))


def watched(
    pid: int,
    *stacks: Stack,
    state: str = "S",
    waits_in: str = "futex_do_wait",
    cores: float = 0.003,
    moved: int = 0,
    wakes: int = 0,
    between: float = BETWEEN,
    source: str = "py-spy",
) -> Watched:
    """Two looks at a process; at one stack in both, if only one is given. cores, moved: what it did in between; wakes: how often its
    main thread woke up."""
    first, last = (stacks[0], stacks[-1]) if stacks else ((), ())
    look = RankLook(
        frames=first, source=source if stacks else "not permitted", state=state, waits_in=waits_in, cpu_seconds=9.0,
        switches=2000, transferred=52_000_000, main_wakes=700, other_wakes=90,
    )  # fmt: skip
    again = msgspec.structs.replace(
        look,
        seconds=between,
        frames=last,
        cpu_seconds=9.0 + cores * between,
        switches=2500,
        transferred=52_000_000 + moved,
        main_wakes=700 + wakes,
    )
    return Watched(pid=pid, looks=(look, again))


def rank(
    number: int, *stacks: Stack, host: str = "node01", workers: Sequence[Watched] = (), gone: str = "", **more: object
) -> WatchedRank:
    """A rank at these stacks; without any it could not be looked into."""
    one = None if gone else watched(4000 + number, *stacks, **more)  # type: ignore[arg-type]
    return WatchedRank(rank=number, host=host, watched=one, workers=tuple(workers), gone=gone)


def hang(*ranks: WatchedRank, **more: object) -> Hang:
    """A job of these ranks over gloo."""
    given: dict[str, object] = {
        "job": "3990" if ranks else "",
        "world_size": len(ranks),
        "backend": "gloo" if ranks else "",
        "between": BETWEEN,
        "ranks": ranks,
    }
    return Hang(**{**given, **more})  # type: ignore[arg-type]


def call(
    number: int, name: str = "nccl:all_reduce", state: str = "completed", line: int = 40, **more: object
) -> RecordedCollective:
    given: dict[str, object] = {
        "shapes": ((1024,),),
        "dtypes": ("Float",),
        "created": 1000.0 + number,
        "frames": own("main", line),
    }
    return RecordedCollective(number=number, name=name, state=state, **{**given, **more})  # type: ignore[arg-type]


def dump(
    number: int,
    *entries: RecordedCollective,
    group: str = "0:default_pg",
    ranks: Iterable[int] = (),
    host: str = "node01",
    written: float = 0.0,
) -> Recorded:
    """A rank's dump with one group."""
    last = max((entry.number for entry in entries), default=None)
    done = max((entry.number for entry in entries if entry.state == "completed"), default=0)
    one = RecordedGroup(group=group, ranks=tuple(ranks), last_enqueued=last, last_completed=done, entries=entries)
    return Recorded(
        rank=number, file=f"/dumps/rank_{number}", host=host, written=written, version="2.10", groups=(one,)
    )
