"""A file to which several runs of one process were written, one behind the other: the last one is judged."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import verdict_of
from tests.support.logs_by_hand import read


def run(error: str, *, steps: int = 8, frames: str = '  File "/w/train.py", line 30, in <module>\n    main()\n') -> str:
    trained = "".join(f"epoch 0 step {step} loss 2.{step}1\n" for step in range(steps))
    return f"{trained}Traceback (most recent call last):\n{frames}{error}\n"


def judged(text: str) -> tuple[str, list[str]]:
    """The exception that leads, and those of the runs before it."""
    verdict = verdict_of(read(text), catalogue())
    assert verdict.raised is not None
    return verdict.raised.message, [before.raised.message for before in verdict.elsewhere if before.raised]


def test_the_last_run_is_judged_and_those_before_it_are_told() -> None:
    assert judged(run("KeyError: 'a'") + run("KeyError: 'b'") + run("KeyError: 'c'")) == ("'c'", ["'a'", "'b'"])


def test_what_every_run_says_is_known_of_each() -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.06 GiB is free."
    verdict = verdict_of(read(run(full) * 5), catalogue())
    assert [suspect.slug for suspect in verdict.suspects] == ["oom-batch-too-large"]
    # Of those between nothing more is kept than that they failed.
    assert [[suspect.slug for suspect in before.suspects] for before in verdict.elsewhere] == [
        ["oom-batch-too-large"], ["oom-batch-too-large"], [], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        # Ranks without labels raise at about the same time.
        run("KeyError: 'a'") + run("KeyError: 'b'", steps=0) + run("KeyError: 'c'", steps=2),
        # Who catches an exception goes on.
        run("KeyError: 'a'", frames='  File "/w/train.py", line 12, in load\n    read(name)\n') + run("KeyError: 'b'"),
        "WARNING: no profile\n" + run("KeyError: 'a'", steps=0) + run("KeyError: 'b'"),
        # Others' may be of any rank.
        "[rank1]: hello\n[rank0]: hello\n" + run("KeyError: 'a'") + run("KeyError: 'b'"),
        run("KeyError: 'a'") + "\nDuring handling of the above exception, another exception occurred:\n\n" + run("KeyError: 'b'", steps=0),
        # What multiprocessing starts is a process of its own.
        run("KeyError: 'a'", frames='  File "<string>", line 1, in <module>\n') + run("KeyError: 'b'"),
    ],
    ids=["at once", "caught", "announced", "ranks", "chained", "spawned"],
)  # fmt: skip
def test_of_one_run_the_first_failure_leads(text: str) -> None:
    assert verdict_of(read(text), catalogue()).elsewhere == ()


def test_steps_behind_the_last_exception_may_have_been_held_back() -> None:
    assert judged(run("KeyError: 'a'") + run("KeyError: 'b'") + run("", steps=12).partition("Traceback")[0]) == (
        "'b'",
        ["'a'"],
    )
