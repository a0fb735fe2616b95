"""srun's labels before lines of launchers: the number is the task, which is a node, and the rank stands behind it."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.logs.analyze.verdict import LogVerdict, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

LABELLED = """{n}: step {n} 1.5
{n}: step 1{n} 1.25
{n}: [rank{rank}]: Traceback (most recent call last):
{n}: [rank{rank}]:   File "/home/ada/train.py", line 9, in <module>
{n}: [rank{rank}]:     step(batch)
{n}: [rank{rank}]: {error}
"""
TABLE = """{n}: E1122 23:44:19.924000 29126 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: {local} (pid: 291) of binary: /opt/env/bin/python
{n}: torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{n}: ============================================================
{n}: train.py FAILED
{n}: ------------------------------------------------------------
{n}: Root Cause (first observed failure):
{n}: [0]:
{n}:   time      : 2026-11-22_23:44:19
{n}:   host      : node{n}
{n}:   rank      : {rank} (local_rank: {local})
{n}:   exitcode  : {code} (pid: 291)
{n}:   error_file: <N/A>
{n}:   traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
{n}: ============================================================
"""
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:42145"
BUG = "KeyError: 'labels'"


def judged(text: str) -> tuple[Log, LogVerdict]:
    log = read(text)
    return log, verdict_of(log, catalogue())


@pytest.mark.parametrize("number", [0, 1])
def test_the_rank_behind_the_number_is_the_one(number: int) -> None:
    text = LABELLED.format(n=number, rank=5, error=BUG) + LABELLED.format(n=number, rank=4, error=LOST)
    log, found = judged(text + TABLE.format(n=number, rank=5, local=1, code=1))
    assert found.lead is not None
    assert (found.lead.rank, found.lead.text) == (5, BUG)
    assert log.ranks == (4, 5)


def test_what_torchrun_says_of_ranks_counts_and_not_the_number_before_it() -> None:
    text = "0: step 1 0.5\n0: step 2 0.25\n0: step 3 0.25\n" + TABLE.format(n=0, rank=3, local=3, code=-11)
    log, found = judged(text)
    assert found.lead is not None
    assert found.lead.rank == 3
    assert log.ranks == (3,)


def test_several_tasks_are_told_apart_by_their_numbers() -> None:
    text = "".join(
        LABELLED.format(n=n, rank=rank, error=BUG if rank == 9 else LOST)
        for n, rank in ((1, 9), (0, 0), (1, 8), (0, 1))
    )
    log, found = judged(text + TABLE.format(n=1, rank=9, local=1, code=1))
    assert found.lead is not None
    assert (found.lead.rank, found.lead.host) == (9, "task 1")
    assert log.ranks == (0, 1, 8, 9)


def test_a_task_is_no_host_of_which_the_log_speaks() -> None:
    full = "RuntimeError: unable to open shared memory object </torch_4242_1> in read-write mode: No space left on device (28)"
    ranks = ((1, 9), (0, 0), (1, 8), (0, 1))
    log, _ = judged("".join(LABELLED.format(n=n, rank=rank, error=full if rank == 9 else LOST) for n, rank in ranks))
    (opinion,) = judge_log(log, catalogue(), Snapshot(host="node1")).opinions
    assert opinion.held is not None
    assert opinion.suspect.sightings[0].line.host == "task 1"
    assert "the log speaks of" not in opinion.held.words


def test_where_each_task_is_a_rank_the_number_still_is() -> None:
    text = "".join(f"{n}: step {s} loss 0.5\n" for s in range(3) for n in (1, 0, 2))
    log, found = judged(text + LABELLED.format(n=2, rank=2, error=BUG))
    assert found.lead is not None
    assert (found.lead.rank, log.ranks) == (2, (0, 1, 2))


def test_a_task_that_ends_is_no_rank_where_torchrun_tells_of_them() -> None:
    text = TABLE.format(n=0, rank=3, local=3, code=-11).replace("0: ", "", 1).replace("\n0: ", "\n")
    log, found = judged(text + "srun: error: node0: task 1: Exited with exit code 1\n")
    assert log.ranks == (3,)
    assert found.lead is not None
    assert found.lead.rank == 3
