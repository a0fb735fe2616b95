"""Exceptions that are not their own cause: a worker's traceback that is passed on, a launcher's own, and a failed program's."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.failures import failures_of
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read


def traceback(exception: str, *frames: tuple[str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for path, code in frames:
        lines += [f'  File "{path}", line 7, in run', f"    {code}"]
    return "\n".join([*lines, exception]) + "\n"


BUSY = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
WORKERS = traceback(BUSY, ("/home/ada/lib/train.py", "group = start(rank)"))
GIVES_UP = "\n-- what stands above\n        can be left alone --\n\n"


@pytest.mark.parametrize("end", [": ", ":"])
@pytest.mark.parametrize("code", ["raise Exception(message)", "raise jobs.WorkerError(text + words)"])
def test_an_exception_without_words_passes_on_the_traceback_behind_it(code: str, end: str) -> None:
    name = "Exception" if "Exception" in code else "jobs.WorkerError"
    text = traceback(f"{name}{end}", ("/home/ada/train.py", "main()"), ("/home/ada/jobs.py", code)) + GIVES_UP + WORKERS
    found = verdict_of(read(text), catalogue())
    assert found.suspects[0].slug == "compute-mode-exclusive"
    assert found.raised is not None
    assert found.raised.exception == "RuntimeError"


@pytest.mark.parametrize(
    ("exception", "code"),
    [
        ("AssertionError", "assert all(works)"),
        ("Exception", "raise Exception()"),
        ("KeyboardInterrupt", "raise KeyboardInterrupt(message)"),
    ],
)
def test_one_that_has_none_to_say_stands_for_itself(exception: str, code: str) -> None:
    text = traceback(exception, ("/home/ada/train.py", code)) + "\n" + WORKERS
    assert len(failures_of(read(text), catalogue())) == 2


def test_a_traceback_far_behind_is_another_failure() -> None:
    text = traceback("Exception: ", ("/home/ada/jobs.py", "raise Exception(m)")) + "step\n" * 9 + WORKERS
    assert len(failures_of(read(text), catalogue())) == 2


@pytest.mark.parametrize("launcher", ["/opt/env/bin/torchrun", "/opt/env/bin/deepspeed"])
def test_what_a_launcher_raises_in_its_own_process_is_no_error_of_the_script(launcher: str) -> None:
    text = traceback(
        "etcd.EtcdKeyNotFound: Key not found : /x", (launcher, "sys.exit(main())"), ("/x/client.py", "raise it")
    )
    assert verdict_of(read(text), catalogue()).outcome is RunOutcome.UNRECOGNISED
    own = text.replace(launcher, "/home/ada/train.py")
    assert verdict_of(read(own), catalogue()).outcome is RunOutcome.USER_ERROR


def test_what_a_caller_makes_of_a_failed_program_is_told() -> None:
    first = "subprocess.CalledProcessError: Command '['hostname', '-I']' returned non-zero exit status 1."
    then = "RuntimeError: this host has no address."
    runner = ("/opt/env/lib/python3.11/site-packages/deepspeed/launcher/runner.py", "main()")
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    found = judge_log(read(traceback(first, runner) + chained + traceback(then, runner)), catalogue())
    assert found.verdict.outcome is RunOutcome.UNRECOGNISED
    assert then in headline(found)


HEADED = traceback("KeyError: 'label'", ("/home/ada/train.py", "batch['label']"))


@pytest.mark.parametrize(
    ("log", "rank"),
    [
        (f"[Rank 3]:\n{HEADED}", 3),
        (f"[Rank 3, 5]:\n{HEADED}", 3),
        (f"(TrainController pid=17) [Rank 3]:\n{HEADED}", 3),
        (f"[Rank 3]:\nA worker health check failed.\n{HEADED}", None),
        (f"[Rank 3]: step 7\n{HEADED}", None),
        (
            f"[Rank 3]:\n{HEADED.replace('KeyError', 'OSError')}step 8\nstep 9\nstep 10\nstep 11\nstep 12\n{HEADED}",
            None,
        ),
    ],
)
def test_a_traceback_is_of_the_rank_of_the_heading_right_above_it(log: str, rank: int | None) -> None:
    raised = read(log).raised[-1]
    assert (raised.line.rank, raised.began.rank) == (rank, rank)
    assert raised.line.host == ""


def test_what_was_raised_behind_another_one_is_of_the_same_heading() -> None:
    behind = "\nDuring handling of the above exception, another exception occurred:\n\n"
    log = read(
        f"[Rank 3]:\n{HEADED}{behind}{traceback('ValueError: none', ('/home/ada/train.py', 'raise ValueError'))}"
    )
    assert [raised.line.rank for raised in log.raised] == [3, 3]
