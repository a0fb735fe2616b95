"""What plain pickles name, against Python's own unpickler, and what is said of those that name something dangerous."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix
from ddpdoctor.checkpoints.inspection import inspect
from ddpdoctor.checkpoints.pickles.named_globals import COMPUTED, named_in
from ddpdoctor.checkpoints.weights_only import DO_NOT_LOAD

PROTOCOLS = pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("id",)


class _Finder(pickle.Unpickler):
    """Python's word on what is looked up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.found: list[str] = []

    def find_class(self, module: str, name: str) -> Any:
        self.found.append(f"{module}.{name}")
        return super().find_class(module, name)


@PROTOCOLS
def test_names_are_those_that_python_looks_up(protocol: int) -> None:
    value = [Counter("aab"), numpy.ones(3), {1, 2}, numpy.float64(1), Path("/a"), Counter("b"), 1j, bytearray(b"x"), ()]
    data = pickle.dumps(value, protocol, fix_imports=False)
    finder = _Finder(data)
    finder.load()
    assert named_in(io.BytesIO(data)) == (tuple(dict.fromkeys(finder.found)), True, ())


@given(st.binary(max_size=200), st.integers(0, 200))
def test_whatever_the_bytes_nothing_is_raised(noise: bytes, place: int) -> None:
    data = pickle.dumps([Counter("ab"), {"a": (1, 2.5)}])
    named_in(io.BytesIO(noise))
    named_in(io.BytesIO(data[:place] + noise + data[place:]))


@PROTOCOLS
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"model": torch.ones(2), "x": [one]}])
def test_a_plain_pickle_that_runs_a_command(protocol: int, wrap: Any, tmp_path: Path) -> None:
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps(wrap(Evil()), protocol))
    facts = inspect(path)
    assert [global_name.name for global_name in facts.globals if global_name.dangerous][:1] == ["posix.system"]
    assert facts.advice == DO_NOT_LOAD
    assert not facts.commands
    outcome = fix(path, EditOptions())
    assert outcome.action is Action.REFUSED
    assert outcome.advice == DO_NOT_LOAD
    assert not outcome.commands


@PROTOCOLS
def test_pickled_tensors_are_not_dangerous_for_their_storages(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps({"a": torch.ones(2), "b": torch.zeros(3)}, protocol))
    facts = inspect(path)
    assert not [global_name for global_name in facts.globals if global_name.dangerous]
    assert facts.commands


class Loaded:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self.data,)


def test_what_hides_in_a_storage_is_found() -> None:
    buffer = io.BytesIO()
    torch.save(Evil(), buffer, _use_new_zipfile_serialization=False)
    named = named_in(io.BytesIO(pickle.dumps(Loaded(buffer.getvalue()))))
    assert "posix.system" in named.sure


def test_a_storage_that_nobody_can_look_into_is_dangerous() -> None:
    assert "torch.storage._load_from_bytes" in named_in(io.BytesIO(pickle.dumps(Loaded(b"PK\3\4")))).sure
    handed_on = [torch.storage._load_from_bytes, torch.ones(2)]
    assert "torch.storage._load_from_bytes" in named_in(io.BytesIO(pickle.dumps(handed_on))).sure


def test_a_computed_name_is_dangerous(tmp_path: Path) -> None:
    name = b"cbuiltins\nstr\n\x8c\x06system\x85R"
    path = tmp_path / "evil.pkl"
    path.write_bytes(b"\x80\x04\x8c\x05posix" + name + b"\x93\x8c\x02id\x85R.")
    facts = inspect(path)
    assert [global_name.name for global_name in facts.globals if global_name.dangerous] == [COMPUTED]


def test_behind_the_arrays_of_joblib_names_are_looked_for(tmp_path: Path) -> None:
    wrapper = b"\x80\x04\x8c\x13joblib.numpy_pickle\x8c\x11NumpyArrayWrapper\x93)\x81}b"
    path = tmp_path / "m.joblib"
    path.write_bytes(wrapper + struct.pack("<100d", *range(100)) + pickle.dumps(Evil()))
    assert [global_name.name for global_name in inspect(path).globals if global_name.dangerous] == ["posix.system"]
    path.write_bytes(wrapper + struct.pack("<100d", *range(100)) + b".")
    facts = inspect(path)
    assert not [global_name for global_name in facts.globals if global_name.dangerous]
    assert "joblib.load" in facts.advice


def test_a_compressed_pickle_is_looked_into(tmp_path: Path) -> None:
    path = tmp_path / "m.z"
    path.write_bytes(zlib.compress(pickle.dumps([Evil()])))
    facts = inspect(path)
    assert facts.advice == DO_NOT_LOAD
    assert [global_name.name for global_name in facts.globals] == ["posix.system"]


def test_who_cannot_be_followed_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "odd.pkl"
    path.write_bytes(pickle.dumps([1, 2, 3])[:-1] + b"\xff.")
    facts = inspect(path)
    assert "followed" in facts.advice
    assert not facts.commands


def test_a_file_of_protocol_0_is_to_be_saved_anew_as_torch_cannot_read_it(tmp_path: Path) -> None:
    path = tmp_path / "o'ld.pt"
    torch.save({"a": torch.ones(2)}, path, pickle_protocol=0)
    outcome = fix(path, EditOptions())
    assert outcome.action is Action.REFUSED
    assert "protocol 0 or 1" in outcome.error
    assert "torch.save(value, path)" in outcome.advice
    with pytest.raises(AssertionError, match="saved_id"):
        torch.load(path, weights_only=False)


def test_a_dangerous_file_of_protocol_0_is_not_to_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"a": torch.ones(2), "b": Evil()}, path, pickle_protocol=0)
    outcome = fix(path, EditOptions())
    assert "posix.system" in outcome.error
    assert outcome.advice == DO_NOT_LOAD
    assert not outcome.commands
    assert inspect(path).advice == DO_NOT_LOAD
