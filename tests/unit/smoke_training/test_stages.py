"""Which stages are run where the user names some."""

from __future__ import annotations

import pytest

from ddpdoctor.smoke_training.stages import ALWAYS_RUN, PREREQUISITES, STAGES, UnknownStageError, chosen_stages


def test_without_a_name_all_are_run() -> None:
    assert chosen_stages([]) == STAGES


@pytest.mark.parametrize("name", STAGES)
def test_any_one_comes_with_its_frame_and_what_it_needs_in_order(name: str) -> None:
    found = chosen_stages([name])
    assert {name, *ALWAYS_RUN} <= set(found)
    assert [stage for stage in STAGES if stage in found] == list(found)
    for one in found:
        assert set(PREREQUISITES.get(one, ())) <= set(found)


def test_what_a_stage_needs_comes_before_it() -> None:
    assert chosen_stages(["checkpoint"]) == (
        "import",
        "device",
        "rendezvous",
        "process group",
        "training",
        "checkpoint",
        "shutdown",
    )
    for one, needed in PREREQUISITES.items():
        assert all(STAGES.index(other) < STAGES.index(one) for other in needed)


@pytest.mark.parametrize("name", ["one process", "one-process", "One_Process", " one  process "])
def test_names_may_be_written_as_one_word(name: str) -> None:
    assert "one process" in chosen_stages([name])


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownStageError, match=r"no stage called 'proces group'; did you mean process group"):
        chosen_stages(["training", "proces group"])
    with pytest.raises(UnknownStageError, match="there are import, device, "):
        chosen_stages(["zzz"])
