"""What is said over and over: at a log's end it tells of a failure, and before that of nothing."""

from __future__ import annotations

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

HEARTBEAT = (
    "[2026-11-20 12:07:{second:02}] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node"
    " 'gpu17_4107_0' has failed to send a keep-alive heartbeat to the rendezvous 'job-7' due to an error of type"
    " RendezvousConnectionError.\n"
)
STEP = "epoch 0 step {number:4} | loss 0.4338\n"


def test_a_store_that_stays_away_was_another_hosts() -> None:
    judgement = judge_log(read("".join(HEARTBEAT.format(second=second) for second in range(0, 20, 5))), catalogue())
    assert judgement.word is Verdict.UNKNOWN
    assert [opinion.check.slug for opinion in judgement.opinions] == ["rdzv-store-host-exited"]


def test_whose_first_node_is_done_first_has_lost_nothing() -> None:
    judgement = judge_log(read(STEP.format(number=9) + HEARTBEAT.format(second=3)), catalogue())
    assert judgement.word is Verdict.OK


def test_who_goes_on_training_has_lost_nothing() -> None:
    text = "".join(HEARTBEAT.format(second=second) for second in range(0, 20, 5))
    assert judge_log(read(text + STEP.format(number=9)), catalogue()).word is Verdict.OK
