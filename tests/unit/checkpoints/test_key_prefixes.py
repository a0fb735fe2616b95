"""Which state dicts lose a prefix, which keep it, and what is said of these."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.fixing import EditOptions, fix
from ddpdoctor.checkpoints.pickles.key_prefixes import Renamings, strip
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.report.reported_checkpoints import Action

WEIGHT = torch.ones(2)


def stripped(thing: Any, *prefixes: str) -> Renamings:
    file = io.BytesIO()
    torch.save(thing, file)
    with zipfile.ZipFile(file) as archive:
        return strip(scan(archive.read("archive/data.pkl")), prefixes)


@pytest.mark.parametrize("extra", [{"scale": WEIGHT}, {"module.scale": WEIGHT}, io.BytesIO(b"x"), None])
def test_extra_state_is_no_state_dict(extra: Any) -> None:
    """As TransformerEngine's modules have it: whatever is in it stays."""
    found = stripped({"module.w": WEIGHT, "module._extra_state": extra}, "module.")
    assert [key.new for key in found.keys] == ["w", "_extra_state"]
    assert found.notes == []


def test_a_state_dict_that_keeps_the_prefix_is_named(tmp_path: Path) -> None:
    whole = {"model": {"module.w": WEIGHT}, "ema": {"module.w": WEIGHT, "n": WEIGHT}, "other": {"n": WEIGHT}}
    torch.save(whole, tmp_path / "m.pt")
    outcome = fix(tmp_path / "m.pt", EditOptions(strip_prefixes=("module.",)), out=tmp_path / "new.pt")
    assert (outcome.action, outcome.renamed) == (Action.WRITTEN, 1)
    assert outcome.notes == ("ema keeps 'module.', which only 1 of its 2 keys have before them.",)
    assert [*torch.load(tmp_path / "new.pt")["ema"]] == ["module.w", "n"]


def test_a_key_of_which_nothing_would_be_left_is_the_reason() -> None:
    whole = {"module.w": WEIGHT, "module.": WEIGHT}
    with pytest.raises(Refused, match=r"'module\.' can't be stripped from the top level: one key is 'module\.' itself"):
        stripped(whole, "module.")
    found = stripped({"model": {"module.w": WEIGHT}, "ema": whole}, "module.")
    assert len(found.keys) == 1
    assert found.notes == ["ema keeps 'module.': of the key that is 'module.' itself nothing would be left."]
    with pytest.raises(Refused, match=r"before every key \(the top level: 1 of 2 keys\)"):
        stripped({"module.w": WEIGHT, "n": WEIGHT}, "module.")
