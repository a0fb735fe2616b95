"""What the names of files tell of ranks and hosts, and when they mean something else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import verdict_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.parse.file_names import LinePlace, place_of, places_of
from ddpdoctor.logs.reading import read_logs

BUG = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 6, in <module>\n    main()\nKeyError: 3\n'


@pytest.mark.parametrize(
    "name",
    [
        "llama_lora_rank64_lr1e-4.log",
        "qlora-rank16.log",
        "sft-rank32.log",
        "slow-rank0-timeout.log",
        "slurm-4711_3.out",
        "exp-2024_12.err",
        "resnet50-gpu8.log",
        "gpu8.log",
        "ablation-node4.log",
        "rank_64/train.log",
        "/scratch/node3/run.log",
        "low_rank_8/run.log",
    ],
)
def test_a_number_that_no_other_file_differs_in_is_of_nobody(name: str) -> None:
    assert place_of(name) == LinePlace()
    assert places_of([name, "/logs/run.log"])[name] == LinePlace()


@pytest.mark.parametrize(
    "names",
    [
        ["lora_rank8.log", "lora_rank16.log", "lora_rank64.log"],
        ["lora_rank0.log", "lora_rank1.log"],
        ["sft-rank8.log", "sft-rank16.log"],
        ["node_rank0.log", "node_rank1.log"],
        ["slurm-4711_3.out", "slurm-4711_4.out"],
        ["slurm-4711_0.out"],
        ["exp1-rank8.log", "exp2-rank8.log"],
    ],
)
def test_numbers_that_are_chosen_are_of_nobody(names: list[str]) -> None:
    assert set(places_of(names).values()) == {LinePlace()}


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["rank3.log"], [LinePlace(rank=3)]),
        (["logs/global_rank_3.stderr.gz"], [LinePlace(rank=3)]),
        (["train_local_rank3.log"], [LinePlace(local_rank=3)]),
        (["train-rank0.log", "train-rank8.log"], [LinePlace(rank=0), LinePlace(rank=8)]),
        (["train-rank2.log", "train-rank3.log"], [LinePlace(rank=2), LinePlace(rank=3)]),
        (["rank_0/stderr.log", "rank_1/stderr.log"], [LinePlace(rank=0), LinePlace(rank=1)]),
        (
            ["slurm-4711_0.out", "slurm-4711_1.out", "slurm-4711_3.out"],
            [LinePlace(rank=0), LinePlace(rank=1), LinePlace(rank=3)],
        ),
        (["run/attempt_0/3/stderr.log"], [LinePlace(local_rank=3)]),
        (["node7.log"], [LinePlace(host="node7")]),
        (["slurm-4711-gpu03.out"], [LinePlace(host="gpu03")]),
        (["a-gpu1.log", "a-gpu2.log"], [LinePlace(host="gpu1"), LinePlace(host="gpu2")]),
        (
            ["logs-node0/none_x/attempt_0/1/stderr.log", "logs-node1/none_y/attempt_0/0/stderr.log"],
            [LinePlace(local_rank=1, host="node0"), LinePlace(local_rank=0, host="node1")],
        ),
        (["node0/rank0.log", "node1/rank8.log"], [LinePlace(rank=0, host="node0"), LinePlace(rank=8, host="node1")]),
    ],
)
def test_files_that_differ_as_ranks_or_hosts_do(names: list[str], places: list[LinePlace]) -> None:
    found = places_of(names)
    assert [found[name] for name in names] == places


@pytest.mark.parametrize(
    ("says", "rank"),
    [
        ("step 1", 0),
        ("[rank0]: step 1", 0),
        ("[rank3]: step 1", None),
        ("[default2]:step 1", None),
        ("[rank0]:[W10] [PG ID 0 PG GUID 0 Rank 5]  using GPU 5", None),
        ("W10 [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0]", None),
        ("Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2", None),
        ("| distributed init (rank 3): env://, gpu 3", None),
        ("E11 failed (exitcode: 1) local_rank: 2 (pid: 4711) of binary: /usr/bin/python", None),
        ("E11 failed (exitcode: 1) local_rank: 0 (pid: 4711) of binary: /usr/bin/python", 0),
    ],
)
def test_a_name_yields_to_what_the_file_says(tmp_path: Path, says: str, rank: int | None) -> None:
    (tmp_path / "rank0.log").write_text(f"{BUG}{says}\n")
    (raised,) = read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())).raised
    assert raised.line.rank == rank


def test_the_name_of_one_log_changes_no_verdict(tmp_path: Path) -> None:
    for name in ("run.log", "sft-rank32.log", "slurm-4711_3.out", "resnet50-gpu8.log"):
        (tmp_path / name).write_text(BUG)
        verdict = verdict_of(
            read_logs([str(tmp_path / name)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue()
        )
        assert verdict.lead is not None
        assert (verdict.lead.rank, verdict.lead.host) == (None, ""), name
