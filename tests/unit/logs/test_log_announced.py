"""Tracebacks and lines of errors that a run goes on after: they don't lead, and aren't kept quiet about either."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train/train.py", line {line}, in <module>
    upload()
{exception}
"""
STEPS = "".join(f"step {step} loss 0.1\n" for step in range(6))
LATER = TRACEBACK.format(line=9, exception="IndexError: 7")
ANNOUNCED = TRACEBACK.format(line=6, exception="KeyError: 'upload'")
PARTS = (
    "Exception in thread uploader:",
    "Process Process-3:",
    "Process ForkProcess-1:2:",
    "Task exception was never retrieved\nfuture: <Task finished name='Task-2' coro=<bad() done>>",
    "ERROR:root:cache miss",
    "2026-11-22 23:15:41,735 ERROR train: cache miss",
    "2026-11-22 23:15:41.735 | WARNING  | __main__:get:12 - cache miss",
)
NEVER = (
    "Exception ignored in: <function Iterator.__del__ at 0x7f7e1bd013a0>",
    "Exception ignored in atexit callback: <function <lambda> at 0x7f8c91ad84a0>",
    "Error in atexit._run_exitfuncs:",
    "--- Logging error ---",
)


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


@pytest.mark.parametrize("words", [*PARTS, *NEVER])
def test_what_is_announced_and_gone_on_after_is_no_failure(words: str) -> None:
    found = judged(f"{STEPS}{words}\n{ANNOUNCED}{STEPS}training finished\n")
    assert found.outcome is RunOutcome.NOTHING
    assert any("KeyError" in one.text for one in found.survived)
    assert judged(f"{STEPS}{ANNOUNCED}{STEPS}").outcome is RunOutcome.USER_ERROR


@pytest.mark.parametrize("words", NEVER)
def test_what_never_ends_a_process_may_come_last(words: str) -> None:
    assert judged(f"{STEPS}{words}\n{ANNOUNCED}").outcome is RunOutcome.NOTHING


@pytest.mark.parametrize("words", PARTS)
def test_with_nothing_behind_it_it_may_be_what_ended_the_run(words: str) -> None:
    found = judged(f"{STEPS}{words}\n{ANNOUNCED}")
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.suspects[0].sure


@pytest.mark.parametrize("words", [*PARTS, *NEVER])
def test_it_does_not_lead_before_what_ended_the_run(words: str) -> None:
    found = judged(f"{words}\n{ANNOUNCED}{STEPS}{LATER}")
    assert found.raised is not None
    assert found.raised.exception == "IndexError"


def test_where_nothing_else_explains_a_failure_it_is_a_hypothesis() -> None:
    ended = (
        "E1122 22:17:34.143000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0"
        " (pid: 46094) of binary: /home/ada/venv/bin/python\n"
    )
    found = judged(f"Exception in thread uploader:\n{ANNOUNCED}{STEPS}{ended}")
    assert found.outcome is RunOutcome.USER_ERROR
    assert not found.suspects[0].sure


TORCHRUN = "W1122 23:44:10.145000 29090 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable\n"


def test_what_a_rank_under_torchrun_goes_on_after_is_no_failure() -> None:
    assert judged(f"{TORCHRUN}{STEPS}{ANNOUNCED}{STEPS}").outcome is RunOutcome.NOTHING
    assert judged(f"{TORCHRUN}{STEPS}{ANNOUNCED}step 7\n").outcome is RunOutcome.USER_ERROR


CAUGHT = "try batch 64: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has {}; reducing batch size to 32"
OOM = CAUGHT.format("a total capacity of 23.00 GiB of which 1.00 GiB is free")


def test_an_exception_in_a_sentence_that_the_run_goes_on_after_is_no_failure() -> None:
    found = judged(f"{STEPS}{OOM}\n{STEPS}Evaluation: accuracy 0.5\ndone\n")
    assert found.outcome is RunOutcome.NOTHING
    assert [one.number for one in found.survived] == [7]


@pytest.mark.parametrize(
    "text",
    [
        f"{STEPS}{OOM}\n",
        f"{STEPS}{OOM}\nstep 7\n",
        f"{STEPS}ERROR train: {OOM}\n{STEPS}",
        f"{STEPS}{OOM.partition(': ')[2]}\n{STEPS}",
    ],
)
def test_as_the_last_word_or_by_itself_it_is_one(text: str) -> None:
    found = judged(text)
    assert found.suspects[0].slug == "oom-batch-too-large"
    assert not found.ended_well


LOGGED = (
    "2026-11-22 23:24:31,480 ERROR train: failed to push metrics to prometheus: Connection refused; retrying",
    "wandb: ERROR Error while calling W&B API: service temporarily unavailable (<Response [503]>)",
    "slurmstepd: error: Unable to set oom_score_adj of task",
    "/var/spool/slurmd/job42/slurm_script: line 7: module: command not found",
)


@pytest.mark.parametrize("words", LOGGED)
def test_a_line_that_speaks_of_an_error_and_is_gone_on_after_is_told_of(words: str) -> None:
    found = judged(f"{words}\n{STEPS}training finished\n")
    assert found.outcome is RunOutcome.NOTHING
    assert [one.number for one in found.survived] == [1]
    missing = "command not found" in words
    assert judged(f"{STEPS}{words}\nstep 7\n").outcome is (
        RunOutcome.USER_ERROR if missing else RunOutcome.UNRECOGNISED
    )


