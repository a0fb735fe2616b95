"""What a stack means."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.hang import Frame, RankLook
from ddpdoctor.knowledge.torch_frames import PlaceKind, place_of, worker_place
from tests.support.hangs import (
    C10D,
    GETS_ITEM,
    IDLE_WORKER,
    LIB,
    SCRIPT,
    TORCH,
    WRAPPER,
    Stack,
    backward,
    collective,
    destroying,
    forward,
    in_worker,
    loader,
    own,
    rendezvous,
    saving,
)

LINEAR = (
    Frame("Linear.forward", f"{TORCH}/nn/modules/linear.py", 125),
    Frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1789),
    Frame("DistributedDataParallel.forward", f"{TORCH}/nn/parallel/distributed.py", 1886),
)
GATHER_OBJECT = (Frame("all_gather", C10D, 4287), WRAPPER, Frame("all_gather_object", C10D, 3513), WRAPPER)
NEW_GROUP = (
    Frame("_new_process_group_helper", C10D, 2169),
    Frame("_new_group_with_tag", C10D, 6056),
    Frame("new_group", C10D, 5863),
)
COMPILED = (
    Frame("run", f"{TORCH}/_inductor/output_code.py", 500),
    Frame("_fn", f"{TORCH}/_dynamo/eval_frame.py", 700),
)
COMPILING = (
    Frame("wait", f"{TORCH}/_inductor/async_compile.py", 600),
    Frame("call", f"{TORCH}/_dynamo/convert_frame.py", 9),
)
FETCHED_HERE = (
    GETS_ITEM,
    Frame("_MapDatasetFetcher.fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
    Frame("_SingleProcessDataLoaderIter._next_data", f"{TORCH}/utils/data/dataloader.py", 785),
)
SEED = (
    Frame("broadcast", C10D, 3151),
    WRAPPER,
    Frame("_share_dist_seed", f"{TORCH}/utils/data/dataloader.py", 142),
    Frame("DataLoader.__iter__", f"{TORCH}/utils/data/dataloader.py", 505),
)
DOWNLOAD = (
    Frame("SSLSocket.read", f"{LIB}/ssl.py", 1166),
    Frame("get", f"{LIB}/site-packages/requests/api.py", 73),
)


@pytest.mark.parametrize(
    ("stack", "where", "what", "line"),
    [
        (collective("barrier", 41), PlaceKind.COLLECTIVE, "barrier", 41),
        (collective("all_reduce", 40), PlaceKind.COLLECTIVE, "all_reduce", 40),
        ((*GATHER_OBJECT, *own()), PlaceKind.COLLECTIVE, "all_gather_object", 30),
        (collective("recv", 40), PlaceKind.PAIR, "recv", 40),
        (collective("batch_isend_irecv", 40), PlaceKind.PAIR, "batch_isend_irecv", 40),
        (backward(), PlaceKind.STEP, "backward", 37),
        ((Frame("backward", f"{TORCH}/autograd/__init__.py", 200), *own()), PlaceKind.STEP, "backward", 30),
        (forward(), PlaceKind.STEP, "DDP's forward", 36),
        ((LINEAR[2], *own()), PlaceKind.STEP, "DDP's forward", 30),
        ((*LINEAR, *own()), PlaceKind.OWN, "", 30),
        ((*own("forward", 7, "/home/ada/model.py")[:1], *LINEAR[1:], *own()), PlaceKind.OWN, "", 7),
        (rendezvous(), PlaceKind.GROUP, "init_process_group", 12),
        ((*NEW_GROUP, *own()), PlaceKind.GROUP, "new_group", 30),
        (destroying(), PlaceKind.LEAVING, "destroy_process_group", 80),
        ((Frame("_shutdown", f"{LIB}/threading.py", 1583),), PlaceKind.LEAVING, "the end of Python, for its threads", 1583),
        (loader(), PlaceKind.LOADER, "", 31),
        ((*FETCHED_HERE, *own("main", 31)), PlaceKind.DATA, "", 7),
        ((*SEED, *own("main", 31)), PlaceKind.COLLECTIVE, "broadcast", 31),
        (saving(), PlaceKind.SAVING, "", 60),
        ((*COMPILING, *own()), PlaceKind.COMPILING, "", 30),
        ((*COMPILED, *own()), PlaceKind.OWN, "", 30),
        ((Frame("acquire", f"{LIB}/logging/__init__.py", 928), *own()), PlaceKind.LOCK, "a lock of logging", 30),
        ((Frame("_ModuleLock.acquire", "<frozen importlib._bootstrap>", 180), *own()), PlaceKind.LOCK, "the import lock", 30),
        ((*DOWNLOAD, *own("fetch", 18)), PlaceKind.REMOTE, "data from a socket", 18),
        (own("evaluate", 55), PlaceKind.OWN, "", 55),
        ((Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1219), *own()), PlaceKind.DEVICE, "torch.cuda.synchronize", 30),
        ((), PlaceKind.UNSEEN, "", 0),
    ],
)  # fmt: skip
def test_place(stack: Stack, where: PlaceKind, what: str, line: int) -> None:
    found = place_of(RankLook(frames=stack))
    assert (found.where, found.what, found.frame.line if found.frame else 0) == (where, what, line)


def test_names_without_classes_and_short_paths_are_the_same() -> None:
    """As Pythons before 3.11 have it, and as py-spy names files without --full-filenames."""
    old = tuple(
        Frame(
            one.function.rpartition(".")[2],
            one.path.replace(f"{LIB}/site-packages/", "").replace(f"{LIB}/", ""),
            one.line,
        )
        for one in loader()
    )
    assert place_of(RankLook(frames=old)) == place_of(RankLook(frames=loader()))


def test_a_line_that_reads_from_the_terminal_waits_for_somebody() -> None:
    assert place_of(RankLook(frames=own(), waits_in="n_tty_read")).where is PlaceKind.INPUT
    assert place_of(RankLook(frames=own(), waits_in="wait_woken")).where is PlaceKind.OWN


def test_a_worker_is_not_where_its_rank_was_forked() -> None:
    found = worker_place(RankLook(frames=in_worker(GETS_ITEM)))
    assert (found.where, found.frame) == (PlaceKind.OWN, GETS_ITEM)
    assert worker_place(RankLook(frames=IDLE_WORKER)).what == "an empty queue"


def test_the_users_own_line_is_named_and_not_the_librarys() -> None:
    found = place_of(RankLook(frames=(Frame("step", f"{LIB}/site-packages/trainer/loop.py", 9), *own("main", 40))))
    assert found.frame == Frame("main", SCRIPT, 40)
    assert found.path[0].line == 9, "but two lines of the library are two places"
