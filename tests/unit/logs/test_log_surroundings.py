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


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


def slugs(text: str) -> list[str]:
    return [suspect.slug for suspect in judged(text).suspects]


SHOWN = {
    "in-backticks": f"the store said `{PORT}`, so another port is taken\n{STEPS}",
    "quoted": f"> {PORT}\n{STEPS}",
    "no-error": "We run it nightly; no error: all green.\n",
}


@pytest.mark.parametrize("text", SHOWN.values(), ids=SHOWN)
def test_what_is_only_shown_has_not(text: str) -> None:
    assert judged(text).outcome is RunOutcome.NOTHING


COMMIT = "commit 0123456789\nAuthor: Ada\nDate:   Sat Nov 7 02:11:03 2026 +0100\n\n"
CHANGES = "# Changes\n\n## 2.1\n\n### Fixed\n\n"
TELLING = {
    "the history of a repository": f"{COMMIT}    {PORT}\n\n    {OOM}\n\n{COMMIT}    Start\n",
    "a list of changes": f"{CHANGES}- {PORT}\n  {OOM}\n* {OOM}\n",
    "a list of tests": f"tests/test_net.py::test_port[{PORT}]\ntests/test_net.py::test_memory PASSED\n\n2 tests collected in 0.1s\n",
}


@pytest.mark.parametrize(("what", "text"), TELLING.items(), ids=TELLING)
def test_a_text_that_only_tells_of_failures_is_no_log(what: str, text: str) -> None:
    log = read(text)
    assert verdict_of(log, catalogue()).outcome is RunOutcome.NOTHING
    assert log.files[0].problem == f"this is {what}, and no log of a run"


@pytest.mark.parametrize("text", TELLING.values(), ids=TELLING)
def test_a_log_that_has_such_a_text_in_it_is_one(text: str) -> None:
    assert slugs(f"{text}{PORT}\n")[0] == "port-in-use"
    assert not read(f"{text}{STEPS}").files[0].problem
    assert not read(f"# of ranks: 8\n{text}{STEPS}").files[0].problem


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
    assert verdict.outcome is RunOutcome.USER_ERROR
    assert not verdict.suspects[0].sure
    assert verdict.lead
    assert (verdict.lead.rank, verdict.lead.text) == (2, "RuntimeError: nothing that is known here")
    assert judged(f"[rank2]: TypeError: step() takes 1 argument\n{LAUNCHER}").outcome is RunOutcome.USER_ERROR


IGNORED = "Exception ignored in: <function _Iter.__del__ at 0x7f>\n...\n    assert x\nAssertionError: can only test a child process\n"


def test_an_exception_that_python_ignores_is_none_where_its_frames_are_left_out() -> None:
    assert judged(IGNORED).outcome is RunOutcome.NOTHING
    assert judged(f"{IGNORED}RuntimeError: nothing that is known here\n").outcome is RunOutcome.USER_ERROR
