"""What is heard of the ranks, and what is made of it. Times are seconds since the run began."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.facts.smoke import RankEnding, RankRun, StageState
from ddpdoctor.smoke_training.local.rank_monitor import PROCESS_END, RankMonitor
from ddpdoctor.smoke_training.local.rank_outcome import problem_of, rank_runs
from ddpdoctor.smoke_training.local.rank_progress import MAX_ANSWER_BYTES, MAX_OUTPUT_BYTES, OutputTail
from ddpdoctor.smoke_training.training_order import Launched, TrainingOrder

STAGES = ("import", "device", "all_reduce", "shutdown")


class Job:
    """Two ranks (pids 100 and 101), a stage may take 10 s, the import 90."""

    def __init__(self, **more: Any) -> None:
        order = TrainingOrder(
            **{"nproc": 2, "world_size": 2, "stages": STAGES, "seconds": 10.0, "import_seconds": 90.0} | more
        )
        self.watch = RankMonitor(order, 0.0)
        self.engine_pid = self.watch.engine_pid = 99
        for rank in self.watch.ranks:
            assert self.watch.introduce(rank, 100 + rank)

    def says(self, rank: int, now: float, **message: Any) -> Job:
        self.watch.take_rank_message(rank, message, now)
        return self

    def in_stage(self, rank: int, stage: str, now: float, *steps: str) -> Job:
        for before in STAGES[: STAGES.index(stage)]:
            self.says(rank, now, stage=before, state="begun")
            self.says(rank, now, stage=before, state="passed", seconds=0.1)
        self.says(rank, now, stage=stage, state="begun")
        for step in steps:
            self.says(rank, now, step=step, calls=f"{step} float32[1]")
        return self

    def finishes(self, rank: int, now: float) -> Job:
        self.in_stage(rank, "shutdown", now)
        return self.says(rank, now, stage="shutdown", state="passed").says(rank, now, finished=True)

    def fails(
        self, rank: int, now: float, stage: str = "all_reduce", error: str = "ValueError: odd", **more: Any
    ) -> Job:
        return self.says(rank, now, stage=stage, state="failed", error=error, **more)

    def exits(self, rank: int, now: float, code: int) -> Job:
        self.watch.note_disconnect(rank, now + 0.01)
        self.watch.take_server_message({"ended": 100 + rank, "status": code}, now)
        return self

    def come_to(self, ended_at: float, *late: int) -> list[RankRun]:
        self.watch.ended_at = ended_at
        for rank in self.watch.ranks:
            self.watch.note_disconnect(rank, ended_at + 0.1)
        return list(rank_runs(self.watch, "node01", [self.watch.ranks[rank] for rank in late]))

    def endings(self, ended_at: float, *late: int) -> list[RankEnding]:
        return [run.ending for run in self.come_to(ended_at, *late)]


def stage_of(one: RankRun, name: str) -> StageState:
    return next(stage.state for stage in one.stages if stage.name == name)


# --- how ranks end ------------------------------------------------------------------------------------------------------


def test_all_is_well() -> None:
    job = Job().finishes(0, 5).finishes(1, 6).exits(0, 7, 0).exits(1, 7, 0)
    assert not job.watch.has_failed
    ranks = job.come_to(8)
    assert [rank.ending for rank in ranks] == [RankEnding.FINISHED] * 2
    assert [stage.state for rank in ranks for stage in rank.stages] == [StageState.PASSED] * 8
    assert [(rank.exit_code, rank.ended_after, rank.step) for rank in ranks] == [(None, 5.0, ""), (None, 6.0, "")]
    assert problem_of(job.watch) == ""


def test_who_raised_and_who_was_ended_for_it() -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    job.fails(1, 2, stack=["f (a.py:1)"]).exits(1, 2.1, 1).exits(0, 2.3, -signal.SIGTERM)
    assert job.watch.has_failed
    ended, raised = job.come_to(3)
    assert (raised.ending, raised.words, raised.exit_code) == (RankEnding.RAISED, "ValueError: odd", 1)
    assert (raised.stack, raised.stack_source) == (("f (a.py:1)",), "its traceback")
    assert stage_of(raised, "all_reduce") is StageState.FAILED
    # The engine's SIGTERM, which follows on the first failure, is nobody's fault.
    assert (ended.ending, ended.exit_code) == (RankEnding.ENDED, None)
    assert stage_of(ended, "all_reduce") is StageState.HUNG


def test_the_engine_knows_to_whom_it_has_sent_sigterm() -> None:
    for blamed, endings in (
        ("0", [RankEnding.RAISED, RankEnding.ENDED]),
        ("1", [RankEnding.RAISED, RankEnding.KILLED]),
    ):
        job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
        job.fails(0, 2).exits(1, 2.1, -signal.SIGTERM)
        assert job.watch.is_unexplained
        job.watch.take_engine_message({"failures": {blamed: 1}, "error": "ChildFailedError: a table"})
        assert not job.watch.is_unexplained
        assert job.endings(3) == endings


@pytest.mark.parametrize("blamed", [{}, {"0": 1}, {"1": -15}])
def test_who_only_suffers_is_no_reason_for_the_engine(blamed: dict[str, int]) -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    job.fails(0, 2, error="RuntimeError: Connection closed by peer").exits(0, 2.1, 1).exits(1, 2.1, -signal.SIGTERM)
    job.watch.take_engine_message({"failures": blamed, "error": "ChildFailedError: a table"})
    assert job.endings(3) == [RankEnding.RAISED, RankEnding.KILLED]


def test_a_sigterm_that_came_first_was_somebody_else_s() -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    job.exits(0, 2, -signal.SIGTERM).fails(1, 2.2, error="RuntimeError: Connection closed by peer")
    assert [run.ending for run in job.come_to(3)] == [RankEnding.KILLED, RankEnding.RAISED]


@pytest.mark.parametrize(
    ("code", "ending"),
    [(7, RankEnding.EXITED), (0, RankEnding.EXITED), (-9, RankEnding.KILLED), (-15, RankEnding.KILLED)],
)
def test_who_goes_without_a_word_has_ended_by_itself(code: int, ending: RankEnding) -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    job.watch.note_disconnect(1, 2)
    assert job.watch.has_failed
    assert job.watch.is_unexplained
    job.watch.take_server_message({"ended": 101, "status": code}, 1.9)
    # Of a SIGTERM only the engine knows whether it was its own.
    assert job.watch.is_unexplained is (code == -signal.SIGTERM)
    job.watch.take_engine_message({"failures": {"1": code}, "error": "ChildFailedError: a table"})
    assert not job.watch.is_unexplained
    other, one = job.come_to(3)
    assert (other.ending, one.ending, one.exit_code) == (RankEnding.ENDED, ending, code)
    assert one.ended_after == 1.9


def test_who_goes_without_a_word_and_isn_t_explained_has_not_been_ended() -> None:
    job = Job().in_stage(1, "all_reduce", 1)
    job.watch.note_disconnect(1, 2)
    one = job.come_to(7)[1]
    assert (one.ending, one.exit_code) == (RankEnding.EXITED, None)
    assert problem_of(job.watch) == ""


def test_how_a_process_ended_may_be_known_before_it_was_heard_of() -> None:
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES), 0.0)
    watch.take_server_message({"ended": 101, "status": -9}, 1)
    watch.introduce(1, 101)
    assert [run.ending for run in rank_runs(watch, "node01")] == [RankEnding.ENDED, RankEnding.KILLED]


def test_the_engine_s_word_is_enough_where_no_one_else_knows() -> None:
    """As with the method spawn, or when the rank died before its first word."""
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES), 0.0)
    watch.take_engine_message({"failures": {"1": -9, "x": 3, "7": 1}, "error": "ChildFailedError: a table"})
    assert watch.is_engine_over
    assert [run.ending for run in rank_runs(watch, "node01")] == [RankEnding.ENDED, RankEnding.KILLED]
    assert problem_of(watch) == ""


def test_who_is_on_its_way_when_another_fails_was_ended_and_has_not_failed_to_come() -> None:
    """The engine ends it with the others, though it had no time to say a word."""
    job = Job(nproc=3, world_size=3).in_stage(0, "import", 1).in_stage(1, "import", 1)
    job.watch.ranks[2].pid = 0
    job.fails(1, 1.2, "import", "RuntimeError: out of luck")
    job.watch.ended_at = 1.5
    ranks = rank_runs(job.watch, "n")
    assert [rank.ending for rank in ranks] == [RankEnding.ENDED, RankEnding.RAISED, RankEnding.ENDED]
    assert ranks[2].last is None
    assert ranks[2].ended_after == 1.5


def test_who_never_came_is_told_from_those_who_waited_for_it_in_vain() -> None:
    job = Job().in_stage(1, "all_reduce", 1)
    job.watch.ranks[0].pid = 0
    job.fails(
        1, 9, error="DistNetworkError: The client socket has timed out after 60s while trying to connect to (a, 1)."
    )
    assert [run.ending for run in rank_runs(job.watch, "n")] == [RankEnding.NEVER_CAME, RankEnding.RAISED]


def test_what_we_end_we_don_t_blame() -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    job.watch.ended_at = 11.5
    job.exits(0, 11.6, -9).exits(1, 11.6, -9)
    job.watch.note_engine_end(-9, 11.7)
    job.watch.note_server_end()
    assert [run.ending for run in rank_runs(job.watch, "n", [job.watch.ranks[1]])] == [
        RankEnding.ENDED,
        RankEnding.HUNG,
    ]
    assert problem_of(job.watch, [job.watch.ranks[1]]) == ""
    assert job.watch.killed == ""


def test_a_rank_that_dies_after_its_last_word_hasn_t_finished() -> None:
    job = Job().finishes(0, 5).finishes(1, 5).exits(1, 6, -6)
    assert job.watch.has_failed
    well, aborted = job.come_to(7)
    assert (well.ending, aborted.ending, aborted.exit_code) == (RankEnding.FINISHED, RankEnding.KILLED, -6)
    assert (stage_of(aborted, "shutdown"), aborted.step) == (StageState.FAILED, PROCESS_END)


def test_a_rank_whose_process_stays_has_hung_in_its_last_stage() -> None:
    job = Job().finishes(0, 5).finishes(1, 6).exits(0, 6.1, 0)
    assert job.watch.late_ranks(15.9) == []
    assert [rank.rank for rank in job.watch.late_ranks(16)] == [1]
    well, stays = job.come_to(16, 1)
    assert (well.ending, stays.ending, stays.step) == (RankEnding.FINISHED, RankEnding.HUNG, PROCESS_END)
    assert stage_of(stays, "shutdown") is StageState.HUNG


def test_memory_that_ran_out_is_told_of_the_rank_that_was_killed_alone() -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1).exits(1, 2, -9)
    job.watch.oom_kills = 1
    assert [one.out_of_memory for one in job.come_to(3)] == [False, True]


# --- why none could run ---------------------------------------------------------------------------------------------------


def test_the_engine_s_own_failure_is_the_problem_of() -> None:
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES), 0.0)
    watch.note_server_end()  # Heard first, though it follows.
    watch.take_engine_message({"failures": {}, "error": "ModuleNotFoundError: No module named 'torch'"})
    assert problem_of(watch) == "ModuleNotFoundError: No module named 'torch'"
    assert [run.ending for run in rank_runs(watch, "node01")] == [RankEnding.NEVER_CAME] * 2


def killed_engine(watch: RankMonitor) -> None:
    watch.note_engine_end(-9, 2)


def killed_server(watch: RankMonitor) -> None:
    watch.note_server_end()
    # The engine can't know how its ranks ended, and makes it up.
    watch.take_engine_message({"failures": {"0": 255}, "error": "ChildFailedError: a table"})


def killed_keeper(watch: RankMonitor) -> None:
    watch.note_reaper_end("the keeper was ended by SIGKILL")


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        (killed_engine, "torch's engine was ended by SIGKILL"),
        (killed_server, "the process that the ranks were forked from has ended"),
        (killed_keeper, "the keeper was ended by SIGKILL"),
    ],
)
def test_ranks_that_die_with_those_who_keep_them_are_not_to_blame(
    kill: Callable[[RankMonitor], None], words: str
) -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    kill(job.watch)
    for rank in (0, 1):
        job.watch.note_disconnect(rank, 2.1)
    assert not job.watch.is_unexplained
    assert problem_of(job.watch) == words
    assert job.endings(3) == [RankEnding.ENDED] * 2


@pytest.mark.parametrize("kill", [killed_engine, killed_keeper])
def test_the_end_of_the_ranks_parent_is_explained_by_that_of_its_own(kill: Callable[[RankMonitor], None]) -> None:
    """They end together, and the effect is heard first."""
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1)
    job.watch.note_server_end()
    for rank in (0, 1):
        job.watch.note_disconnect(rank, 2.1)
    assert job.watch.is_unexplained
    kill(job.watch)
    assert not job.watch.is_unexplained
    assert problem_of(job.watch).endswith("was ended by SIGKILL")
    assert job.endings(3) == [RankEnding.ENDED] * 2


def test_the_ranks_parent_may_be_heard_to_end_before_its_engine_has_finished() -> None:
    job = Job().finishes(0, 5).finishes(1, 6).exits(0, 7, 0).exits(1, 7, 0)
    job.watch.note_server_end()
    job.watch.take_engine_message({"finished": True})
    assert problem_of(job.watch) == ""


def test_a_rank_that_was_killed_before_the_engine_was_is_the_reason() -> None:
    job = Job().in_stage(0, "all_reduce", 1).in_stage(1, "all_reduce", 1).exits(1, 2, -9)
    job.watch.note_engine_end(-9, 2.2)
    assert problem_of(job.watch) == ""
    assert job.endings(3) == [RankEnding.ENDED, RankEnding.KILLED]


def test_a_python_that_ends_at_once_is_told_with_its_last_line() -> None:
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES), 0.0)
    watch.add_output(None, b"loading\nno licence\n")
    watch.note_engine_end(3, 1)
    assert problem_of(watch) == 'the target Python ended with exit code 3; it last said "no licence"'


NO_NUMPY = b"""/opt/torch/storage.py:521: UserWarning: Failed to initialize NumPy: No module named 'numpy' (Triggered at x.cpp:84.)
  cpu = _conversion_method_template(device=torch.device("cpu"))
