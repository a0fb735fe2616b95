"""Keys cut out of checkpoints that others wrote and published, and their parameters as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix
from tests.real.test_real_checkpoints import PICKLED, each, load
from tests.support.checkpoints import assert_same
from tests.support.real_checkpoints import Published, published


def written(path: Path, out: Path, **wishes: Any) -> Path:
    outcome = fix(path, EditOptions(**wishes), out=out)
    assert (outcome.action, outcome.error) == (Action.WRITTEN, "")
    return out


@each(PICKLED)
def test_any_key_can_be_dropped_or_kept(one: Published, tmp_path: Path) -> None:
    path = published(one)
    whole = load(path, map_location="cpu")
    # Of a state dict with hundreds of keys, some at its ends and in between.
    keys = list(whole)[:: max(1, len(whole) // 6)]
    assert len(keys) > 1
    for key in keys:
        rest = load(path, map_location="cpu")
        del rest[key]
        dropped = load(written(path, tmp_path / f"without {key}", drop=(key,)))
        assert_same(dropped, rest)
        kept = load(written(path, tmp_path / f"only {key}", keep=(key,)))
        assert list(kept) == [key]
        assert_same(kept[key], whole[key])
        sizes = [file.stat().st_size for file in (tmp_path / f"without {key}", tmp_path / f"only {key}", path)]
        assert max(sizes[:2]) <= sizes[2]


def parameters(whole: Any) -> dict[str, torch.Tensor]:
    """The model's, wherever these files have them."""
    for names in (("state_dict",), ("model_state",), ("model", "state_dict"), ("model",)):
        found = whole
        for name in names:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if found:
            return dict(found)
    return dict(whole)


@each(PICKLED)
def test_the_parameters_alone(one: Published, tmp_path: Path) -> None:
    path = published(one)
    expected = parameters(load(path, map_location="cpu"))
    found = torch.load(written(path, tmp_path / "out.pt", params_only=True), weights_only=True)
    assert_same(dict(found), expected)


@each(PICKLED)
def test_the_parameters_as_safetensors(one: Published, tmp_path: Path) -> None:
    path = published(one)
    expected = parameters(load(path, map_location="cpu"))
    found = load_file(written(path, tmp_path / "out", params_only=True, to_safetensors=True))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].nan_to_num(), tensor.nan_to_num()), name


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_trainer_s_own_example(tmp_path: Path, protocol: int) -> None:
    """A training run's checkpoint with everything in it goes on without its optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(8, 3)).sum().backward()
    optimizer.step()
    whole = {"optimizer": optimizer.state_dict(), "model": model.state_dict(), "rng": torch.get_rng_state(), "epoch": 2}
    torch.save(whole, tmp_path / "in.pt", pickle_protocol=protocol)
    lean = torch.load(written(tmp_path / "in.pt", tmp_path / "out.pt", drop=("optimizer",)), weights_only=protocol == 2)
    model.load_state_dict(lean["model"])
    assert lean.keys() == {"model", "rng", "epoch"}
    torch.set_rng_state(lean["rng"])
