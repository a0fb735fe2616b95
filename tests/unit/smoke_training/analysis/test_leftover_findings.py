"""What is to be removed after a smoke training: what was its own, and nothing of anybody else's."""

from __future__ import annotations

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.smoke.run import smoke_leftovers
from ddpdoctor.facts.smoke import Leftovers
from tests.support.smokes import smoke_of_ranks


def found(**left: tuple[str, ...]) -> Finding:
    (one,) = judged("nccl", **left)
    return one


def judged(backend: str, **left: tuple[str, ...]) -> list[Finding]:
    facts = smoke_of_ranks(2, backend=backend, leftovers=Leftovers(**left))  # type: ignore[arg-type]
    return list(smoke_leftovers(facts))


def commands(one: Finding) -> list[str]:
    return [command for fix in one.fixes for command in fix.commands]


def test_what_may_be_anothers_is_not_removed() -> None:
    one = found(unclaimed=("nccl-Xa81bT", "torch_1_2"))
    assert one.summary == "2 files in /dev/shm appeared during the smoke training and may belong to another job"
    assert commands(one) == ["sudo fuser -v /dev/shm/nccl-Xa81bT /dev/shm/torch_1_2"]


def test_what_was_its_own_is_removed_alone() -> None:
    one = found(shared_memory=("nccl-ours",), unclaimed=("nccl-theirs",), files=("/tmp/ddpdoctor-smoke-x",))
    assert one.summary == "The smoke training left 1 file in /dev/shm and 1 other file behind"
    assert commands(one) == ["rm -r -- /dev/shm/nccl-ours /tmp/ddpdoctor-smoke-x", "sudo fuser -v /dev/shm/nccl-theirs"]


def test_what_appears_during_a_run_over_gloo_is_anothers() -> None:
    assert judged("gloo", unclaimed=("nccl-Xa81bT",)) == []
    (one,) = judged("gloo", shared_memory=("torch_ours",), unclaimed=("nccl-Xa81bT",))
    assert "nccl-Xa81bT" not in repr(one)


def test_the_reason_is_that_of_what_was_found() -> None:
    assert "system call" not in found(unclaimed=("nccl-Xa81bT",)).cause + found(files=("/tmp/x",)).cause
    assert "system call" in found(processes=("17 python",)).cause
