"""Who is blamed for a smoke training that failed or hung, over situations that real ranks were in and ones they might be in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.text import clip
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.smoke import CollectiveCall, RankEnding, RankRun, Smoke, Stage, StageState
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.smoke_training.analysis.failure_attribution import (
    TrainingFailure,
    TrainingFailureKind,
    attribute_failure,
    is_at_the_end,
)
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_outcome import rank_runs
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.fixture_hosts import host_case, host_cases
from tests.support.registered_checks import find_check

STAGES = ("import", "device", "rendezvous", "process group", "barrier", "all_reduce", "training", "shutdown")
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2911"
IN_ALL_REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:3252)", "all_reduce (stages/collectives.py:24)")
ELSEWHERE = ("sleep (own/hooks.py:3)",)
DURING = {
    RankEnding.RAISED: StageState.FAILED, RankEnding.WRONG: StageState.FAILED, RankEnding.EXITED: StageState.FAILED, RankEnding.KILLED: StageState.FAILED,
    RankEnding.HUNG: StageState.HUNG, RankEnding.ENDED: StageState.HUNG,
}  # fmt: skip


def ran(rank: int, ending: RankEnding, at: str = "all_reduce", **more: Any) -> RankRun:
    """A rank that came so far; stages after that weren't run."""
    reached = (
        len(STAGES) if ending is RankEnding.FINISHED else 0 if ending is RankEnding.NEVER_CAME else STAGES.index(at)
    )
    stages = [
        Stage(name=name, state=StageState.PASSED if number < reached else StageState.NOT_RUN)
        for number, name in enumerate(STAGES)
    ]
    if ending in DURING:
        stages[reached] = Stage(name=at, state=DURING[ending])
    facts = {"local_rank": rank, "host": "node01", "ended_after": 4.0, "stages": tuple(stages), **more}
    return RankRun(rank=rank, ending=ending, **facts)


def waits_in_all_reduce(rank: int, ending: RankEnding = RankEnding.HUNG, **more: Any) -> RankRun:
    call = CollectiveCall("all_reduce", 1, "all_reduce float32[1]")
    facts = {"step": "all_reduce of 4 B", "steps": 1, "calls": call.call, "called": (call,), "stack": IN_ALL_REDUCE}
    return ran(rank, ending, **{**facts, **more})


def lost(rank: int, **more: Any) -> RankRun:
    return waits_in_all_reduce(rank, RankEnding.RAISED, **{"words": LOST, "exit_code": 1, **more})


def calls(rank: int, *names: str, **more: Any) -> RankRun:
    """Waits in the last of these collectives of the stage all_reduce."""
    called = tuple(CollectiveCall("all_reduce", number, name) for number, name in enumerate(names, start=1))
    return waits_in_all_reduce(rank, steps=len(names), calls=names[-1], called=called, **more)


def found(*ranks: RankRun) -> TrainingFailure:
    one = attribute_failure(ranks)
    assert one is not None
    return one


def named(*ranks: RankRun) -> tuple[TrainingFailureKind, list[int], str]:
    one = found(*ranks)
    return one.kind, [run.rank for run in one.culprits], one.stage


# --- failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 8])
def test_nobody_is_blamed_where_all_finished(count: int) -> None:
    assert attribute_failure([ran(rank, RankEnding.FINISHED, ended_after=29.0) for rank in range(count)]) is None


def test_whoever_raised_is_blamed_even_if_others_complained_before() -> None:
    """Clocks of two hosts differ, and a message may come late."""
    raised = ran(1, RankEnding.RAISED, words="RuntimeError: boom", ended_after=4.1)
    assert named(lost(0, ended_after=3.9), raised, lost(2, ended_after=4.0)) == (
        TrainingFailureKind.FAILED,
        [1],
        "all_reduce",
    )


