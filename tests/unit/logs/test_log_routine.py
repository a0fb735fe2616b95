"""What is said for the hundredth time is only counted; what a rank says for the first time never is."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.match import repeated_lines as routine
from ddpdoctor.logs.match import scanning
from ddpdoctor.logs.match.scanning import BLOCK_BYTES
from ddpdoctor.logs.match.vocabulary import Vocabulary
from ddpdoctor.logs.reading import read_logs

SIGNS = [
    ("plain", LogSign("the pump has failed")),
    ("worded", LogSign("the pump", pattern=r"pump (?P<verb>\w+)")),
]
WORDS = Vocabulary(SIGNS, (), ())
OFTEN = 500
"""More lines than the patience with any text."""
SEVERAL = 20

LABELS = {
    "torch": "[rank{rank}]: ",
    "torch's C++": "[rank{rank}]:[E1122 02:13:{clock}.123456 socket.cpp:767] ",
    "torchrun --tee": "[default{rank}]:",
    "torchrun, a role": "[trainer{rank}]:step {clock} ",
    "torchrun, behind a logger's clock": "2026-11-22 02:13:{clock},123 [default{rank}]:",
    "mpirun --tag-output": "[1,{rank}]<stderr>:",
    "prterun": "[prterun-node0-4711@1,{rank}]<stdout>:",
    "SageMaker": "[1,mpirank:{rank},algo-{rank}]<stderr>:",
    "srun --label": "{rank}: ",
    "srun --label, padded": "{rank:4}: ",
    "srun --label, an array": "{rank:04}: step {clock} ",
    "DeepSpeed's pdsh, by address": "10.0.0.{rank}: ",
    "DeepSpeed's pdsh, by address, and torch": "10.0.0.{half}: [rank{rank}]: ",
    "Determined": "[2026-11-22T02:13:{clock}.123456Z] 0a1b2c3d [rank={rank}] || ",
    "Ray": "(TrainWorker pid=47{rank:02}, ip=10.0.0.1) ",
    "torch, behind a logger's prefix": "2026-11-22 02:13:{clock},123 ERROR worker: [rank{rank}]: ",
    "a script's prefix": "Rank {rank}: ",
    "a script's prefix with a bar": "rank {rank} | ",
    "a script's brackets": "[Rank {rank}] ",
    "a script's brackets with an equals sign": "[rank={rank}] ",
    "kubectl --prefix": "[pod/train-{rank}/pytorch] ",
    "kubectl --prefix --timestamps": "[pod/train-0/pytorch] 2026-11-22T02:13:{clock}.123456789Z [rank{rank}]: ",
    "kubectl and a logger's clock": "2026-11-22T02:13:{clock}Z 2026-11-22 02:13:{clock},123 [rank{rank}]: ",
    "docker compose": "worker-{rank}  | ",
    "docker compose, and torch": "worker-0  | [rank{rank}]: ",
    "DeepSpeed's pdsh": "node{rank}: ",
    "DeepSpeed's pdsh, and torch": "node{half}: [rank{rank}]: ",
    "journalctl": "Nov 22 02:13:{clock} a-node-with-a-long-name train[4711]: [rank{rank}]: ",
    "syslog": "Nov 22 02:13:{clock} node{rank} train[4711]: ",
    "NCCL": "node{rank}:4711:4800 [0] NCCL INFO ",
    "ProcessGroupNCCL": "[E1122 02:13:{clock}.123456 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] ",
    "ProcessGroupNCCL, behind other ranks": "[E1122 02:13:{clock}.123456 x.cpp:616] Rank 0 waits. Rank 1 waits. [Rank {rank}] ",
}


def read(lines: list[str], words: Vocabulary = WORDS) -> Log:
    with pytest.MonkeyPatch.context() as patched:
        # The end of a file is read whole, routine or not.
        patched.setattr(scanning, "LAST_BYTES", 0)
        return read_logs(["-"], stdin=io.BytesIO("\n".join(lines).encode()), vocabulary=words)


def whose(log: Log, slug: str) -> set[tuple[int | None, int | None, str]]:
    return {
        (sighting.line.rank, sighting.line.local_rank, sighting.line.host)
        for sighting in log.sightings
        if sighting.slug == slug
    }


def labelled(label: str, rank: int, number: int) -> str:
    return label.format(rank=rank, half=rank % 2, clock=f"{number % 60:02}")


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_what_a_rank_says_once_is_found_behind_what_another_says_all_the_time(label: str) -> None:
    known = [f"{labelled(label, rank, rank)}step {rank}" for rank in range(SEVERAL) for _ in range(10)]
    often = [f"{labelled(label, 0, number)}the pump has failed" for number in range(OFTEN)]
    once = [f"{labelled(label, rank, 59)}the pump has failed" for rank in range(1, SEVERAL)]
    log = read([*known, *often, *once])
    for slug, _ in SIGNS:
        assert len(whose(log, slug)) == SEVERAL, slug
    assert sum(sighting.times for sighting in log.sightings if sighting.slug == "plain") == OFTEN + SEVERAL - 1


def test_of_more_ranks_than_are_remembered_none_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routine, "MAX_ENTRIES", 500)
    ranks = 1000
    lines = [f"[rank{rank}]: the pump has failed" for _ in range(3) for rank in range(ranks)]
    log = read(["[rank0]: the pump has failed"] * OFTEN + lines, Vocabulary([SIGNS[0]]))
    assert [(sighting.line.rank, sighting.times) for sighting in log.sightings] == [
        (0, OFTEN + 3),
        *((rank, 3) for rank in range(1, ranks)),
    ]


def test_labels_behind_a_carriage_return_count() -> None:
    bars = [f"[rank{rank}]: 10%|#|\r[rank{rank}]: the pump has failed" for rank in (0, 1)]
    log = read(["\r".join(["[rank0]: start", bars[0]])] * OFTEN + ["\r".join(["[rank0]: start", bars[1]])])
    assert {sighting.line.rank for sighting in log.sightings if sighting.slug == "plain"} == {0, 1}


def test_lines_longer_than_a_block_are_of_whose_labels_they_have() -> None:
    long = "x" * (2 * BLOCK_BYTES)
    lines = [f"[rank{rank}]: {long}" + " the pump has failed" * 2 for rank in (0, 0, 1)]
    assert {sighting.line.rank for sighting in read(lines).sightings if sighting.slug == "plain"} == {0, 1}
