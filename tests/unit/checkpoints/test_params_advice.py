"""Who does what each refusal advises gets the model's tensors, and is not led in a circle."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddpdoctor.api.checkpoint_options import edit_options
from ddpdoctor.checkpoints.fixing import fix
from ddpdoctor.report.reported_checkpoints import Action

WEIGHT = torch.arange(3.0)
OBJECT = functools.partial(print, 1)
NET = torch.nn.Linear(2, 2)
_OPTIONS = re.compile(r"--params-only|--(?:keep|drop) \S+")


@pytest.mark.parametrize(
    "whole",
    [
        {"w": WEIGHT, "o": OBJECT},
        {"w": WEIGHT, "epoch": 3, "name": "net"},
        {"w": WEIGHT, "o": OBJECT, "rng": {"cpu": torch.get_rng_state()}},
        {"w": WEIGHT, "net": NET, "optimizer": {"state": {0: {"m": WEIGHT}}}},
        {"w": WEIGHT, "_extra_state": {"scale": torch.ones(2)}},
        {"model": {"w": WEIGHT, "classes": 3}, "epoch": 3},
        {"model": {"w": WEIGHT, "l._extra_state": OBJECT}, "o": OBJECT},
        {"model": NET, "ema": {"w": WEIGHT}},
        {"generator": {"w": WEIGHT}, "step": 3},
        {"generator": {"w": WEIGHT}, "discriminator": {"v": WEIGHT}},
    ],
)
@pytest.mark.parametrize("first", [{"to_safetensors": True}, {"to_safetensors": True, "params_only": True}])
def test_what_is_advised_works(tmp_path: Path, whole: Any, first: dict[str, bool]) -> None:
    path, out = tmp_path / "m.pt", tmp_path / "m.safetensors"
    torch.save(whole, path)
    given: dict[str, Any] = {"params_only": False, "keep": None, "drop": None, **first}
    for _ in range(4):
        wishes = edit_options([str(path)], to=None, prefixes=None, output=str(out), undo=False, **given)
        outcome = fix(path, wishes, out=out)
        if outcome.action is Action.WRITTEN:
            break
        assert outcome.advice, outcome.error
        for option in _OPTIONS.findall(outcome.advice):
            name, _, value = option.removeprefix("--").partition(" ")
            given[name.replace("-", "_")] = [value] if value else True
    assert outcome.action is Action.WRITTEN
    assert {name: tensor.tolist() for name, tensor in load_file(out).items()} == {"w": WEIGHT.tolist()}
