"""RAS's answers in the forms that its releases write, after hand-made ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.hang.ras.json_answer import NotUnderstood, parse_json
from ddpdoctor.hang.ras.text_answer import parse_text
from tests.support.command import ROOT

FOLDER = ROOT / "fixtures" / "ras"
COMMUNICATOR = "0x27a079b828ff1a75"


def test_a_comma_that_lacks_before_the_status_of_a_missing_rank_is_no_matter() -> None:
    well = parse_json((FOLDER / "missing-rank.json").read_bytes())
    assert parse_json((FOLDER / "missing-rank-without-comma.json").read_bytes()) == well
    assert [(one.rank, one.status) for one in well.values()] == [(0, ""), (1, ""), (2, ""), (3, "doesn't answer RAS")]
    assert well[COMMUNICATOR, "0x1c8:0x2f1", 3].pid == 483075


@pytest.mark.parametrize("removed", [b'"ranks": [', b'"status": {', b'"ras"'])
def test_what_lacks_more_than_a_comma_is_not_guessed(removed: bytes) -> None:
    broken = (FOLDER / "missing-rank-without-comma.json").read_bytes().replace(removed, b"", 1)
    with pytest.raises(NotUnderstood, match="isn't the JSON"):
        parse_json(broken)


def test_a_text_names_the_few_and_counts_the_rest() -> None:
    told = parse_text((FOLDER / "behind.txt").read_bytes())
    all_of_them = {rank: one.first for (name, _, rank), one in told.items() if name == COMMUNICATOR}
    lag = {2: (("AllReduce", 6649),), 5: (("AllReduce", 6649),), 6: ()}
    assert all_of_them == {rank: lag.get(rank, (("AllReduce", 6650),)) for rank in range(8)}
    assert told[COMMUNICATOR, "", 5].pid == 483077
    assert told["0xcf264af53edbe986", "", 1].status == "doesn't answer RAS"


@given(st.binary(max_size=300))
def test_other_texts_are_refused(data: bytes) -> None:
    with pytest.raises(NotUnderstood):
        parse_text(data)


@given(st.data())
def test_a_damaged_text_never_breaks_it(data: st.DataObject) -> None:
    content = bytearray((FOLDER / "behind.txt").read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_text(bytes(content))
    except NotUnderstood:
        return
