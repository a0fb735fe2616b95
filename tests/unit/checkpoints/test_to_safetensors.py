"""Writing a checkpoint's tensors as safetensors, with torch and the safetensors library as judges."""

from __future__ import annotations

import array
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from ddpdoctor.checkpoints.errors import Damaged, Refused
from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix
from ddpdoctor.checkpoints.formats.opening import open_layout, read_parts
from ddpdoctor.checkpoints.named_paths import recognise
from ddpdoctor.checkpoints.writing import strided_tensors
from ddpdoctor.checkpoints.writing.safetensors import write_safetensors
from ddpdoctor.checkpoints.writing.strided_tensors import gather, merged

SIMPLE_TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
NEW_TYPES = [
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]


def numbers(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits that such numbers can have."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw % 2 == 0 if dtype == torch.bool else raw.view(dtype)


def converted(path: Path, out: Path) -> list[str]:
    with open_layout(path, recognise(path).kind) as layout:
        return write_safetensors(layout, read_parts(layout)[0].program, out, lambda done, total: None)


def raw(tensor: torch.Tensor) -> bytes:
    # Taken apart as bytes first: some types can't be made contiguous.
    size = tensor.element_size()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return tensor.detach().view(integers).contiguous().numpy().tobytes() if tensor.dim() else _raw_scalar(tensor)


def _raw_scalar(tensor: torch.Tensor) -> bytes:
    return raw(tensor.detach().reshape(1))


def check(expected: dict[str, torch.Tensor], out: Path) -> None:
    found = load_file(out)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw(found[name]) == raw(tensor), name


def converts(thing: dict[str, torch.Tensor], folder: Path, **options: Any) -> list[str]:
    path, out = folder / "in.pt", folder / "out.safetensors"
    torch.save(thing, path, **options)
    notes = converted(path, out)
    check(thing, out)
    return notes


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_every_type(tmp_path: Path, old: bool) -> None:
    types = SIMPLE_TYPES if old else SIMPLE_TYPES + NEW_TYPES
    tensors = {f"some {dtype}": numbers(7, dtype) for dtype in types}
    tensors |= {f"matrix {dtype}": numbers(24, dtype).view(4, 6) for dtype in types}
    assert converts(tensors, tmp_path, _use_new_zipfile_serialization=not old) == []


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_model(tmp_path: Path, protocol: int, old: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Linear(4, 2))
    tensors = model.state_dict()
    notes = converts(tensors, tmp_path, pickle_protocol=protocol, _use_new_zipfile_serialization=not old)
    assert notes == []
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_library_writes_the_same(tmp_path: Path) -> None:
    tensors = torch.nn.Linear(3, 4).state_dict() | {"step": torch.tensor(3), "half": torch.rand(3).half()}
    converts(tensors, tmp_path)
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_parameters_and_attributes(tmp_path: Path) -> None:
    marked = torch.rand(3)
    marked.tag = "a plain tensor with an attribute"
    parameter = torch.nn.Parameter(torch.rand(2))
    parameter.tag = "a parameter with one"
    thing = {"marked": marked, "parameter": parameter, "plain": torch.nn.Parameter(torch.rand(2, 2), False)}
    converts(thing, tmp_path)


def test_shapes_without_elements_or_dimensions(tmp_path: Path) -> None:
    thing = {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0),
        "flat": torch.empty(3, 0, 5, dtype=torch.int64),
        "one": torch.rand(1, 1, 1),
        "inside": torch.rand(9)[4],
    }
    assert converts(thing, tmp_path) == []


def test_strided(tmp_path: Path) -> None:
    base = torch.arange(5040, dtype=torch.float32)
    image = torch.rand(3, 4, 5, 6)
    thing = {
        "transposed": torch.rand(40, 70).t(),
        "channels last": image.to(memory_format=torch.channels_last),
        "every third": torch.rand(100)[1::3],
        "column": torch.rand(30, 20)[:, 7],
        "block": torch.rand(30, 20)[3:9, 4:11],
        "permuted": base.view(7, 8, 9, 10).permute(3, 1, 0, 2),
        "overlapping": torch.as_strided(torch.rand(120), (30, 20), (2, 3)),
        "bytes": numbers(60, torch.uint8).view(6, 10).t(),
        "eight": numbers(60, torch.complex64).view(6, 10).t(),
        "two": numbers(60, torch.bfloat16).view(6, 10).t(),
    }
    converts(thing, tmp_path)