@pytest.mark.parametrize(
    "words",
    [
        LOST,
        "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:397: Connection reset by peer",
        "DistNetworkError: failed to recv, got 0 bytes",
        "DistBackendError: NCCL error, remote process exited or there was a network error",
        "RuntimeError: Timed out waiting 90000ms for recv operation to complete",
        "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    ],
)
def test_words_of_one_who_lost_another(words: str) -> None:
    other = ran(1, RankEnding.KILLED, exit_code=-9, ended_after=9.0)
    assert named(ran(0, RankEnding.RAISED, words=words), other) == (TrainingFailureKind.FAILED, [1], "all_reduce")


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
        "AcceleratorError: CUDA error: the launch timed out and was terminated",
        "ModuleNotFoundError: No module named 'numpy'",
    ],
)
def test_words_of_its_own(words: str) -> None:
    own = ran(1, RankEnding.RAISED, words=words, ended_after=9.0)
    assert named(lost(0), own) == (TrainingFailureKind.FAILED, [1], "all_reduce")


@pytest.mark.parametrize(
    ("ending", "code"), [(RankEnding.KILLED, -9), (RankEnding.KILLED, -11), (RankEnding.EXITED, 7)]
)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_an_end_without_a_word(ending: RankEnding, code: int, count: int) -> None:
    gone = ran(count - 1, ending, "training", exit_code=code)
    assert named(*(lost(rank) for rank in range(count - 1)), gone) == (
        TrainingFailureKind.FAILED,
        [count - 1],
        "training",
    )


def test_of_two_with_their_own_words_the_earlier() -> None:
    late = ran(0, RankEnding.RAISED, words="ValueError: one", ended_after=4.2)
    early = ran(2, RankEnding.RAISED, words="KeyError: 'two'", ended_after=4.1)
    assert named(late, lost(1), early) == (TrainingFailureKind.FAILED, [2], "all_reduce")


def test_ranks_that_fail_alike_are_named_together() -> None:
    alike = [
        ran(
            rank,
            RankEnding.RAISED,
            "import",
            words=f"ImportError: libfoo.so at 0x{rank}a: no",
            ended_after=1 + rank / 10,
        )
        for rank in (1, 0, 2)
    ]
    kind, ranks, stage = named(*alike)
    assert (kind, sorted(ranks), stage) == (TrainingFailureKind.FAILED, [0, 1, 2], "import")
    assert ranks[0] == 0, "the first of them is the one with the earliest end"


def test_sigterm_is_a_consequence_unless_nobody_else_failed() -> None:
    ended = ran(0, RankEnding.KILLED, exit_code=-15, ended_after=3.0)
    raised = ran(1, RankEnding.RAISED, words="RuntimeError: boom", ended_after=4.0)
    assert named(ended, raised)[1] == [1]
    assert named(ended, ran(1, RankEnding.ENDED, ended_after=4.0))[1] == [0]


def test_a_rank_that_aborts_over_a_lost_connection() -> None:
    aborted = ran(0, RankEnding.KILLED, exit_code=-6, last_line="what(): Connection closed by peer", ended_after=4.0)
    assert named(aborted, ran(1, RankEnding.EXITED, exit_code=1, ended_after=4.1))[1] == [1]


def test_one_that_vanished_before_the_others_complained() -> None:
    gone = ran(2, RankEnding.ENDED, ended_after=3.0)
    one = found(lost(0, ended_after=4.0), lost(1, ended_after=4.0), gone)
    assert (one.kind, one.first.rank, one.alone) == (TrainingFailureKind.FAILED, 2, True)


def test_of_another_host_it_must_have_been_gone_for_longer() -> None:
    """Their clocks start when each of them is told to."""
    one = found(ran(0, RankEnding.ENDED, ended_after=3.5), lost(1, node=1, host="node02", ended_after=4.0))
    assert (one.first.rank, one.alone) == (1, False)
    assert found(ran(0, RankEnding.ENDED, ended_after=1.5), lost(1, node=1, ended_after=4.0)).first.rank == 0


