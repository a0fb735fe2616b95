"""The rules of those who build CUDA extensions, each against the other's."""

from __future__ import annotations

import subprocess

import msgspec
import pytest

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Compiler, Nvcc
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.building import (
    GCC_MAX,
    architecture_list,
    gcc_fixes,
    gcc_limit,
    jobs,
    old_strings,
    readable,
    rejects,
    serves,
    too_new,
    wheel_fix,
)
from ddpdoctor.knowledge.wheels import index_options
from tests.support.fixture_hosts import healthy_facts, to_snapshot

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


def test_the_table_of_gcc_is_torchs_own() -> None:
    from torch.utils.cpp_extension import CUDA_GCC_VERSIONS

    for version, (_, bound) in CUDA_GCC_VERSIONS.items():
        assert GCC_MAX[version] == bound[0] - 1  # torch's bound is exclusive.


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
    cached = Cgroup(version=2, memory_limit=64 * GIB, memory_used=62 * GIB, memory_reclaimable=60 * GIB)
    assert jobs(machine(8, 2000 * GIB), cached)[0] == 8
    assert jobs(machine(4, 64 * GIB), Unknown("unreadable"))[0] == 4
    assert jobs(Unknown("unreadable"), free) is None


def test_architectures_of_the_gpus() -> None:
    def host(*capabilities: tuple[int, int]) -> Gpus:
        return Gpus(devices=tuple(Gpu(index=i, compute_capability=one) for i, one in enumerate(capabilities)))

    nothing_set = Environment(settings=())
    assert architecture_list(host((9, 0), (8, 0), (9, 0)), nothing_set) == "8.0;9.0"
    assert architecture_list(host(), nothing_set) is None
    assert architecture_list(Gpus(devices=(Gpu(index=0),)), nothing_set) is None
    assert architecture_list(Unknown("no NVML"), nothing_set) is None
    shown = Environment(settings=(Setting("CUDA_VISIBLE_DEVICES", "0,2"),))
    assert architecture_list(host((9, 0), (7, 5), (9, 0)), shown) == "9.0"


@pytest.mark.parametrize(
    ("nvcc", "torch", "driver_cuda", "gpu", "wanted"),
    [
        ("13.0", "2.9.1+cu128", (13, 0), (9, 0), "torch==2.9.1 torchvision --index-url {}/cu130"),
        ("13.0", "2.9.1+cu128", None, None, "torch==2.9.1 torchvision --index-url {}/cu130"),
        ("13.2", "2.9.1+cu128", (13, 0), (9, 0), "torch torchvision --index-url {}/cu132"),
        ("12.4", "2.13.0+cu130", (13, 0), (9, 0), "torch==2.6.* torchvision --index-url {}/cu124"),
        ("12.9", "2.13.0+cu130", (13, 0), (12, 0), "torch==2.8.* torchvision --index-url {}/cu129"),
        ("13.0", "2.9.1+cu126", (12, 6), (8, 0), None),
        ("13.0", "2.9.1+cu126", (13, 0), (7, 0), None),
        ("13.2", "2.13.0+cu126", (13, 2), (7, 0), None),
        ("12.4", "2.13.0+cu130", (13, 0), (12, 0), None),
        ("12.5", "2.13.0+cu130", (13, 0), (9, 0), None),
        ("11.5", "2.13.0+cu130", (13, 0), (9, 0), None),
        ("", "2.13.0+cu130", (13, 0), (9, 0), None),
    ],
)
def test_another_torch_for_this_nvcc_only_where_it_would_run(
    nvcc: str,
    torch: str,
    driver_cuda: tuple[int, int] | None,
    gpu: tuple[int, int] | None,
    wanted: str | None,
) -> None:
    h100s = to_snapshot(healthy_facts("h100x8-bare-metal"))
    driver: Maybe[Driver] = Unknown("no NVML")
    if driver_cuda:
        driver = msgspec.structs.replace(h100s.driver, cuda_version=driver_cuda)
    gpus = Gpus(devices=(Gpu(index=0, compute_capability=gpu),)) if gpu else Unknown("no NVML")
    packages = Packages(installed=(Package(name="torch", version=torch), Package(name="torchvision", version="0.24.1")))
    target_python = TargetPython(python="/env/bin/python", chosen_by="PATH")
    found = wheel_fix(
        target_python, nvcc, Torch(installed=True, version=torch), driver, gpus, machine(8, GIB), packages
    )
    if wanted is None:
        assert found is None
        return
    assert found is not None
    (command,) = found.commands
    wanted = wanted.format("https://download.pytorch.org/whl")
    assert command.replace("'", "") == f"/env/bin/python -m pip install --force-reinstall {wanted}"
    assert "torch 2." in found.text or "begin with 2.12" in found.text


@pytest.mark.parametrize(
    ("os_id", "architecture", "words"),
    [
        ("ubuntu", "x86_64", ("gxx_linux-64=13", "apt-get install gcc-13")),
        ("rocky", "x86_64", ("gxx_linux-64=13", "dnf install gcc-toolset-13")),
        ("debian", "aarch64", ("gxx_linux-aarch64=13", "apt-get install gcc-13")),
        ("sles", "x86_64", ("gxx_linux-64=13", "")),
    ],
)
def test_compilers_come_from_this_hosts_own_packages(os_id: str, architecture: str, words: tuple[str, str]) -> None:
    conda, by_root = gcc_fixes(13, msgspec.structs.replace(machine(8, GIB), os_id=os_id, architecture=architecture))
    assert words[0] in conda.commands[0]
    assert bool(by_root.commands) is bool(words[1])
    assert words[1] in " ".join(by_root.commands)


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
    found = index_options(version)
    assert found == (("--index-url", f"https://download.pytorch.org/whl/{tail}") if tail else ())
