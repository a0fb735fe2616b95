"""Which failure leads, which illness it comes from, and what only followed: logs by hand, of every shape that decides it."""

from __future__ import annotations

import pytest

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log, LogFile
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import exited, line, log, raised, read, seen

CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:50122"


def slugs(found: LogVerdict) -> list[str]:
    return [suspect.slug for suspect in found.suspects]


def lead_rank(found: LogVerdict) -> int | None:
    assert found.lead is not None
    return found.lead.rank


def lost(rank: int, number: int, **more: float | None) -> list[object]:
    """What a rank says that lost another."""
    time = more.get("time")
    return [
        raised("RuntimeError", CLOSED, number=number, rank=rank, time=time),
        seen("peer-rank-crashed", number=number, role=SignRole.EFFECT, rank=rank, time=time, sign="closed by peer"),
    ]


def test_an_empty_log_speaks_of_nothing() -> None:
    assert verdict_of(Log(), catalogue()).outcome is RunOutcome.NOTHING
    assert verdict_of(log(), catalogue()).outcome is RunOutcome.NOTHING


def test_an_own_exception_leads_before_what_the_others_lost() -> None:
    found = verdict_of(log(*lost(0, 20), raised("KeyError", "'lr'", number=300, rank=2), *lost(1, 40)), catalogue())  # type: ignore[arg-type]
    assert found.outcome is RunOutcome.USER_ERROR
    assert slugs(found) == ["user-code-error"]
    assert lead_rank(found) == 2
    assert found.raised is not None
    assert found.raised.exception == "KeyError"
    assert {effect.line.rank for effect in found.effects} == {0, 1}


def test_the_first_of_two_own_exceptions_leads_by_time() -> None:
    """Files of ranks that are read one after the other."""
    late = raised("KeyError", "1", rank=0, time=100.0)
    early = raised("ValueError", "2", rank=1, time=90.0, file=1)
    assert lead_rank(verdict_of(log(late, early, files=2), catalogue())) == 1


def test_within_a_second_a_sign_decides_and_not_the_clock() -> None:
    user = raised("KeyError", "1", rank=0, time=99.9, number=10)
    ill = raised("RuntimeError", "out of room", rank=1, time=100.2, number=20)
    found = verdict_of(log(user, ill, seen("shm-too-small", number=20, rank=1, time=100.2)), catalogue())
    assert slugs(found) == ["shm-too-small"]


def test_of_two_attempts_the_last_leads() -> None:
    second = raised("KeyError", "1", rank=0)
    first = raised("RuntimeError", "x", rank=3, file=1)
    both = log(
        second, seen("port-in-use", rank=0, number=10), first, seen("shm-too-small", rank=3, number=10, file=1), files=2
    )
    named = (LogFile(name="run/attempt_1/0/stderr.log"), LogFile(name="run/attempt_0/3/stderr.log"))
    found = verdict_of(Log(files=named, sightings=both.sightings, raised=both.raised, ranks=(0, 3)), catalogue())
    assert slugs(found) == ["port-in-use"]
    assert lead_rank(found) == 0
    assert slugs(found.elsewhere[0]) == ["shm-too-small"]


def test_of_a_chain_the_first_is_the_cause() -> None:
    first = raised("KeyError", "'lr'", number=10, rank=1, chained=True)
    second = raised("RuntimeError", "could not build the optimizer", number=20, rank=1)
    found = verdict_of(log(first, second), catalogue())
    assert found.raised is not None
    assert found.raised.exception == "KeyError"


def test_a_workers_own_traceback_is_the_cause_of_what_is_raised_again() -> None:
    again = raised("ValueError", "Caught ValueError in DataLoader worker process 0.", number=10, rank=1)
    own = raised("ValueError", "row 17 has no label", number=20, rank=1)
    found = verdict_of(log(again, own), catalogue())
    assert found.raised is not None
    assert found.raised.message == "row 17 has no label"


def test_a_sign_in_the_failure_beats_one_elsewhere() -> None:
    ill = raised("RuntimeError", "x", number=100, rank=1)
    found = verdict_of(
        log(seen("disk-full", number=5000, rank=3), ill, seen("shm-too-small", number=100, rank=1)), catalogue()
    )
    assert slugs(found)[0] == "shm-too-small"
    assert found.suspects[0].sure


