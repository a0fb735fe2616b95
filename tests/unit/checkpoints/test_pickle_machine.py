"""The symbolic machine against Python's own unpickler: whatever that would make, the machine sees, and nothing runs."""

from __future__ import annotations

import pickle
import pickletools
import random
import struct
from typing import Any

import pytest

from ddpdoctor.checkpoints.errors import CheckpointError, Damaged, OutOfData, Refused
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.nodes import Storage, Text, Tuple
from ddpdoctor.checkpoints.pickles.tensors import is_state_dict, walk
from tests.support.pickles import InC, InPython, canonical, dumps, random_value, read

PROTOCOLS = (2, 3, 4, 5)
_OPCODES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", [5, 30, 150])
def test_it_sees_what_python_would_make(protocol: int, size: int) -> None:
    for seed in range(400):
        data = dumps(random_value(random.Random(seed), size), protocol)
        theirs = read(data, InC)
        ours = scan(data)
        assert ours.end == theirs.end == len(data), seed
        assert list(ours.globals) == theirs.names, seed
        assert canonical(ours.root, data) == canonical(theirs.value), seed
        persistent = [
            identity for identity in theirs.identities if type(identity) is tuple and identity[0] == "storage"
        ]
        assert [(storage.key, storage.location.value, storage.count) for storage in ours.storages] == [
            one[2:5] for one in persistent
        ], seed


def test_it_sees_what_python_would_make_of_a_pickle_that_was_tampered_with() -> None:
    """Either it refuses, or what it sees is what Python would have made; and no error is any other than its own."""
    agreed = 0
    for seed in range(6000):
        dice = random.Random(seed)
        data = tampered(dumps(random_value(dice, dice.choice((5, 10, 30, 100))), dice.choice(PROTOCOLS)), dice)
        try:
            ours = scan(data)
        except CheckpointError:
            continue
        try:
            theirs = read(data, InPython)
        except Exception:  # Python refuses in many words; what is refused can do no harm
            continue
        if not all(isinstance(call.arguments, Tuple) for call in ours.calls):
            continue  # only the unpickler in Python calls a class with a list; that in C doesn't
        agreed += 1
        assert set(ours.globals) == set(theirs.names), data
        assert canonical(ours.root, data) == canonical(theirs.value), data
        assert len(ours.storages) <= len(theirs.identities), data
    assert agreed > 500


