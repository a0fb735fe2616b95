"""Exceptions that a training took many steps after, with their losses: it can't do without any of its ranks, so none ended by them."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from tests.support.logs_by_hand import read

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which"
    " 2.10 GiB is free."
)
TRACEBACK = """Traceback (most recent call last):
  File "/w/model.py", line 8, in <module>
    import flash_attn
{exception}
"""
IMPORT = TRACEBACK.format(exception="ModuleNotFoundError: No module named 'flash_attn'")
CAUGHT = f'Traceback (most recent call last):\n  File "/w/tune.py", line 8, in attempt\n    step()\n{OOM}\n'
UNCAUGHT = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 30, in <module>\n    main()\n'
    f'  File "/w/train.py", line 8, in main\n    step()\n{OOM}\n'
)
OF_RANK_0 = "[rank0]: epoch 0 step {} loss 2.{}1\n"
QUOTED = 'sample 1: "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB" is a common question\n'


def steps(number: int, line: str = "epoch 0 step {} loss 2.{}1 lr 3e-4\n") -> str:
    return "".join(line.format(step, step) for step in range(number))


@pytest.mark.parametrize(
    "line",
    [
        "epoch 0 step {} loss 2.{}1 lr 3e-4\n",
        "{{'loss': 2.{}, 'grad_norm': 0.5, 'epoch': 0.{}}}\n",
        " iteration {}/ 500 | consumed samples: 256 | lm loss: 6.{}E+00 | grad norm: 1.2 |\n",
        "[rank0]: Epoch 1 [{}/90] Time 0.2 Loss 2.{} (2.3)\n",
    ],
)
@pytest.mark.parametrize("text", [IMPORT, CAUGHT, f"batch size 512\n{OOM}\nbatch size 256\n", QUOTED])
def test_what_a_training_took_many_steps_after_has_not_ended_it(text: str, line: str) -> None:
    assert verdict_of(read(f"{text}{steps(12, line)}saved final.pt\n"), catalogue()).outcome is RunOutcome.NOTHING


@pytest.mark.parametrize(
    "behind",
    [
        steps(9),
        "",
        "".join(f"waiting {number} s\n" for number in range(30)),
        steps(12) + TRACEBACK.format(exception="KeyError: 'x'"),
        steps(12)
        + "E1122 22:17:34.143000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0"
        " (pid: 46094) of binary: /home/ada/venv/bin/python\n",
    ],
)
def test_fewer_steps_prove_nothing_nor_do_those_before_a_later_end(behind: str) -> None:
    assert verdict_of(read(CAUGHT + behind), catalogue()).outcome is not RunOutcome.NOTHING


@pytest.mark.parametrize(
    "text",
    [
        # What Python held back of its output until it ended.
        UNCAUGHT + steps(12),
        UNCAUGHT + steps(12) + "saved the log\n",
        IMPORT.replace("line 8,", "line 300,") + steps(12),
        # Another rank's steps, between two gradients that are shared.
        "[rank1]: ValueError: odd\n" + steps(12, OF_RANK_0),
        "[rank1]: " + "[rank1]: ".join(CAUGHT.splitlines(keepends=True)) + steps(12, OF_RANK_0),
        "Fatal Python error: Segmentation fault\n" + steps(12),
    ],
)
def test_steps_that_may_be_older_or_another_s_prove_nothing(text: str) -> None:
    assert verdict_of(read(text), catalogue()).outcome is not RunOutcome.NOTHING


@pytest.mark.parametrize(
    "said",
    [
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
        "saving failed: OSError: [Errno 122] Disk quota exceeded: '/ckpt/last.pt'\n",
    ],
)
def test_a_host_that_is_sick_is_told_of_though_the_run_went_on(said: str) -> None:
    found = verdict_of(
        read(steps(3) + said + steps(12, "epoch 1 step {} loss 1.{}1\n") + "training finished\n"), catalogue()
    )
    assert (found.outcome, found.ended_well) == (RunOutcome.ILLNESS, True)


def test_a_loss_that_is_no_number_any_more_is_still_an_illness() -> None:
    found = verdict_of(read(steps(12) + steps(12, "epoch 1 step {} loss: nan lr {}\n")), catalogue())
    assert [suspect.slug for suspect in found.suspects] == ["nan-loss"]


def test_what_the_kernel_says_of_a_gpu_is_told_whatever_follows() -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=123, name=python, GPU has fallen off the bus.\n"
    assert verdict_of(read(xid + steps(12)), catalogue()).outcome is RunOutcome.ILLNESS


WARNED = (
    "/w/torch/cuda/__init__.py:104: UserWarning: \n"
    "NVIDIA A10 with CUDA capability sm_86 is not compatible with the current PyTorch installation.\n"
    "The current PyTorch install supports CUDA capabilities sm_37 sm_50 sm_60 sm_70.\n"
)


@pytest.mark.parametrize(("count", "well"), [(3, False), (200, True)])
def test_what_was_only_warned_of_long_before_the_end_has_ended_nothing(count: int, well: bool) -> None:
    pictures = "".join(f"picture {number} of {count}\n" for number in range(count))
    verdict = verdict_of(read(WARNED + pictures), catalogue())
    assert [suspect.slug for suspect in verdict.suspects] == ["gpu-arch-unsupported"]
    assert verdict.ended_well is well


XID = "[ 5033.1] NVRM: Xid (PCI:0000:41:00): 79, pid=4711, GPU has fallen off the bus.\n"
CANCELLED = "slurmstepd: error: *** JOB 7 ON node3 CANCELLED AT 2026-06-13T11:30:52 ***\n"
MISMATCH = "size mismatch for head.weight: copying a param with shape torch.Size([3]) from checkpoint, the shape in current model is torch.Size([8]).\n"


@pytest.mark.parametrize(("said", "outcome"), [(XID, RunOutcome.ILLNESS), (MISMATCH, RunOutcome.STOPPED)])
def test_what_many_steps_follow_until_slurm_ends_the_job_is_no_cause_but_of_the_host(
    said: str, outcome: RunOutcome
) -> None:
    assert verdict_of(read(said + steps(30) + CANCELLED), catalogue()).outcome is outcome


def test_a_warning_of_something_else_above_makes_no_warning_of_it() -> None:
    pictures = "".join(f"picture {number} of 200\n" for number in range(200))
    verdict = verdict_of(read(f"[W1129 10:00:00.1 socket.cpp:1] something else\n{XID}{pictures}"), catalogue())
    assert not verdict.ended_well
