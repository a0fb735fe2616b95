"""Times as users write and read them."""

from __future__ import annotations

import pytest

from ddpdoctor.base.durations import duration_words, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("1h30m", 5400),
        ("45", 45),
        (" 2 min ", 120),
        ("1.5h", 5400),
        ("1D", 86400),
    ],
)
def test_what_somebody_types(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5x", "1e3", "10 20", "h", "1:30", "5s" * 2 + "!", "٣s", "9" * 40])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 s"), (3.0, "3 s"), (90, "90 s"), (600, "10 min"), (5400, "90 min"), (9000, "2.5 h"), (86400, "24 h")],
)
def test_how_it_is_said(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words
