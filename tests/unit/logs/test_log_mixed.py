"""Logs of 64 ranks in which the cause is one rank's few lines among 10,000 lines of what followed from it."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs

RANKS = 64
LINES = 10_000
QUICK = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
"""Without shrinking, which would take minutes: the first example that fails says as much."""
BEGAN = 36_000.0
"""Ten o'clock."""

USER = [
    "Traceback (most recent call last):",
    '  File "/home/ada/train/train.py", line 88, in <module>',
    "    main()",
    '  File "/home/ada/train/train.py", line 61, in main',
    "    loss = losses[step]",
    "           ~~~~~~^^^^^^",
    "KeyError: 4711",
]
SHM = [
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    "Traceback (most recent call last):",
    '  File "/home/ada/train/train.py", line 61, in main',
    "    for batch in loader:",
    '  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1133, in _try_get_data',
    "    data = self._data_queue.get(timeout=timeout)",
    "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are"
    " out of shared memory. Please try to raise your shared memory limit.",
]
GPU_TWICE = [
    "node3:4711:4790 [5] init.cc:871 NCCL WARN Duplicate GPU detected : rank {rank} and rank 0 both on CUDA device 1b000",
    "Traceback (most recent call last):",
    '  File "/home/ada/train/train.py", line 40, in main',
    "    model = DDP(model, device_ids=[0])",
    '  File "/opt/conda/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 822, in __init__',
    "    _verify_param_shape_across_processes(self.process_group, parameters)",
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage",
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "Last error:",
    "Duplicate GPU detected : rank {rank} and rank 0 both on CUDA device 1b000",
]
MEMORY = [
    "Traceback (most recent call last):",
    '  File "/home/ada/train/train.py", line 61, in main',
    "    loss.backward()",
    '  File "/opt/conda/lib/python3.11/site-packages/torch/autograd/graph.py", line 824, in _engine_run_backward',
    "    return Variable._execution_engine.run_backward(",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which"
    " 1.20 GiB is free. Including non-PyTorch memory, this process has 77.94 GiB memory in use. Of the allocated memory"
    " 75.10 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated.",
]
CAUSES = {
    "user-code-error": USER,
    "shm-too-small": SHM,
    "duplicate-gpu": GPU_TWICE,
    "oom-batch-too-large": MEMORY,
}

CLOSED = [
    "Traceback (most recent call last):",
    '  File "/home/ada/train/train.py", line 88, in <module>',
    "    main()",
    '  File "/home/ada/train/train.py", line 62, in main',
    "    loss.backward()",
    '  File "/opt/conda/lib/python3.11/site-packages/torch/autograd/graph.py", line 824, in _engine_run_backward',
    "    return Variable._execution_engine.run_backward(",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:50122",
]
WATCHDOG = [
    "[E612 10:30:11.204 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812,"
    " OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
    "[E612 10:30:11.310 ProcessGroupNCCL.cpp:744] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the"
    " asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "  what():  [PG 0 Rank {rank}] Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog caught"
    " collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576,"
    " Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
]  # fmt: skip

JOINED = [
    "Traceback (most recent call last):",
    '  File "/home/ada/train/train.py", line 20, in main',
    '    dist.init_process_group("nccl")',
    '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 274, in _env_rendezvous_handler',
    "    store = _create_c10d_store(",
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 63/64 clients joined.",
]
EFFECTS = (CLOSED, CLOSED, WATCHDOG, WATCHDOG, JOINED)

Label = Callable[[int], str]
LABELS: dict[str, Label] = {
    "torchrun": lambda rank: f"[rank{rank}]: ",
    "srun": lambda rank: f"{rank}: ",
    "mpirun": lambda rank: f"[1,{rank}]<stderr>:",
}


def steps(rank: int, until: int) -> list[str]:
    """Of a run that is well."""
    return [f"step {10 * step} loss {1 / (step + 1):.4f} rank {rank}" for step in range(until)]


def streams(
    cause: Sequence[str], rank: int, effects: Sequence[Sequence[str]], chance: random.Random
) -> list[list[tuple[float, str]]]:
    """What each rank writes, with the second at which it does."""
    found = []
    before = LINES // RANKS - 8
    for each in range(RANKS):
        lines = [(BEGAN + 0.5 * number, text) for number, text in enumerate(steps(each, before))]
        failed = BEGAN + 0.5 * before
        if each == rank:
            lines += [(failed, text.format(rank=rank)) for text in cause]
        else:
            at = failed + chance.uniform(2, 1200)
            lines += [(at, text.format(rank=each)) for text in chance.choice(effects)]
        found.append(lines)
    return found


def stamp(second: float) -> str:
    whole = int(second)
    return f"2026-06-12T{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}.{int(second % 1 * 1000):03}Z "


def mixed(
    all_lines: Sequence[Sequence[tuple[float, str]]], label: Label, *, stamped: bool, chance: random.Random
) -> str:
    """One file: by time, as far as the ranks' buffers let it be."""
    longest = chance.choice((1.5, 900))
    late = [0.0 if stamped else chance.uniform(0, longest) for _ in all_lines]
    rows = [
        (at + late[rank], rank, number, text, at)
        for rank, lines in enumerate(all_lines)
        for number, (at, text) in enumerate(lines)
    ]
    rows.sort(key=lambda row: row[:3])
    return "".join(f"{stamp(at) if stamped else ''}{label(rank)}{text}\n" for _, rank, _, text, at in rows)


TABLE = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-06-12_10:{minute:02}:17
  host      : node{host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code}
  error_file: <N/A>
  traceback : {words}