def test_expanded(tmp_path: Path) -> None:
    thing = {
        "row": torch.rand(1, 70).expand(500, 70),
        "column": torch.rand(50, 1).expand(50, 700),
        "single": torch.rand(1).expand(100, 100, 100),
        "middle": torch.rand(4, 1, 5).expand(4, 300, 5),
    }
    notes = converts(thing, tmp_path)
    assert notes == [
        "column is expanded from fewer elements, and written in full: 136.5 KiB more.",
        "middle is expanded from fewer elements, and written in full: 23.4 KiB more.",
        "row is expanded from fewer elements, and written in full: 136.4 KiB more.",
        "single is expanded from fewer elements, and written in full: 3.8 MiB more.",
    ]


def test_larger_than_a_window(tmp_path: Path) -> None:
    side = 1500
    assert side * side * 4 > 2 * strided_tensors.WINDOW_BYTES
    thing = {
        "t": torch.rand(side, side).t(),
        "columns": torch.rand(2000, 1500)[:, ::700],
        "expanded": torch.rand(1500).expand(1700, 1500),
        "wide": torch.rand(3, 1_500_000).t(),
    }
    converts(thing, tmp_path)


def test_tied_tensors_are_written_for_each_and_named(tmp_path: Path) -> None:
    weight, whole = torch.rand(10, 20), torch.rand(30)
    thing = {
        "embed": weight,
        "head": weight,
        "first": whole[:20],
        "last": whole[10:],
        "left": whole[:0],
        "apart": torch.rand(3),
    }
    assert converts(thing, tmp_path) == [
        "embed and head share their data in the checkpoint, and each has its own now: 800 B more.",
        "first and last share their data in the checkpoint, and each has its own now: 40 B more.",
    ]
    side_by_side = torch.rand(8)
    assert converts({"a": side_by_side[:4], "b": side_by_side[4:]}, make(tmp_path / "more")) == []
    many = {f"{number}.{half}": tensor for number in range(9) for tensor in [torch.rand(2)] for half in "ab"}
    notes = converts(many, make(tmp_path / "many"))
    assert len(notes) == 5
    assert notes[-1] == "And so on, 5 times more."


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def refusal(thing: Any, folder: Path) -> Refused:
    path, out = folder / "in.pt", folder / "out.safetensors"
    torch.save(thing, path)
    with pytest.raises(Refused) as refused:
        converted(path, out)
    assert sorted(folder.iterdir()) == [path]
    return refused.value


class Sub(torch.Tensor):
    """A subclass."""


@pytest.mark.filterwarnings("ignore")  # Of the tensors' kinds, some are new and some old.
def test_what_it_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    thing = {
        "fine": torch.rand(2),
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]),
        "quantized": torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.qint8),
        "channels": torch.quantize_per_channel(torch.rand(2, 2), torch.rand(2), torch.zeros(2), 0, torch.qint8),
        "meta": torch.empty(2, device="meta"),
        "sub": torch.rand(2).as_subclass(Sub),
        "wide": torch.rand(2, dtype=torch.complex128),
        "bits": torch.rand(2).view(torch.uint8).view(torch.bits8),
        "conjugated": torch.rand(2, dtype=torch.complex64).conj(),
        "negated": torch.rand(2, dtype=torch.complex64).conj().imag,
        "epoch": 3,
        "text": "hello",
        "list": [torch.rand(1)],
        "__metadata__": torch.rand(1),
        "\ud800": torch.rand(1),
    }
    refused = refusal(thing, tmp_path)
    assert "16 entries" in refused.text
    for name, why in {
        "sparse": "a sparse tensor",
        "csr": "a sparse tensor",
        "nested": "a nested tensor",
        "quantized": "a quantized tensor",
        "channels": "a quantized tensor",
        "meta": "a meta tensor, which has no data",
        "sub": f"a tensor of the class {Sub.__module__}.Sub",
        "wide": "of the type complex128, which safetensors lacks",
        "bits": "of the type bits8, which safetensors lacks",
        "conjugated": "a tensor that is conjugated or negated only when used",
        "negated": "a tensor that is conjugated or negated only when used",
        "epoch": "the int 3",
        "text": "a text",
        "list": "a list of 1 item",
        "__metadata__": "a name that safetensors doesn't allow",
        "\ud800": "a name that safetensors doesn't allow",
    }.items():
        assert f"{name} ({why})" in refused.text
    assert "--params-only" in refused.advice
    assert refusal({"wide": thing["wide"]}, make(tmp_path / "one")).advice == ""


