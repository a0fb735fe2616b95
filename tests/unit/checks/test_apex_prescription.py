"""`ddpdoctor explain apex`: the commands that it works out for a host."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from ddpdoctor.checks.catalogue import all_prescriptions
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, diagnose
from tests.support.fixture_hosts import healthy_facts, healthy_names, lay_over, to_snapshot

NVCC = {"path": "/usr/local/cuda/bin/nvcc", "version": "13.0", "found_by": "/usr/local/cuda", "gcc_max": 15}
UNKNOWN = {"type": "unknown", "reason": "no answer within 20 s"}


def prescribed(host: str, **facts: Any) -> Result:
    snapshot = to_snapshot(lay_over(healthy_facts(host), facts))
    (topic,) = [prescription for prescription in all_prescriptions() if prescription.slug == "apex"]
    return diagnose(snapshot, plan_for(snapshot), [topic])[0]


def commands(result: Result) -> list[str]:
    return [command for finding in result.findings for fix in finding.fixes for command in fix.commands]


def the_build(result: Result) -> str:
    (found,) = [command for command in commands(result) if "--no-build-isolation" in command]
    return found


@pytest.mark.parametrize("host", healthy_names())
def test_every_host_gets_something_to_type_and_torchs_own_way(host: str) -> None:
    result = prescribed(host)
    assert result.not_tested is None
    assert "AdamW" in " ".join(commands(result))
    for finding in result.findings:
        assert len(finding.summary) <= 160
        assert finding.evidence
        assert finding.fixes
    python = healthy_facts(host)["patient"]["python"]
    for command in commands(result):
        if "pip install" in command:
            assert f"{python} -m pip install" in command


def test_the_build_on_eight_h100() -> None:
    build = the_build(prescribed("h100x8-bare-metal"))
    assert shlex.split(build) == [
        "PATH=/opt/conda/envs/train/bin:$PATH", "CUDA_HOME=/usr/local/cuda-13.0", "TORCH_CUDA_ARCH_LIST=9.0", "MAX_JOBS=32", "APEX_CPP_EXT=1", "APEX_CUDA_EXT=1",
        "/opt/conda/envs/train/bin/python", "-m", "pip", "install", "-v", "--no-build-isolation", "--no-cache-dir", ".",
    ]  # fmt: skip


def test_little_memory_means_few_jobs() -> None:
    gib = 1024**3
    build = the_build(prescribed("h100x8-bare-metal", machine={"memory_available": 7 * gib}))
    assert "MAX_JOBS=2 " in build


def test_an_older_tree_is_built_by_its_options() -> None:
    tree = {"apex_source": "/home/ada/my apex", "apex_source_style": "options"}
    new = prescribed("h100x8-bare-metal", toolchain=tree, patient={"pip_version": "26.3"})
    assert "cd '/home/ada/my apex'" in commands(new)
    assert "--config-settings --build-option=--cpp_ext --config-settings --build-option=--cuda_ext" in the_build(new)
    old = prescribed("h100x8-bare-metal", toolchain=tree, patient={"pip_version": "22.3.1"})
    assert "--global-option=--cpp_ext --global-option=--cuda_ext" in the_build(old)
    assert "APEX_CUDA_EXT" not in the_build(old)


def test_two_ways_out_where_nvcc_and_torch_differ() -> None:
    result = prescribed("h100x8-container", torch={"version": "2.9.1+cu128", "cuda": "12.8"})
    first = result.findings[0]
    assert "13.0" in first.summary
    assert "12.8" in first.summary
    assert any("cuda_12.8.*_linux*.run" in command for command in first.fixes[0].commands)
    assert any("download.pytorch.org/whl/cu130" in command for command in first.fixes[1].commands)
    assert not any("APEX_CUDA_EXT" in command for command in commands(result))


def test_the_right_toolkit_lies_beside_the_wrong_one() -> None:
    right = {**NVCC, "path": "/usr/local/cuda-12.8/bin/nvcc", "version": "12.8", "found_by": "/usr/local/cuda-*"}
    result = prescribed(
        "h100x8-container", torch={"version": "2.9.1+cu128", "cuda": "12.8"}, toolchain={"nvccs": [NVCC, right]}
    )
    assert "CUDA_HOME=/usr/local/cuda-12.8 " in the_build(result)


def test_a_home_that_cannot_be_used_as_it_is() -> None:
    script = {**NVCC, "path": "/usr/local/bin/nvcc", "found_by": "PATH", "has_headers": False}
    without = prescribed("h100x8-container", toolchain={"cuda_home": "/usr/local", "nvccs": [script]})
    assert not any("APEX_CUDA_EXT" in command for command in commands(without))
    assert "/usr/local lacks CUDA's headers" in without.findings[0].summary
    beside = {"cuda_home": "/usr/local", "nvccs": [script, NVCC]}
    assert "CUDA_HOME=/usr/local/cuda " in the_build(prescribed("h100x8-container", toolchain=beside))


def test_pips_nvcc_without_a_library_to_link_with_is_no_way() -> None:
    pip = {**NVCC, "path": "/env/site-packages/nvidia/cu13/bin/nvcc", "found_by": "pip", "has_libcudart": False}
    result = prescribed("h100x8-container", toolchain={"cuda_home": None, "nvccs": [pip]})
    assert "there is no nvcc where torch looks" in result.findings[0].summary
    assert not any("APEX_CUDA_EXT" in command for command in commands(result))
    home = prescribed("h100x8-container", toolchain={"cuda_home": "/env/site-packages/nvidia/cu13", "nvccs": [pip]})
    assert "lacks a libcudart.so to link with" in home.findings[0].summary


def test_a_compiler_that_nvcc_refuses_comes_first() -> None:
    gcc = {"type": "compiler", "path": "/usr/bin/c++", "kind": "gcc", "version": "16.1.0", "found_by": "PATH"}
    first = prescribed("h100x8-bare-metal", toolchain={"compiler": gcc}).findings[0]
    assert first.fixes[0].commands == ("conda install -c conda-forge gxx_linux-64=15",)
    assert "gcc-15" in " ".join(first.fixes[1].commands)
    assert "APEX_CUDA_EXT=1" in " ".join(first.fixes[-1].commands)


def test_what_is_not_known_is_said() -> None:
    result = prescribed("h100x8-bare-metal", gpus=UNKNOWN, machine=UNKNOWN)
    assert "Not known: the GPUs" in result.findings[0].cause
    assert "memory and cores" in result.findings[0].cause
    assert "MAX_JOBS" not in the_build(result)
    assert "TORCH_CUDA_ARCH_LIST" not in the_build(result)
    nothing = prescribed("h100x8-bare-metal", toolchain=UNKNOWN)
    assert "no answer within 20 s" in nothing.findings[0].summary
    assert "13.0" in nothing.findings[0].fixes[0].text


def test_rocm_gets_amds_fork() -> None:
    assert "git clone https://github.com/ROCm/apex && cd apex" in commands(prescribed("mi300x8-rocm"))


def test_no_torch_no_prescription() -> None:
    result = prescribed("cpu-laptop", torch={"installed": False, "version": None})
    assert result.not_tested is not None
    assert result.not_tested.reason == "torch is not installed"


def test_a_gpu_under_a_torch_without_cuda() -> None:
    result = prescribed("h100x8-bare-metal", torch={"version": "2.13.0+cpu", "cuda": None})
    assert "install a torch with CUDA first" in result.findings[0].cause