def test_a_name_beats_hints() -> None:
    ill = raised("RuntimeError", "x", number=100, rank=1)
    hint = seen("disk-full", number=100, rank=1, role=SignRole.HINTS, sign="a much longer sign")
    found = verdict_of(log(ill, hint, seen("shm-too-small", number=100, rank=1)), catalogue())
    assert slugs(found) == ["shm-too-small"]


def test_hints_are_hypotheses_the_most_telling_first() -> None:
    ill = raised("RuntimeError", "x", number=100, rank=1)
    hints = [
        seen(slug, number=100, rank=1, role=SignRole.HINTS, sign=sign)
        for slug, sign in (("a", "sign"), ("b", "longer sign"), ("c", "s"), ("d", "si"), ("b", "another"))
    ]
    found = verdict_of(log(ill, *hints), catalogue())
    assert slugs(found) == ["b", "a", "d"]
    assert not any(suspect.sure for suspect in found.suspects)
    assert all(suspect.why for suspect in found.suspects)


def test_a_warning_that_the_run_went_on_after_does_not_lead() -> None:
    found = verdict_of(
        log(seen("disk-full", number=5, rank=0), raised("KeyError", "1", number=9000, rank=0)), catalogue()
    )
    assert found.outcome is RunOutcome.USER_ERROR
    assert [one.slug for one in found.also] == ["disk-full"]


def test_words_just_before_a_bare_assertion_say_why() -> None:
    """`assert torch.cuda.is_available()`: the warning above it is the cause."""
    found = verdict_of(
        log(seen("driver-too-old", number=5, rank=0), raised("AssertionError", number=12, rank=0)), catalogue()
    )
    assert slugs(found) == ["driver-too-old"]
    key = verdict_of(
        log(seen("driver-too-old", number=5, rank=0), raised("KeyError", "1", number=12, rank=0)), catalogue()
    )
    assert key.outcome is RunOutcome.USER_ERROR


def test_quoted_signs_and_noise_prove_nothing() -> None:
    quoted = seen("shm-too-small", quoted=True)
    noise = seen("omp-threads", role=SignRole.NOISE)
    assert verdict_of(log(quoted, noise), catalogue()).outcome is RunOutcome.NOTHING


def test_a_rank_killed_without_a_word_leads_before_those_that_lost_it() -> None:
    found = verdict_of(log(*lost(0, 20), *lost(1, 40), exited(2, -9, first=True)), catalogue())  # type: ignore[arg-type]
    assert lead_rank(found) == 2
    assert found.exited is not None
    assert found.exited.exit_code == -9
    assert slugs(found) == ["host-oom-killed"]


def test_who_was_told_to_end_is_no_culprit() -> None:
    found = verdict_of(
        log(raised("KeyError", "1", rank=0), exited(1, -15, told_to=True), exited(0, 1, first=True)), catalogue()
    )
    assert found.outcome is RunOutcome.USER_ERROR
    assert lead_rank(found) == 0


def test_the_launchers_first_may_be_a_victim() -> None:
    found = verdict_of(
        log(*lost(0, 20), raised("KeyError", "1", number=60, rank=1), exited(0, 1, first=True)), catalogue()
    )  # type: ignore[arg-type]
    assert lead_rank(found) == 1


def test_an_abort_that_the_watchdog_explains_is_an_effect() -> None:
    watchdog = [seen("nccl-watchdog-timeout", number=10 + rank, rank=rank, role=SignRole.EFFECT) for rank in (0, 1)]
    found = verdict_of(log(*watchdog, exited(0, -6, first=True), exited(1, -6)), catalogue())
    assert found.outcome is RunOutcome.EFFECTS_ONLY


def test_the_rank_of_a_line_without_label_is_the_launchers() -> None:
    found = verdict_of(
        log(raised("KeyError", "1"), exited(3, 1, first=True), exited(1, -15, told_to=True)), catalogue()
    )
    assert lead_rank(found) == 3


def test_without_labels_and_with_victims_the_launchers_first_is_not_believed() -> None:
    victim = raised("RuntimeError", CLOSED, number=40)
    found = verdict_of(log(raised("KeyError", "1", number=20), victim, exited(3, 1, first=True)), catalogue())
    assert lead_rank(found) is None


def test_a_silent_rank_is_named_where_all_others_wait() -> None:
    waiting = [seen("nccl-watchdog-timeout", number=10 + rank, rank=rank, role=SignRole.EFFECT) for rank in (0, 1, 3)]
    found = verdict_of(log(*waiting, world_size=4, last=(line(5, "step 811", rank=2),)), catalogue())
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert found.silent == (2,)
    assert lead_rank(found) == 2
    assert slugs(found) == ["nccl-watchdog-timeout"]


