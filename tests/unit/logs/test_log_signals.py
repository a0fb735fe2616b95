"""A process that a signal ended: what the signal speaks for, whoever tells of it."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import ProcessExit
from ddpdoctor.logs.analyze.endings import signal_of
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import line, read

ELASTIC = "E1122 22:22:32.8 11 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {}) local_rank: 1 (pid: 12) of binary: python"
MEMORY, CRASH, SHARED = ["host-oom-killed"], ["process-crashed"], ["shm-too-small", "process-crashed"]


@pytest.mark.parametrize(
    ("text", "slugs"),
    [
        (ELASTIC.format(-9), MEMORY),
        (ELASTIC.format(-7), SHARED),
        (ELASTIC.format(-8), CRASH),
        ("[2026-11-22 02:13:07,123] [ERROR] [launch.py:322:sigkill_handler] ['python', 'x.py'] exits with return code = -9", MEMORY),
        ("ERROR:composer.cli.launcher:Rank 3 crashed with exit code -7.", SHARED),
        ("container failed with non-zero exit code: 137 (exit code 137)", MEMORY),
        ("container failed with non-zero exit code: 247 (exit code 247)", MEMORY),
        ("mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).", MEMORY),
        ("mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 4 (Illegal instruction).", CRASH),
        ("srun: error: node7: task 3: Bus error (core dumped)", SHARED),
        ("srun: error: node7: task 3: Exited with exit code 139", CRASH),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)", SHARED),
        ("[node7:4711:0:4712] Caught signal 7 (Bus error: nonexistent physical address)", SHARED),
        ("train.py exited with 137", MEMORY),
        ("run 17 finished rc=137", MEMORY),
        ("run.sh: 第 3 行： 8455 已杀死               python train.py", MEMORY),
        ("run.sh: Zeile 3:  9064 Getötet                python train.py", MEMORY),
        ("run.sh: 3 行:  9497 Segmentation fault      (コアダンプ) python train.py", CRASH),
        ("run.sh : ligne 3 : 5052 Erreur du bus           (core dumped)python train.py", SHARED),
    ],
)  # fmt: skip
def test_the_signal_only_hints_at_an_illness(text: str, slugs: list[str]) -> None:
    verdict = verdict_of(read(text + "\n"), catalogue())
    assert verdict.outcome is RunOutcome.ILLNESS
    assert [suspect.slug for suspect in verdict.suspects] == slugs
    assert not any(suspect.sure for suspect in verdict.suspects)


def test_what_the_rank_says_itself_counts_more() -> None:
    raised = "Traceback (most recent call last):\n  File \"/home/ada/train.py\", line 3, in <module>\nKeyError: 'lr'\n"
    assert verdict_of(read(raised + ELASTIC.format(-7) + "\n"), catalogue()).outcome is RunOutcome.USER_ERROR


def test_whom_slurm_kills_as_it_cancels_a_step_had_memory_enough() -> None:
    cancelled = "slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT 2026-11-22T02:13:07 ***\n"
    verdict = verdict_of(read(cancelled + "srun: error: node7: tasks 0-3: Killed\n"), catalogue())
    assert not verdict.suspects or verdict.suspects[0].slug == "stopped-from-outside"


def test_whom_a_launcher_ends_itself_says_nothing_of_the_one_that_it_lost() -> None:
    ended = "[2026-11-22 02:13:07,123] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4711\n"
    died = "[2026-11-22 02:13:07,124] [ERROR] [launch.py:322:sigkill_handler] ['python', 'x.py'] exits with return code = -9\n"
    assert [suspect.slug for suspect in verdict_of(read(ended + died), catalogue()).suspects] == MEMORY


def test_the_process_that_mpirun_noticed_is_the_first() -> None:
    own = "[node9:4711:0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)\n"
    told = "prterun noticed that process rank 3 with PID 4712 on node node7 exited on signal 11 (Segmentation fault).\n"
    lead = verdict_of(read(own + told), catalogue()).lead
    assert lead is not None
    assert (lead.rank, lead.host) == (3, "node7")


def test_a_crash_that_only_an_exit_code_tells_of_shows_its_line() -> None:
    (opinion,) = judge_log(read("srun: error: node7: task 3: Exited with exit code 139\n"), catalogue()).opinions
    assert "exit code 139" in opinion.finding.evidence[0].text


@pytest.mark.parametrize(
    ("code", "signal"), [(-9, 9), (137, 9), (247, 9), (245, 11), (255, 0), (254, 0), (1, 0), (128, 0), (None, 0)]
)
def test_an_exit_code_tells_the_signal(code: int | None, signal: int) -> None:
    assert signal_of(ProcessExit(line=line(1), said_by="torchrun", exit_code=code)) == signal


@pytest.mark.parametrize(
    "ender",
    [
        "timeout: sending signal TERM to command ‘torchrun’",
        "=>> PBS: job killed: walltime 3618 exceeded limit 3600",
        "## OAR [2026-03-02 04:10:09] Job 481923 KILLED ##",
    ],
)
def test_whom_somebody_kills_who_ended_the_run_had_memory_enough(ender: str) -> None:
    killed = "run.sh: line 3: 4242 Killed                  python train.py\n"
    assert verdict_of(read(f"{ender}\n{killed}"), catalogue()).outcome is RunOutcome.STOPPED
    steps = "".join(f"step {number} | loss 2.{number}\n" for number in range(300))
    assert [suspect.slug for suspect in verdict_of(read(f"{ender}\n{steps}{killed}"), catalogue()).suspects] == MEMORY
