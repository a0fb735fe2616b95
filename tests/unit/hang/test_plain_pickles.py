"""Plain data out of pickles: what Python would make of them, or a refusal, and nothing ever runs."""

from __future__ import annotations

import pickle
import random
import struct
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.hang.flight_recorder.plain_pickles import MAX_BYTES, NotRead, read_plain
from tests.support.pickles import dumps, random_value

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.binary(max_size=20)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(TEXTS | st.integers(), inner, max_size=5)
    ),
    max_leaves=30,
)


class Evil:
    def __reduce__(self) -> Any:
        return (ran.append, (1,))


ran: list[int] = []


@settings(max_examples=150, deadline=None)
@given(PLAIN, st.sampled_from((3, 4, 5)))
def test_plain_data_is_read_as_python_reads_it(value: Any, protocol: int) -> None:
    assert read_plain(pickle.dumps(value, protocol)) == value


def test_what_is_one_object_in_the_pickle_is_one_here() -> None:
    frame = {"line": 1}
    first, second = read_plain(pickle.dumps([frame, frame], 2))
    assert first is second


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: b"\x80\x02" + data + b"."))
def test_whatever_the_bytes_are_they_are_read_or_refused(data: bytes) -> None:
    with suppress(NotRead):
        assert_plain(read_plain(data))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_that_was_tampered_with_is_what_python_makes_of_it_or_refused(protocol: int) -> None:
    read_at_all = 0
    for seed in range(1500):
        dice = random.Random(seed)
        data = bytearray(pickle.dumps([{"a": dice.random(), "b": [1, "x", (2, None)]}] * 3, protocol))
        for _ in range(dice.randrange(3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            ours = read_plain(bytes(data))
            theirs = pickle.loads(data)
        except Exception:  # Python refuses in many words
            continue
        read_at_all += 1
        assert repr(ours) == repr(theirs), seed
    assert read_at_all > 300


def test_what_isnt_plain_is_never_read() -> None:
    refused = 0
    for seed in range(300):
        data = dumps(random_value(random.Random(seed), 30), 4)
        try:
            value = read_plain(data)
        except NotRead:
            refused += 1
            continue
        assert_plain(value)
    assert refused > 100


def assert_plain(value: Any) -> None:
    assert type(value) in (dict, list, tuple, str, bytes, int, float, bool, type(None))
    for inner in value.items() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        assert_plain(inner)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_runs(protocol: int) -> None:
    with pytest.raises(NotRead):
        read_plain(pickle.dumps({"entries": [Evil()]}, protocol))
    assert ran == []


SELF: list[Any] = []
SELF.append(SELF)
DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]
LAUGHS: Any = ["ha"]
for _ in range(60):
    LAUGHS = [LAUGHS, LAUGHS]


def iterated(value: Any) -> bytes:
    """Without recursion, which Python's own pickler would run out of."""
    made = b"]q\x00"
    while value:
        made += b"]"
        value = value[0]
    return b"\x80\x02" + made + b"a" * (made.count(b"]") - 1) + b"."


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "breaks off"),
        (b"\x80", "breaks off"),
        (pickle.dumps({"a": [1] * 50}, 2)[:-20], "breaks off"),
        (b"garbage", "protocol 0 or 1"),
        (bytes(1000), "no pickle"),
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "names os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", "names os.system"),
        (b"\x80\x02c\x1b[2J\n\x1b]0;x\n.", "names ?[2J.?]0;x"),
        (b"\x80\x02(ios\nsystem\n.", "protocol 0 or 1"),
        (b"\x80\x02(cos\nsystem\no.", "protocol 0 or 1"),
        (b"\x80\x02Pid\n.", "protocol 0 or 1"),
        (b"\x80\x02K\x01Q.", "more than dicts"),
        (b"\x80\x02\x82\x01.", "no pickle"),
        (b"\x80\x02}}R.", "more than dicts"),
        (b"\x80\x02]2a.", "no pickle"),
        (pickle.dumps({1, 2}, 4), "more than dicts"),
        (pickle.dumps(OrderedDict(a=1), 2), "names collections.OrderedDict"),
        (pickle.dumps({(1, 2): 3}, 2), "keys are neither"),
        (b"\x80\x02}]K\x01s.", "keys are neither"),
        (pickle.dumps(SELF, 2), "holds itself"),
        (b"\x80\x02}q\x00K\x01h\x00s.", "holds itself"),
        (pickle.dumps(LAUGHS, 2), "levels deep"),
        (iterated(DEEP), "levels deep"),
        (b"\x80\x02" + b"(" * 3_000_000, "far more lists"),
        (b"\x80\x02" + b"}" * 3_000_000 + b".", "far more lists"),
        (b"\x80\x02\x8b" + struct.pack("<I", (1 << 32) - 1) + b"\x01.", "breaks off"),
        (b"\x80\x02\x8d" + struct.pack("<Q", (1 << 63)) + b"x.", "breaks off"),
        (b"\x80\x02I" + b"9" * 5000 + b"\n.", "no pickle"),
        (b"\x80\x02" + b"N" * 10, "breaks off"),
        (b"\x80\x02]" + bytes(MAX_BYTES), "more than 16 MiB"),
    ],
)
def test_what_no_flight_recorder_writes_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(NotRead, match=why.replace("?", r"\?").replace("[", r"\[")):
        read_plain(data)


def test_what_is_shared_a_million_times_over_stays_small() -> None:
    value: Any = ["ha"] * 100
    for _ in range(25):
        value = [value, value]
    made = read_plain(pickle.dumps(value, 2))
    assert made[0] is made[1]