@pytest.mark.parametrize(
    "words",
    [
        "Segmentation fault (core dumped)",
        "ValueError: bad",
        "FATAL: no space left",
        "terminate called without an exception",
    ],
)
def test_words_by_which_a_process_ends_are_no_mere_words(words: str) -> None:
    assert judged(f"{STEPS}{words}\n{STEPS}job finished\n").outcome is not RunOutcome.NOTHING


LOGGED_BEFORE = "2026-05-02 10:00:01,114 - {level} - train - epoch 3 step 1200 loss 0.812\n"
OF_CUDA = TRACEBACK.format(
    line=6, exception="torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
) + (
    "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
)
OF_CPP = TRACEBACK.format(line=6, exception="RuntimeError: no such sample (at ../reducer.cpp:514)") + (
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x42\nframe #1: <unknown function> + 0x11f\n"
    "frame #2: THPFunction_apply(_object*, _object*) + 0x93f\n<omitting python frames>\n"
)
FOOTER = "wandb: \nwandb: You can sync this run to the cloud by running:\nwandb: wandb sync /app/run\nwandb: Find logs at: ./run\n"


@pytest.mark.parametrize("level", ["INFO", "WARNING", "ERROR"])
@pytest.mark.parametrize("text", [OF_CUDA, OF_CPP, ANNOUNCED + FOOTER])
def test_what_an_exception_says_below_its_first_line_is_no_sign_of_going_on(level: str, text: str) -> None:
    found = judged(LOGGED_BEFORE.format(level=level) + text)
    assert found.outcome in (RunOutcome.ILLNESS, RunOutcome.USER_ERROR)
    assert found.raised is not None


@pytest.mark.parametrize(
    "line",
    [
        "2026-05-02 10:00:02,123 INFO train: flash attention not usable, taking sdpa",
        "INFO:train:apex is not there, FusedAdam off",
        "DEBUG:torio._extension.utils:Failed to load FFmpeg6 extension.",
    ],
)
def test_one_that_informs_of_what_is_not_there_announces_it(line: str) -> None:
    assert judged(f"{line}\n{ANNOUNCED}{STEPS}training finished\n").outcome is RunOutcome.NOTHING


def test_several_that_are_announced_one_after_the_other_are_gone_on_after() -> None:
    several = "".join(
        f"DEBUG:torio:Failed to load FFmpeg{version} extension.\n{ANNOUNCED}".replace("upload", f"upload{version}")
        for version in (6, 5, 4)
    )
    assert judged(f"{several}{STEPS}training finished\n").outcome is RunOutcome.NOTHING
    assert judged(f"{STEPS}{several}").outcome is RunOutcome.USER_ERROR


@pytest.mark.parametrize(
    "words", ["training failed", "An exception occurred during training", "Unhandled exception, shutting down", "oh no"]
)
@pytest.mark.parametrize("last", ["exit status 1", "uploading logs", "total time 12 s"])
def test_clearing_up_is_no_sign_of_going_on(words: str, last: str) -> None:
    behind = "".join(
        f"2026-03-03 03:03:03,10{at} INFO run: {said}\n"
        for at, said in enumerate(("closing writers", "writing report", last))
    )
    found = judged(f"{STEPS}2026-03-03 03:03:03,100 ERROR run: {words}\n{ANNOUNCED}{behind}")
    assert found.outcome is RunOutcome.USER_ERROR


def test_a_footer_hides_no_steps() -> None:
    assert (
        judged(f"ERROR:train:no preview\n{ANNOUNCED}{STEPS}training finished\n{FOOTER}").outcome is RunOutcome.NOTHING
    )


def test_a_line_that_only_informs_announces_nothing() -> None:
    found = judged(f"{LOGGED_BEFORE.format(level='INFO')}{ANNOUNCED}some\nother\nlast\nwords\n")
    assert found.outcome is RunOutcome.USER_ERROR


OWN = "".join(f"[rank{rank}]: epoch {epoch} accuracy 5{epoch}\n" for epoch in range(6) for rank in range(2))
SKIPPED = "[rank1]: ValueError: sample 17 is empty, skipped\n"
FELL = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_an_exception_behind_a_script_s_own_label_is_got_over_where_its_rank_trains_on() -> None:
    assert judged(SKIPPED + OWN).outcome is RunOutcome.NOTHING
    assert [suspect.slug for suspect in judged(SKIPPED + OWN + FELL).suspects] == ["oom-batch-too-large"]
    others = OWN.replace("[rank1]", "[rank2]")
    assert judged(SKIPPED + others).outcome is RunOutcome.USER_ERROR
    assert (
        judged(f"{SKIPPED}{others}[rank1]:[W1122 10:00:00.1 ProcessGroupNCCL.cpp:1] x\n").outcome
        is RunOutcome.USER_ERROR
    )


@pytest.mark.parametrize("error", ["RuntimeError: CUDA out of memory", "ValueError: x"])
@pytest.mark.parametrize("times", [1, 100, 1000])
def test_an_error_that_is_said_to_the_end_is_not_gone_on_after(error: str, times: int) -> None:
    assert judged(f"{STEPS}{error}\n" + f"{error}\n" * times).outcome is not RunOutcome.NOTHING