def test_where_all_only_lost_each_other_the_first_is_named_and_not_accused() -> None:
    one = found(lost(0, ended_after=4.2), lost(1, ended_after=4.1))
    assert (one.kind, one.first.rank, one.alone) == (TrainingFailureKind.FAILED, 1, False)


# --- wrong results ------------------------------------------------------------------------------------------------------


def wrong(rank: int, *culprits: int, **more: Any) -> RankRun:
    return ran(rank, RankEnding.WRONG, words="the sum should be 6 and is 5", culprits=culprits, **more)


def test_the_word_of_most_decides() -> None:
    assert named(wrong(0, 2), wrong(1, 2), wrong(2, 0)) == (TrainingFailureKind.WRONG, [2], "all_reduce")
    assert found(wrong(0, 2), wrong(1, 2), wrong(2, 0)).accused


def test_two_ranks_that_accuse_each_other_are_both_named() -> None:
    assert named(wrong(0, 1), wrong(1, 0))[1] == [0, 1]


def test_where_nobody_is_accused_those_with_the_wrong_result_are_named() -> None:
    one = found(*(waits_in_all_reduce(rank, RankEnding.ENDED) for rank in range(7)), wrong(7))
    assert (one.kind, [run.rank for run in one.culprits], one.accused) == (TrainingFailureKind.WRONG, [7], False)


def test_a_rank_that_does_not_exist_is_no_culprit() -> None:
    assert named(wrong(0, 99), wrong(1, 99))[1] == [0, 1]


def test_a_failure_after_a_wrong_result_is_its_consequence() -> None:
    late = ran(1, RankEnding.EXITED, exit_code=1, ended_after=5.0)
    assert named(wrong(0, 0, ended_after=4.0), late)[0] is TrainingFailureKind.WRONG
    assert named(wrong(0, 0, ended_after=6.0), late)[0] is TrainingFailureKind.FAILED


# --- other calls --------------------------------------------------------------------------------------------------------


def test_the_one_with_another_collective() -> None:
    ranks = [calls(rank, "all_reduce float32[1]" if rank != 5 else "broadcast float32[1]") for rank in range(8)]
    one = found(*ranks)
    assert (one.kind, [run.rank for run in one.culprits], one.stage) == (
        TrainingFailureKind.DIFFERENT_CALLS,
        [5],
        "all_reduce",
    )
    assert one.calls == (("all_reduce float32[1]", (0, 1, 2, 3, 4, 6, 7)), ("broadcast float32[1]", (5,)))


def test_two_ranks_that_differ_are_both_named() -> None:
    assert named(calls(0, "all_reduce float32[1]"), calls(1, "all_reduce float32[4]"))[:2] == (
        TrainingFailureKind.DIFFERENT_CALLS,
        [0, 1],
    )


def test_one_that_called_another_and_is_ahead_by_now() -> None:
    """The others are behind it, and it is not they that are to blame."""
    ahead = calls(1, "broadcast float32[1]", "all_reduce float32[1024]")
    others = [calls(rank, "all_reduce float32[1]") for rank in (0, 2)]
    assert named(others[0], ahead, others[1])[:2] == (TrainingFailureKind.DIFFERENT_CALLS, [1])


def test_one_that_is_a_stage_further() -> None:
    ahead = ran(
        0,
        RankEnding.HUNG,
        "training",
        step="DistributedDataParallel()",
        steps=1,
        calls="DistributedDataParallel float64[676]",
        called=(
            CollectiveCall("all_reduce", 1, "barrier"),
            CollectiveCall("training", 1, "DistributedDataParallel float64[676]"),
        ),
        stack=("_verify_param_shape_across_processes (torch/distributed/utils.py:286)",),
    )
    assert named(ahead, waits_in_all_reduce(1), waits_in_all_reduce(2))[:2] == (
        TrainingFailureKind.DIFFERENT_CALLS,
        [0],
    )