def test_where_most_are_silent_none_of_them_is_odd() -> None:
    found = verdict_of(log(seen("nccl-watchdog-timeout", rank=0, role=SignRole.EFFECT), world_size=8), catalogue())
    assert found.silent == ()


def test_ctrl_c_is_no_error_of_the_script() -> None:
    found = verdict_of(log(raised("KeyboardInterrupt", rank=0), *lost(1, 90)), catalogue())  # type: ignore[arg-type]
    assert found.outcome is RunOutcome.STOPPED
    assert slugs(found) == ["stopped-from-outside"]


def test_a_rank_that_failed_long_before_it_was_stopped_leads() -> None:
    """The others waited for it until the time limit."""
    limit = seen("stopped-from-outside", number=9000)
    found = verdict_of(log(raised("KeyError", "1", number=20, rank=1), limit), catalogue())
    assert found.outcome is RunOutcome.USER_ERROR


def test_what_falls_because_it_was_stopped_does_not_lead() -> None:
    stop = seen("stopped-from-outside", number=20, time=100.0)
    broken = raised("ValueError", "half a batch", number=400, rank=1, time=104.0)
    assert verdict_of(log(stop, broken), catalogue()).outcome is RunOutcome.STOPPED


def test_processes_that_were_only_told_to_end_were_stopped() -> None:
    assert verdict_of(log(exited(0, -15), exited(1, -15)), catalogue()).outcome is RunOutcome.STOPPED


def test_an_exit_code_alone_says_nothing() -> None:
    found = verdict_of(log(exited(0, 1, first=True)), catalogue())
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert lead_rank(found) == 0


def test_who_ends_itself_while_others_speak_is_the_scripts_doing() -> None:
    """sys.exit(3) on one rank: no traceback of its own, but the others' are in this log."""
    found = verdict_of(log(*lost(0, 20), exited(0, 1), exited(1, 3, first=True)), catalogue())  # type: ignore[arg-type]
    assert found.outcome is RunOutcome.USER_ERROR
    assert lead_rank(found) == 1


def test_a_library_that_no_sign_knows_is_not_the_scripts_fault() -> None:
    found = verdict_of(
        log(raised("torch.distributed.DistBackendError", "NCCL error in: x", rank=1, library=True)), catalogue()
    )
    assert found.outcome is RunOutcome.UNRECOGNISED
    assert lead_rank(found) == 1


def test_errors_that_nothing_knows_are_shown() -> None:
    found = verdict_of(log(errors=(line(3, "FATAL: the flux capacitor is empty"),)), catalogue())
    assert found.outcome is RunOutcome.UNRECOGNISED
    assert found.lead is not None
    assert "flux" in found.lead.text


def test_errors_that_the_run_went_on_after_are_none() -> None:
    words = line(3, "ERROR: could not upload the metrics", rank=0)
    found = verdict_of(log(errors=(words,), ranks=(0,), last=(line(9000, "training finished", rank=0),)), catalogue())
    assert found.outcome is RunOutcome.NOTHING
    assert found.ended_well


def test_a_launchers_words_alone_are_no_cause() -> None:
    """The ranks' own words are in other files."""
    failed = raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", number=20)
    found = verdict_of(log(failed, exited(3, 1, first=True)), catalogue())
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert lead_rank(found) == 3
    assert found.suspects == ()


def test_hints_between_ranks_do_not_lead_before_an_own_exception() -> None:
    """Files without timestamps: a rank that waits for clients, and one that has a mistake."""
    waits = raised("torch.distributed.DistStoreError", "1/2 clients joined", rank=0, library=True)
    hint = seen("rdzv-missing-node", number=10, rank=0, role=SignRole.HINTS)
    found = verdict_of(log(waits, hint, raised("KeyError", "1", rank=1, file=1), files=2), catalogue())
    assert lead_rank(found) == 1


@pytest.mark.parametrize("until", [130, 9000])
def test_an_exception_that_was_caught_is_none(until: int) -> None:
    """logging.exception(), and the run goes on: for long, or it isn't known."""
    caught = raised("ConnectionError", "hub", number=100, rank=0, caught=True)
    found = verdict_of(log(caught, last=(line(until, "step 90000 loss 0.1", rank=0),)), catalogue())
    assert found.outcome is (RunOutcome.NOTHING if until == 9000 else RunOutcome.USER_ERROR)


