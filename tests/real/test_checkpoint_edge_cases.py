"""fix-checkpoint on whatever torch can save: each kind of tensor, place and file, made by torch, and read back by torch."""

from __future__ import annotations

import copy
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from ddpdoctor.checkpoints.fixing import Action, CheckpointOutcome, EditOptions, fix, undo
from ddpdoctor.checkpoints.inspection import inspect
from tests.support.checkpoint_files import repacked
from tests.support.checkpoints import assert_same, by_size, constant, on, pickle_of, pins, save

warnings.filterwarnings("ignore", module="torch")

PROTOCOLS = (2, 3, 4, 5)
TO_CPU = EditOptions()
CUDA3 = "".join(["cuda", ":3"])
"""Not interned with any other: pickle knows it again by identity alone."""


def weights() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(5), "c": torch.ones(3, dtype=torch.float16)}


def loads(path: Path, **options: Any) -> Any:
    return torch.load(path, weights_only=False, **options)


def accepted(path: Path) -> bool:
    """Whether weights_only takes it."""
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return False
    return True


def fixed(path: Path, wishes: EditOptions = TO_CPU, equal: Any = None) -> CheckpointOutcome:
    """Fixes it in all the ways there are, and lets torch judge each: the result is `equal`, by default what it was."""
    before = path.read_bytes()
    original = loads(path, map_location="cpu") if equal is None else equal
    trusted = accepted(path)
    # Whether torch has that module imported is a matter of what ran before in this process.
    blockers = [blocker for blocker in inspect(path).weights_only_blockers if not blocker.startswith("torch._dynamo.")]
    assert bool(blockers) is not trusted

    copied = path.with_name(f"copy-{path.name}")
    written = fix(path, wishes, out=copied)
    assert written.action is Action.WRITTEN, written.error
    assert path.read_bytes() == before
    assert_same(_anywhere(copied, wishes), original)

    outcome = fix(path, wishes)
    if outcome.action is Action.REFUSED:
        assert inspect(path).kind == "legacy"
        assert written.after is not None
        assert len(copied.read_bytes()) > len(before), "only for want of room"
        assert path.read_bytes() == before
        return written
    assert outcome.action is Action.FIXED, outcome.error
    assert path.read_bytes() == copied.read_bytes()
    if trusted:
        assert_same(torch.load(path, map_location=_cpu_if_not(wishes), weights_only=True), original)
    assert {pin.device for pin in inspect(path).pins} <= {wishes.to, "cpu", "meta"}
    after = path.read_bytes()
    assert fix(path, EditOptions(to=wishes.to)).action is Action.CLEAN, "there is nothing left to do"
    assert path.read_bytes() == after

    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before
    assert fix(path, wishes).action is Action.FIXED
    assert path.read_bytes() == after
    return outcome


def _anywhere(path: Path, wishes: EditOptions) -> Any:
    """What torch.load makes of it without being told where to."""
    return loads(path, map_location=_cpu_if_not(wishes))


def _cpu_if_not(wishes: EditOptions) -> str | None:
    return None if wishes.to == "cpu" else "cpu"


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("tag", [on("cuda:3"), constant(CUDA3)], ids=["fresh", "constant"])
def test_protocols(protocol: int, legacy: bool, tag: Any, tmp_path: Path) -> None:
    value = {"model": weights(), "device": CUDA3, "epoch": 3, "notes": [CUDA3, {"where": CUDA3}]}
    outcome = fixed(save(value, tmp_path / "a.pt", tag, legacy=legacy, protocol=protocol))
    assert [(one.device_from, one.device_to, one.tensors) for one in outcome.moved] == [("cuda:3", "cpu", 3)]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("first", ["text", "tensor"])