def test_another_shape_comes_before_the_wrong_sums_that_it_makes() -> None:
    """gloo doesn't hang over it: some get a wrong sum, the odd one a closed connection."""
    four = CollectiveCall("all_reduce", 1, "all_reduce float32[4]")
    sums = [waits_in_all_reduce(rank, RankEnding.WRONG, words="the sum should be 6 and is 5") for rank in (0, 2)]
    assert named(sums[0], lost(1, calls=four.call, called=(four,)), sums[1])[:2] == (
        TrainingFailureKind.DIFFERENT_CALLS,
        [1],
    )


def test_one_collective_too_many_where_ddp_makes_them() -> None:
    step = {"at": "training", "step": "training step 1 of 10", "steps": 2, "called": ()}
    backward = ("_engine_run_backward (torch/autograd/graph.py:865)",)
    ranks = [
        waits_in_all_reduce(rank, **step, **({} if rank == 2 else {"calls": "", "stack": backward}))
        for rank in range(3)
    ]
    assert named(*ranks) == (TrainingFailureKind.DIFFERENT_CALLS, [2], "training")


def test_sending_and_receiving_are_no_difference() -> None:
    pair = [calls(0, "send float32[8]"), calls(1, "recv float32[8]")]
    assert (
        found(*(msgspec.structs.replace(one, steps=0, calls="", step="") for one in pair)).kind
        is not TrainingFailureKind.DIFFERENT_CALLS
    )


# --- hangs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 8])
def test_one_that_is_behind(count: int) -> None:
    sleeping = ran(1, RankEnding.HUNG, stack=ELSEWHERE)
    ranks = [sleeping if rank == 1 else waits_in_all_reduce(rank) for rank in range(count)]
    assert named(*ranks) == (TrainingFailureKind.HUNG, [1], "all_reduce")


def test_one_that_announced_the_collective_and_does_not_call_it() -> None:
    assert named(waits_in_all_reduce(0), waits_in_all_reduce(1, stack=ELSEWHERE))[:2] == (TrainingFailureKind.HUNG, [1])


@pytest.mark.parametrize("state", ["stopped", "in the kernel: nfs_wait_bit_killable"])
def test_one_that_the_kernel_holds(state: str) -> None:
    held = waits_in_all_reduce(2, stack=(), process_state=state)
    assert named(waits_in_all_reduce(0), waits_in_all_reduce(1), held)[:2] == (TrainingFailureKind.HUNG, [2])


def test_one_that_never_came() -> None:
    at_the_store = {
        "step": "waiting at the store for rank 2",
        "steps": 3,
        "stack": ("rendezvous (stages/beginning.py:53)",),
    }
    ranks = [ran(rank, RankEnding.HUNG, "rendezvous", **at_the_store) for rank in (0, 1)]
    assert named(*ranks, ran(2, RankEnding.NEVER_CAME)) == (TrainingFailureKind.HUNG, [2], "import")


def test_an_import_that_hangs_on_all() -> None:
    """None waits for another, so all are named."""
    importing = [
        ran(rank, RankEnding.HUNG, "import", stack=("_call_with_frames_removed (<frozen importlib>:228)",))
        for rank in range(2)
    ]
    assert named(*importing) == (TrainingFailureKind.HUNG, [0, 1], "import")


def test_one_that_is_late_somewhere_ahead_is_not_waited_for() -> None:
    ahead = ran(0, RankEnding.HUNG, "training", stack=ELSEWHERE)
    assert named(ahead, waits_in_all_reduce(1), ran(2, RankEnding.HUNG, "barrier", stack=ELSEWHERE))[1] == [2]


