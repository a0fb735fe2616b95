"""How to load a checkpoint: `check` and `fix-checkpoint` say the same, and torch agrees."""

from __future__ import annotations

import argparse
import collections
import io
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix
from ddpdoctor.checkpoints.inspection import inspect
from ddpdoctor.checkpoints.pickle_globals import known_globals
from ddpdoctor.checkpoints.render import file_item, file_sections, sum_sections
from ddpdoctor.checkpoints.render_words import loud_parts, paragraphs
from ddpdoctor.checkpoints.weights_only import DO_NOT_LOAD, preparation
from ddpdoctor.checks.checkpoint.contents import hostile, let_pass
from ddpdoctor.facts.checkpoints import CheckpointFile, GlobalName, KeyPrefix, Pins
from ddpdoctor.report.reported_checkpoints import CheckpointOutcome
from ddpdoctor.report.terminal import Screen


def a_file(**facts: Any) -> CheckpointFile:
    return CheckpointFile(path="a.pt", called="a checkpoint", size=9, **{"kind": "zip", **facts})


def clean(**facts: Any) -> CheckpointOutcome:
    return CheckpointOutcome(path="a.pt", action=Action.CLEAN, before=a_file(**facts))


def told(outcome: CheckpointOutcome) -> str:
    file = io.StringIO()
    Screen(file, 100).show_sections(file_sections(outcome, EditOptions()))
    return " ".join(file.getvalue().split())


def load_lines(outcome: CheckpointOutcome) -> tuple[str, ...]:
    return next(part.commands for told in paragraphs(outcome, EditOptions()) for part in told if part.label == "load")


EVIL = (GlobalName(name="posix.system", meaning="runs a command", dangerous=True),)
BLOCKERS = [
    ("torch.distributed.tensor.DTensor", "torch.distributed.tensor._dtensor_spec.ShardOrderEntry"),
    ("argparse.Namespace",),
    ("argparse.Namespace", "torch.distributed.tensor.DTensor"),
    ("argparse.Namespace", "the opcode MEMOIZE"),
]


@pytest.mark.parametrize("blockers", BLOCKERS)
def test_both_say_the_same(blockers: tuple[str, ...]) -> None:
    *lines, call = load_lines(clean(weights_only_blockers=blockers))
    first, *others = let_pass([a_file()], blockers)
    if "the opcode MEMOIZE" in blockers:
        assert not lines
        assert "weights_only=False" in call
        assert "weights_only=False" in others[0].commands[0]
    else:
        assert tuple(lines) == first.commands
        assert first.text in told(clean(weights_only_blockers=blockers))
        assert call == "torch.load('a.pt', weights_only=True)"
        assert not others


@pytest.mark.parametrize("kind", ["zip", "legacy", "torchscript"])
def test_a_dangerous_file_is_not_to_be_loaded(kind: str) -> None:
    outcome = clean(kind=kind, globals=EVIL, weights_only_blockers=("posix.system",))
    text = told(outcome)
    assert DO_NOT_LOAD in text
    assert "load(" not in text
    assert "Few honest checkpoints hold that" in text
    finding = hostile([a_file(globals=EVIL)])
    assert finding.fixes[0].text == DO_NOT_LOAD
    assert "Few honest checkpoints hold that" in (finding.cause or "")


VALUES = {
    "namespace": lambda: argparse.Namespace(lr=1),
    "simple namespace": lambda: types.SimpleNamespace(a=1),
    "whole module": lambda: torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_lines_let_torch_load_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(VALUES[name](), path)
    lines = load_lines(fix(path, EditOptions()))
    assert "weights_only=True" in lines[-1]
    subprocess.run([sys.executable, "-c", "\n".join(("import torch", *lines))], check=True, timeout=100)


@pytest.mark.parametrize("value", [collections.defaultdict(list, a=[1]), collections.deque([1])])
def test_what_weights_only_never_fills_is_loaded_without_it(value: object, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(value, path)
    with torch.serialization.safe_globals([type(value), list]), pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    assert load_lines(fix(path, EditOptions())) == (f"torch.load({str(path)!r}, weights_only=False)",)


def test_an_import_is_enough_for_what_torch_allows_after_it() -> None:
    for name, module in known_globals().needs_import.items():
        prepared = preparation([name])
        assert prepared is not None
        assert prepared.lines == (f"import {module}",)


class Wrapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.zeros(2, device="cuda:0")


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_names_only_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Wrapped()).save(str(path))
    assert inspect(path).globals == ()
    outcome = fix(path, EditOptions())
    text = told(outcome)
    assert "weights_only=" not in text
    assert "its code still names cuda:0" in text
    assert "torch.jit.load" in text


def test_devices_in_code_are_told_among_many_files() -> None:
    outcome = clean(kind="torchscript", code_devices=("code/a.py:3: cuda:0", "code/a.py:4: cuda:1"))
    assert any("names cuda:0 and cuda:1" in part.text for part in loud_parts(outcome))
    file = io.StringIO()
    screen = Screen(file, 100)
    screen.write(file_item(outcome))
    screen.show_sections(sum_sections([outcome, clean()], ["."]))
    assert "its code still names" in file.getvalue()


def test_random_states_are_loaded_by_what_the_file_says_now() -> None:
    pinned = (Pins(device="cuda:0", tensors=1, bytes=4),)
    assert "load it without map_location, or with 'cpu'" in told(clean(rng_states=("rng",)))
    text = told(clean(rng_states=("rng",), pins=pinned))
    assert "load it with map_location='cpu' (without, what is tied to cuda:0 goes there)" in text


def test_wrappers_are_named_alike() -> None:
    text = told(clean(prefixes=(KeyPrefix(where="", prefix="_orig_mod.module.", keys=3),)))
    assert "torch.compile and DistributedDataParallel or DataParallel put it there" in text