def test_a_rank_that_fell_is_not_well_because_others_still_write() -> None:
    fell = raised("KeyError", "1", number=100, rank=1)
    found = verdict_of(
        log(fell, last=(line(9000, "step 90000", rank=0), line(100, "KeyError: 1", rank=1))), catalogue()
    )
    assert found.outcome is RunOutcome.USER_ERROR


TRACEBACK = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/ada/train/train.py", line 88, in <module>
[rank{rank}]:     loss = losses[step]
[rank{rank}]: KeyError: {rank}
"""
RESTARTED = (
    "E1122 22:17:34.143000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0"
    " (pid: 46094) of binary: /home/ada/venv/bin/python\n"
)
STEPS = "".join(f"[default0]:step {step} loss 0.1\n" for step in range(20))


def test_a_restart_that_went_well_is_no_failure() -> None:
    found = verdict_of(
        read(STEPS + TRACEBACK.format(rank=0) + RESTARTED + STEPS + "[default0]:training finished\n"), catalogue()
    )
    assert found.outcome is RunOutcome.NOTHING
    assert found.ended_well


def test_of_several_restarts_the_last_one_leads() -> None:
    text = STEPS + TRACEBACK.format(rank=2) + RESTARTED + STEPS + TRACEBACK.format(rank=1) + RESTARTED
    final = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    head = 'Traceback (most recent call last):\n  File "/home/ada/venv/bin/torchrun", line 8, in <module>\n'
    found = verdict_of(read(text + head + "    sys.exit(main())\n" + final), catalogue())
    assert (lead_rank(found), [lead_rank(one) for one in found.elsewhere]) == (1, [2])


def test_a_log_that_ends_in_silence_speaks_of_no_failure() -> None:
    found = verdict_of(read(STEPS), catalogue())
    assert found.outcome is RunOutcome.NOTHING
    assert not found.ended_well


@pytest.mark.parametrize("between", [0, 1, 2])
def test_an_exception_without_its_traceback_leads_only_right_before_the_launcher_s_word(between: int) -> None:
    word = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 17) of binary: python"
    found = verdict_of(read("\n".join(["TypeError: f() got two values", *["step 1"] * between, word])), catalogue())
    assert found.outcome is (RunOutcome.USER_ERROR if between < 2 else RunOutcome.EFFECTS_ONLY)
    assert found.lead is not None
    assert found.lead.text.startswith("TypeError" if between < 2 else "ERROR:")
    assert found.exited is not None
    assert found.exited.exit_code == 1


def test_a_message_may_stand_between_an_exception_s_name_and_the_launcher_s_word() -> None:
    text = "FileExistsError: [Errno 17] File exists:\n'/scratch/eeg'\n\nsrun: error: node3: task 5: Exited with exit code 1"
    found = verdict_of(read(text), catalogue())
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.lead is not None
    assert found.lead.text.startswith("FileExistsError")
    assert found.raised is not None
    assert found.raised.message == "[Errno 17] File exists: '/scratch/eeg'"


@pytest.mark.parametrize("label", ["", "0: ", "[rank0]: "])
@pytest.mark.parametrize(
    ("code", "exception"),
    [
        ("torch.cuda.set_device(rank % num_gpus)", "ZeroDivisionError: integer division or modulo by zero"),
        (
            "trainer = Trainer(args)",
            "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0",
        ),
    ],
)
def test_what_comes_of_there_being_no_gpu_is_no_mistake_of_the_script(label: str, code: str, exception: str) -> None:
    warning = (
        "/opt/env/lib/python3.11/site-packages/torch/cuda/__init__.py:107: UserWarning: CUDA initialization: Unexpected error from"
        " cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW\n"
    )
    traceback = (
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in <module>\n    main()\n'
        f'  File "/home/ada/train.py", line 7, in main\n    {code}\n{exception}\n'
    )
    text = "".join(label + line for line in (warning + traceback).splitlines(keepends=True))
    assert [suspect.slug for suspect in verdict_of(read(text), catalogue()).suspects][:1] == ["cuda-compat-unsupported"]
    other = text.replace(code, "shares = total / parts").replace(exception, "ZeroDivisionError: division by zero")
    assert [suspect.slug for suspect in verdict_of(read(other), catalogue()).suspects][:1] == ["user-code-error"]
