"""Files of the user's that hide modules of Python's own library: they are the target Python's illness, and not ddpdoctor's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import ROOT, ddpdoctor


@pytest.mark.parametrize(
    ("name", "code"),
    [("random", "x = 1"), ("socket", "import sys; sys.exit(3)"), ("pickle", "raise RuntimeError('mine')")],
)
def test_on_pythonpath(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / f"{name}.py").write_text(code)
    done = ddpdoctor("list", environ={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch-shadowed" in done.stdout
