"""Whatever torch saves: fixed, it loads anywhere and is what it was; undone, it is the same file. Torch alone judges."""

from __future__ import annotations

import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix, undo
from ddpdoctor.checkpoints.inspection import inspect
from ddpdoctor.checkpoints.pickles.device_locations import pinned
from tests.support.checkpoints import assert_same, pins, save

DEVICES = ("cpu", "cuda:0", "cuda:3", "cuda:11", "cuda", "mps", "xpu:1", "meta")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
)
NEWER = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16)
"""Only the zip format takes these."""
VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda one: one,
    lambda one: one[1:],
    lambda one: one[::2],
    lambda one: one[:0],
    lambda one: one.reshape(-1, 1).t(),
    lambda one: one[:1].expand(3, one[:1].numel()),
    lambda one: one.unsqueeze(0).unsqueeze(-1),
)
TEXTS = ["cuda:3", "cpu", "mps", "storage", "weight", "", "größe", "cuda:0 "]


class Saved:
    """A value, and how it is saved. tag: the location of each storage, by its size."""

    def __init__(self, value: Any, devices: list[str], shared: bool, protocol: int, legacy: bool) -> None:
        self.value = value
        self.devices = devices
        self.shared = shared
        self.protocol = protocol
        self.legacy = legacy

    def __repr__(self) -> str:
        return f"{self.value!r} on {self.devices}, {self.shared=} {self.protocol=} {self.legacy=}"

    def tag(self, storage: Any) -> str:
        device = self.devices[storage.nbytes() // 8 % len(self.devices)]
        return device if self.shared else "".join(list(device))


@st.composite
def checkpoints(draw: st.DrawFn, devices: tuple[str, ...] = DEVICES) -> Saved:
    legacy = draw(st.booleans())
    dtypes = DTYPES if legacy else DTYPES + NEWER
    bases = [
        torch.arange(size).to(dtype)
        for size, dtype in draw(
            st.lists(st.tuples(st.integers(0, 12), st.sampled_from(dtypes)), min_size=1, max_size=4)
        )
    ]
    views = [*draw(st.lists(st.sampled_from(VIEWS), min_size=1, max_size=4)), VIEWS[0]]
    tensors: list[Any] = [view(base) for base in bases for view in views]
    tensors += [torch.nn.Parameter(torch.ones(draw(st.integers(0, 3)))), torch.eye(3).to_sparse(), torch.tensor(1.5)]
    leaves = st.one_of(
        st.sampled_from(tensors),
        st.sampled_from(tensors),
        st.sampled_from(TEXTS),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.none(),
        st.sampled_from([torch.device("cuda", 3), torch.float16, torch.Size([2, 3])]),
    )
    keys = st.one_of(st.sampled_from(TEXTS), st.text(max_size=5), st.integers(0, 300))
    value = draw(
        st.recursive(
            leaves,
            lambda inner: st.one_of(
                st.dictionaries(keys, inner, max_size=4),
                st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
                st.lists(inner, max_size=4),
                st.lists(inner, max_size=3).map(tuple),
                inner.map(lambda one: [one, one]),
            ),
            max_leaves=12,
        )
    )
    some = draw(st.lists(st.sampled_from(devices), min_size=1, max_size=3))
    return Saved(
        {"first": tensors[0], "all": value}, some, draw(st.booleans()), draw(st.sampled_from((2, 3, 4, 5))), legacy
    )


def settled(examples: int) -> Callable[[Any], Any]:
    return settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck), database=None)


def loads(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, **{"weights_only": False, **options})


@given(checkpoints(), st.sampled_from(["cpu", "cpu", "cuda:3", "cuda:10", "mps"]))
@settled(90)
@example(Saved({"a": torch.ones(2), "b": "mps"}, ["mps"], True, 2, False), "cpu")
def test_what_is_fixed_is_what_it_was_and_what_is_undone_is_the_same_file(one: Saved, to: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = save(one.value, Path(folder, "a.pt"), one.tag, legacy=one.legacy, protocol=one.protocol)
        before = path.read_bytes()
        original, places = loads(path, map_location="cpu"), pins(path)
        foreign = {device for device in places if pinned(device) and device != to}
        wishes = EditOptions(to=to)

        copied = Path(folder, "copy.pt")
        written = fix(path, wishes, out=copied)
        assert written.action is Action.WRITTEN, written.error
        assert path.read_bytes() == before
        assert_same(loads(copied, map_location="cpu"), original)
        assert (copied.read_bytes() != before) is bool(foreign)
        expected: dict[str, int] = {}
        for device, count in places.items():
            now = to if device in foreign else device
            expected[now] = expected.get(now, 0) + count
        assert pins(copied) == expected

        outcome = fix(path, wishes)
        if outcome.action is Action.REFUSED:
            assert one.legacy
            assert len(copied.read_bytes()) > len(before)
            assert path.read_bytes() == before
            return
        assert outcome.action is (Action.FIXED if foreign else Action.CLEAN), outcome.error
        after = path.read_bytes()
        assert after == copied.read_bytes()
        if to == "cpu" and "meta" not in places:
            assert_same(loads(path), original)
        assert fix(path, wishes).action is Action.CLEAN
        assert path.read_bytes() == after
        if foreign:
            assert undo(path).action is Action.UNDONE
        assert path.read_bytes() == before


@given(checkpoints(("cpu", "meta")))
@settled(40)
def test_without_anything_to_change_not_a_byte_changes(one: Saved) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = save(one.value, Path(folder, "a.pt"), one.tag, legacy=one.legacy, protocol=one.protocol)
        before = path.read_bytes()
        assert fix(path, EditOptions()).action is Action.CLEAN
        assert fix(path, EditOptions(), out=Path(folder, "copy.pt")).action is Action.WRITTEN
        assert path.read_bytes() == Path(folder, "copy.pt").read_bytes() == before


@given(checkpoints())
@settled(60)
def test_the_facts_are_those_that_torch_finds(one: Saved) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = save(one.value, Path(folder, "a.pt"), one.tag, legacy=one.legacy, protocol=one.protocol)
        found: dict[str, int] = {}

        def where(storage: Any, location: str) -> Any:
            found[location] = found.get(location, 0) + storage.nbytes()
            return storage

        loads(path, map_location=where)
        facts = inspect(path)
        assert not facts.problem
        assert {pin.device: pin.bytes for pin in facts.pins} == found
        try:
            loads(path, map_location="cpu", weights_only=True)
            trusted = True
        except Exception:  # whatever torch has against it
            trusted = False
        assert bool(facts.weights_only_blockers) is not trusted, facts.weights_only_blockers


@given(checkpoints(("cpu", "cuda:3")))
@settled(60)
def test_moved_there_and_back_it_is_the_same_file(one: Saved) -> None:
    one.shared = False
    with tempfile.TemporaryDirectory() as folder:
        path = save(one.value, Path(folder, "a.pt"), one.tag, legacy=one.legacy, protocol=one.protocol)
        before = path.read_bytes()
        there = fix(path, EditOptions(to="cuda:9")).action
        assert (path.read_bytes() != before) is (there is Action.FIXED)
        assert fix(path, EditOptions(to="cuda:3")).action is there
        assert path.read_bytes() == before
