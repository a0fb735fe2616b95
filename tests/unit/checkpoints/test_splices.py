"""Edits of pickles as splices: what is edited reads otherwise, all else reads the same, and the length is as wanted."""

from __future__ import annotations

import pickle
import random
import struct
from typing import Any

import pytest

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.comparison import Expected, are_alike
from ddpdoctor.checkpoints.pickles.device_locations import Moves, device_of, moves, pinned
from ddpdoctor.checkpoints.pickles.machine import Program, scan
from ddpdoctor.checkpoints.pickles.nodes import Text
from ddpdoctor.checkpoints.pickles.splices import Splice, Wording, apply, encoded, fit, reword
from tests.support.pickles import dumps, random_value

PROTOCOLS = (2, 3, 4, 5)
NOTHING = Expected({}, {})


def fresh(value: str) -> str:
    """A string that pickle has not met."""
    return "".join(list(value))


def test_splices_are_applied_in_order_and_may_not_overlap() -> None:
    assert apply(b"abcdef", [Splice(4, 5, b"--"), Splice(0, 1, b""), Splice(2, 2, b"++")]) == b"b++cd--f"
    with pytest.raises(AssertionError):
        apply(b"abcdef", [Splice(0, 3, b""), Splice(2, 4, b"")])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wanted", ["cpu", "cuda:10", "x" * 300])
def test_each_occurrence_reads_what_is_wanted_of_it_and_the_others_what_they_did(protocol: int, wanted: str) -> None:
    shared = fresh("cuda:3")
    value = [shared, {shared: shared}, fresh("cuda:3"), (shared, "end")]
    data = pickle.dumps(value, protocol)
    program = scan(data)
    texts = places(program)
    assert len(texts) == 5
    for chosen in range(1 << len(texts)):
        some = [texts[index] for index in range(len(texts)) if chosen & 1 << index]
        edited = apply(data, reword(data, [Wording(text, at, wanted) for text, at in some]), program.frames)
        positions = {at for _, at in some}
        reads = [wanted if at in positions else "cuda:3" for _, at in texts]
        got = pickle.loads(edited)
        assert [got[0], *next(iter(got[1].items())), got[2], got[3][0]] == reads
        assert got[3][1] == "end"


def places(program: Program) -> list[tuple[Text, int]]:
    """The occurrences of cuda:3 in the value above, in its order. An item of a list has no position but the text's own,
    or that of its use: the memo's uses come in the pickle's order."""
    first, table, alone, (again, _) = *program.root.items[:3], program.root.items[3].items
    pair = table.pairs[0]
    assert first is pair.key is pair.value is again
    return [
        (first, first.start),
        (pair.key, pair.key_start),
        (pair.value, pair.value_start),
        (alone, alone.start),
        (again, program.root.items[3].starts[0]),
    ]


@pytest.mark.parametrize("code", [0x58, 0x8C, 0x8D, 0x55, 0x54])
@pytest.mark.parametrize("value", ["", "cpu", "é" * 100, "x" * 300])
def test_a_new_text_is_written_as_the_old_one_was(code: int, value: str) -> None:
    lengths = {0x58: "<I", 0x8C: "<B", 0x8D: "<Q", 0x55: "<B", 0x54: "<I"}
    old = bytes([code]) + struct.pack(lengths[code], 6) + b"cuda:3"
    written = encoded(old + b".", Text("cuda:3", 0, len(old)), value)
    assert pickle.loads(written + b".", encoding="latin-1") == value
    assert written[0] == code or len(value.encode()) > 255


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_grows_by_any_number_of_bytes_and_says_the_same(protocol: int) -> None:
    for seed in range(4):
        data = dumps([{"a": 1, "b": [2]}, random_value(random.Random(seed), 40), 7], protocol)
        program = scan(data)
        for growth in [*range(40), 100, 511, 4096, 70_001]:
            longer = fit(data, len(data) + growth, program.frames)
            assert longer is not None
            assert len(longer) == len(data) + growth
            result = scan(longer)
            assert result.end == len(longer)
            assert are_alike(program, data, result, longer, NOTHING)
            assert all(begin + length <= len(longer) for begin, length in result.frames)


