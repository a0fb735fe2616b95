"""What `watch` refuses before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.job_watching import watch


@pytest.mark.parametrize("metrics", ["metrics.txt", "no such folder/watch.prom"])
def test_a_wrong_argument_leaves_no_folder_behind(metrics: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"metrics\.txt|no such folder"):
        watch(4711, evidence=str(tmp_path / "evidence"), prometheus=str(tmp_path / metrics), tell=lambda _: None)
    assert list(tmp_path.iterdir()) == []
