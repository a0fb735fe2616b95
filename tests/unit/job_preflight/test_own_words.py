"""What a rank says of itself on a host with an NVIDIA driver, which stands here in a made-up /proc."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("backend", [None, "", "gloo", "NCCL", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize("device", [None, "cpu", "cuda", "cuda:3", 0, 99, torch.device("meta")])
def test_what_torch_takes_is_taken(device: object, backend: str | None) -> None:
    assert own_words.why_not_meant(device, backend) == ""


@pytest.mark.parametrize(
    ("device", "built_for", "environ", "nodes", "why"),
    [
        ("cuda:0", None, None, ["nvidia0"], "is built without CUDA"),
        (0, None, None, [], "is built without CUDA"),
        ("cuda", None, None, [], "is built without CUDA"),
        ("cuda:0", "13.0", None, ["null"], "no NVIDIA driver is loaded there, and no GPU is in /dev"),
        ("cuda:0", "13.0", None, ["dxg"], ""),
        ("cuda:0", "13.0", "", ["nvidia0"], "CUDA_VISIBLE_DEVICES= shows 0 GPUs"),
        ("cuda:1", "13.0", "1,-1,2", ["nvidia0"], "CUDA_VISIBLE_DEVICES=1,-1,2 shows 1 GPU"),
        ("cuda:0", "13.0", "1,-1,2", ["nvidia0"], ""),
        ("cpu", None, "", [], ""),
        (None, None, "", [], ""),
    ],
)
def test_a_gpu_that_is_not_there_is_none_that_is_shared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: object,
    built_for: str | None,
    environ: str | None,
    nodes: list[str],
    why: str,
) -> None:
    (tmp_path / "dev").mkdir()
    for node in nodes:
        (tmp_path / "dev" / node).touch()
    monkeypatch.setattr(own_words, "Context", partial(Context, root=tmp_path))
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if environ is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environ)
    rank = own_words.describe_rank(1, 2, device=device)
    assert rank.problem == ""
    assert (why in rank.no_gpu) if why else rank.no_gpu == ""
    assert bool(rank.gpu) == (device not in (None, "cpu") and not why)
