"""Plain words of an error before what followed: they are shown, where no exception says more."""

from __future__ import annotations

import pytest

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.related_lines import more_of
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.next_steps import next_steps
from tests.support.logs_by_hand import exited, line, log, raised, read, seen

WORDS = "ERROR train: dataset manifest is corrupt"
ERROR = line(3, WORDS)
LOST = raised("RuntimeError", "Connection closed by peer [127.0.0.1]:25512", number=20, rank=0, library=True)


def test_errors_before_the_first_effect_are_shown() -> None:
    judged = log(LOST, errors=(ERROR, line(40, "ERROR: aborting")))
    found = verdict_of(judged, catalogue())
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert found.said == (ERROR,)
    assert WORDS in headline(judge_log(judged, catalogue()))


def test_a_rank_that_may_have_ended_well_first_is_thought_of() -> None:
    effect = seen("peer-rank-crashed", number=20, role=SignRole.EFFECT, rank=0)
    left = ("ddpdoctor explain uneven-inputs",)
    alone = judge_log(log(effect, LOST, exited(0, 1, first=True)), catalogue())
    assert alone.verdict.outcome is RunOutcome.EFFECTS_ONLY
    assert left in [step.commands for step in next_steps(alone)]
    ended = judge_log(log(effect, LOST, exited(0, 1, first=True), exited(1, -15, told_to=True, pid=7)), catalogue())
    assert left not in [step.commands for step in next_steps(ended)]


def test_an_exit_without_a_traceback_shows_them_too() -> None:
    effect = seen("peer-rank-crashed", number=20, role=SignRole.EFFECT, rank=0)
    judged = log(effect, exited(1, 1, first=True), errors=(ERROR,))
    found = verdict_of(judged, catalogue())
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.said == (ERROR,)
    assert WORDS in [one.text for one in judge_log(judged, catalogue()).opinions[0].finding.evidence]


def test_without_such_words_they_are_the_last_of_its_rank() -> None:
    last = line(15, "config: --data not given", rank=1)
    effect = seen("peer-rank-crashed", number=20, role=SignRole.EFFECT, rank=0)
    assert verdict_of(log(effect, exited(1, 1, first=True), last=(last,)), catalogue()).said == (last,)


HEAD = 'Traceback (most recent call last):\n  File "/srv/fit.py", line 4, in <module>\n    build()\n'
NINJA = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"nvcc fatal   : Cannot find a host compiler\nninja: build stopped\n{HEAD}{NINJA}", "nvcc fatal   : Cannot"),
        (
            f"op.cu(7): error: identifier \"half3\" is undefined\nop.cpp:9:2: error: 'x'\nmake: *** [op.o] Error 1\n{HEAD}{NINJA}",
            # nvcc's own line is the finding's.
            "op.cpp:9:2:",
        ),
        (
            f"{HEAD}RuntimeError: Error building extension 'op': [1/2] nvcc\nop.cu:2: fatal error: a.h: none\n",
            "op.cu:2:",
        ),
        (f"ptxas fatal   : Unresolved extern function 'f'\n{HEAD}{NINJA}", "ptxas fatal"),
        (f"collect2: error: ld returned 1 exit status\n{HEAD}{NINJA}", ""),
        (f"validation error: 0.31\n{HEAD}RuntimeError: NCCL is not what it was\n", ""),
        (
            f"RuntimeError: module was compiled for another\n{HEAD}RuntimeError: core: no import\n",
            "RuntimeError: module",
        ),
        (
            f"{HEAD}NotImplementedError: CUDA error 4x\n  a is no good because:\n    stride is 3\n    dim is 9\n",
            "    stride",
        ),
        (
            f"{HEAD}NotImplementedError: CUDA error 4x\n  a is no good because:\n    dim is 9\n    HINT: pad it\n",
            "    HINT",
        ),
        (
            f"{HEAD}RuntimeError: [ERROR] HCCL error in: a.cpp:64\n[ERROR] ERR02200 DIST call hccl api failed.\n"
            "EJ0001: Failed to start. Reason: One runs.\n        Solution: Wait.\n",
            "EJ0001: Failed",
        ),
    ],
)
def test_lines_beside_it_tell_why(text: str, told: str) -> None:
    whole = read(text)
    found = more_of(whole.raised[0].line, whole.raised[0], whole)
    assert [line.text[: len(told)] for line in found[:1]] == [told][: bool(told)]
