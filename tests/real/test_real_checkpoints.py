"""fix-checkpoint on checkpoints that others wrote and published. Torch is the judge of what it made of them."""

from __future__ import annotations

import pickle
import shutil
import types
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix, undo
from ddpdoctor.checkpoints.inspection import inspect
from tests.support.checkpoints import assert_same, pins
from tests.support.real_checkpoints import PUBLISHED, Published, published

PINNED = [release for release in PUBLISHED if set(release.pins) != {"cpu"}]
PICKLED = [release for release in PUBLISHED if release.kind != "torchscript"]
SCRIPTED = [release for release in PUBLISHED if release.kind == "torchscript"]


def each(some: list[Published]) -> Any:
    return pytest.mark.parametrize("one", some, ids=lambda one: one.name)


@pytest.fixture
def file(one: Published, tmp_path: Path) -> Path:
    return Path(shutil.copy(published(one), tmp_path))


class _Lenient(pickle.Unpickler):
    """Has something for classes of packages that aren't installed."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError:
            return types.new_class(name, (), {}, lambda body: body.update(__module__=module))


_LENIENT: Any = types.ModuleType("lenient")
_LENIENT.__dict__.update(vars(pickle) | {"Unpickler": _Lenient})


def load(path: Path, **options: Any) -> Any:
    return torch.load(path, weights_only=False, pickle_module=_LENIENT, **options)


def test_they_are_all_there() -> None:
    assert Counter(release.package for release in PUBLISHED) == {
        "chgnet": 3,
        "Resemblyzer": 1,
        "batdetect2": 1,
        "lpips": 6,
        "facenet-pytorch": 3,
        "pesto-pitch": 2,
        "silero-vad": 1,
    }
    assert len(PINNED) == 9


@each(PUBLISHED)
def test_it_is_read_as_what_it_is(one: Published, file: Path) -> None:
    facts = inspect(file)
    assert facts.kind == one.kind
    assert not facts.problem
    assert {pin.device: pin.tensors for pin in facts.pins} == one.pins


@each(PICKLED)
def test_its_pins_are_those_that_torch_finds(one: Published, file: Path) -> None:
    found: dict[str, list[int]] = {}

    def where(storage: Any, location: str) -> Any:
        found.setdefault(location, []).append(storage.nbytes())
        return storage

    load(file, map_location=where)
    assert {pin.device: pin.bytes for pin in inspect(file).pins} == {one: sum(sizes) for one, sizes in found.items()}
    assert all(pin.tensors >= len(found[pin.device]) for pin in inspect(file).pins), "some share a storage"


@each(PICKLED)
def test_whether_weights_only_takes_it_is_known(one: Published, file: Path) -> None:
    try:
        torch.load(file, map_location="cpu", weights_only=True)
        allowed = True
    except pickle.UnpicklingError:
        allowed = False
    assert bool(inspect(file).weights_only_blockers) is not allowed


@each(PINNED)
def test_it_does_not_load_before_on_a_machine_without_that_gpu(one: Published, file: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        torch.load(file, weights_only=False)


@each(PICKLED)
def test_fixed_in_place_it_loads_anywhere_and_is_what_it_was(one: Published, file: Path) -> None:
    original = load(file, map_location="cpu")
    before = file.read_bytes()
    outcome = fix(file, EditOptions())
    assert outcome.action is (Action.FIXED if one in PINNED else Action.CLEAN), outcome.error
    assert_same(load(file), original)
    if not inspect(published(one)).weights_only_blockers:
        assert_same(torch.load(file, weights_only=True), original)
    assert set(inspect(file).pins and [pin.device for pin in inspect(file).pins]) == {"cpu"}
    assert len(file.read_bytes()) == len(before), "taking pins out never makes a file grow"
    assert (file.read_bytes() != before) is (one in PINNED)


@each(PUBLISHED)
def test_a_second_run_changes_nothing(one: Published, file: Path) -> None:
    fix(file, EditOptions())
    after = file.read_bytes()
    assert fix(file, EditOptions()).action is Action.CLEAN
    assert file.read_bytes() == after


@each(PINNED)
def test_undo_brings_every_byte_back(one: Published, file: Path) -> None:
    before = file.read_bytes()
    fix(file, EditOptions())
    assert undo(file).action is Action.UNDONE
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@each(PUBLISHED)
def test_a_new_file_has_the_same_content_and_the_old_one_stays(one: Published, file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    outcome = fix(file, EditOptions(), out=tmp_path / "new.pt")
    assert outcome.action is Action.WRITTEN, outcome.error
    assert file.read_bytes() == before
    fix(file, EditOptions())
    assert (tmp_path / "new.pt").read_bytes() == file.read_bytes()


@each(PINNED)
def test_pinned_elsewhere_and_back_it_is_still_what_it_was(one: Published, file: Path) -> None:
    original = load(file, map_location="cpu")
    counts = pins(file)
    before = file.read_bytes()
    outcome = fix(file, EditOptions(to="cuda:15"))
    if one.kind == "legacy" and outcome.action is Action.REFUSED:
        # The format has no room for a longer name.
        assert file.read_bytes() == before
        outcome = fix(file, EditOptions(to="cuda:15"), out=file.with_name("moved.pt"))
        file = file.with_name("moved.pt")
    assert outcome.action in (Action.FIXED, Action.WRITTEN), outcome.error
    moved = sum(count for device, count in counts.items() if device != "cpu")
    assert pins(file) == {**({"cpu": counts["cpu"]} if "cpu" in counts else {}), "cuda:15": moved}
    assert_same(load(file, map_location="cpu"), original)
    assert fix(file, EditOptions()).action is Action.FIXED
    assert_same(load(file), original)


@each(SCRIPTED)
def test_a_script_still_runs_when_its_pins_are_taken_out(one: Published, file: Path, tmp_path: Path) -> None:
    sound = torch.sin(torch.arange(512) / 7).reshape(1, 512)
    expected = torch.jit.load(file)(sound, 16000)
    pinned = on_a_gpu(file, tmp_path / "pinned.jit")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError):
            torch.jit.load(pinned)
    outcome = fix(pinned, EditOptions())
    assert outcome.action is Action.FIXED, outcome.error
    assert sum(moved.tensors for moved in outcome.moved) == sum(one.pins.values())
    assert torch.equal(torch.jit.load(pinned)(sound, 16000), expected)


def on_a_gpu(file: Path, pinned: Path) -> Path:
    """The same, saved on a GPU: its tensors have other homes."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(pinned, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(("/data.pkl", "/constants.pkl")):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(name, data)
    return pinned
