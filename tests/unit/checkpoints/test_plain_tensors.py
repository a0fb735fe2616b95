"""Reading a tensor at one go must come to what reading it opcode by opcode comes to."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator

import pytest
import torch

from ddpdoctor.checkpoints.pickles.comparison import Expected, are_alike
from ddpdoctor.checkpoints.pickles.machine import PickleMachine, Program, scan
from ddpdoctor.checkpoints.pickles.nodes import Text, Tuple
from ddpdoctor.checkpoints.pickles.plain_tensors import PlainTensor, Unforeseen


def saved(thing: object) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def tied() -> dict[str, torch.Tensor]:
    one = torch.arange(12.0)
    return {"a": one, "b": one, "c": one[2:], "d": one.reshape(3, 4).t()}


THINGS = {
    "many": {f"layer{number}.weight": torch.zeros(1, 1, 1).expand(number % 5, 300, 70_000) for number in range(400)},
    "every number of dimensions": [torch.zeros([1] * number) for number in range(7)],
    "tied": tied(),
    "tied, behind 300 others": {**{str(number): torch.zeros(1) for number in range(300)}, **tied()},
    "every type": [torch.zeros(2, dtype=kind) for kind in (torch.int8, torch.bool, torch.bfloat16, torch.complex64)],
    "a key that is also the pickle's word": {"storage": torch.zeros(2), "cpu": torch.zeros(3), "0": torch.zeros(1)},
    "config first": {"config": [str(number) for number in range(300)], "model": {"weight": torch.zeros(3)}},
    "requires_grad": [torch.zeros(2, requires_grad=True), torch.nn.Parameter(torch.zeros(2))],
}


def every_text(program: Program) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """The texts that a tree holds, and where they are used."""
    found: dict[int, Text] = {}
    waiting, seen = [program.root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Text):
            found[id(node)] = node
        elif isinstance(node, Tuple):
            waiting += node.items
        for name in ("items", "arguments", "state", "location"):
            value = getattr(node, name, None)
            waiting += value if isinstance(value, list | tuple) and not isinstance(value, Tuple) else [value]
        for pair in getattr(node, "pairs", ()):
            waiting += [pair.key, pair.value]
    return sorted((one.value, one.start, one.end, tuple(one.uses)) for one in found.values())


@pytest.mark.parametrize("name", THINGS)
def test_both_ways_come_to_the_same(name: str) -> None:
    data = saved(THINGS[name])
    hasty, slow = PickleMachine(data).run(0), PickleMachine(data, hasty=False).run(0)
    assert are_alike(hasty, data, slow, data, Expected({}, {}))
    assert every_text(hasty) == every_text(slow)
    assert [
        (storage.kind, storage.key, storage.location.value, storage.location_start, storage.count)
        for storage in hasty.storages
    ] == [
        (storage.kind, storage.key, storage.location.value, storage.location_start, storage.count)
        for storage in slow.storages
    ]
    assert hasty.globals.keys() == slow.globals.keys()
    assert hasty.end == slow.end == len(data)


def test_most_tensors_are_read_at_one_go() -> None:
    program = scan(saved(THINGS["many"]))
    plain = [call for call in program.calls if isinstance(call, PlainTensor)]
    assert len(plain) > 350


def test_arguments_that_are_asked_for_are_those_of_the_slow_way() -> None:
    data = saved(THINGS["many"])
    hasty, slow = PickleMachine(data).run(0), PickleMachine(data, hasty=False).run(0)
    theirs = {call.start: call for call in slow.calls if call.name.endswith("_v2")}
    for call in hasty.calls:
        if isinstance(call, PlainTensor):
            arguments, other = call.arguments, theirs[call.start].arguments
            assert arguments.starts == other.starts
            assert arguments.end == other.end
            assert [item.items for item in arguments.items[2:4]] == [item.items for item in other.items[2:4]]
            assert call.arguments is arguments


def mutations(data: bytes) -> Iterator[bytes]:
    start = data.rindex(b"((")
    for position in range(start, min(start + 120, len(data))):
        for byte in (0, 0x28, 0x4B, 0x68, 0x72, 0x85, 0xFF):
            yield data[:position] + bytes([byte]) + data[position + 1 :]


def test_what_is_nearly_a_tensor_is_judged_as_the_slow_way_does() -> None:
    data = saved({str(number): torch.zeros(2, 3) for number in range(60)})
    for mutated in mutations(data):
        assert outcome(mutated, hasty=True) == outcome(mutated, hasty=False)


def outcome(data: bytes, *, hasty: bool) -> object:
    try:
        program = scan(data) if hasty else PickleMachine(data, hasty=False).run(0)
    except Exception as error:
        return type(error)
    storages = [
        (storage.kind, storage.key, storage.location.value, storage.location_start, storage.count)
        for storage in program.storages
    ]
    return storages, program.end, every_text(program)


def test_a_fetch_of_what_was_skipped_reads_the_pickle_anew() -> None:
    data = saved({str(number): torch.zeros(2, 3) for number in range(60)})
    last = data.rindex(b"\x86r")
    stride = data[last + 2 : last + 6]
    # The stride of the last tensor, once more: as the value of a key of its own.
    pickled = data[:-2] + pickle.BINUNICODE + b"\1\0\0\0k" + pickle.LONG_BINGET + stride + data[-2:]
    with pytest.raises(Unforeseen):
        PickleMachine(pickled).run(0)
    program = scan(pickled)
    assert program.root.pairs[-1].value.items == [3, 1]
