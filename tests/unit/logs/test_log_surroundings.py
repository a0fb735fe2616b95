"""What stands around a line, and tells that it is only shown."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free."
PORT = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
    "code: -98, name: EADDRINUSE, message: address already in use"
)
STEPS = "".join(f"step {step} loss 0.{step}\n" for step in range(8))
TALK = "I don't know what to make of it, and my colleagues don't either.\n" * 6


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


def slugs(text: str) -> list[str]:
    return [suspect.slug for suspect in judged(text).suspects]


SHOWN = {
    "in-a-run": f"# Notes\n\n```\n{PORT}\n```\n{TALK}{STEPS}",
    "in-a-run-in-backticks": f"{TALK}`{PORT}`\n{STEPS}",
    "in-a-run-quoted": f"> {PORT}\n{STEPS}",
    "what-may-happen": f"# Help\n\nIf you see this, set another port:\n\n```\n{PORT}\n```\n{TALK}",
    "what-you-may-get": f"On some hosts you may get `{PORT}` then. I never did.\n",
    "no-words-of-a-program": "# Notes\n\n```\nDistributed package doesn't have NCCL built in\n```\n" + TALK,
    "diff": f"```diff\n+{PORT}\n- {PORT}\n```\nWhy two?\n",
    "headline-of-what-was-mended": f"## 2.1\n### Fixed\n\n- {PORT}\n",
    "asked-for": f"Could you cover the case in which we get `{PORT}`?\n",
    "to-be-caught": f"How do I catch it? I want to skip what is\n`{PORT}`\nThanks.\n",
    "gone": f"After the upgrade my old error `{PORT}` is gone.\n",
    "merely-named": f"This PR makes my trainer raise `{PORT}` earlier.\n",
    "no-error": "We run it nightly; no error: all green.\n",
    "list-of-what-was-mended": f"Fixes:\n- {PORT}\n* {PORT}\n\nLooks fine to me.\n",
}


@pytest.mark.parametrize("text", SHOWN.values(), ids=SHOWN)
def test_what_is_only_shown_has_not(text: str) -> None:
    assert judged(text).outcome is RunOutcome.NOTHING


def test_a_list_of_what_happens_is_none_of_what_was_mended() -> None:
    assert slugs(f"Resolved host node1\n- {PORT}\n") == ["port-in-use"]
    assert slugs(f"What happens:\n- {PORT}\n\nI have no idea.\n") == ["port-in-use"]


HITS = (
    f"archive/lr3.log:890:{PORT}\narchive/lr4.log-12-{OOM}\n--\narchive/lr5.out:7:srun: error: node7: task 3: Killed\n"
)


@pytest.mark.parametrize("prompt", ["$ ", "ada@login1:~/runs$ ", "(base) ada@login1:~$ ", "# "])
def test_hits_of_grep_in_other_logs_are_of_other_runs(prompt: str) -> None:
    assert judged(f"{prompt}grep -rn Error archive\n{HITS}{STEPS}").outcome is RunOutcome.NOTHING


def test_hits_with_lines_around_them_are_of_other_runs_too() -> None:
    frame = 'a.log-Traceback (most recent call last):\na.log-  File "/home/ada/t.py", line 3, in <module>\n'
    hits = f"{frame}a.log:RuntimeError: x\na.log:{PORT}\n--\n"
    assert judged(f"$ grep -B3 Error a.log b.log\n{hits}b.log:{PORT}\n{STEPS}").outcome is RunOutcome.NOTHING
    assert slugs(f"$ grep -B3 Error a.log b.log\n{hits}") == ["port-in-use"]
    assert judged(f"$ grep -B3 Error *\n{hits}{STEPS}").outcome is RunOutcome.NOTHING


@pytest.mark.parametrize(
    "text",
    [
        HITS,
        f"$ cat notes\n{HITS}",
        f"$ grep -n Error run.log\n890:{PORT}\n",
        f"$ grep -rn Error logs\nlogs/none_x/attempt_0/1/stderr.log:7:{PORT}\n",
        f"$ grep -rn Error logs\nlogs/rank3.log:7:{PORT}\n",
        f"$ grep -n Error job.out job.err\njob.err:118:{PORT}\n{STEPS}",
        f"$ grep -rn Error .\n./job.o41:7:start\n./job.e41:8:{PORT}\n",
    ],
)
def test_hits_in_the_runs_own_logs_are_not(text: str) -> None:
    assert "port-in-use" in slugs(text)


def captured(sums: str) -> str:
    words = "srun: error: node7: task 3: Killed\n" + f"{OOM}\n"
    return f"=== test session starts ===\n----- Captured stderr call -----\n{words}======== {sums} in 3.20s ========\n"


def test_what_tests_that_passed_have_written_is_no_failure() -> None:
    assert judged(captured("41 passed, 2 skipped, 1 xfailed")).outcome is RunOutcome.NOTHING
    assert judged(captured("41 passed") + STEPS).outcome is RunOutcome.NOTHING
    assert judged(captured("1 failed, 40 passed")).outcome is not RunOutcome.NOTHING
    assert judged(captured("40 passed, 1 error")).outcome is not RunOutcome.NOTHING
    assert slugs(captured("41 passed") + f"{OOM}\n") == ["oom-batch-too-large"]


@pytest.mark.parametrize("line", ["train.py: error:", "ninja: error: x", "we met an error:"])
def test_a_line_that_ends_in_a_colon_is_the_error_itself(line: str) -> None:
    verdict = judged(f"{line}\n")
    assert verdict.outcome is RunOutcome.UNRECOGNISED
    assert verdict.lead
    assert verdict.lead.text == line


@pytest.mark.parametrize(
    "line",
    [
        "nvcc fatal   : Don't know what to do with 'x'",
        "make[2]: *** [CMakeFiles/x.dir/build.make:159: CMakeFiles/x.dir/network.cu.o] Error 1",
        "make: *** No rule to make target 'x'.  Stop.",
        "ninja: build stopped: subcommand failed.",
    ],
)
def test_builders_say_that_they_failed(line: str) -> None:
    assert judged(f"{line}\n").outcome is RunOutcome.UNRECOGNISED


@pytest.mark.parametrize(
    "line",
    ["make[2]: *** Waiting for unfinished jobs....", "make: [Makefile:3: clean] Error 1 (ignored)", "a: *** b"],
)
def test_builders_words_that_end_nothing(line: str) -> None:
    assert judged(f"{line}\n").outcome is RunOutcome.NOTHING


LAUNCHER = (
    "wandb: \nwandb: Find logs at: wandb/run-1/logs\n"
    "W0217 11:16:21.705000 29355 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 29650 closing signal SIGTERM\n"
    "E0217 11:16:24.683000 29355 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 29651) of binary: /p\n"
)


def test_a_traceback_s_last_line_with_torch_s_own_label_is_remembered() -> None:
    verdict = judged(f"[rank2]: RuntimeError: nothing that is known here\n{LAUNCHER}")
    assert verdict.outcome is RunOutcome.UNRECOGNISED
    assert verdict.lead
    assert (verdict.lead.rank, verdict.lead.text) == (2, "RuntimeError: nothing that is known here")
    assert judged(f"[rank2]: TypeError: step() takes 1 argument\n{LAUNCHER}").outcome is RunOutcome.USER_ERROR


IGNORED = "Exception ignored in: <function _Iter.__del__ at 0x7f>\n...\n    assert x\nAssertionError: can only test a child process\n"


def test_an_exception_that_python_ignores_is_none_where_its_frames_are_left_out() -> None:
    assert judged(IGNORED).outcome is RunOutcome.NOTHING
    assert judged(f"{IGNORED}RuntimeError: nothing that is known here\n").outcome is RunOutcome.UNRECOGNISED