def test_one_that_waits_in_what_the_others_have_left() -> None:
    ahead = [calls(rank, "all_reduce float32[1]", "all_reduce float32[1024]") for rank in (0, 1)]
    one = found(*ahead, calls(2, "all_reduce float32[1]"))
    assert (one.kind, one.first.rank, one.left_behind) == (TrainingFailureKind.HUNG, 2, True)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_all_in_the_same_place_name_nobody(count: int) -> None:
    one = found(*(waits_in_all_reduce(rank) for rank in range(count)))
    assert one.kind is TrainingFailureKind.TOGETHER
    assert len(one.culprits) == count


def test_without_any_stack_the_one_that_is_behind() -> None:
    ranks = [waits_in_all_reduce(0, stack=()), ran(1, RankEnding.HUNG, "barrier"), waits_in_all_reduce(2, stack=())]
    assert named(*ranks)[:2] == (TrainingFailureKind.HUNG, [1])


def test_a_single_rank_that_hangs() -> None:
    assert named(ran(0, RankEnding.HUNG, "training", stack=ELSEWHERE)) == (TrainingFailureKind.HUNG, [0], "training")


def test_a_hang_in_which_the_others_failed_is_the_failure() -> None:
    raised = ran(1, RankEnding.RAISED, words="RuntimeError: boom")
    assert named(waits_in_all_reduce(0, RankEnding.ENDED), raised, waits_in_all_reduce(2, RankEnding.ENDED))[:2] == (
        TrainingFailureKind.FAILED,
        [1],
    )


def test_the_end_of_the_process_is_no_training_any_more() -> None:
    stuck = ran(1, RankEnding.HUNG, "shutdown", step="destroy_process_group", steps=2)
    assert is_at_the_end(found(ran(0, RankEnding.FINISHED), stuck))
    before = ran(1, RankEnding.HUNG, "shutdown", step="barrier before the end", steps=1, stack=ELSEWHERE)
    assert not is_at_the_end(found(ran(0, RankEnding.ENDED, "shutdown"), before))


# --- what real ranks did ------------------------------------------------------------------------------------------------

RECORDED = {
    "smoke-rank-failed/sick-recorded-raises": (TrainingFailureKind.FAILED, [1], "all_reduce"),
    "smoke-rank-failed/sick-recorded-killed": (TrainingFailureKind.FAILED, [2], "training"),
    "smoke-rank-failed/sick-recorded-exits": (TrainingFailureKind.FAILED, [0], "barrier"),
    "smoke-rank-failed/sick-recorded-killed-at-rendezvous": (TrainingFailureKind.FAILED, [1], "rendezvous"),
    "smoke-hang/sick-recorded-sleeps": (TrainingFailureKind.HUNG, [1], "broadcast"),
    "smoke-hang/sick-recorded-stopped": (TrainingFailureKind.HUNG, [1], "all_gather"),
    "smoke-hang/sick-recorded-stopped-of-eight": (TrainingFailureKind.HUNG, [5], "all_reduce"),
    "smoke-hang/sick-recorded-sleeps-at-import": (TrainingFailureKind.HUNG, [2], "import"),
    "smoke-hang/sick-recorded-sleeps-at-the-end": (TrainingFailureKind.HUNG, [1], "shutdown"),
    "collective-desync/sick-recorded-two-ranks": (TrainingFailureKind.DIFFERENT_CALLS, [0, 1], "all_reduce"),
    "collective-desync/sick-recorded-all-reduce": (TrainingFailureKind.DIFFERENT_CALLS, [1], "broadcast"),
    "collective-desync/sick-recorded-one-too-many": (TrainingFailureKind.DIFFERENT_CALLS, [1], "training"),
    "collective-desync/sick-recorded-shape": (TrainingFailureKind.DIFFERENT_CALLS, [1], "all_reduce"),
    "collective-desync/sick-recorded-shape-crashes": (TrainingFailureKind.DIFFERENT_CALLS, [0, 1], "broadcast"),
    "collective-desync/sick-recorded-other-model": (TrainingFailureKind.DIFFERENT_CALLS, [1], "training"),
    "collective-desync/sick-recorded-barrier": (TrainingFailureKind.DIFFERENT_CALLS, [0], "barrier"),
    "collective-desync/sick-recorded-gather": (TrainingFailureKind.DIFFERENT_CALLS, [2], "all_gather"),
    "smoke-wrong-result/sick-recorded-sampler": (TrainingFailureKind.WRONG, [1], "sampler"),
    "smoke-wrong-result/sick-recorded-drift": (TrainingFailureKind.WRONG, [2], "one process"),
}


