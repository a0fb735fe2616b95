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
    assert own_words.why_refused(device, backend) == ""


@pytest.mark.parametrize(
    ("device", "made"),
    [("cuda:500", "cuda:-12"), (500, "cuda:-12"), (torch.device("cuda", 500), "cuda:-12"), ("cuda:300", "cuda:44"), ("cuda:255", "cuda")],
)  # fmt: skip
def test_a_number_that_torch_cuts_off_is_refused(device: object, made: str) -> None:
    assert own_words.why_refused(device, None).endswith(f"of which torch makes {made}")


@pytest.mark.parametrize(
    ("device", "shown", "gpu"),
    [("cuda:1", "3, 2", "2"), ("cuda:0", "1;2,3", "1"), ("cuda:0", "GPU-a,1", "GPU-a"), ("cuda:1", None, "1")],
)
def test_a_gpu_is_told_from_others_by_what_cuda_reads(
    device: str, shown: str | None, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(own_words, "Context", partial(Context, root=tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert own_words.describe_rank(1, 2, device=device).gpu == gpu


@pytest.mark.parametrize(
    ("device", "built_for", "environ", "nodes", "why"),
    [
        ("cuda:0", None, None, ["nvidia0"], "is built without CUDA"),
        (0, None, None, [], "is built without CUDA"),
        ("cuda", None, None, [], "is built without CUDA"),
        ("cuda:0", "13.0", None, ["null"], "no NVIDIA driver is loaded there, and no GPU is in /dev"),
        ("cuda:0", "13.0", None, ["dxg"], ""),
        ("cuda:0", "13.0", "", ["nvidia0"], "CUDA_VISIBLE_DEVICES is set there and empty, which hides all GPUs"),
        ("cuda:1", "13.0", "1,-1,2", ["nvidia0"], "CUDA_VISIBLE_DEVICES='1,-1,2' shows 1 GPU: '-1' names no GPU"),
        ("cuda:0", "13.0", "1,-1,2", ["nvidia0"], ""),
        ("cuda:0", "13.0", "0,0", ["nvidia0"], "CUDA_VISIBLE_DEVICES='0,0' shows no GPU: 0 is in it twice"),
        ("cuda:1", "13.0", "0,x,1", ["nvidia0"], "CUDA_VISIBLE_DEVICES='0,x,1' shows 1 GPU: 'x' names no GPU"),
        ("cuda:1", "13.0", "1;2,3", ["nvidia0"], "CUDA_VISIBLE_DEVICES='1;2,3' shows 1 GPU: CUDA reads '1;2' as 1"),
        ("cuda:1", "13.0", "GPU-a,1", ["nvidia0"], "CUDA_VISIBLE_DEVICES='GPU-a,1' shows 1 GPU: '1' is no UUID"),
        ("cuda:2", "13.0", "0,1", ["nvidia0"], "CUDA_VISIBLE_DEVICES='0,1' shows 2 GPUs"),
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