============================================================
"""


def table(rank: int, code: int) -> str:
    """torchrun's last words on the node of that rank."""
    words = (
        "Signal 9 (SIGKILL) received by PID 4711" if code < 0 else "To enable traceback see: https://pytorch.org/docs"
    )
    name = "  (SIGKILL)" if code < 0 else ""
    return TABLE.format(
        rank=rank, local=rank % 8, host=rank // 8, minute=21, code=f"{code} (pid: 4711){name}", words=words
    )


def read(text: str) -> Log:
    return read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue()))


def first_of(verdict: LogVerdict) -> tuple[str, int | None]:
    assert verdict.suspects
    assert verdict.lead
    return verdict.suspects[0].slug, verdict.lead.rank


@settings(QUICK, max_examples=6, derandomize=True)
@given(
    slug=st.sampled_from(sorted(CAUSES)),
    rank=st.integers(0, RANKS - 1),
    launcher=st.sampled_from(sorted(LABELS)),
    stamped=st.booleans(),
    seed=st.integers(0, 2**32),
)
@example(slug="user-code-error", rank=63, launcher="srun", stamped=False, seed=1)
@example(slug="duplicate-gpu", rank=0, launcher="torchrun", stamped=True, seed=2)
@example(slug="duplicate-gpu", rank=0, launcher="srun", stamped=False, seed=137587)
def test_the_cause_among_ten_thousand_lines_of_effects(
    slug: str, rank: int, launcher: str, stamped: bool, seed: int
) -> None:
    chance = random.Random(seed)
    lines = streams(CAUSES[slug], rank, EFFECTS, chance)
    text = mixed(lines, LABELS[launcher], stamped=stamped, chance=chance)
    found = verdict_of(read(text), catalogue())
    assert first_of(found) == (slug, rank)
    assert found.effects


@pytest.mark.thorough
@settings(QUICK, max_examples=40)
@given(
    slug=st.sampled_from(sorted(CAUSES)),
    rank=st.integers(0, RANKS - 1),
    launcher=st.sampled_from(sorted(LABELS)),
    stamped=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_cause_whoever_has_it(slug: str, rank: int, launcher: str, stamped: bool, seed: int) -> None:
    chance = random.Random(seed)
    lines = streams(CAUSES[slug], rank, EFFECTS, chance)
    assert first_of(verdict_of(read(mixed(lines, LABELS[launcher], stamped=stamped, chance=chance)), catalogue())) == (
        slug,
        rank,
    )


@pytest.mark.parametrize("slug", sorted(CAUSES))
def test_all_ranks_in_files_of_their_own(slug: str, tmp_path: Path) -> None:
    """No timestamps, so nothing tells which file was written first."""
    chance = random.Random(7)
    rank = 17
    for each, lines in enumerate(streams(CAUSES[slug], rank, EFFECTS, chance)):
        folder = tmp_path / "run" / "attempt_0" / str(each)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("".join(f"[rank{each}]: {text}\n" for _, text in lines))
    found = verdict_of(
        read_logs([str(tmp_path / "run")], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue()
    )
    assert first_of(found) == (slug, rank)


@pytest.mark.parametrize("slug", sorted(CAUSES))
def test_nobody_labels_the_lines(slug: str) -> None:
    """What a rank writes at once stays together; whose it is, only the launcher tells."""
    chance = random.Random(3)
    blocks = [lines[:-12] for lines in streams(CAUSES[slug], 29, EFFECTS, chance)]
    ends = [lines[-12:] for lines in streams(CAUSES[slug], 29, EFFECTS, chance)]
    chance.shuffle(ends)
    before = mixed(blocks, lambda rank: "", stamped=False, chance=chance)
    found = verdict_of(
        read(before + "".join(f"{text}\n" for lines in ends for _, text in lines) + table(30, 1)), catalogue()
    )
    assert found.suspects[0].slug == slug
    assert found.lead is not None
    assert found.lead.rank in (None, 29)


@pytest.mark.parametrize("stamped", [True, False])
def test_a_rank_that_is_killed_without_a_word(stamped: bool) -> None:
    """It says nothing itself: torchrun's table does, at the end of ten thousand lines."""
    chance = random.Random(11)
    text = mixed(streams((), 23, (CLOSED,), chance), LABELS["torchrun"], stamped=stamped, chance=chance)
    found = verdict_of(read(text + table(23, -9)), catalogue())
    assert found.lead is not None
    assert found.lead.rank == 23
    assert found.exited is not None
    assert found.exited.exit_code == -9
    assert "host-oom-killed" in [suspect.slug for suspect in found.suspects]


def test_a_rank_that_says_nothing_while_all_others_time_out() -> None:
    chance = random.Random(13)
    found = verdict_of(
        read(mixed(streams((), 42, (WATCHDOG,), chance), LABELS["srun"], stamped=True, chance=chance)), catalogue()
    )
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert found.silent == (42,)
    assert [suspect.slug for suspect in found.suspects] == ["nccl-watchdog-timeout"]


def test_only_effects_name_no_cause() -> None:
    chance = random.Random(17)
    lines = streams(CLOSED, 5, (CLOSED,), chance)
    found = verdict_of(read(mixed(lines, LABELS["torchrun"], stamped=True, chance=chance)), catalogue())
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert found.silent == ()


def test_the_launcher_saw_a_victim_first() -> None:
    """torchrun looks at its processes ten times a second: the first that it sees fail may have lost the one that did."""
    chance = random.Random(19)
    text = mixed(streams(USER, 9, (CLOSED,), chance), LABELS["torchrun"], stamped=False, chance=chance)
    found = verdict_of(read(text + table(10, 1)), catalogue())
    assert first_of(found) == ("user-code-error", 9)
