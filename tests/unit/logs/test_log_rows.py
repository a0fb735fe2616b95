"""What the rows of torchrun's table say of ranks that say nothing themselves, and whose lines are that bear no label."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

FAILED = "E1122 14:02:52.577000 4711 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {}) local_rank: {} (pid: {}) of binary: python\n"
ENDED = "W1122 14:02:52.570000 4711 torch/distributed/elastic/multiprocessing/api.py:900] Sending process {} closing signal SIGTERM\n"
RAISED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
UNHANDLED = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error\nncclSystemError: System call failed."
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:42145"
FILES = "OSError: [Errno 24] Too many open files"
WANDB = "wandb: \nwandb: View run sun-7 at: https://wandb.invalid/ada/runs/7\n"
DEVICES = "RuntimeError: a tensor is on the wrong device"


def row(number: int, rank: int, code: int) -> str:
    return f"""[{number}]:
  time      : 2026-11-22_14:02:52
  host      : node1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {40 + rank})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""


def table(first: int, *others: int, code: int = 1) -> str:
    rows = "".join(row(number, rank, code) for number, rank in enumerate(others, start=1))
    return f"{RAISED}Failures:\n{rows}{'-' * 60}\nRoot Cause (first observed failure):\n{row(0, first, 1)}{'=' * 60}\n"


def traceback(error: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in <module>\n    step()\n{error}\n'
    )


def labelled(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


def rank_of(verdict: LogVerdict) -> int | None:
    assert verdict.lead is not None
    return verdict.lead.rank


def test_a_mere_row_says_less_than_the_rank_that_ended_first_and_spoke() -> None:
    found = judged(labelled(2, traceback(UNHANDLED)) + table(2, 1, 3))
    assert (found.outcome, rank_of(found)) == (RunOutcome.UNRECOGNISED, 2)


@pytest.mark.parametrize(
    ("error", "first", "code"),
    [(LOST, 2, 1), (UNHANDLED, 1, 1), (UNHANDLED, 2, 3)],
    ids=["it only lost another one", "the silent one was first", "a code of the script's own"],
)
def test_a_row_leads_where_the_one_that_spoke_may_be_its_victim(error: str, first: int, code: int) -> None:
    found = judged(labelled(2, traceback(error)) + table(first, 3 - first, code=code))
    assert (found.outcome, rank_of(found)) == (RunOutcome.USER_ERROR, 1)


@pytest.mark.parametrize(
    "behind",
    [
        "[Thu May  1 00:09:30 2025] Memory cgroup out of memory: Killed process 91822 (python3) total-vm:1kB, anon-rss:1kB\n",
        "[ 9123.221] Out of memory: Killed process 91822 (python3) total-vm:1kB, anon-rss:1kB, file-rss:7kB\n",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n",
    ],
)
def test_what_stands_behind_the_table_is_of_the_rank_that_it_names(behind: str) -> None:
    found = judged(FAILED.format(-9, 1, 41) + table(1).replace("exitcode  : 1", "exitcode  : -9") + behind)
    assert [suspect.slug for suspect in found.suspects] == ["host-oom-killed"]
    assert rank_of(found) == 1
    assert found.lead is not None
    assert found.lead.host == "node1"


@pytest.mark.parametrize(("ranks", "rank"), [((1,), 1), ((2, 1), 2)])
def test_a_pods_end_is_of_the_rank_that_was_killed_first(ranks: tuple[int, ...], rank: int) -> None:
    killed = table(*ranks).replace("exitcode  : 1", "exitcode  : -9")
    found = judged(killed + "      Reason:       OOMKilled\n")
    assert [suspect.slug for suspect in found.suspects] == ["cgroup-memory-limit"]
    assert rank_of(found) == rank


def test_a_traceback_leads_over_the_row_of_its_rank_whatever_stands_behind_that() -> None:
    smi = "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
    found = judged(labelled(3, traceback("pynvml.NVMLError_GpuIsLost: GPU is lost")) + table(3) + smi)
    assert [suspect.slug for suspect in found.suspects] == ["gpu-fell-off-bus"]
    assert found.raised is not None
    assert rank_of(found) == 3


def test_that_another_process_is_ended_announces_no_traceback() -> None:
    found = judged(ENDED.format(40) + traceback("KeyError: 'pixels'") + FAILED.format(1, 1, 41) + table(1))
    assert rank_of(found) == 1


@pytest.mark.parametrize(("others", "rank"), [("", 0), (ENDED.format(41), None)])
def test_a_line_without_a_label_is_of_the_only_process(others: str, rank: int | None) -> None:
    own = labelled(0, traceback("EOFError"))
    found = judged(traceback(FILES) + own + others + FAILED.format(1, 0, 40) + table(0))
    assert [suspect.slug for suspect in found.suspects] == ["nofile-limit"]
    assert rank_of(found) == rank


@pytest.mark.parametrize("between", ["", WANDB, f"{WANDB}\n{WANDB}"])
@pytest.mark.parametrize("ended", ["", ENDED.format(40) + ENDED.format(42)])
def test_an_exception_without_its_traceback_is_told_before_its_process_ends(between: str, ended: str) -> None:
    found = judged(f"{DEVICES}\n{between}{ended}{FAILED.format(1, 1, 41)}")
    assert found.outcome is RunOutcome.USER_ERROR
    assert not found.suspects[0].sure
    assert found.lead is not None
    assert found.lead.text == DEVICES


@pytest.mark.parametrize("between", [f"{WANDB}step 7\n{WANDB}", "step 7\n" * 4])
def test_an_exception_in_a_line_is_no_last_word_where_others_follow(between: str) -> None:
    found = judged(f"{DEVICES}\n{between}{ENDED.format(40)}{FAILED.format(1, 1, 41)}")
    assert found.outcome is RunOutcome.EFFECTS_ONLY


@pytest.mark.parametrize(
    ("last", "well"),
    [
        ("Training completed successfully after 3000 steps", True),
        ("[rank0] training has finished", True),
        ("Training finished with errors", False),
        ("Training not completed", False),
        ("step 3000 loss 0.7", False),
    ],
)
def test_a_monitors_words_are_a_warning_where_the_training_came_to_its_end(last: str, well: bool) -> None:
    found = judged(f"step 2000 loss 0.8 | nvidia-smi: Failed to initialize NVML: Unknown Error\n{last}\n")
    assert [suspect.slug for suspect in found.suspects] == ["container-lost-gpu"]
    assert found.ended_well is well