@pytest.mark.parametrize("others", [0, 300], ids=["memo below 256", "memo above 255"])
def test_a_location_that_is_also_the_users_own_string(others: int, first: str, legacy: bool, tmp_path: Path) -> None:
    """In the memo once; what the tensors fetch is changed, what the user's data fetch is not."""
    value: dict[str, Any] = {f"filler {number}": number for number in range(others)}
    value |= {"device": CUDA3, "model": weights()} if first == "text" else {"model": weights(), "device": CUDA3}
    value["again"] = (CUDA3, [CUDA3], {CUDA3: CUDA3})
    path = save(value, tmp_path / "a.pt", constant(CUDA3), legacy=legacy)
    outcome = fixed(path)
    assert outcome.after is not None
    assert loads(Path(outcome.after.path))["device"] == "cuda:3"
    assert [text.where for text in outcome.after.device_texts] == [
        "device",
        "again[0]",
        "again[1][0]",
        "again[2].cuda:3",
    ]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_cpu_and_several_gpus_mixed(legacy: bool, tmp_path: Path) -> None:
    value = {f"w{size}": torch.arange(float(size)) for size in range(1, 30)}
    path = save(value, tmp_path / "a.pt", by_size("cpu", "cuda:0", "cuda:11", "xpu:1"), legacy=legacy)
    assert len(pins(path)) == 4
    counted = {pin.device: pin.tensors for pin in inspect(path).pins}
    assert counted == pins(path)
    fixed(path)


@pytest.mark.parametrize(
    "device",
    [
        "cuda",
        "cuda:0",
        "cuda:10",
        "cuda:127",
        "mps",
        "mps:0",
        "xpu",
        "xpu:0",
        "npu:0",
        "hpu",
        "hpu:1",
        "xla:0",
        "mtia:0",
    ],
)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_devices(device: str, legacy: bool, count: int, tmp_path: Path) -> None:
    """With one to three tensors: what a shorter name leaves free is one byte, or two, or three."""
    value = dict(list(weights().items())[:count])
    fixed(save(value, tmp_path / "a.pt", on(device), legacy=legacy))


