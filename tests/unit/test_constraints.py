"""constraints.txt, which admins install from: complete, within what pyproject.toml asks for, and with hashes."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.command import ROOT

PINNED = re.findall(
    r"(?m)^([\w.-]+)==([\w.]+)[^\n]*\\\n((?:    --hash=.*\n?)+)", (ROOT / "constraints.txt").read_text()
)


def declared() -> list[Requirement]:
    tomllib = pytest.importorskip("tomllib", reason="it came with Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


@pytest.mark.quick
def test_every_dependency_is_pinned_within_its_bounds() -> None:
    versions = {canonicalize_name(name): version for name, version, _ in PINNED}
    for requirement in declared():
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


@pytest.mark.quick
def test_every_pin_has_hashes() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert len(PINNED) == len(re.findall(r"(?m)^[\w.-]+==", text)) >= 9
    assert all("--hash=sha256:" in hashes for _, _, hashes in PINNED)