def tampered(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        if not changed:
            break
        place = dice.randrange(len(changed))
        kind = dice.randrange(6)
        if kind == 0:
            changed[place] = dice.randrange(256)
        elif kind == 1:
            changed[place] = dice.choice(list(_OPCODES))[0]
        elif kind == 2:
            changed[place:place] = dice.choice(list(_OPCODES))
        elif kind == 3:
            del changed[place]
        elif kind == 4:
            del changed[place:]
        else:
            elsewhere = dice.randrange(len(changed))
            changed[elsewhere:elsewhere] = changed[place : place + dice.randrange(20)]
    return bytes(changed)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_wherever_a_pickle_is_cut_off_it_says_so(protocol: int) -> None:
    """Readers of a file that goes on rely on it: they read more, and try again."""
    for seed in range(12):
        data = dumps(random_value(random.Random(seed), 60), protocol)
        for length in range(len(data)):
            with pytest.raises(OutOfData):
                scan(data[:length])


def test_a_pickle_may_begin_anywhere_and_others_may_follow_it() -> None:
    first, second = dumps([1, "cuda:3"], 2), dumps({"a": 2}, 2)
    program = scan(b"??" + first + second, 2)
    assert program.end == 2 + len(first)
    assert scan(b"??" + first + second, program.end).end == 2 + len(first) + len(second)


_BEFORE = {
    "PERSID": b"Pcuda:0\n.",
    "INST": b"(iposix\nsystem\n.",
    "OBJ": b"(cposix\nsystem\no.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "DUP": b"N2\x86.",
    "NEXT_BUFFER": b"\x97.",
    "READONLY_BUFFER": b"N\x98.",
    "GET": b"g0\n.",
    "PUT": b"Np0\n.",
    "LIST": b"(l.",
    "DICT": b"(d.",
    "STRING": b"S'cuda:0'\n.",
    "UNICODE": b"Vcuda:0\n.",
}


@pytest.mark.parametrize("name", sorted(_BEFORE))
def test_opcodes_that_no_checkpoint_has_are_refused_by_name(name: str) -> None:
    with pytest.raises(Refused, match=rf"\b{name}\b"):
        scan(_BEFORE[name])


def test_opcodes_that_python_does_not_know_are_refused() -> None:
    for code in {*range(256)} - {code for (code,) in _OPCODES}:
        with pytest.raises(Refused, match=f"0x{code:02x}"):
            scan(bytes([code]) + b".")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"NN.", id="two things on the stack"),
        pytest.param(b"(N.", id="a mark left"),
        pytest.param(b"\x80\x04\x8c\x02osN\x93.", id="a global whose name is no text"),
        pytest.param(b"I" + b"9" * 5000 + b"\n.", id="a number of thousands of digits"),
    ],
)
def test_what_no_pickler_leaves_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        scan(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"." + bytes(20), id="stop with nothing"),
        pytest.param(b"h\x05." + bytes(20), id="a memo entry that isn't there"),
        pytest.param(b"t." + bytes(20), id="a tuple without its mark"),
        pytest.param(b"N\x86." + bytes(20), id="a pair of one"),
        pytest.param(b"NNa." + bytes(20), id="an item added to None"),
        pytest.param(b"}(Nu." + bytes(20), id="a key without its value"),
        pytest.param(b"X\x02\x00\x00\x00\xff\xff." + bytes(20), id="text that is none"),
        pytest.param(b"Ixyz\n." + bytes(20), id="a number that is none"),
        pytest.param(b"c\xff\xff\n\xff\n." + bytes(20), id="a name that is no text"),
    ],
)
def test_what_makes_no_sense_is_damaged(data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        scan(data)
    assert isinstance(caught.value, (Damaged, Refused))
    assert not isinstance(caught.value, OutOfData)


def test_a_frame_may_not_be_longer_than_the_pickle() -> None:
    with pytest.raises(OutOfData):
        scan(b"\x80\x04\x95" + b"\xff" * 8 + b"N.")


class Runs:
    """What a malicious file would have in it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        import os

        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_command_is_data(protocol: int, tmp_path: Any) -> None:
    canary = tmp_path / "ran"
    program = scan(pickle.dumps({"model": Runs(f"touch {canary}")}, protocol))
    assert list(program.globals) == ["posix.system"]
    assert not canary.exists()


def test_texts_know_each_place_where_they_are_read() -> None:
    place = "".join(["cuda", ":3"])
    data = pickle.dumps([place, place, [place]], 2)
    first, second, (third,) = scan(data).root.items[0], scan(data).root.items[1], scan(data).root.items[2].items
    assert isinstance(first, Text)
    assert first.value == second.value == third.value == "cuda:3"
    found = scan(data).root.items
    assert found[0] is found[1] is found[2].items[0]
    assert len(found[0].uses) == 2
    assert all(data[use : use + 1] == b"h" for use in found[0].uses)


def test_memo_numbers_above_255_are_read() -> None:
    value = [f"text {number}" for number in range(600)]
    data = pickle.dumps([value, value[599], value[3]], 2)
    assert b"r" in data
    assert b"j" in data
    root = scan(data).root
    assert root.items[1] is root.items[0].items[599]
    assert root.items[2] is root.items[0].items[3]


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n)R"


def test_a_state_dict_within_itself_is_none() -> None:
    cyclic = b"\x80\x02}q\x00(" + text("t") + TENSOR + text("me") + b"h\x00u."
    assert not any(is_state_dict(found.node) for found in walk(scan(cyclic).root))


def test_nesting_that_no_one_writes_is_walked_all_the_same() -> None:
    levels = 20_000
    nested = b"\x80\x02" + (b"}" + text("t") + TENSOR + b"s" + text("d")) * levels + b"}" + b"s" * levels + b"."
    found = list(walk(scan(nested).root))
    assert sum(is_state_dict(one.node) for one in found) == 1
    assert max(len(one.path) for one in found) == 100


def test_a_dict_that_refers_to_the_next_twice_is_looked_at_once() -> None:
    """Forty levels would be a million million ways down."""
    shared = b"\x80\x02}" + text("t") + TENSOR + b"sq\x00"
    for _ in range(40):
        shared += b"0}(" + text("t") + TENSOR + text("a") + b"h\x00" + text("b") + b"h\x00uq\x00"
    assert sum(is_state_dict(found.node) for found in walk(scan(shared + b".").root)) == 1


def test_a_key_of_thousands_of_digits_has_no_name() -> None:
    assert [found.where for found in walk(scan(pickle.dumps({10**5000: 1, 7: 2, True: 3}, 2)).root)] == [
        "",
        "[...]",
        "[7]",
        "[True]",
    ]


def test_a_storage_has_all_that_torch_reads() -> None:
    identity = b"(" + text("storage") + b"ctorch\nHalfStorage\n" + text("17") + text("cuda:1") + b"K\x09NtQ."
    (storage,) = scan(b"\x80\x02" + identity).storages
    assert isinstance(storage, Storage)
    assert (storage.kind, storage.key, storage.location.value, storage.count, storage.view) == (
        "HalfStorage",
        "17",
        "cuda:1",
        9,
        None,
    )
    assert (b"\x80\x02" + identity)[storage.location_start :].startswith(text("cuda:1"))


_STORAGE = [text("storage"), b"ctorch\nFloatStorage\n", text("0"), text("cuda:1"), b"K\x09"]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(
    "odd", [b"C\x06cuda:1", b"C\x07storage", b"N", b"c_codecs\nencode\n" + text("storage") + b"\x85R"]
)
def test_no_storage_goes_unseen(place: int, odd: bytes) -> None:
    """torch takes bytes for text; a pin that it would see and we wouldn't is worse than a file that isn't fixed."""
    parts = [odd if index == place else part for index, part in enumerate(_STORAGE)]
    data = b"(" + b"".join(parts) + b"tQ."
    with pytest.raises(Refused):
        scan(data)


def test_a_storage_named_by_what_a_call_makes_does_not_go_unseen() -> None:
    with pytest.raises(Refused):
        scan(b"cbuiltins\ntuple\n(" + b"".join(_STORAGE) + b"t\x85RQ.")