@pytest.mark.parametrize("to", ["cuda", "cuda:0", "cuda:10", "cuda:300", "mps", "xpu:1"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_to_another_device(to: str, protocol: int, tmp_path: Path) -> None:
    path = save({"model": weights(), "x": CUDA3}, tmp_path / "a.pt", on("cuda:3"), protocol=protocol)
    size = path.stat().st_size
    fixed(path, EditOptions(to=to))
    assert pins(path) == {to: 3}
    assert (path.stat().st_size > size) is (len(to) > len("cuda:3")), "a longer name needs a new pickle behind the end"


def test_to_another_device_in_the_old_format(tmp_path: Path) -> None:
    path = save(weights(), tmp_path / "a.pt", on("cuda:3"), legacy=True)
    before = path.read_bytes()
    refused = fix(path, EditOptions(to="cuda:10"))
    assert refused.action is Action.REFUSED
    assert "-o" in refused.advice
    assert path.read_bytes() == before
    assert fix(path, EditOptions(to="cuda:10"), out=tmp_path / "b.pt").action is Action.WRITTEN
    assert pins(tmp_path / "b.pt") == {"cuda:10": 3}
    assert_same(loads(tmp_path / "b.pt", map_location="cpu"), loads(path, map_location="cpu"))
    fixed(path, EditOptions(to="cuda:1"))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_meta_tensors_are_left_alone(legacy: bool, tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = nn.Linear(3, 4)
    path = save(empty.state_dict(), tmp_path / "a.pt", legacy=legacy)
    before = path.read_bytes()
    assert fix(path, EditOptions()).action is Action.CLEAN
    assert path.read_bytes() == before
    fixed(save({"meta": empty.state_dict(), "real": weights()}, path, on("cuda:3"), legacy=legacy))


def tied() -> Any:
    one = torch.arange(12.0)
    return {"a": one, "again": one, "part": one[3:7], "every other": one[::2], "matrix": one.reshape(3, 4).t()}


def expanded() -> Any:
    return {"zero stride": torch.ones(1).expand(1000), "overlapping": torch.arange(9.0).as_strided((3, 3), (1, 2), 1)}


def parameter_with_state() -> Any:
    parameter = nn.Parameter(torch.ones(3))
    parameter.tensor_model_parallel = True  # as Megatron does
    parameter.note = {"where": "cuda:3"}
    return {
        "a": parameter,
        "buffer": nn.Buffer(torch.ones(2)),
        "plain": nn.Parameter(torch.ones(2), requires_grad=False),
    }


def whole_checkpoint() -> Any:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
        "epoch": 7,
    }


KINDS: dict[str, Callable[[], Any]] = {
    "tied": tied,
    "strided": expanded,
    "empty": lambda: {"none": torch.empty(0), "no rows": torch.empty(0, 5), "scalar": torch.tensor(2.5)},
    "dtypes": lambda: {
        str(dtype): torch.tensor([0, 1, 1]).to(dtype)
        for dtype in (
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int8,
            torch.uint8,
            torch.int16,
            torch.int32,
            torch.bool,
        )
    },
    "unsigned": lambda: {str(dtype): torch.arange(3).to(dtype) for dtype in (torch.uint16, torch.uint32, torch.uint64)},
    "fp8": lambda: {
        str(dtype): torch.arange(5.0).to(dtype)
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    },
    "complex": lambda: {"a": torch.ones(3, dtype=torch.complex64), "conj": torch.tensor([1 + 2j]).conj()},
    "negative": lambda: {"a": torch.tensor([1 + 2j]).conj().imag},
    "nan": lambda: {"a": torch.tensor([float("nan"), -0.0, float("inf")])},
    "sparse": lambda: {"a": torch.eye(4).to_sparse(), "coalesced": torch.eye(4).to_sparse().coalesce()},
    "sparse csr": lambda: {"a": torch.eye(4).to_sparse_csr(), "b": torch.eye(4).to_sparse_csc()},
    "sparse bsr": lambda: {"a": torch.eye(4).to_sparse_bsr((2, 2)), "b": torch.eye(4).to_sparse_bsc((2, 2))},
    "quantized": lambda: {
        "tensor": torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.quint8),
        "channel": torch.quantize_per_channel(
            torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
        ),
    },
    "nested": lambda: {"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
    "jagged": lambda: {"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)},
    "parameters": parameter_with_state,
    "storages": lambda: {"typed": torch.arange(3.0).storage(), "untyped": torch.arange(3.0).untyped_storage()},
    "a tensor alone": lambda: torch.arange(4.0),
    "a list": lambda: [torch.arange(4.0), torch.ones(2)],
    "a module": lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
    "a checkpoint": whole_checkpoint,
    "recursive": lambda: _recursive(),
    "unicode": lambda: {"größe": torch.ones(2), "\udcff": torch.ones(1), "cuda:3": torch.ones(1)},
}


def _recursive() -> Any:
    value: dict[str, Any] = {"w": torch.ones(2)}
    value["itself"] = [value]
    return value


BEYOND_THE_OLD_FORMAT = {"unsigned", "fp8", "storages", "nested", "jagged"}
"""Torch itself can't read back what it wrote of these."""
FORMATS = [
    (kind, legacy) for kind in KINDS for legacy in (False, True) if not (legacy and kind in BEYOND_THE_OLD_FORMAT)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "legacy"), FORMATS, ids=[f"{kind}-{'legacy' if old else 'zip'}" for kind, old in FORMATS]
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_kinds_of_tensors(kind: str, legacy: bool, protocol: int, tmp_path: Path) -> None:
    value = KINDS[kind]()
    fixed(save(value, tmp_path / "a.pt", on("cuda:3"), legacy=legacy, protocol=protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_device_and_texts_in_the_configuration_stay(protocol: int, tmp_path: Path) -> None:
    config = {
        "device": torch.device("cuda", 3),
        "use": "cuda:3",
        "other": torch.device("cuda"),
        "cpu": torch.device("cpu"),
    }
    path = save({"config": config, "model": weights()}, tmp_path / "a.pt", on("cuda:3"), protocol=protocol)
    outcome = fixed(path)
    assert loads(path)["config"] == config
    assert outcome.after is not None
    assert {(text.where, text.device) for text in outcome.after.device_texts} == {
        ("config.device", "cuda:3"),
        ("config.use", "cuda:3"),
        ("config.other", "cuda"),
    }


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, with one inside."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: str) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=device)
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor, device: str) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)

    def __repr__(self) -> str:
        return "Wrapper"


@pytest.mark.parametrize("to", ["cpu", "cuda:10"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_wrapper_subclasses_name_their_device_apart(protocol: int, to: str, tmp_path: Path) -> None:
    value = {"w": Wrapper(torch.arange(3.0), "cuda:3"), "config": torch.device("cuda:3"), "x": torch.ones(2)}
    path = save(value, tmp_path / "a.pt", on("cuda:3"), protocol=protocol)
    before = path.read_bytes()
    assert {pin.device: pin.tensors for pin in inspect(path).pins} == {"cuda:3": 3}
    assert fix(path, EditOptions(to=to)).action is Action.FIXED
    read = loads(path, map_location=None if to == "cpu" else "cpu")
    assert read["w"].device == torch.device("cpu")
    assert read["config"] == torch.device("cuda:3")
    assert_same(read["w"].inner, torch.arange(3.0))
    assert_same(read["x"], torch.ones(2))
    # On the CPU, a wrapper holds nothing but what is inside.
    assert {pin.device: pin.tensors for pin in inspect(path).pins} == {to: 2 if to == "cpu" else 3}
    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before


class Sent:
    """Pickled as tensors are whose device shares no memory with the CPU: by their values, and the device's name."""

    def __init__(self, function: Callable[..., Any], values: Any, device: str) -> None:
        self.function = function
        self.arguments = (values, torch.float32, device, False)

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize("device", ["xla:1", "hpu:0", "maia:3", CUDA3])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_tensors_that_were_sent_by_value(legacy: bool, protocol: int, device: str, tmp_path: Path) -> None:
    values = torch.arange(3.0)
    some = [
        Sent(torch._utils._rebuild_device_tensor_from_numpy, values.numpy(), device),
        Sent(torch._utils._rebuild_device_tensor_from_cpu_tensor, values, device),
    ]
    path = save({"device": device, "some": some}, tmp_path / "a.pt", legacy=legacy, protocol=protocol)
    assert {pin.device: pin.tensors for pin in inspect(path).pins if pin.device != "cpu"} == {device: 2}
    new = tmp_path / "new.pt"
    assert fix(path, EditOptions(), out=new).action is Action.WRITTEN
    assert_same(loads(new), {"device": device, "some": [values, values.clone()]})
    before = path.read_bytes()
    if fix(path, EditOptions()).action is Action.REFUSED:
        assert legacy
        assert path.read_bytes() == before
    else:
        assert path.read_bytes() == new.read_bytes()


class AsPython2:
    """A state dict that Python 2 pickled: OrderedDict([[key, value], ...])."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return OrderedDict, ([[key, value] for key, value in self.state.items()],)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_state_dicts_that_python_2_wrote(protocol: int, legacy: bool, tmp_path: Path) -> None:
    state = {f"module.{key}": value for key, value in weights().items()}
    value = {"keys": list(state), "model": AsPython2(state), "again": list(state)}
    path = save(value, tmp_path / "a.pt", on("cuda:3"), protocol=protocol, legacy=legacy)
    before = path.read_bytes()
    assert [prefix.prefix for prefix in inspect(path).prefixes] == ["module."]
    outcome = fix(path, EditOptions(strip_prefixes=("module.",)), out=tmp_path / "new.pt")
    assert outcome.action is Action.WRITTEN, outcome.error
    assert outcome.renamed == 3
    assert_same(
        loads(tmp_path / "new.pt"), {"keys": list(state), "model": OrderedDict(weights()), "again": list(state)}
    )
    assert path.read_bytes() == before


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("protocol", [2, 4])
def test_distributed_tensors(protocol: int, tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    value = {
        "sharded": distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]),
        "same": distribute_tensor(torch.ones(3), mesh, [Replicate()]),
    }
    plain = copy.deepcopy(loads(save(value, tmp_path / "plain.pt", protocol=protocol)))
    mesh._device_type = "cuda"
    path = save(value, tmp_path / "a.pt", on("cuda:0"), protocol=protocol)
    mesh._device_type = "cpu"
    assert b"cuda" in pickle_of(path)
    before = path.read_bytes()
    assert fix(path, EditOptions()).action is Action.FIXED
    assert b"cuda" not in pickle_of(path)
    read = loads(path)
    assert read["same"].device_mesh.device_type == "cpu"
    assert_same(read, plain)
    assert torch.equal(read["sharded"].full_tensor(), torch.arange(4.0))
    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before


@pytest.mark.parametrize("to", ["cpu", "cuda:10"])
def test_an_alignment_of_4096(to: str, tmp_path: Path) -> None:
    from torch.utils.serialization import config

    with config.patch("save.storage_alignment", 4096):
        path = save(weights(), tmp_path / "a.pt", on("cuda:3"))
    assert path.stat().st_size > 3 * 4096
    fixed(path, EditOptions(to=to))


@pytest.mark.parametrize("alignment", [64, 4096])
@pytest.mark.parametrize("to", ["cpu", "cuda:10"])
def test_storages_stay_where_torch_calculates_them_to_be(to: str, alignment: int, tmp_path: Path) -> None:
    """It may add up the sizes rather than look into the directory: mapped, and for tensors without data."""
    from torch.utils.serialization import config

    values = {f"w{size}": torch.arange(size * 3.0 + 1) for size in range(20)}
    with config.patch("save.storage_alignment", alignment):
        path = save(values, tmp_path / "a.pt", on("cuda:3"))
    assert fix(path, EditOptions(to=to)).action is Action.FIXED
    for calculated in (False, True):
        with config.patch("load.calculate_storage_offsets", calculated):
            assert_same(loads(path, map_location="cpu", mmap=True), loads(path, map_location="cpu"))
            assert_same(loads(path, map_location="cpu"), values)
            for name, tensor in loads(path, map_location="meta").items():
                at = tensor.untyped_storage()._checkpoint_offset
                assert path.read_bytes()[at : at + values[name].nbytes] == values[name].numpy().tobytes()


def test_checksums_that_were_left_out_stay_out(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = save(weights(), tmp_path / "a.pt", on("cuda:3"))
    finally:
        torch.serialization.set_crc32_options(True)
    fixed(path)
    with zipfile.ZipFile(path) as archive:
        assert [member.CRC for member in archive.infolist() if member.filename.endswith("data.pkl")] == [0]


@pytest.mark.parametrize("to", ["cpu", "cuda:1", "cuda:10"])
def test_checksums_are_right(to: str, tmp_path: Path) -> None:
    """torch doesn't look, other programs do."""
    path = save(weights(), tmp_path / "a.pt", on("cuda:3"))
    fixed(path, EditOptions(to=to))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("to", ["cpu", "cuda:1", "cuda:10"])
@pytest.mark.parametrize("large", [False, True], ids=["", "zip64"])
@pytest.mark.parametrize("streamed", [False, True], ids=["", "streamed"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_packed_anew_by_another_program(method: int, streamed: bool, large: bool, to: str, tmp_path: Path) -> None:
    path = save({"model": weights(), "many": [1, 2] * 300}, tmp_path / "a.pt", on("cuda:3"))
    repacked(path, method, streamed=streamed, large=large)
    fixed(path, EditOptions(to=to))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_a_record_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    path = save(weights(), tmp_path / "archive.pt", on("cuda:3"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/extra/notes.txt", "cuda:3")
    fixed(path)


@pytest.mark.parametrize("to", ["cpu", "cuda:10"])
def test_more_than_65535_records(to: str, tmp_path: Path) -> None:
    path = save(weights(), tmp_path / "archive.pt", on("cuda:3"))
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(65_536):
            archive.writestr(f"archive/extra/{number}", b"")
    original = loads(path, map_location="cpu")
    before = path.read_bytes()
    assert fix(path, EditOptions(to=to)).action is Action.FIXED
    assert_same(loads(path, map_location="cpu"), original)
    assert pins(path) == {to: 3}
    with zipfile.ZipFile(path) as archive:
        assert len(archive.infolist()) > 65_536
    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """The archive with other records, by torch's own writer. `change` gets each name and content; None leaves it out."""
    with zipfile.ZipFile(path) as old:
        records = [(name.partition("/")[2], old.read(name)) for name in old.namelist()]
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, data in records:
        new = change(name, data)
        if new is not None and name not in ("version", ".data/serialization_id"):
            writer.write_record(name, new, len(new))
    writer.write_end_of_file()


def test_big_endian(tmp_path: Path) -> None:
    values = {"a": torch.arange(4, dtype=torch.int32), "b": torch.arange(3, dtype=torch.int32)}
    path = save(values, tmp_path / "a.pt", on("cuda:3"))

    def swapped(name: str, data: bytes) -> bytes:
        if name == "byteorder":
            return b"big"
        return b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4)) if name.startswith("data/") else data

    rewritten(path, swapped)
    assert_same(loads(path, map_location="cpu"), values)
    fixed(path)


def test_as_torch_1_6_wrote_it(tmp_path: Path) -> None:
    path = save(weights(), tmp_path / "a.pt", on("cuda:3"))
    rewritten(path, lambda name, data: None if name in (".format_version", ".storage_alignment", "byteorder") else data)
    fixed(path)


def test_with_nothing_in_it(tmp_path: Path) -> None:
    for legacy in (False, True):
        path = save({}, tmp_path / "a.pt", legacy=legacy)
        before = path.read_bytes()
        assert fix(path, EditOptions()).action is Action.CLEAN
        assert path.read_bytes() == before


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.module = nn.Linear(2, 2)  # a submodule that is called as DDP's is


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model)  # type: ignore[return-value]


WRAPPED: dict[str, tuple[Callable[[nn.Module], nn.Module], tuple[str, ...]]] = {
    "parallel": (nn.DataParallel, ("module.",)),
    "parallel twice": (lambda model: nn.DataParallel(nn.DataParallel(model)), ("module.", "module.")),
    "compiled": (compiled, ("_orig_mod.",)),
    "compiled, then parallel": (lambda model: nn.DataParallel(compiled(model)), ("module.", "_orig_mod.")),
    "parallel, then compiled": (lambda model: compiled(nn.DataParallel(model)), ("_orig_mod.", "module.")),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prefixes_are_taken_off_as_torch_would(protocol: int, legacy: bool, wrapped: str, tmp_path: Path) -> None:
    wrap, prefixes = WRAPPED[wrapped]
    model = Model()
    value = {"model": wrap(model).state_dict(), "epoch": 3}
    path = save(value, tmp_path / "a.pt", on("cuda:3"), legacy=legacy, protocol=protocol)
    expected = loads(path, map_location="cpu")
    for prefix in prefixes:
        consume_prefix_in_state_dict_if_present(expected["model"], prefix)
    assert [(prefix.where, prefix.prefix) for prefix in inspect(path).prefixes] == [("model", "".join(prefixes))]
    before = path.read_bytes()
    outcome = fix(path, EditOptions(strip_prefixes=prefixes))
    if legacy and outcome.action is Action.REFUSED:
        pytest.fail(outcome.error)
    assert outcome.action is Action.FIXED, outcome.error
    assert outcome.renamed == len(expected["model"])
    read = loads(path)
    assert list(read["model"]) == list(Model().state_dict())
    assert dict(read["model"]._metadata) == dict(expected["model"]._metadata) == dict(Model().state_dict()._metadata)
    assert_same(dict(read["model"]), dict(expected["model"]))
    Model().load_state_dict(read["model"], strict=True)
    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before


def test_both_prefixes_at_once_may_be_given_as_one(tmp_path: Path) -> None:
    path = save(nn.DataParallel(nn.DataParallel(Model())).state_dict(), tmp_path / "a.pt")
    assert fix(path, EditOptions(strip_prefixes=("module.module.",))).action is Action.FIXED
    assert list(loads(path)) == list(Model().state_dict())
    assert dict(loads(path)._metadata) == dict(Model().state_dict()._metadata)


def test_a_prefix_that_only_some_keys_have_is_refused(tmp_path: Path) -> None:
    path = save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "a.pt", on("cuda:3"))
    before = path.read_bytes()
    refused = fix(path, EditOptions(strip_prefixes=("module.",)))
    assert refused.action is Action.REFUSED
    assert "1 of 2" in refused.error
    assert path.read_bytes() == before


def test_a_prefix_with_nothing_behind_it_stays(tmp_path: Path) -> None:
    path = save({"module.": torch.ones(1), "module.b": torch.ones(1)}, tmp_path / "a.pt", on("cuda:3"))
    before = path.read_bytes()
    assert fix(path, EditOptions(strip_prefixes=("module.",))).action is Action.REFUSED
    assert path.read_bytes() == before


def test_a_prefix_that_no_key_has_stops_nothing(tmp_path: Path) -> None:
    path = save(weights(), tmp_path / "a.pt", on("cuda:3"))
    outcome = fix(path, EditOptions(strip_prefixes=("module.",)))
    assert outcome.action is Action.FIXED
    assert outcome.renamed == 0
    assert_same(loads(path), weights())


def test_keys_that_are_also_other_texts_are_renamed_alone(tmp_path: Path) -> None:
    """Pickle writes a string once; the names in the optimizer's groups are the same objects as the keys."""
    state = nn.DataParallel(Model()).state_dict()
    names = list(state)
    path = save({"names": names, "model": state, "again": names}, tmp_path / "a.pt", on("cuda:3"))
    assert fix(path, EditOptions(strip_prefixes=("module.",))).action is Action.FIXED
    read = loads(path)
    assert read["names"] == read["again"] == names
    assert list(read["model"]) == list(Model().state_dict())


def test_every_state_dict_that_has_it_loses_it(tmp_path: Path) -> None:
    value = {"model": nn.DataParallel(Model()).state_dict(), "ema": nn.DataParallel(Model()).state_dict()}
    value["plain"] = Model().state_dict()
    path = save(value, tmp_path / "a.pt")
    assert fix(path, EditOptions(strip_prefixes=("module.",))).action is Action.FIXED
    assert [list(load) for load in loads(path).values()] == [list(Model().state_dict())] * 3


def test_scripts(tmp_path: Path) -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + torch.zeros(2, device="cpu")

    path = tmp_path / "a.pt"
    traced = torch.jit.trace(Scripted(), torch.ones(1, 3))
    traced.save(path)
    expected = traced(torch.ones(1, 3))
    rewritten(
        path,
        lambda name, data: (
            data.replace(b"\x03\x00\x00\x00cpu", b"\x06\x00\x00\x00cuda:0") if name.endswith(".pkl") else data
        ),
    )
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError):
            torch.jit.load(path)
    before = path.read_bytes()
    assert inspect(path).kind == "torchscript"
    assert fix(path, EditOptions()).action is Action.FIXED
    assert torch.equal(torch.jit.load(path)(torch.ones(1, 3)), expected)
    assert undo(path).action is Action.UNDONE
    assert path.read_bytes() == before
