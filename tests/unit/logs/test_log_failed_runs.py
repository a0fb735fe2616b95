"""A run that failed is never called fine, whoever says that it did; and what only reads like it is."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs

STEPS = "".join(f"step {number} | loss {3 - number / 10:.2f}\n" for number in range(6))


def read(end: str) -> Log:
    return read_logs(["-"], stdin=io.BytesIO(f"{STEPS}{end}\n".encode()), vocabulary=vocabulary(catalogue()))


def judged(end: str) -> LogVerdict:
    return verdict_of(read(end), catalogue())


@pytest.mark.parametrize(
    "end",
    [
        "exit code 137",
        "50%|#####     | 1/2 [00:01<00:01]F0000 00:00:1716973077.466057    9049 pjrt_client.cc:487] Non-OK-status: INTERNAL: the device halted",
        "*** SIGSEGV (@(nil)), see go/stacktraces received by PID 160 (TID 3418) on cpu 100; stack trace: ***",
        "worker 2: returncode=-9",
        "Command exited with code 1",
        "    Reason:       Error\n    Exit Code:    1\n    Restart Count:  0",
        "4711                  train        gpu     FAILED      1:0 ",
        "4711                  train        gpu     FAILED      0:9 ",
        "4711                  train        gpu OUT_OF_ME+    0:125 ",
        "State: FAILED (exit code 1)",
        "State: OUT_OF_MEMORY (exit code 0)",
        "Exited with exit code 1.\n\nResource usage summary:\n\n    CPU time :   12.00 sec.",
        "##[error]Process completed with exit code 1.",
        "trainer-1 exited with code 1",
        "Error: command exited with code 137",
        "exit_status  137                  (Killed)",
        "exit_status  1",
        "[1]+  Exit 1                  python train.py",
        "[1]    41234 killed     python train.py",
        "Killed: 9",
        "\t(0) Abnormal termination (signal 9)",
        "\t(1) Normal termination (return value 1)",
        "Nov 29 10:00:00 gpu01 systemd[1]: train.service: Main process exited, code=killed, status=9/KILL",
        "Nov 29 10:00:00 gpu01 systemd[1]: train.service: Main process exited, code=exited, status=1/FAILURE",
        "train-0    0/1     Evicted   0          5m",
        "  Warning  BackoffLimitExceeded  2m    job-controller  Job has reached the specified backoff limit",
        "NotImplementedError",
        "2026-11-29 10:00:07 | INFO | train_inner | epoch 001: 7 / 100 loss=nan, nll_loss=nan, ppl=nan",
        '{"step": 7, "loss": NaN, "lr": 1e-4}',
        "step 7 | loss inf | lr 1.0e-04",
        "Command exited with non-zero status 1\n\tCommand being timed: \"python train.py\"",
        "<Process name='Process-2' pid=17 parent=1 stopped exitcode=1>",
        "   Process name: [prterun-node1-17@1,3]\n   Exit code:    1",
        '{"level":"info","msg":"PyTorchJob llama is failed because 1 Worker replica(s) failed."}',
        "ERROR: Job 2 failed with return code list: [0, 1]",
        "        ValueError: shapes do not match",
        "ror: shapes do not match",
        "ception: shapes do not match",
        "run failed: ValueError('shapes do not match')",
        'time=2026-11-29T10:00:01Z level=error msg="worker exited" err="exit status 1"',
        '{"level":"fatal","ts":"2026-11-29T10:00:01Z","msg":"worker exited"}',
    ],
)  # fmt: skip
def test_it_failed(end: str) -> None:
    assert judged(end).outcome is not RunOutcome.NOTHING


@pytest.mark.parametrize(
    "end",
    [
        "exit code 0",
        "workers: returncode=0",
        "    Reason:       Completed\n    Exit Code:    0",
        "4711                  train        gpu  COMPLETED      0:0 ",
        "State: COMPLETED (exit code 0)",
        "trainer-1 exited with code 0",
        "exit_status  0",
        "[1]+  Done                    python train.py",
        "\t(1) Normal termination (return value 0)",
        "warning: skipped 1 sample: ValueError('bad image')",
        "skipping sample 12: ValueError('bad image')",
        "To stop, send SIGKILL (exit code 137)\n" + STEPS * 4,
        "step 7 | loss inf | lr 1.0e-04\n" + STEPS,
        "best loss: inf",
        "<Process name='Process-2' pid=17 parent=1 stopped exitcode=0>",
        "A container that Docker kills ends with exit code 137, and one that fails with 1.",
        "restarts on exit code 1\n" + STEPS,
        "Killed monsters: 12",
        "killed 3 leftover processes",
        "tensor: 0.5 | error: 0.1 | ror: 0.2",
        '{"level":"info","msg":"error budget left: 3"}',
        "  raise ValueError('shapes do not match')",
    ],
)
def test_it_did_not(end: str) -> None:
    assert judged(end).outcome is RunOutcome.NOTHING


@pytest.mark.parametrize(
    ("end", "asks"),
    [
        ("srun: error: node7: task 3: Exited with exit code 137", "sacct "),
        ("    Exit Code:    137", "kubectl describe "),
        ("trainer-1 exited with code 137", "docker inspect "),
    ],
)
def test_of_who_was_killed_without_a_word_is_asked_whoever_may_have_done_it(end: str, asks: str) -> None:
    judgement = judge_log(read(end), catalogue())
    commands = [command for fix in judgement.opinions[0].finding.fixes for command in fix.commands]
    asked, decides = commands
    assert asked.startswith(asks)
    assert decides == "ddpdoctor check --select host-oom-killed"


@pytest.mark.parametrize(
    ("codes", "code"),
    [("[1]", 1), ("[0, 137]", 137), ("[137, 139, 137]", 139), ("[137, -9, 0]", -9), ("[0, 0]", None)],
)
def test_of_skypilots_nodes_the_one_counts_that_it_has_not_ended_itself(codes: str, code: int | None) -> None:
    exited = read(f"ERROR: Job 2 failed with return code list: {codes}").exited
    assert [one.exit_code for one in exited] == ([] if code is None else [code])


def test_ray_trains_word_on_a_dead_worker_names_its_rank() -> None:
    (exited,) = read("  distributed_context=DistributedContext(world_rank=3, world_size=4, local_rank=1)").exited
    assert (exited.said_by, exited.rank, exited.exit_code) == ("Ray Train", 3, None)


def test_nvrxs_monitor_is_of_the_rank_and_host_that_it_calls_itself_after() -> None:
    (seen,) = read(
        "[WARNING] [RankMonServer3120@gpu02:5] Did not get subsequent heartbeat. Waited 180.00 seconds."
    ).sightings
    assert (seen.line.rank, seen.line.host) == (5, "gpu02")