def recorded(name: str) -> Smoke:
    facts = host_case(name).snapshot().smoke
    assert isinstance(facts, Smoke)
    return facts


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str) -> None:
    assert named(*recorded(name).ranks) == RECORDED[name]


def test_every_recording_has_its_verdict_here() -> None:
    there = {case.id for case in host_cases(kind="sick-recorded-")}
    ours = {name for name in there if recorded(name).ranks and attribute_failure(recorded(name).ranks)}
    assert {name for name in ours if not name.startswith("smoke-not-started/")} == set(RECORDED)


@pytest.mark.parametrize("name", [name for name, verdict in RECORDED.items() if len(verdict[1]) == 1])
def test_the_order_in_which_ranks_are_told_is_of_no_weight(name: str) -> None:
    ranks = recorded(name).ranks
    some = itertools.islice(itertools.permutations(ranks), 0, 720, 7)
    assert {found(*order).first.rank for order in some} == set(RECORDED[name][1])


# --- what the checks make of it -----------------------------------------------------------------------------------------

FAMILY = (
    "smoke-rank-failed",
    "smoke-hang",
    "smoke-shutdown",
    "collective-desync",
    "smoke-wrong-result",
    "smoke-not-started",
)


def results(ranks: Sequence[RankRun], **more: Any) -> list[Result]:
    hosts = len({rank.node for rank in ranks}) or 1
    facts = {"engine": "torch.distributed.elastic", "backend": "gloo", "stages": STAGES, "deadline": 30.0, **more}
    smoke = Smoke(ranks=tuple(ranks), world_size=len(ranks), nnodes=hosts, **facts)
    snapshot = Snapshot(smoke=smoke, meeting=Meeting(master="10.0.0.1", port=29600))
    return list(diagnose(snapshot, Plan(len(ranks), "--nproc"), [find_check(slug) for slug in FAMILY]))


def finding(ranks: Sequence[RankRun], **more: Any) -> Finding:
    """The only one."""
    (one,) = [found for result in results(ranks, **more) for found in result.findings]
    return one


def test_a_hang_says_who_waits_where_for_whom() -> None:
    ranks = [waits_in_all_reduce(rank) for rank in range(7)] + [
        ran(7, RankEnding.HUNG, stack=ELSEWHERE, last_line="loading the data set", host="node02", pid=4711)
    ]
    one = finding(ranks)
    assert one.summary == "rank 7 hangs in all_reduce; ranks 0-6 wait for it in all_reduce of 4 B"
    assert one.rank == 7
    told = " ".join(evidence.text for evidence in one.evidence)
    assert "on node02, pid 4711" in told
    assert 'the last line of rank 7: "loading the data set"' in told
    assert "rank 7 is in sleep (own/hooks.py:3)" in told


def test_several_hosts_are_named_and_their_network_is_tested() -> None:
    one = finding([waits_in_all_reduce(rank, node=rank, host=f"node0{rank + 1}") for rank in range(2)])
    assert one.summary == "both ranks hang in all_reduce of 4 B over gloo, and none is behind the others"
    assert "between node01 and node02" in one.cause
    assert one.fixes[0].commands == (
        "ddpdoctor netcheck --master-addr 10.0.0.1 --master-port 29600 --nnodes 2 --node-rank 0",
        "ddpdoctor netcheck --master-addr 10.0.0.1 --master-port 29600 --nnodes 2 --node-rank 1",
    )