"""
ABORTED = b"""terminate called after throwing an instance of 'c10::Error'
  what():  TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL
Fatal Python error: Aborted

Current thread 0x00007f1d (most recent call first):
  File "/opt/torch/distributed/__init__.py", line 56 in <module>
  ...

Extension modules: torch._C, numpy.random.mtrand (total: 18)
"""


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (ABORTED, '; it last said "what():  TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL"'),
        (ABORTED.partition(b"()")[2].partition(b"\n")[2], '; it last said "Fatal Python error: Aborted"'),
        (NO_NUMPY, ""),
        (b"loading\n" + NO_NUMPY, '; it last said "loading"'),
        (b"ImportError: no libfoo.so\n" + NO_NUMPY + b"bye\n", '; it last said "ImportError: no libfoo.so"'),
    ],
)
def test_the_last_words_are_the_reason_and_not_what_is_printed_around_it(printed: bytes, words: str) -> None:
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES), 0.0)
    watch.add_output(None, printed)
    watch.note_engine_end(-6, 1)
    assert problem_of(watch) == f"the target Python was ended by SIGABRT{words}"


def test_an_engine_that_lost_the_ranks_parent_does_not_say_why() -> None:
    job = Job().in_stage(0, "all_reduce", 1)
    job.watch.note_server_end()
    job.watch.take_engine_message({"failures": {}, "error": "EOFError: unexpected EOF"})
    job.watch.note_engine_end(1, 1.1)
    assert problem_of(job.watch) == "the process that the ranks were forked from has ended"


def test_nobody_came() -> None:
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES, seconds=10.0, import_seconds=90.0), 0.0)
    assert watch.next_due() == 90
    late = watch.late_ranks(90)
    assert len(late) == 2
    assert problem_of(watch, watch.stuck_ranks(late)) == "no rank had begun after 90 s"
    assert {run.ending for run in rank_runs(watch, "n", late)} == {RankEnding.NEVER_CAME}


def test_nobody_came_since_what_starts_them_is_stopped() -> None:
    watch = RankMonitor(TrainingOrder(nproc=2, world_size=2, stages=STAGES, seconds=10.0, import_seconds=90.0), 0.0)
    watch.add_output(None, b"loading\n")
    watch.engine_state = "torch's engine (process 12) is stopped"
    late = watch.stuck_ranks(watch.late_ranks(90))
    assert problem_of(watch, late) == "no rank had begun after 90 s: torch's engine (process 12) is stopped"


def test_the_one_rank_of_a_launcher_tells_its_end_itself() -> None:
    job = Job(nproc=1, launched=Launched(1, 0)).in_stage(1, "all_reduce", 1)
    job.watch.note_engine_end(-11, 2)
    (one,) = job.come_to(3)
    assert (one.rank, one.local_rank, one.ending, one.exit_code) == (1, 0, RankEnding.KILLED, -11)
    assert problem_of(job.watch) == ""


# --- when it is time to give up -------------------------------------------------------------------------------------------


def test_each_stage_has_its_time_and_so_has_the_way_to_the_next() -> None:
    job = Job()
    assert job.watch.next_due() == 90
    job.in_stage(0, "device", 20).in_stage(1, "import", 1)
    assert job.watch.next_due() == 30
    job.says(0, 25, stage="device", state="passed")
    assert job.watch.next_due() == 35
    assert job.watch.late_ranks(34.9) == []
    assert [rank.rank for rank in job.watch.late_ranks(35)] == [0]


@pytest.mark.parametrize(
    ("more", "seconds"),
    [({}, 10), ({"nnodes": 2, "world_size": 4}, 90), ({"nproc": 1, "launched": Launched(rank=0, local_rank=0)}, 90)],
)
def test_at_the_rendezvous_some_may_wait_for_others_who_still_import(more: dict[str, Any], seconds: float) -> None:
    job = Job(stages=("import", "device", "rendezvous", "barrier"), **more)
    for rank in job.watch.ranks:
        job.says(rank, 5.0, stage="rendezvous", state="begun")
    one = job.watch.ranks[0]
    assert (one in job.watch.late_ranks(5 + seconds - 0.1), one in job.watch.late_ranks(5 + seconds)) == (False, True)
    job.watch.take_rank_message(0, {"stage": "barrier", "state": "begun"}, 6.0)
    assert one in job.watch.late_ranks(16.0)


def test_the_rendezvous_s_time_begins_when_the_last_rank_of_the_host_has_come() -> None:
    job = Job(stages=("import", "device", "rendezvous", "barrier")).says(1, 0.5, stage="import", state="begun")
    job.says(0, 2, stage="rendezvous", state="begun")
    assert job.watch.late_ranks(90) == []
    assert [rank.rank for rank in job.watch.late_ranks(90.5)] == [1]
    assert job.watch.due(job.watch.ranks[0]) == 100.5
    job.says(1, 85, stage="import", state="passed").says(1, 85, stage="device", state="begun")
    assert [rank.rank for rank in job.watch.late_ranks(95)] == [1]
    job.says(1, 90, stage="device", state="passed").says(1, 90, stage="rendezvous", state="begun")
    # It may be heard to be through before the one that waited for it.
    job.says(1, 90.1, stage="rendezvous", state="passed").says(1, 90.1, stage="barrier", state="begun")
    assert job.watch.late_ranks(99.9) == []
    assert [rank.rank for rank in job.watch.late_ranks(100)] == [0]


def test_at_the_rendezvous_nobody_waits_for_one_that_is_over() -> None:
    for end in ({"finished": True}, {"stage": "import", "state": "failed"}):
        job = Job(stages=("import", "device", "rendezvous", "barrier")).says(1, 1, **end)
        assert job.says(0, 2, stage="rendezvous", state="begun").watch.due(job.watch.ranks[0]) == 12


def test_steps_don_t_prolong_a_stage() -> None:
    job = Job().in_stage(0, "all_reduce", 1, "a").in_stage(1, "all_reduce", 1, "a")
    job.says(0, 9, step="b")
    assert [rank.rank for rank in job.watch.late_ranks(11)] == [0, 1]


def test_who_is_about_to_be_late_is_held_up_too_and_who_is_ahead_waits_for_them() -> None:
    job = Job(nproc=3, world_size=3).in_stage(0, "all_reduce", 1, "a", "b").in_stage(1, "all_reduce", 1.1, "a")
    job.in_stage(2, "shutdown", 5)
    late = job.watch.late_ranks(11)
    assert [one.rank for one in late] == [0]
    assert [rank.rank for rank in job.watch.stuck_ranks(late)] == [0, 1]
    assert job.endings(11.5, 0, 1) == [RankEnding.HUNG, RankEnding.HUNG, RankEnding.ENDED]


def test_a_hung_rank_s_time_is_counted_to_its_end() -> None:
    job = Job().in_stage(0, "all_reduce", 1)
    one = job.come_to(11.5, 0)[0]
    assert next(stage.seconds for stage in one.stages if stage.name == "all_reduce") == 10.5
    assert one.ended_after == 11.5


def test_an_engine_that_doesn_t_end_after_its_ranks_is_late() -> None:
    job = Job().finishes(0, 5).finishes(1, 5).exits(0, 6, 0).exits(1, 6, 0)
    assert job.watch.next_due() == 16
    assert not job.watch.is_engine_late(15.9)
    assert job.watch.is_engine_late(16)
    assert problem_of(job.watch) == "all ranks have ended, but torch's engine hasn't within 10 s"
    assert job.endings(16) == [RankEnding.FINISHED] * 2


# --- who says what ----------------------------------------------------------------------------------------------------------


def test_nobody_speaks_for_a_rank_that_has_spoken() -> None:
    job = Job()
    assert not job.watch.introduce(1, 4711)
    assert not job.watch.introduce(7, 4711)
    assert job.watch.ranks[1].pid == 101


def test_what_is_printed_is_kept_from_its_end_and_shown_as_one_line() -> None:
    job = Job()
    job.watch.add_output(1, b"first\n" + b"x" * (3 * MAX_OUTPUT_BYTES))
    job.watch.add_output(1, b"\n\x1b[31mlast \xff\n\n")
    job.watch.add_output(9, b"nobody's")
    assert len(job.watch.ranks[1].output) == MAX_OUTPUT_BYTES
    assert job.come_to(1)[1].last_line == "?[31mlast \ufffd"
    assert len(Job().watch.ranks[0].output) == 0


def test_an_answer_isn_t_what_was_printed() -> None:
    voice = OutputTail()
    voice.add_output(b"before\n")
    voice.expect_answer()
    voice.add_output(b"meanwhile\nThread ")
    voice.add_output(b"x" * (2 * MAX_ANSWER_BYTES))
    assert voice.answer is not None
    assert len(voice.answer) == MAX_ANSWER_BYTES
    voice.end_answer(b"meanwhile\n")
    assert (voice.output, voice.answer) == (b"before\nmeanwhile\n", None)


NASTY = [
    None,
    True,
    -1,
    0,
    2.5,
    float("nan"),
    float("inf"),
    10**400,
    "",
    "\ud800\x1b",
    [],
    [1, -1],
    ["a", 7],
    [None],
    {},
]
NASTY += [{"0": -9}, {"1": "x"}, {"x": 1}, {"0": 10**400}, {"0": True}, {7: 7}, [[[]]], 100, 101, -9, "0", "1"]

names = st.sampled_from(
    [
        "stage",
        "state",
        "step",
        "calls",
        "device",
        "torch",
        "memory",
        "finished",
        "error",
        "wrong",
        "culprits",
        "missing",
        "stack",
        "seconds",
        "words",
        "figures",
        "failures",
        "ended",
        "status",
        "at",
        "who",
    ]
)
values = st.sampled_from([*NASTY, *STAGES, "begun", "passed", "failed", "not tested"])
messages = st.dictionaries(names, values, max_size=5)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, "engine", "server"]), messages), max_size=12))
def test_whatever_is_said_there_are_facts_in_the_end(said: list[tuple[object, Mapping[str, Any]]]) -> None:
    job = Job()
    for number, (who, message) in enumerate(said):
        if who == "engine":
            job.watch.take_engine_message(message)
        elif who == "server":
            job.watch.take_server_message(message, number)
        else:
            assert isinstance(who, int)
            job.watch.take_rank_message(who, message, number)
        job.watch.late_ranks(number)
        job.watch.next_due()
    late = job.watch.stuck_ranks(job.watch.late_ranks(1000))
    for run in job.come_to(1001, *(one.rank for one in late)):
        assert msgspec.json.decode(msgspec.json.encode(run), type=RankRun) == run
        assert len(run.stages) == len(STAGES)
    assert isinstance(problem_of(job.watch, late), str)