def test_no_flat_dict(tmp_path: Path) -> None:
    training = {"model": {"w": torch.rand(2)}, "epoch": 3}
    refused = refusal(training, make(tmp_path / "training"))
    assert refused.text == "safetensors can't hold 2 entries of it: model (a dict of 1 key) and epoch (the int 3)"
    assert "--params-only" in refused.advice
    assert "a list of 1 item" in refusal([torch.rand(2)], make(tmp_path / "list")).text
    assert "the key the int 7 (" not in refusal({7: torch.rand(2)}, make(tmp_path / "number")).text
    assert "no tensors" in refusal({}, make(tmp_path / "empty")).text


def rewritten(path: Path, out: Path, compression: int, change: Any = lambda name, data: data) -> None:
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(out, "w", compression) as new:
        for name in archive.namelist():
            new.writestr(name, change(name, archive.read(name)))


def test_compressed(tmp_path: Path) -> None:
    thing = {"whole": torch.arange(3000.0), "turned": torch.arange(3000.0).view(60, 50).t(), "none": torch.empty(0)}
    thing["again"] = thing["whole"][1000:2000]
    torch.save(thing, tmp_path / "stored.pt")
    rewritten(tmp_path / "stored.pt", tmp_path / "in.pt", zipfile.ZIP_DEFLATED)
    notes = converted(tmp_path / "in.pt", tmp_path / "out.safetensors")
    check(thing, tmp_path / "out.safetensors")
    assert len(notes) == 1
    assert len([*tmp_path.iterdir()]) == 3


def test_big_endian(tmp_path: Path) -> None:
    """Written by a big-endian machine: torch turns the bytes around, so must we."""
    thing = {str(dtype): numbers(24, dtype) for dtype in SIMPLE_TYPES}
    thing |= {f"{dtype} turned": numbers(24, dtype).view(4, 6).t() for dtype in SIMPLE_TYPES}
    units = [4 if dtype == torch.complex64 else dtype.itemsize for dtype in SIMPLE_TYPES] * 2

    def turned(name: str, data: bytes) -> bytes:
        if name == "in/byteorder":
            return b"big"
        if name.startswith("in/data/"):
            unit = units[int(name.removeprefix("in/data/"))]
            swapped = array.array({1: "B", 2: "H", 4: "I", 8: "Q"}[unit], data)
            swapped.byteswap()
            return swapped.tobytes()
        return data

    torch.save(thing, tmp_path / "in.pt")
    rewritten(tmp_path / "in.pt", tmp_path / "big.pt", zipfile.ZIP_STORED, turned)
    converted(tmp_path / "big.pt", tmp_path / "out.safetensors")
    check(torch.load(tmp_path / "big.pt"), tmp_path / "out.safetensors")
    check(thing, tmp_path / "out.safetensors")


class _Function:
    """A call of a function, for pickle."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


class _Storage:
    """A storage of four floats, of which a view of two counts."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> Any:
        if isinstance(thing, _Storage):
            return ("storage", torch.FloatStorage, "7", "cpu", 4, ("8", 1, 2))
        return None