def test_on_one_host_another_way_is_tried() -> None:
    over_nccl = finding([waits_in_all_reduce(rank) for rank in range(4)], backend="nccl")
    assert over_nccl.fixes[0].commands == ("NCCL_P2P_DISABLE=1 ddpdoctor smoke --nproc 4 --backend nccl",)
    over_gloo = finding([waits_in_all_reduce(rank) for rank in range(4)], python="/opt/my env/bin/python")
    assert over_gloo.fixes[0].commands == (
        "GLOO_SOCKET_IFNAME=lo ddpdoctor smoke --nproc 4 --backend gloo --python '/opt/my env/bin/python'",
    )


def test_a_run_that_a_launcher_started_is_not_repeated_by_one_command() -> None:
    one = finding([waits_in_all_reduce(rank) for rank in range(4)], engine="srun")
    assert not any("ddpdoctor smoke" in command for fix in one.fixes for command in fix.commands)


def test_of_an_end_by_the_kernel_for_want_of_memory_there_is_no_doubt() -> None:
    one = finding([lost(0), ran(1, RankEnding.KILLED, exit_code=-9, out_of_memory=True)])
    assert one.cause.startswith("The kernel killed it, since the memory")
    assert "failed (exitcode: -9)" in one.said


def test_what_was_not_run_has_not_passed() -> None:
    raised = [ran(0, RankEnding.RAISED, "barrier", words="RuntimeError: boom"), ran(1, RankEnding.ENDED, "barrier")]
    assert not any(result.passed for result in results(raised) if result.check.slug != "smoke-not-started")


def test_of_no_run_nothing_is_said() -> None:
    reasons = {result.not_tested.reason for result in results([]) if result.not_tested}
    assert reasons == {"no smoke training was run"}


@given(st.text(max_size=400))
def test_a_summary_is_one_short_line(text: str) -> None:
    assert len(clip(text)) <= 160
    assert len(clip(text).splitlines()) <= 1


endings = st.sampled_from(list(RankEnding))


@given(
    st.lists(
        st.builds(
            ran,
            rank=st.just(0),
            ending=endings,
            at=st.sampled_from(STAGES),
            words=st.sampled_from(["", LOST, "RuntimeError: boom"]),
            exit_code=st.sampled_from([None, -9, -15, 1]),
            ended_after=st.floats(0, 60),
            steps=st.integers(0, 3),
            step=st.sampled_from(["", "barrier", "waiting at the store for rank 1", "destroy_process_group"]),
            calls=st.sampled_from(["", "barrier", "all_reduce float32[1]"]),
            stack=st.sampled_from([(), IN_ALL_REDUCE, ELSEWHERE]),
            process_state=st.sampled_from(["", "stopped"]),
            culprits=st.lists(st.integers(-1, 9), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_the_ranks_say_there_is_one_verdict(runs: list[RankRun]) -> None:
    """One finding of the family at most, about ranks that there are, and no check that crashes; none if all finished."""
    ranks = [msgspec.structs.replace(one, rank=number, local_rank=number) for number, one in enumerate(runs)]
    told = results(ranks)
    findings = [finding for result in told for finding in result.findings]
    crashed = [
        result.not_tested.reason for result in told if result.not_tested and result.not_tested.why.value == "crashed"
    ]
    assert not crashed
    finished = all(rank.ending is RankEnding.FINISHED for rank in ranks)
    assert len(findings) == (0 if finished else 1)
    assert all(finding.rank is None or finding.rank < len(ranks) for finding in findings)
    assert all(finding.evidence and finding.fixes and len(finding.summary) <= 160 for finding in findings)


def test_of_the_gpus_that_a_rank_is_on_only_numbers_are_believed() -> None:
    watch = RankMonitor(TrainingOrder(nproc=1, world_size=1), 0.0)
    watch.take_rank_message(0, {"contexts": [0, 3, -1, "1", True, 10**9]}, 1.0)
    assert rank_runs(watch, "here")[0].contexts == (0, 3)
