"""What shells, Slurm and OpenMP say of a program that isn't there, or was ended."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import LogJudgement, judge_log
from ddpdoctor.logs.render.next_steps import next_steps
from tests.support.logs_by_hand import read


def judged(*lines: str) -> LogJudgement:
    return judge_log(read("".join(f"{line}\n" for line in ("step 1 loss 2.0", *lines))), catalogue())


@pytest.mark.parametrize(
    ("line", "slug", "sure"),
    [
        ("zsh: killed     python train.py", "host-oom-killed", False),
        ("zsh: segmentation fault (core dumped)  python train.py", "process-crashed", False),
        ("slurmstepd: error: Exceeded job memory limit", "cgroup-memory-limit", True),
        ("*** stack smashing detected ***: terminated", "process-crashed", False),
        ("OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.", "process-crashed", True),
    ],
)
def test_the_words_of_an_end_are_heard(line: str, slug: str, sure: bool) -> None:
    found = judged(line).verdict
    assert found.outcome is RunOutcome.ILLNESS
    assert [(suspect.slug, suspect.sure) for suspect in found.suspects] == [(slug, sure)]
    assert not found.ended_well


def test_two_openmps_are_told_as_that() -> None:
    (opinion,) = judged("OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.").opinions
    assert "OpenMP" in opinion.finding.summary


@pytest.mark.parametrize("line", ["I was killed in the game", "zsh: command was killed", "Slurm: memory limit is 4G"])
def test_mere_talk_of_an_end_is_none(line: str) -> None:
    assert judged(line).verdict.outcome is RunOutcome.NOTHING


@pytest.mark.parametrize("line", ["job.sh: line 9: torchrun: command not found", "zsh: command not found: torchrun"])
def test_a_program_that_is_not_there_is_told_as_that(line: str) -> None:
    (opinion,) = judged(line).opinions
    steps = opinion.finding.fixes
    assert opinion.finding.summary == "PATH doesn't lead to torchrun"
    assert any("python -m torch.distributed.run" in command for step in steps for command in step.commands)
    assert not any("NCCL_DEBUG" in command or "check" in command for step in steps for command in step.commands)


def test_module_is_a_function_of_login_shells() -> None:
    judgement = judged("job.sh: line 7: module: command not found", "job.sh: line 9: python: command not found")
    steps = judgement.opinions[0].finding.fixes
    assert "login shell" in steps[0].text
    assert "python" in steps[1].text


def test_a_single_process_is_not_asked_for_the_logs_of_other_ranks() -> None:
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:42145"
    frame = (
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in <module>\n    dist.all_reduce(t)'
    )
    assert not any("all ranks" in step.text for step in next_steps(judged(frame, lost)))
    assert any("all ranks" in step.text for step in next_steps(judged(frame, lost, "[rank0]: done")))
