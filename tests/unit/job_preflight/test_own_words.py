"""What a rank says of itself on a host with an NVIDIA driver, which stands here in a made-up /proc."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ddpdoctor.job_preflight import own_words
from ddpdoctor.probes.context import Context

LOADED = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)\n"


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (LOADED.format("580.95.05"), "580.95.05"),
        (LOADED.format("1005.12"), "1005.12"),
        ("rubbish\n", None),
        (None, None),
    ],
)
def test_the_driver_is_the_one_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, driver: str | None
) -> None:
    if text is not None:
        file = tmp_path / "proc/driver/nvidia/version"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.setattr(own_words, "Context", partial(Context, root=tmp_path))
    rank = own_words.describe_rank(1, 2, backend="gloo")
    assert (rank.driver, rank.problem) == (driver, "")
