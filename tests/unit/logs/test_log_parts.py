"""Files of which each rank has one of its own."""

from __future__ import annotations

import pytest

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log, LogLine, SignMatch
from ddpdoctor.logs.analyze.false_positives import real_sightings
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from tests.support.logs_by_hand import read


def lacks(rank: int | None, part: str, slug: str = "ckpt-world-size-mismatch") -> SignMatch:
    words = {"part": part} if part else {}
    line = LogLine(file=0, number=1, text="", rank=rank)
    return SignMatch(slug=slug, sign="No such file", role=SignRole.HINTS, line=line, words=words)


def left(seen: list[SignMatch]) -> list[SignMatch]:
    return list(real_sightings(Log(sightings=tuple(seen)), catalogue()).seen)


def test_ranks_that_lack_their_own_are_kept() -> None:
    seen = [lacks(2, "2"), lacks(3, "003"), lacks(None, "4")]
    assert left(seen) == seen


def test_where_the_first_one_lacks_its_own_nobody_has_any() -> None:
    assert left([lacks(1, "1"), lacks(0, "0"), lacks(None, "00")]) == []


def test_anothers_number_is_no_part() -> None:
    assert left([lacks(1, "7")]) == []


def test_other_signs_stay() -> None:
    other = lacks(0, "", slug="disk-full")
    assert left([other, lacks(0, "0")]) == [other]


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        ("runs/a/checkpoint-200/rng_state_2.pth", True),
        ("ckpt/random_states_2.pkl", True),
        ("ckpt/optimizer_rank_2.pt", True),
        ("ckpt/model_world_size_4_rank_2.pt", True),
        ("ckpt/__2_0.distcp", True),
        ("rank2.pth.tar", True),
        ("data/shard_2.pth", False),
        ("ckpt/epoch_2.pt", False),
        ("data/rank_2.json", False),
        ("rank_2.pt/config.json", False),
    ],
)
def test_which_files_are_a_ranks_own(name: str, is_part: bool) -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/home/ada/train/resume.py", line 27, in main\n'
        "[rank2]:     state = torch.load(name)\n"
        f"[rank2]: FileNotFoundError: [Errno 2] No such file or directory: '{name}'\n"
    )
    verdict = verdict_of(read(text), catalogue())
    assert verdict.outcome is (RunOutcome.ILLNESS if is_part else RunOutcome.USER_ERROR)
    assert [suspect.slug for suspect in verdict.suspects] == [
        "ckpt-world-size-mismatch" if is_part else "user-code-error"
    ]
