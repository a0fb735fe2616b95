"""The rules of those who build CUDA extensions, each against the other's."""

from __future__ import annotations

import subprocess

import pytest

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.toolchain import Compiler, Nvcc
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.building import (
    GCC_MAX,
    architecture_list,
    gcc_limit,
    jobs,
    old_strings,
    readable,
    rejects,
    serves,
    too_new,
    torch_index,
)

GIB = 1024**3


@pytest.mark.parametrize(
    ("consumer", "nvcc", "torch", "refused"),
    [
        ("apex", "12.8", "12.8", False),
        ("apex", "12.8", "12.8.1", False),
        ("apex", "12.4", "12.8", True),
        ("apex", "11.8", "12.8", True),
        ("deepspeed", "12.4", "12.8", False),
        ("deepspeed", "11.8", "12.8", True),
        ("deepspeed", "13.1", "13.0", True),
        ("torch", "13.1", "13.0", False),
        ("torch", "12.9", "13.0", True),
    ],
)
def test_whose_rule_refuses_what(consumer: str, nvcc: str, torch: str, refused: bool) -> None:
    assert bool(rejects(consumer, nvcc, torch)) is refused


def test_deepspeed_told_not_to_look_is_still_bound_by_torch() -> None:
    assert not rejects("deepspeed", "13.1", "13.0", skips_check=True)
    assert rejects("deepspeed", "12.8", "13.0", skips_check=True)


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("compute_80", (12, 0), True),
        ("compute_90", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("compute_90a", (10, 0), False),
        ("sm_100f", (10, 3), True),
        ("compute_100f", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_100", (12, 0), False),
        ("something-new", (9, 0), True),
    ],
)
def test_which_code_runs_where(architecture: str, capability: tuple[int, int], runs: bool) -> None:
    assert serves(architecture, capability) is runs


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN3c105ErrorC2ENS_14SourceLocationESs", "c10::Error::Error"),
        ("_ZNK3c1010TensorImpl21throw_data_ptr_accessEv", "c10::TensorImpl::throw_data_ptr_access"),
        ("_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE", "at::_ops::add_Tensor::call"),
        ("_ZTIN3c105ErrorE", "c10::Error"),
        ("_ZTVN5torch8autograd4NodeE", "torch::autograd::Node"),
        ("_ZN3c1011StorageImplD0Ev", "c10::StorageImpl::~StorageImpl"),
        ("garbage", "garbage"),
        ("_ZN99999999x", "x"),
    ],
)
@pytest.mark.tool("c++filt")
def test_readable_names(symbol: str, name: str) -> None:
    assert readable(symbol) == name
    if name.startswith(("c10", "at", "torch")):
        # binutils' own demangler has the last word.
        assert name in subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout


def test_strings_of_the_old_abi() -> None:
    assert old_strings(("_ZN3c105ErrorC2ENS_14SourceLocationESs",))
    assert old_strings(("_ZN5torch3jit10parseIRRKSs",))
    assert not old_strings(
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",)
    )
    assert not old_strings(("_ZN2at4_ops5emptyEv", "_ZN2at11SsomethingE"))


def gcc(version: str, kind: str = "gcc") -> Compiler:
    return Compiler(path="/usr/bin/c++", kind=kind, version=version, found_by="PATH")


def test_compilers_and_limits() -> None:
    assert too_new(gcc("14.1.0"), 13)
    assert not too_new(gcc("13.3.0"), 13)
    assert not too_new(gcc("18.1.3", "clang"), 13)
    assert not too_new(None, 13)
    assert not too_new(Unknown("silent"), 13)
    assert gcc_limit(Nvcc(path="", version="12.4", found_by="", gcc_max=12)) == 12
    assert gcc_limit(Nvcc(path="", version="12.4", found_by="")) == 13
    assert gcc_limit(Nvcc(path="", version="19.0", found_by="")) is None


def test_the_table_of_gcc_is_no_looser_than_torchs() -> None:
    from torch.utils.cpp_extension import CUDA_GCC_VERSIONS

    for version, (_, bound) in CUDA_GCC_VERSIONS.items():
        if version in GCC_MAX:
            # torch's bound is exclusive; NVIDIA itself stops at gcc 12 for CUDA 12.3, where torch goes on to 13.
            assert GCC_MAX[version] <= bound[0] - 1
            assert version == "12.3" or GCC_MAX[version] == bound[0] - 1


def machine(cores: int, available: int) -> Machine:
    return Machine(
        system="Linux", kernel="", architecture="x86_64", os_name="", os_id="", logical_cores=cores, usable_cores=cores,
        memory_total=available, memory_available=available,
    )  # fmt: skip


def test_jobs_by_memory_and_cores() -> None:
    free = Cgroup(version=2)
    assert jobs(machine(8, 64 * GIB), free)[0] == 8
    assert jobs(machine(8, 10 * GIB), free)[0] == 3
    assert jobs(machine(8, GIB), free)[0] == 1
    assert jobs(machine(192, 2000 * GIB), free)[0] == 32
    assert jobs(machine(192, 2000 * GIB), Cgroup(version=2, cpu_limit=6.5))[0] == 6
    assert jobs(machine(192, 2000 * GIB), Cgroup(version=2, memory_limit=16 * GIB, memory_used=8 * GIB))[0] == 2
    assert jobs(machine(4, 64 * GIB), Unknown("unreadable"))[0] == 4
    assert jobs(Unknown("unreadable"), free) is None


def test_architectures_of_the_gpus() -> None:
    def host(*capabilities: tuple[int, int]) -> Gpus:
        return Gpus(devices=tuple(Gpu(index=i, compute_capability=one) for i, one in enumerate(capabilities)))

    assert architecture_list(host((9, 0), (8, 0), (9, 0))) == "8.0;9.0"
    assert architecture_list(host()) is None
    assert architecture_list(Gpus(devices=(Gpu(index=0),))) is None
    assert architecture_list(Unknown("no NVML")) is None


@pytest.mark.parametrize(
    ("version", "tail"),
    [
        ("2.13.0+cu130", "cu130"),
        ("2.13.0+cpu", "cpu"),
        ("2.13.0+rocm7.0", "rocm7.0"),
        ("2.13.0", ""),
        ("2.13.0a0+gitabc", ""),
    ],
)
def test_where_this_torch_came_from(version: str, tail: str) -> None:
    found = torch_index(Torch(installed=True, version=version))
    assert found == (("--index-url", f"https://download.pytorch.org/whl/{tail}") if tail else ())