def test_views_of_storages_in_very_old_files(tmp_path: Path) -> None:
    path = tmp_path / "in.pt"
    with path.open("wb") as file:
        for thing in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(thing, file, protocol=2)
        storage = _Storage()
        rebuild = torch._utils._rebuild_tensor_v2
        tensor = _Function(rebuild, (storage, 0, (2,), (1,), False, OrderedDict()))
        _Pickler(file, protocol=2).dump({"inside": tensor})
        pickle.dump(["7"], file, protocol=2)
        file.write(struct.pack("<q4f", 4, 1, 2, 3, 4))
    assert torch.load(path)["inside"].tolist() == [2, 3]
    converted(path, tmp_path / "out.safetensors")
    check({"inside": torch.tensor([2.0, 3.0])}, tmp_path / "out.safetensors")
    # One element further, it would lie in the storage, but not in the view.
    data = path.read_bytes()
    assert data.count(b"Q") == 1
    at = data.index(b"QK\x00K\x02\x85")
    path.write_bytes(data[:at] + b"QK\x01" + data[at + 3 :])
    with pytest.raises(Damaged, match="'inside' does not lie within its storage"):
        converted(path, tmp_path / "more.safetensors")


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((11,), (1,), 0),
        ((10,), (1,), 1),
        ((2, 5), (6, 1), 0),
        ((1,), (1,), 10),
        ((4,), (3,), 1),
        ((1 << 40,), (1 << 40,), 0),
        ((0, 1 << 80), (1, 1), 0),
    ],
)
def test_a_tensor_outside_of_its_storage(tmp_path: Path, size: Any, stride: Any, offset: int) -> None:
    class Forged:
        def __reduce__(self) -> Any:
            storage = torch.rand(10)._typed_storage()
            return torch._utils._rebuild_tensor_v2, (storage, offset, size, stride, False, OrderedDict())

    torch.save({"forged": Forged()}, tmp_path / "in.pt")
    with pytest.raises(Damaged, match="'forged' does not lie within its storage, which has 40 bytes"):
        converted(tmp_path / "in.pt", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["in.pt"]


def test_a_storage_that_is_missing(tmp_path: Path) -> None:
    torch.save({"a": torch.rand(3), "b": torch.rand(3)}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as old, zipfile.ZipFile(tmp_path / "in.pt", "w") as new:
        for name in old.namelist():
            if name != "whole/data/1":
                new.writestr(name, old.read(name))
    with pytest.raises(Damaged, match="data/1"):
        converted(tmp_path / "in.pt", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_an_expanded_tensor_that_no_disk_can_hold(tmp_path: Path) -> None:
    torch.save({"w": torch.rand(1).expand(1 << 50)}, tmp_path / "in.pt")
    with pytest.raises(Refused, match="disk is full"):
        converted(tmp_path / "in.pt", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["in.pt"]


def test_nothing_is_overwritten_and_the_source_stays(tmp_path: Path) -> None:
    path, out = tmp_path / "in.pt", tmp_path / "out.safetensors"
    torch.save({"w": torch.rand(3)}, path)
    before = path.read_bytes()
    out.write_text("mine")
    with pytest.raises(Refused, match="exists"):
        converted(path, out)
    assert out.read_text() == "mine"
    out.unlink()
    os.utime(path, (1, 1))
    converted(path, out)
    assert path.read_bytes() == before
    assert out.stat().st_mtime == 1
    assert out.stat().st_mode == path.stat().st_mode


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    torch.save({"a": torch.rand(3000, 1000), "b": torch.rand(100, 200).t(), "c": torch.rand(5)}, tmp_path / "in.pt")
    told: list[tuple[int, int]] = []
    with open_layout(tmp_path / "in.pt", "zip") as layout:
        program = read_parts(layout)[0].program
        write_safetensors(layout, program, tmp_path / "out", lambda done, total: told.append((done, total)))
    total = 4 * (3000 * 1000 + 100 * 200 + 5)
    assert told[-1] == (total, total)
    assert told == sorted(told)
    assert {of for _, of in told} == {total}


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Whatever the tensors' size and layout. Measured in a process of its own, against one that converts next to nothing."""
    torch.save({"w": torch.rand(3)}, tmp_path / "small.pt")
    torch.save(
        {"t": torch.rand(3000, 4000).t(), "w": torch.rand(10000, 1000), "e": torch.rand(1).expand(1 << 23)},
        tmp_path / "large.pt",
    )
    small, large = (peak(tmp_path / f"{name}.pt", tmp_path / f"{name}.out") for name in ("small", "large"))
    assert (tmp_path / "large.out").stat().st_size > 110 << 20
    assert large - small < 24 << 20


def peak(path: Path, out: Path) -> int:
    """Bytes of memory that converting takes at most."""
    program = (
        "import sys; from pathlib import Path\n"
        "from ddpdoctor.checkpoints.formats.opening import open_layout, read_parts\n"
        "from ddpdoctor.checkpoints.writing.safetensors import write_safetensors\n"
        "with open_layout(Path(sys.argv[1]), 'zip') as layout:\n"
        "    write_safetensors(layout, read_parts(layout)[0].program, Path(sys.argv[2]), lambda done, total: None)\n"
        "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, path, out], capture_output=True, text=True, check=True)
    return int(run.stdout) * 1024


@st.composite
def layouts(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """A storage, and a tensor somehow laid over it."""
    dtype = draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.complex64]))
    dims = draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=4))
    offset = draw(st.integers(0, 5))
    size, stride = [one for one, _ in dims], [one for _, one in dims]
    storage = numbers(offset + 1 + sum(max(n - 1, 0) * s for n, s in dims), dtype, draw(st.integers(0, 99)))
    return storage, torch.as_strided(storage, size, stride, offset)


@settings(max_examples=300)
@given(layouts(), st.integers(8, 200))
def test_gathering_anything(laid: tuple[torch.Tensor, torch.Tensor], window: int) -> None:
    storage, tensor = laid
    item = tensor.element_size()
    expected = raw(tensor)
    if not expected:
        return
    data = raw(storage)[tensor.storage_offset() * item :]
    result: list[int | None] = [None] * len(expected)

    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset < offset + length <= len(data)
        assert length <= window
        return data[offset : offset + length]

    for part in gather(read, merged(tuple(tensor.shape), tensor.stride()), item, window=window):
        assert len(part.data) <= window
        for index, byte in enumerate(part.data):
            assert result[part.offset + index] is None, "written twice"
            result[part.offset + index] = byte
    assert bytes(byte for byte in result if byte is not None) == expected


@settings(max_examples=60)
@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name != "__metadata__"), layouts(), min_size=1, max_size=5),
    st.booleans(),
)
def test_converting_anything(laid: dict[str, tuple[torch.Tensor, torch.Tensor]], old: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        thing = {name: tensor for name, (_, tensor) in laid.items()}
        converts(thing, Path(folder), _use_new_zipfile_serialization=not old)


def test_from_wishes_to_a_file(tmp_path: Path) -> None:
    """The whole way, with keys cut out and a prefix stripped; a dry run foretells what would be refused or noted."""
    weight = torch.rand(3, 4)
    training = {"model": {"module.a": weight, "module.b": weight}, "epoch": 3}
    torch.save(training, tmp_path / "in.pt")
    wishes = EditOptions(to_safetensors=True)
    dry = fix(tmp_path / "in.pt", wishes, out=tmp_path / "out.safetensors", dry_run=True)
    assert (dry.action, dry.advice) == (Action.REFUSED, "Try --params-only as well, for the model alone")
    wishes = EditOptions(to_safetensors=True, params_only=True, strip_prefixes=("module.",))
    dry = fix(tmp_path / "in.pt", wishes, out=tmp_path / "out.safetensors", dry_run=True)
    assert dry.action is Action.WOULD_FIX
    assert not (tmp_path / "out.safetensors").exists()
    done = fix(tmp_path / "in.pt", wishes, out=tmp_path / "out.safetensors")
    assert done.action is Action.WRITTEN
    assert done.dropped == ("epoch",)
    assert done.notes == dry.notes
    assert done.notes == (
        "The model's parameters are what was under model.",
        "a and b share their data in the checkpoint, and each has its own now: 48 B more.",
    )
    check({"a": weight, "b": weight}, tmp_path / "out.safetensors")
