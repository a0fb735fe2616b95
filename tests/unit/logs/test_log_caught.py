"""Tracebacks of exceptions that a script caught and went on after: no failure, as far as the log shows that the same process went on."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

HEAD = "epoch 1 done\n"
UNCAUGHT = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 30, in <module>\n    main()\n'
    '  File "train.py", line 20, in main\n    step()\n'
    "RuntimeError: no such sample\n"
)
CAUGHT = UNCAUGHT.replace('  File "train.py", line 30, in <module>\n    main()\n', "")
ON = "again from the last checkpoint\nepoch 2 done\nepoch 3 done\n"
END = "all epochs are through\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + UNCAUGHT + ON + END,
        HEAD + CAUGHT + ON,
        # The lines before it need not be of the same shape.
        "begin\n" + CAUGHT + "skipped it\nstep 100 | loss 2.1\nnow the eval\nstep 200 | loss 2.0\n",
    ],
)
def test_a_process_that_takes_steps_behind_a_traceback_has_caught_it(text: str) -> None:
    judgement = judge_log(read(text), catalogue())
    assert judgement.word is Verdict.OK
    assert "one line speaks of an error, and the run went on" in headline(judgement)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + UNCAUGHT,
        # Rank 0 may write on while another one falls.
        HEAD + UNCAUGHT + "epoch 2 done\nepoch 3 done\n",
        f"[rank1]: nothing\n[rank0]: {HEAD}{UNCAUGHT}{ON}{END}",
        f"init with world_size=4\n{HEAD}{CAUGHT}{ON}{END}E1122 23:12:27.5 40 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7) of binary: python\n",
        # The message of an error, and what others write in the end.
        HEAD.replace("epoch", "begin") + CAUGHT + "per rank:\nrank 0 has 5\nrank 1 has 6\nrank 2 has 7\n",
        HEAD + UNCAUGHT + "wandb: run 1 of 3\nwandb: Find logs\nwandb: run 2 of 3\nbye\n",
    ],
)
def test_what_others_write_behind_a_traceback_proves_nothing(text: str) -> None:
    assert judge_log(read(text), catalogue()).word is Verdict.FAIL


@pytest.mark.parametrize(
    "text",
    [
        f"2026-01-01 10:00:00 WARNING could not load the cache\n{UNCAUGHT}using defaults\nloading\nevaluating\nresults saved\n",
        f"Exception in thread Thread-3:\n{UNCAUGHT}loading\nevaluating\naccuracy 0.93\ndone\n",
    ],
)
def test_a_traceback_that_was_announced_is_got_over_where_the_last_line_is_of_a_good_end(text: str) -> None:
    assert judge_log(read(text), catalogue()).word is Verdict.OK


def test_one_that_gives_up_clears_up_too() -> None:
    text = f"ERROR:root:training failed\n{UNCAUGHT}closing files\nwriting a report\nsaved the report\nexiting\n"
    assert judge_log(read(text), catalogue()).word is Verdict.FAIL