def test_what_is_too_long_already_can_not_be_made_to_fit() -> None:
    data = pickle.dumps([1, "text"], 2)
    assert fit(data, len(data) - 1) is None
    assert fit(data, len(data)) == data


@pytest.mark.parametrize("growth", [1, 3])
def test_with_nothing_to_widen_one_and_three_bytes_can_not_be_filled(growth: int) -> None:
    assert fit(b"\x80\x02N.", 4 + growth) is None


class Modèle:
    """Protocol 3 and later write its name as it is."""


def test_names_of_classes_beyond_ascii_do_no_harm() -> None:
    data = pickle.dumps([Modèle(), 3], 3)
    assert fit(data, len(data) + 1) is None
    assert fit(data, len(data) + 2) is not None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("growth", [1, 3])
@pytest.mark.parametrize("value", [7, ["a", 7], [{"a": ()}, 7, 300]])
def test_a_small_number_is_enough_to_fill_one_and_three_bytes(value: Any, growth: int, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    longer = fit(data, len(data) + growth, scan(data).frames)
    assert longer is not None
    assert len(longer) == len(data) + growth
    assert pickle.loads(longer) == value


@pytest.mark.parametrize("protocol", [4, 5])
def test_frames_stay_true(protocol: int) -> None:
    """Pickles of more than 64 KiB have several; the unpickler in Python goes by them to the byte."""
    value = [fresh(f"cuda:{number % 8}") + "!" for number in range(30_000)]
    data = pickle.dumps(value, protocol)
    program = scan(data)
    assert len(program.frames) > 3
    wordings = [Wording(text, text.start, "cpu") for text in program.root.items]
    edited = apply(data, reword(data, wordings), program.frames)
    assert pickle._loads(edited) == ["cpu"] * len(value)  # type: ignore[attr-defined]
    fitted = fit(edited, len(data), scan(edited).frames)
    assert fitted is not None
    assert len(fitted) == len(data)
    assert pickle._loads(fitted) == ["cpu"] * len(value)  # type: ignore[attr-defined]


def test_millions_of_frames_take_no_time() -> None:
    texts = [fresh(f"cuda:{number}") for number in range(3000)]
    data = b"\x80\x04" + (b"\x95" + bytes(8)) * 100_000 + pickle.dumps(texts, 4)[2:]
    program = scan(data)
    edited = apply(
        data, reword(data, [Wording(item, item.start, "cpu") for item in program.root.items]), program.frames
    )
    assert pickle.loads(edited) == ["cpu"] * len(texts)


DEVICE = b"ctorch\ndevice\n"


def subclass(device: bytes) -> bytes:
    """A call of _rebuild_wrapper_subclass with this device, and a number behind it."""
    return b"\x80\x02]q\x00(ctorch._utils\n_rebuild_wrapper_subclass\n(NNNNNN" + device + b"\x89tRK\x07e."


def binunicode(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


@pytest.mark.parametrize("to", ["cpu", "cuda:0", "cuda:10", "cuda:300", "xpu"])
@pytest.mark.parametrize(
    "device",
    [
        pytest.param(DEVICE + binunicode("cuda") + b"K\x03\x86R", id="pair"),
        pytest.param(DEVICE + binunicode("cuda") + b"q\x01K\x03\x86q\x02Rq\x03", id="in the memo"),
        pytest.param(DEVICE + binunicode("cuda") + b"M\x00\x01\x86R", id="cuda:256"),
        pytest.param(DEVICE + binunicode("cuda") + b"\x85R", id="without an index"),
        pytest.param(DEVICE + binunicode("cuda:3") + b"\x85R", id="in one text"),
        pytest.param(DEVICE + b"(" + binunicode("cuda") + b"K\x03tR", id="behind a mark"),
        pytest.param(DEVICE + b"(" + binunicode("cuda") + b"tR", id="alone behind a mark"),
        pytest.param(
            DEVICE + binunicode("cuda") + b"K\x03\x95\x00\x00\x00\x00\x00\x00\x00\x00\x86R", id="a frame within"
        ),
        pytest.param(binunicode("cuda:3"), id="as a text"),
    ],
)
def test_a_device_argument_is_moved_and_all_else_stays(device: bytes, to: str) -> None:
    data = subclass(device)
    program = scan(data)
    found = moves(data, program, to, lambda one: pinned(one) and one != to)
    edited, result = applied(data, program, found)
    now = result.root.items[0].arguments.items[6]
    assert device_of(now) == to
    assert are_alike(
        program,
        data,
        result,
        edited,
        Expected({wording.position: wording.new for wording in found.wordings}, found.devices),
    )
    assert not moves(edited, result, to, lambda one: pinned(one) and one != to)


def applied(data: bytes, program: Program, found: Moves) -> tuple[bytes, Program]:
    edited = apply(data, [*reword(data, found.wordings), *found.splices], program.frames)
    return edited, scan(edited)


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(DEVICE + binunicode("cuda") + b"N\x86R", id="no number"),
        pytest.param(DEVICE + binunicode("cuda") + b"J\xff\xff\xff\xff\x86R", id="a negative one"),
        pytest.param(
            DEVICE + binunicode("cuda") + b"\x8b" + struct.pack("<I", 3000) + b"\x7f" * 3000 + b"\x86R", id="huge"
        ),
        pytest.param(DEVICE + binunicode("cuda") + binunicode("3") + b"\x86R", id="a text"),
        pytest.param(DEVICE + b")R", id="nothing"),
        pytest.param(b"N", id="None"),
    ],
)
def test_what_torch_would_take_for_no_device_is_none(device: bytes) -> None:
    data = subclass(device)
    assert not moves(data, scan(data), "cpu", pinned)


