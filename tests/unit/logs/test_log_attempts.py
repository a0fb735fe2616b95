"""Logs of launchers that started all ranks again: which attempt leads, and what is told of the others."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from ddpdoctor.logs.render.document import log_document
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.report.terminal import text_of
from tests.support.logs_by_hand import read


def fell(rank: int, exception: str, message: str) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/home/ada/train.py", line 7, in <module>\n'
        f"[rank{rank}]:     run()\n"
        f"[rank{rank}]: {exception}: {message}\n"
    )


def lost(rank: int) -> str:
    return fell(
        rank,
        "RuntimeError",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:5",
    )


def over(pid: int, agent: int = 40, code: int = 1) -> str:
    """As torchrun tells that a rank of its own failed."""
    where = f"{agent} torch/distributed/elastic/multiprocessing/api.py:1002"
    return f"E1122 23:12:27.584000 {where}] failed (exitcode: {code}) local_rank: 1 (pid: {pid}) of binary: /usr/bin/python3\n"


GAVE_UP = (
    "Traceback (most recent call last):\n"
    '  File "/usr/bin/torchrun", line 8, in <module>\n'
    "    sys.exit(main())\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
)
STEPS = "".join(f"step {number} loss 0.{90 - number}\n" for number in range(30))


def message(found: LogVerdict) -> str:
    return found.raised.message if found.raised else ""


def test_the_last_attempt_leads_and_the_others_are_told() -> None:
    log = read(
        fell(1, "OSError", "flaky") + lost(0) + over(11) + fell(0, "ValueError", "bad") + over(12) + lost(1)
        + fell(0, "KeyError", "'lr'") + over(13) + GAVE_UP
    )  # fmt: skip
    judgement = judge_log(log, catalogue())
    assert message(judgement.verdict) == "'lr'"
    assert (judgement.verdict.attempt, [message(one) for one in judgement.verdict.elsewhere]) == (2, ["flaky", "bad"])
    assert headline(judgement).endswith("; that was the last of 3 attempts")
    assert "Attempt 0: rank 1 failed first: OSError: flaky  (" in text_of(log_document(judgement), 300)
    assert judgement.log.exited[-1].pid == 13, "what follows is told of that attempt alone"


def test_the_same_error_is_kept_of_each_attempt() -> None:
    same = fell(1, "OSError", "flaky")
    found = verdict_of(read("".join(same + over(pid) for pid in range(9)) + GAVE_UP), catalogue())
    assert (found.attempt, len(found.elsewhere), message(found)) == (8, 8, "flaky")


def test_where_the_last_one_has_only_effects_the_latest_with_a_cause_leads() -> None:
    found = verdict_of(
        read(fell(1, "OSError", "a") + over(11) + fell(1, "OSError", "b") + over(12) + lost(0) + over(13) + GAVE_UP),
        catalogue(),
    )
    assert (found.attempt, message(found)) == (1, "b")


def test_ranks_that_only_did_not_meet_after_another_attempt_name_no_cause() -> None:
    unmet = fell(
        0, "RuntimeError", "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.h:311] Connect timeout [none]"
    )
    judgement = judge_log(read(fell(1, "OSError", "a") + over(11) + unmet + over(12) + GAVE_UP), catalogue())
    assert message(judgement.verdict) == "a"
    assert headline(judgement).endswith("; that was the first of 2 attempts, and those behind it name no cause")
    assert verdict_of(read(unmet + over(11) + unmet + over(12) + GAVE_UP), catalogue()).attempt == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (fell(1, "OSError", "flaky") + over(11) + STEPS, Verdict.OK),
        (
            fell(1, "OSError", "flaky") + over(11) + fell(0, "OSError", "b") + over(12) + "begin\nhalf\ndone\n",
            Verdict.OK,
        ),
        # The launcher gives up, or the log ends.
        (fell(1, "OSError", "flaky") + over(11) + GAVE_UP + STEPS, Verdict.FAIL),
        (fell(1, "OSError", "flaky") + over(11), Verdict.FAIL),
        (fell(1, "OSError", "flaky") + over(11) + "begin\nhalf\ndone\n", Verdict.FAIL),
    ],
)
def test_an_attempt_that_went_through_is_no_failure(text: str, word: Verdict) -> None:
    judgement = judge_log(read(text), catalogue())
    assert judgement.word is word
    assert bool(judgement.verdict.elsewhere) is (word is Verdict.OK)
    if word is Verdict.OK:
        assert judgement.verdict.outcome is RunOutcome.NOTHING
        assert "attempts speaks of no failure; before it" in headline(judgement)


def test_two_nodes_launchers_in_one_file_are_one_attempt() -> None:
    found = verdict_of(
        read(fell(1, "OSError", "first") + over(11, 40) + GAVE_UP + fell(3, "OSError", "b") + over(12, 41) + GAVE_UP),
        catalogue(),
    )
    assert (found.attempt, found.elsewhere, message(found)) == (0, (), "first")


def test_each_folder_of_torchruns_is_an_attempt(tmp_path: Path) -> None:
    for attempt, texts in enumerate(
        ((lost(0), fell(1, "OSError", "a")), (fell(0, "KeyError", "b"), lost(1)), ("fine\n", ""))
    ):
        for local, text in enumerate(texts):
            file = tmp_path / f"none_x/attempt_{attempt}/{local}/stderr.log"
            file.parent.mkdir(parents=True)
            file.write_text(text)
    found = verdict_of(read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue())
    assert (found.outcome, found.ended_well, [message(one) for one in found.elsewhere]) == (
        RunOutcome.NOTHING,
        True,
        ["a", "b"],
    )
    (tmp_path / "none_x/attempt_2/1/stderr.log").write_text(fell(1, "ValueError", "c"))
    found = verdict_of(read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue())
    assert (found.attempt, message(found)) == (2, "c")
    launcher = tmp_path / "torchrun.log"
    launcher.write_text(over(11) + over(12) + over(13) + GAVE_UP)
    assert (
        message(
            verdict_of(read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue())
        )
        == "c"
    )
    (tmp_path / "none_x/attempt_2/1/stderr.log").write_text("fine")
    launcher.write_text(over(11) + over(12))
    assert verdict_of(
        read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())), catalogue()
    ).ended_well


REQUEUED = (
    "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n"
)


def test_what_slurm_starts_again_is_another_attempt() -> None:
    more = STEPS.replace("step", "Step")
    judgement = judge_log(read(STEPS + REQUEUED + more + fell(0, "KeyError", "'lr'")), catalogue())
    found = judgement.verdict
    assert "Attempt 0: it was ended from outside: slurmstepd: error: ***" in text_of(log_document(judgement), 300)
    assert (found.attempt, message(found), found.elsewhere[0].outcome) == (1, "'lr'", RunOutcome.STOPPED)
    assert verdict_of(read(STEPS + REQUEUED + more), catalogue()).outcome is RunOutcome.NOTHING
    assert verdict_of(read(STEPS + REQUEUED), catalogue()).outcome is RunOutcome.STOPPED
    text = STEPS + REQUEUED + fell(0, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Terminated. ")
    assert verdict_of(read(text), catalogue()).elsewhere == ()


def test_what_recurs_as_all_ranks_end_is_no_other_attempt() -> None:
    told = "torch.distributed.elastic.multiprocessing.api.SignalException"
    ends = "".join(fell(rank, told, f"Process {600 + rank} got signal: 15") for rank in range(8))
    tasks = "".join(f"srun: error: n{task}: task {task}: Exited with exit code 1\n" for task in range(4))
    found = verdict_of(read(STEPS + REQUEUED + ends + tasks), catalogue())
    assert (found.outcome, found.elsewhere) == (RunOutcome.STOPPED, ())
