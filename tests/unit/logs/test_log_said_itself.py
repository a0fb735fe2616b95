"""Which rank a line is of that bears no label, by what it says itself, and by what others say."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from tests.support.logs_by_hand import read

BEGAN = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n    loss.backward()\n'
UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
    "Parameter indices which did not receive grad for rank {}: 4 5\n"
)
CALLS = "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=BROADCAST), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE).\n"
SHAPES = "RuntimeError: [{}]: params[4] in this process with sizes [8, 16] appears not to match sizes of the same param in process 0.\n"


@pytest.mark.parametrize("text", [BEGAN + UNUSED, BEGAN + SHAPES, SHAPES, BEGAN + CALLS])
def test_the_rank_in_torchs_own_sentence_is_the_one_that_failed(text: str) -> None:
    lead = verdict_of(read(text.format(3)), catalogue()).lead
    assert lead is not None
    assert lead.rank == 3


def test_a_label_counts_more_than_a_sentence() -> None:
    text = "".join(f"[rank1]: {line}\n" for line in (BEGAN + UNUSED.format(3)).splitlines())
    lead = verdict_of(read(text), catalogue()).lead
    assert lead is not None
    assert lead.rank == 1


def test_a_gpus_own_line_is_of_the_one_rank_that_speaks_of_the_same() -> None:
    asserts = "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0], thread: [0,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    said = "[rank{}]: RuntimeError: CUDA error: device-side assert triggered\n"
    alone, both = read(asserts + said.format(2)), read(asserts + said.format(2) + said.format(5))
    assert [one.lead.rank if (one := verdict_of(log, catalogue())).lead else None for log in (alone, both)] == [2, None]


def test_horovods_word_on_another_ranks_failure_is_an_effect() -> None:
    text = (
        "RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
        "allgather or broadcast a tensor after one of the ranks finished execution.\n"
    )
    assert verdict_of(read(text), catalogue()).outcome is RunOutcome.EFFECTS_ONLY