def test_a_number_from_the_memo_is_refused() -> None:
    data = subclass(b"K\x03q\x010" + DEVICE + binunicode("cuda") + b"h\x01\x86R")
    with pytest.raises(Refused):
        moves(data, scan(data), "cpu", pinned)


def alike(old: Any, new: Any, protocol: int = 2) -> bool:
    before, after = pickle.dumps(old, protocol), pickle.dumps(new, protocol)
    return are_alike(scan(before), before, scan(after), after, NOTHING)


def test_the_proof_notices_whatever_differs() -> None:
    for old, new in [
        ([1], [2]),
        ([1], [True]),
        ([1.0], [1]),
        ([0.0], [-0.0]),
        (["a"], ["b"]),
        ([b"a"], [b"b"]),
        ([b"a"], ["a"]),
        ([[]], [()]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], [1]),
        ((1, (2, (3,))), (1, (2, (4,)))),
        ({1}, {2}),
        ([len], [print]),
        ([range(3)], [range(4)]),
    ]:
        for protocol in PROTOCOLS:
            assert not alike(old, new, protocol), (old, new)
            assert alike(old, old, protocol)
            assert alike(new, new, protocol)
    assert alike([float("nan")], [float("nan")])


def test_the_proof_notices_what_was_one_and_is_two_or_was_two_and_is_one() -> None:
    one, other = [1], [1]
    assert alike([one, one], [other, other])
    assert alike([one, other], [other, one])
    assert not alike([one, one], [one, other])
    assert not alike([one, other], [one, one])


def test_the_proof_looks_into_a_tuple_each_time_it_is_another() -> None:
    shared = (fresh("a"), 1)
    assert not alike([shared, shared], [shared, (fresh("a"), 2)])
    assert alike([shared, shared], [(fresh("a"), 1), (fresh("a"), 1)])
