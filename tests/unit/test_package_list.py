"""The list of packages in pyproject.toml: setuptools leaves out, without a word, what it doesn't name."""

from __future__ import annotations

import pytest

from tests.support.command import ROOT

CHECKS = ROOT / "checks"
"""Lies beside the package; a link within it, for editors, leads there."""


@pytest.mark.quick
def test_it_names_every_folder_of_modules() -> None:
    tomllib = pytest.importorskip("tomllib", reason="it came with Python 3.11")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "ddpdoctor").rglob("__init__.py")}
    # What runs in the target Python is data here.
    data = ROOT / "ddpdoctor" / "smoke_training" / "trainer"
    packages = {".".join(folder.parts) for folder in folders if not (ROOT / folder).is_relative_to(data)}
    families = {"." + ".".join(path.parent.relative_to(CHECKS).parts) for path in CHECKS.rglob("__init__.py")}
    assert set(settings["packages"]) == packages | {f"ddpdoctor.checks{family}".rstrip(".") for family in families}
