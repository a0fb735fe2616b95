"""What older releases, other trainers and loggers write of the same failures; and what only reads like one."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

FULL = "CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 15.78 GiB total capacity; 13.57 GiB already allocated; 46.75 MiB free)"
SKIPPED = f"WARNING {FULL}\nWARNING skipping this batch\nepoch 1 goes on\n"
AGAIN = "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
FRAMES = '  File "/home/ada/train.py", line 3, in main\n    loss.backward()\n'
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}"
SPAWNED = (
    'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in <module>\n    spawn(main)\n'
    '  File "/opt/lib/python3.7/site-packages/torch/multiprocessing/spawn.py", line 107, in join\n    (error_index, name)\n'
)
OF_A_WORKER = f"{TRACEBACK}{{}}: Caught {{}} in DataLoader worker process 0.\nOriginal {TRACEBACK}"
UNGUARDED = "RuntimeError:\n        An attempt has been made to start a new process before the\n        current process has finished its bootstrapping phase.\n"


def _judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


def _slugs(text: str) -> list[str]:
    return [suspect.slug for suspect in _judged(text).suspects]


@pytest.mark.parametrize(
    "text",
    [
        f"2021-06-02 16:00:20 node-a root[14429] DEBUG {FULL}\n2021-06-02 16:00:23 node-a root[14429] DEBUG Traceback (most recent call last):\n"
        "2021-06-02 16:00:23 node-a root[14429] WARNING CUDA OOM Error during batch execution, skipping batch.\n",
        SKIPPED,
        "1. Exit code 137 as shown in logs, but `reason` as OOMKilled and Job marked as Failed.\n",
    ],
)
def test_what_was_expected_or_is_only_told_of_is_no_failure(text: str) -> None:
    assert judge_log(read(text), catalogue()).word is Verdict.OK


@pytest.mark.parametrize("behind", [f"WARNING {FULL}\n", f"{TRACEBACK}RuntimeError: {FULL}\n"])
def test_a_skipped_batch_excuses_no_later_failure(behind: str) -> None:
    assert _slugs(SKIPPED + behind)[:1] == ["oom-batch-too-large"]


@pytest.mark.parametrize("text", [AGAIN, AGAIN + "the next attempt\n" * 5, AGAIN + "the next attempt\n" + AGAIN])
def test_that_an_attempt_failed_is_told_where_nothing_says_why(text: str) -> None:
    assert _judged(text).outcome is RunOutcome.UNRECOGNISED


def test_that_an_attempt_failed_is_no_failure_of_its_own() -> None:
    lead = _judged(f"{TRACEBACK}ValueError: no such sample\n{AGAIN}").lead
    assert lead is not None
    assert "no such sample" in lead.text


def test_bold_type_hides_no_exception() -> None:
    verdict = _judged(f"{TRACEBACK}**RuntimeError: CUDA out of memory.** {FULL.partition('. ')[2]}\n")
    assert [suspect.slug for suspect in verdict.suspects] == ["oom-batch-too-large"]


def test_detectron2_raises_again_what_it_logs() -> None:
    text = (
        f"ERROR [06/09 11:05:25 d2.engine.train_loop]: Exception during training:\n{TRACEBACK}KeyError: 'x'\n"
        "[06/09 11:05:25 d2.engine.hooks]: Overall training speed: 22 iterations in 0:01:02 (2.8448 s / it)\n"
        "[06/09 11:05:25 d2.engine.hooks]: Total training time: 0:01:02 (0:00:00 on hooks)\n"
        "[06/09 11:05:25 d2.utils.events]:  iter: 24  total_loss: 2.1\n"
        "[06/09 11:05:26 d2.utils.events]:  the end\n"
    )
    assert judge_log(read(text), catalogue()).verdict.outcome is RunOutcome.USER_ERROR
    assert judge_log(read(text), catalogue()).word is Verdict.FAIL
    assert judge_log(read(text), catalogue()).verdict.suspects[0].sure


@pytest.mark.parametrize("name", ["Exception", "torch.multiprocessing.spawn.ProcessExitedException"])
def test_mp_spawns_word_on_a_process_in_both_releases(name: str) -> None:
    (exited,) = read(f"{SPAWNED}{name}: process 3 terminated with signal SIGKILL\n").exited
    assert (exited.local_rank, exited.exit_code, exited.said_by) == (3, -9, "mp.spawn")


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("ValueError: `FlatParameter` requires uniform `requires_grad`", "fsdp-mixed-parameters"),
        (
            "ValueError: `FlatParameter` requires uniform dtype but got torch.float32 and torch.bfloat16",
            "fsdp-mixed-parameters",
        ),
        ("TerminateOnNan: Output '{'loss': nan}' contains NaN or Inf. Stop training", "nan-loss"),
        (
            "stderr: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
            "nvidia-module-not-loaded",
        ),
        (UNGUARDED, "user-code-error"),
    ],
)
def test_other_words_for_the_same(line: str, slug: str) -> None:
    assert _slugs(f"{line}\n")[:1] == [slug]


def test_older_fsdp_is_told_by_its_words_and_the_guard_by_its_place() -> None:
    older, unguarded = (
        judge_log(read(one), catalogue())
        for one in ("ValueError: `FlatParameter` requires uniform `requires_grad`\n", UNGUARDED)
    )
    assert "torch 2.1" in older.opinions[0].finding.fixes[0].text
    assert "guard" in unguarded.opinions[0].finding.fixes[0].text


@pytest.mark.parametrize(("name", "shown"), [("TypeError", "TypeError: Caught"), ("RuntimeError", "loss.backward()")])
def test_a_workers_mistake_is_shown_though_its_traceback_is_cut(name: str, shown: str) -> None:
    verdict = _judged(OF_A_WORKER.format(name, name))
    assert verdict.lead is not None
    assert shown in verdict.lead.text


def test_an_error_before_a_cut_traceback_is_shown() -> None:
    verdict = _judged(f"[ERROR] - An error occurred: 2 isn't divisible by 3\n[ERROR] - {TRACEBACK}")
    assert [one.text for one in verdict.said] == ["[ERROR] - An error occurred: 2 isn't divisible by 3"]


def test_older_releases_of_torch_dont_say_why_shared_memory_cant_be_opened() -> None:
    words = "RuntimeError: unable to open shared memory object </torch_40_39> in read-write mode"
    verdict = _judged(f"{TRACEBACK}{words}\n")
    assert {suspect.slug for suspect in verdict.suspects} == {"shm-too-small", "nofile-limit"}
    assert not any(suspect.sure for suspect in verdict.suspects)
    assert _slugs(f"{TRACEBACK}{words}: No space left on device (28)\n") == ["shm-too-small"]


@pytest.mark.parametrize(
    ("before", "left", "told"), [("", "2/2", False), ("2/2", "", True), ("", "1/2", True), ("2/2", "1/2", True)]
)
def test_a_store_has_counts_of_an_attempt_only_where_one_was_before(before: str, left: str, *, told: bool) -> None:
    counted = "Timed out initializing process group in store based barrier on rank: 3, for key: k:1 (world_size=4, worker_count=8, timeout=0:30:00)"
    again = (AGAIN.replace("2/3", attempts) if attempts else "" for attempts in (before, left))
    assert ("stale-store-counts" in _slugs(f"{TRACEBACK}RuntimeError: {counted}\n".join(again))) is told
