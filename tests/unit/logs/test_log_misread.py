"""What is no exception's line, and what an exception says on the line below its name; what follows on one that ended its process."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.script_errors import BlamedCode, fault_of
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

TRACEBACK = 'Traceback (most recent call last):\n  File "/home/ada/fit.py", line 9, in <module>\n    fit()\n'
IN_A_PACKAGE = (
    '  File "/opt/env/lib/python3.11/site-packages/torch/_dynamo/output_graph.py", line 9, in compile\n    run()\n'
)


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


@pytest.mark.parametrize("line", ["Top1: 5.22%", "Elapsed: 2.18 s", "Loss: 1e-3", "Step: 400", "Speed: 41.2 it/s"])
def test_a_metric_within_a_traceback_is_no_exception(line: str) -> None:
    raised = judged(f"{TRACEBACK}{line}\n").raised
    assert raised is not None
    assert not raised.exception


@pytest.mark.parametrize("line", ["KeyError: 5", "StopIteration: 7", "SystemExit: 2", "mypackage.Stop: 3"])
def test_an_exception_may_have_a_figure_for_its_message(line: str) -> None:
    raised = judged(f"{TRACEBACK}{line}\n").raised
    assert raised is not None
    assert f"{raised.exception}: {raised.message}" == line


@pytest.mark.parametrize(
    "code",
    ['raise Stop("no sample 3")', 'if bad: raise Stop("no sample 3")', "raise errors.Stop(3) from None", "raise error"],
)
def test_an_exception_of_the_script_s_own_is_known_by_the_call_that_raises_it(code: str) -> None:
    frame = f'  File "/home/ada/fit.py", line 4, in fit\n    {code}\n'
    raised = judged(f"{TRACEBACK}{frame}Stop: no sample 3\n").raised
    assert raised is not None
    assert (raised.exception, raised.message) == ("Stop", "no sample 3")


@pytest.mark.parametrize("condition", ["count > 0", "not (count <= 0)", 'len(samples["a"]) > 0'])
def test_the_words_of_an_assertion_count_where_the_log_breaks_off_behind_it(condition: str) -> None:
    code = f"    assert {condition}, 'no sample was read'\n"
    frame = '  File "/home/ada/fit.py", line 4, in fit\n'
    raised = judged(TRACEBACK + frame + code).raised
    assert raised is not None
    assert (raised.exception, raised.message) == ("AssertionError", "no sample was read")


@pytest.mark.parametrize(
    "code",
    [
        "    assert count > 0\n",
        '    assert count > 0, f"{count} samples"\n',
        '    assert all(check(one) for one in samples), "bad input"\n',
        '    assert checks[0](count), "bad input"\n',
        '    assert len(load(count)) > 0, "bad input"\n',
        '    assert own.len(count), "bad input"\n',
        "",
    ],
)
def test_of_another_traceback_that_breaks_off_nothing_is_guessed(code: str) -> None:
    raised = judged(TRACEBACK + '  File "/home/ada/fit.py", line 4, in fit\n' + code).raised
    assert raised is not None
    assert not raised.exception


@pytest.mark.parametrize("blank", ["", " "])
def test_a_message_below_the_name_is_joined(blank: str) -> None:
    found = headline(judge_log(read(f"RuntimeError:{blank}\n    Two tensors are one\n"), catalogue()))
    assert "RuntimeError: Two tensors are one" in found


def test_what_a_backend_raised_leads_and_is_not_surely_the_scripts() -> None:
    text = f"{TRACEBACK}{IN_A_PACKAGE}torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nKeyError: 'gcc'\n"
    raised = judged(text).raised
    assert raised is not None
    assert (raised.exception, raised.message) == ("KeyError", "'gcc'")
    assert fault_of(raised, Log()) is BlamedCode.LIBRARY


def test_an_exceptions_line_behind_any_other_message_isnt_nested() -> None:
    raised = judged(f"{TRACEBACK}ValueError: this is what was read:\nKeyError: 'lr'\n").raised
    assert raised is not None
    assert raised.exception == "ValueError"


def test_what_is_learned_below_a_nested_exception_still_counts() -> None:
    text = (
        f"{TRACEBACK}mypackage.BackendFailed: it raised:\nKeyError: 'gcc'\n\n"
        f"During handling of the above exception, another exception occurred:\n\n{TRACEBACK}ValueError: none fits\n"
    )
    log = read(text)
    assert [(raised.exception, raised.chained) for raised in log.raised] == [("KeyError", True), ("ValueError", False)]


ROUNDS = "".join(f"(work pid=7) Round: {place}\n" for place in range(90))
BY_MODULE = 'Traceback (most recent call last):\n  File "/usr/lib/python3.11/runpy.py", line 8, in _run_module_as_main\n    run()\n'
CAUGHT = 'Traceback (most recent call last):\n  File "/home/ada/fit.py", line 9, in fit\n    one()\n'
RAISED = "KeyError: 'reward'\n"


@pytest.mark.parametrize("traceback", [BY_MODULE, TRACEBACK, CAUGHT])
def test_lines_of_a_worker_are_no_proof_that_its_driver_went_on(traceback: str) -> None:
    assert judge_log(read(traceback + RAISED + ROUNDS), catalogue()).word is Verdict.FAIL


def test_own_lines_of_a_driver_are() -> None:
    own = "".join(f"round {place} is through\n" for place in range(90))
    assert judge_log(read(CAUGHT + RAISED + own), catalogue()).word is Verdict.OK
    assert judge_log(read(CAUGHT + RAISED + own + "(work pid=7) Round: 3\n"), catalogue()).word is Verdict.OK


@pytest.mark.parametrize("before", ["", "(work pid=7) Round: 3\n"])
def test_a_workers_line_is_not_what_its_driver_says_last(before: str) -> None:
    skipped = (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\nWARNING: ran out of memory, skipping batch\n"
    )
    text = f"{before}begin\n{skipped}round 4 is through\nround 5 is through\n"
    assert judged(text).outcome is RunOutcome.NOTHING


LOGGED = "2026-03-02 09:14:02,355 - fit - ERROR - " + CAUGHT + RAISED


@pytest.mark.parametrize(
    ("last", "word"),
    [
        ("Training complete", Verdict.OK),
        ("Saved what there is despite errors", Verdict.FAIL),
        ("Closing the files", Verdict.FAIL),
    ],
)
def test_of_a_single_line_long_after_an_error_its_words_tell_whether_the_run_went_on(last: str, word: Verdict) -> None:
    assert judge_log(read(f"{LOGGED}\n2026-03-02 09:14:31,802 - fit - INFO - {last}\n"), catalogue()).word is word


@pytest.mark.parametrize(("left", "exception"), [("a", "KeyError"), ("_impl", "KeyError"), ("Stop", "KeyError")])
def test_what_a_terminal_broke_off_a_frame_s_line_is_no_exception(left: str, exception: str) -> None:
    """A log of which each line was broken at a width: the rest of a function's name stands at a line's beginning, as an exception does."""
    frame = '  File "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1345, in _next_dat\n'
    raised = judged(f"{TRACEBACK}{frame}{left}\n    return self._process_data(data)\nKeyError: 'center'\n").raised
    assert raised is not None
    assert raised.exception == exception


HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
LONG = (
    "ValueError: `log(loss, tensor([\n"
    + "          [ 0.2055,  0.2479,  ..., -0.1054],\n" * 110
    + "       device='cuda:2'))`\n\n"
)


@pytest.mark.parametrize("behind", ["", "Traceback (most recent call last):\n", "wandb: synced\n"])
def test_hydra_s_last_line_ends_the_exception_before_it(behind: str) -> None:
    began = TRACEBACK.replace("<module>", "main")
    found = judged(f"Error executing job with overrides: ['run=1']\n{began}{LONG}{HYDRA}{behind}")
    assert found.raised is not None
    assert found.raised.exception == "ValueError"
