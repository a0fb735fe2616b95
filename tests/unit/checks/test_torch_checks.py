"""The fine points of the checks on torch, CUDA and its libraries: version rules, tables of wheels, requirement pins."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.libraries import Library
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.cuda_stack import pin_of, pins, together, version_of
from ddpdoctor.knowledge.installing import driver_cuda, install_torch, replacing
from ddpdoctor.knowledge.wheels import (
    ARCHITECTURES,
    CUDA_TAGS,
    DRIVER_FLOOR,
    best_tag,
    cuda_tag,
    numbers,
    older,
    runs_on,
    same_version,
    tag_cuda,
)
from tests.support.fixture_hosts import healthy_facts, lay_over, to_snapshot
from tests.support.registered_checks import find_check

UNASKED = Unknown("not asked")
SITE = "/opt/venv/lib/python3.12/site-packages"
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def a_patient(**more: Any) -> TargetPython:
    return msgspec.structs.replace(
        TargetPython(python="/opt/venv/bin/python", chosen_by="--python", version="3.12.3", pip_version="25.3"),
        platform_tag="linux-x86_64",
        **more,
    )


def a_driver(**more: Any) -> Driver:
    return msgspec.structs.replace(Driver(loaded_modules=("nvidia",), kernel_version=None), **more)


def a_machine(**more: Any) -> Machine:
    machine = to_snapshot(healthy_facts("rtx4090x2-workstation")).machine
    assert isinstance(machine, Machine)
    return msgspec.structs.replace(machine, **more)


def judged(slug: str, host: str, facts: dict[str, Any]) -> Result:
    snapshot = to_snapshot(lay_over(healthy_facts(host), facts))
    return diagnose(snapshot, plan_for(snapshot), [find_check(slug)])[0]


# Which GPUs a build has code for


@pytest.mark.parametrize(
    ("capability", "arch_list", "expected"),
    [
        ((8, 9), CU124, True),  # Ada runs code for sm_86
        ((12, 0), CU124, False),
        ((6, 1), CU124, True),
        ((6, 1), CU130, False),
        ((7, 0), CU130, False),
        ((10, 3), CU130, True),
        ((12, 1), CU130, True),
        ((13, 0), CU130, True),  # by intermediate code
        ((8, 0), ("sm_86",), False),  # a higher minor's code doesn't run on a lower one
        ((9, 0), ("sm_90a",), True),
        ((9, 1), ("sm_90a",), False),  # "a": on that very GPU only
        ((10, 3), ("sm_100f",), True),  # "f": the whole family
        ((12, 0), ("compute_90a",), False),
        ((9, 0), (), False),
        ((9, 0), ("gfx942", "nonsense"), False),
    ],
)
def test_runs_on(capability: tuple[int, int], arch_list: tuple[str, ...], expected: bool) -> None:
    assert runs_on(capability, arch_list) is expected


def test_jetsons_run_only_their_own_code() -> None:
    assert not runs_on((8, 7), ("sm_80", "sm_86"), tegra=True)
    assert runs_on((8, 7), ("sm_87",), tegra=True)
    assert runs_on((8, 7), ("compute_80",), tegra=True)


def test_an_older_driver_compiles_no_newer_intermediate_code() -> None:
    assert runs_on((12, 0), ("compute_90",))
    assert not runs_on((12, 0), ("compute_90",), jit=False)
    assert runs_on((9, 0), ("sm_90", "compute_90"), jit=False)


capability = st.tuples(st.integers(3, 14), st.integers(0, 9))


@given(capability, capability)
def test_machine_code_never_crosses_a_major(gpu: tuple[int, int], code: tuple[int, int]) -> None:
    assert runs_on(gpu, [f"sm_{code[0]}{code[1]}"]) == (gpu[0] == code[0] and gpu >= code)


@given(capability, st.lists(capability, max_size=5), capability)
def test_more_code_never_serves_fewer_gpus(
    gpu: tuple[int, int], codes: list[tuple[int, int]], more: tuple[int, int]
) -> None:
    arch_list = [f"sm_{major}{minor}" for major, minor in codes]
    if runs_on(gpu, arch_list):
        assert runs_on(gpu, [*arch_list, f"compute_{more[0]}{more[1]}"])


# Which index to install from


@pytest.mark.parametrize(
    ("cuda", "gpus", "expected"),
    [
        ((13, 0), [(9, 0)], "cu130"),
        ((13, 2), [(12, 0)], "cu130"),
        ((12, 4), [(8, 9)], "cu126"),
        ((12, 8), [(12, 0)], "cu128"),
        ((12, 8), [(8, 0)], "cu126"),
        ((13, 0), [(6, 1)], "cu126"),
        ((13, 0), [(7, 0), (9, 0)], "cu126"),
        ((13, 0), [(6, 1), (12, 0)], None),  # no build serves both
        ((11, 4), [(8, 0)], "cu118"),
        ((11, 4), [(12, 0)], None),
        ((10, 2), [(7, 5)], None),
        ((0, 0), [], None),
        (None, [(8, 9)], "cu130"),
        (None, [], "cu130"),
        ((13, 0), [(3, 5)], None),
    ],
)
def test_best_tag(cuda: tuple[int, int] | None, gpus: list[tuple[int, int]], expected: str | None) -> None:
    assert best_tag(cuda, gpus) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.13.0+cu130", "cu126"), ("2.6.0+cu126", "cu126"), ("2.5.1", "cu124"), ("2.3.1", "cu121"), ("2.99.0", "cu126")],
)
def test_best_tag_keeps_to_the_release(version: str, expected: str) -> None:
    assert best_tag((12, 4), [(8, 6)], version) == expected


@given(
    st.tuples(st.integers(11, 13), st.integers(0, 9)),
    st.lists(st.sampled_from([(6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]), max_size=4),
    st.sampled_from([None, *(f"{major}.{minor}.0" for major, minor in CUDA_TAGS)]),
)
def test_best_tag_is_served_by_the_driver_and_exists(
    cuda: tuple[int, int], gpus: list[tuple[int, int]], version: str | None
) -> None:
    tag = best_tag(cuda, gpus, version)
    if tag is None:
        return
    needed = tag_cuda(tag)
    assert needed
    assert needed[0] <= cuda[0]
    if version:
        assert tag in CUDA_TAGS[(int(version.split(".")[0]), int(version.split(".")[1]))]
    if tag in ARCHITECTURES:
        assert all(ARCHITECTURES[tag][0] <= gpu <= ARCHITECTURES[tag][1] for gpu in gpus)


def test_tables_are_well_formed() -> None:
    for tags in CUDA_TAGS.values():
        for tag in tags:
            cuda = tag_cuda(tag)
            assert cuda
            assert cuda_tag(f"{cuda[0]}.{cuda[1]}") == tag
            assert cuda[0] in DRIVER_FLOOR
    assert tag_cuda("cpu") is None
    assert tag_cuda("rocm7.0") is None


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("450.80.02", (11, 0)),
        ("450.36.06", (0, 0)),
        ("525.60.13", (12, 0)),
        ("525.60.11", (11, 0)),
        ("570.124.06", (12, 0)),
        ("580.65.06", (13, 0)),
        ("590.10", (13, 0)),
    ],
)
def test_driver_cuda_by_version_number(version: str, expected: tuple[int, int]) -> None:
    driver = a_driver(kernel_version=version, cuda_version=UNASKED)
    assert driver_cuda(driver, a_machine()) == expected


def test_driver_cuda_trusts_the_driver_first_and_no_foreign_numbering() -> None:
    assert driver_cuda(a_driver(kernel_version="570.124.06", cuda_version=(13, 0)), a_machine()) == (13, 0)
    windows = a_driver(nvml_driver_version="581.42", cuda_version=UNASKED)
    assert driver_cuda(windows, a_machine(wsl=True)) is None
    assert driver_cuda(a_driver(kernel_version="540.4.0", cuda_version=UNASKED), a_machine(jetson=True)) is None
    assert driver_cuda(UNASKED, a_machine()) is None


# Versions


@pytest.mark.parametrize(
    ("one", "other", "same", "is_older"),
    [
        ("9.10.2", "9.10.2.21", True, False),
        ("12.4.5.8", "12.8.4.1", False, True),
        ("2.9.0", "2.27.5", False, True),
        ("12", "12.8.4.1", True, False),
        ("", "12.8.4.1", False, False),
        ("2.28.9+cuda13.0", "2.28.9", True, False),
    ],
)
def test_versions_compare_as_far_as_both_tell(one: str, other: str, same: bool, is_older: bool) -> None:
    assert same_version(one, other) is same
    assert older(one, other) is is_older


some_version = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(some_version, some_version)
def test_versions_are_same_or_older_one_way(one: str, other: str) -> None:
    assert [same_version(one, other), older(one, other), older(other, one)].count(True) == 1


@given(st.text(max_size=20))
def test_numbers_takes_any_text(text: str) -> None:
    assert all(part >= 0 for part in numbers(text))


# What torch pins. The requirements are those of PyPI's torch 2.13.0, cuda-toolkit 13.0.3 and torch 2.9.1, shortened.

TORCH_213 = Package(
    name="torch",
    version="2.13.0",
    location=SITE,
    requires=(
        "sympy>=1.13.3",
        'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',
        'cuda-bindings<14,>=13.0.3; platform_system == "Linux" and python_version < "3.15"',
        'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"',
        'nvidia-nccl-cu13==2.29.7; platform_system == "Linux"',
        'triton==3.7.1; platform_system == "Linux" and python_version < "3.15"',
    ),
)
LINUX = "sys_platform == 'linux' and platform_machine == 'x86_64'"
TOOLKIT = Package(
    name="cuda-toolkit",
    version="13.0.3",
    location=SITE,
    requires=(
        f"nvidia-cublas==13.1.1.3.*; ({LINUX}) and extra == 'cublas'",
        f"nvidia-cuda-runtime==13.0.96.*; ({LINUX}) and extra == 'cublas'",
        f"nvidia-cuda-runtime==13.0.96.*; ({LINUX}) and extra == 'cudart'",
        'nvidia-cufft==12.0.0.61.*; extra == "cufft"',
    ),
)
TORCH_291 = Package(
    name="torch",
    version="2.9.1",
    location=SITE,
    requires=(
        'nvidia-cublas-cu12==12.8.4.1; platform_system == "Linux" and platform_machine == "x86_64"',
        'nvidia-cusparselt-cu12==0.7.1; platform_system == "Linux" and platform_machine == "x86_64"',
        'nvidia-cusparse-cu12==12.5.8.93; platform_system == "Linux" and platform_machine == "x86_64"',
    ),
)


def installed(*packages: Package) -> Packages:
    return Packages(installed=packages)


def test_pins_follow_cuda_toolkit_by_its_extras() -> None:
    packages = installed(
        TORCH_213,
        TOOLKIT,
        Package(name="nvidia-cublas", version="13.1.1.3"),
        Package(name="nvidia-nccl-cu13", version="2.28.9"),
    )
    found = {pin.package: pin for pin in pins(packages, a_patient())}
    assert len(found) == len(pins(packages, a_patient()))
    assert set(found) - {"triton", "cuda-toolkit"} == {
        "nvidia-cublas",
        "nvidia-cuda-runtime",
        "nvidia-cudnn-cu13",
        "nvidia-nccl-cu13",
    }
    assert found["nvidia-cublas"].fits
    assert found["nvidia-cublas"].exact == ""
    assert not found["nvidia-nccl-cu13"].fits
    assert found["nvidia-nccl-cu13"].exact == "2.29.7"
    assert found["nvidia-cudnn-cu13"].installed is None


@pytest.mark.parametrize("host", ["a100-mig", "h100x8-bare-metal", "rtx4090x2-workstation", "mi300x8-rocm"])
def test_each_library_that_torch_pins_is_compared(host: str) -> None:
    """One package of another version at a time, whatever it is."""
    snapshot = to_snapshot(healthy_facts(host))
    packages = snapshot.packages
    assert isinstance(packages, Packages)
    assert isinstance(snapshot.target_python, TargetPython)
    exact = [pin for pin in pins(packages, snapshot.target_python) if pin.wanted.startswith("==") and pin.installed]
    assert "triton" in " ".join(one.package for one in exact)
    for pin in exact:
        others = tuple(
            msgspec.structs.replace(one, version="0.0.1") if one.name == pin.package else one
            for one in packages.installed
        )
        changed = msgspec.structs.replace(snapshot, packages=msgspec.structs.replace(packages, installed=others))
        (result,) = diagnose(changed, plan_for(changed), [find_check("cuda-libs-mixed")])
        assert [pin.package in finding.summary for finding in result.findings] == [True], (pin, result)
        assert any(f"{pin.package}{pin.wanted}" in command for command in result.findings[0].fixes[0].commands)


def test_pins_of_any_name_and_of_extras_of_extras() -> None:
    torch = Package(name="torch", version="2.6.0", requires=("sympy==1.13.1", "cuda-toolkit[all]==13.0.3", "networkx"))
    toolkit = Package(
        name="cuda-toolkit",
        version="13.0.3",
        requires=(
            'cuda-toolkit[cublas,all]; extra == "all"',
            'nvidia-cublas==13.1.*; extra == "cublas"',
            'nvidia-cufft==1; extra == "cufft"',
        ),
    )
    found = pins(installed(torch, toolkit, Package(name="sympy", version="1.14.0")), a_patient())
    assert [(one.package, one.fits) for one in found] == [
        ("sympy", False),
        ("cuda-toolkit", True),
        ("nvidia-cublas", True),
    ]


def test_pins_are_the_patients_and_not_ours() -> None:
    assert pins(installed(TORCH_291), a_patient())
    arm = msgspec.structs.replace(a_patient(), platform_tag="linux-aarch64")
    assert pins(installed(TORCH_291), arm) == ()


def test_pins_survive_garbage() -> None:
    broken = msgspec.structs.replace(TORCH_291, requires=("===", "nvidia-cublas-cu12 12", ""))
    assert pins(installed(broken), a_patient()) == ()
    assert pins(installed(), a_patient()) == ()


@pytest.mark.parametrize(
    ("soname", "package"),
    [
        ("libcusparse.so.12", "nvidia-cusparse-cu12"),
        ("libcusparseLt.so.0", "nvidia-cusparselt-cu12"),
        ("libcublasLt.so.12", "nvidia-cublas-cu12"),
        ("libunheard.so.1", None),
    ],
)
def test_pin_of_a_library(soname: str, package: str | None) -> None:
    pin = pin_of(soname, installed(TORCH_291), a_patient())
    assert (pin.package if pin else None) == package


def test_version_of_a_wheels_library_comes_from_its_package() -> None:
    packages = installed(TORCH_291, Package(name="nvidia-cublas-cu12", version="12.8.4.1", location=SITE))
    own = Library(soname="libcublas.so.12", path=f"{SITE}/nvidia/cublas/lib/libcublas.so.12")
    assert version_of(own, packages, a_patient()) == "12.8.4.1"
    foreign = Library(soname="libcublas.so.12", path="/usr/local/cuda/lib64/libcublas.so.12")
    assert version_of(foreign, packages, a_patient()) == ""


def test_together_only_in_one_folder() -> None:
    twelve = Package(name="nvidia-nccl-cu12", version="2.27.5", location=SITE)
    thirteen = Package(name="nvidia-nccl-cu13", version="2.28.9", location=SITE)
    elsewhere = msgspec.structs.replace(thirteen, location="/usr/lib/python3/dist-packages")
    assert together(installed(twelve, thirteen), r"nvidia-nccl-cu\d+") == [(twelve, thirteen)]
    assert together(installed(twelve, elsewhere), r"nvidia-nccl-cu\d+") == []


# What is prescribed


def test_replacing_takes_the_companions_along() -> None:
    vision = Package(name="torchvision", version="0.28.0")
    assert replacing(installed(TORCH_213, vision)) == ("--force-reinstall", "torch", "torchvision")
    assert replacing(installed()) == ("torch",)
    assert replacing(UNASKED) == ("torch",)


def test_nothing_to_install_for_a_driver_before_cuda_11() -> None:
    snapshot = to_snapshot(healthy_facts("rtx4090x2-workstation"))
    driver = a_driver(kernel_version="440.33.01", cuda_version=(10, 2))
    fix = install_torch(a_patient(), driver, snapshot.gpus, snapshot.pci, snapshot.machine, snapshot.packages)
    assert "newer driver" in fix.text
    assert not any("install" in command for command in fix.commands)


def command_of(slug: str, host: str, facts: dict[str, Any]) -> str:
    found = judged(slug, host, facts).findings
    return " ; ".join(command for fix in found[0].fixes for command in fix.commands)


@pytest.mark.parametrize("cuda", [[11, 8], [12, 2], [12, 9]])
def test_driver_too_old_prescribes_what_the_driver_serves(cuda: list[int]) -> None:
    facts = {"torch": {"version": "2.9.1+cu130", "cuda": "13.0"}, "driver": {"cuda_version": cuda}}
    tags = re.findall(r"whl/cu(\d\d)", command_of("driver-too-old", "rtx4090x2-workstation", facts))
    assert tags == [str(cuda[0])]


def test_a_nightly_is_not_pinned_on_the_stable_index() -> None:
    facts = {"torch": {"version": "2.15.0.dev20261101+cu130", "cuda": "13.0"}}
    command = command_of("driver-too-old", "rtx4090x2-workstation", facts)
    assert "dev" not in command
    assert "whl/cu126" in command


def test_visible_numbers_of_unequal_gpus_are_not_judged() -> None:
    settings = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]
    facts = {
        "gpus": {"devices": {"1": {"name": "NVIDIA GeForce GT 710", "compute_capability": [3, 5]}}},
        "environment": {"settings": settings},
    }
    result = judged("gpu-arch-unsupported", "rtx4090x2-workstation", facts)
    assert result.not_tested
    assert "CUDA_DEVICE_ORDER" in result.not_tested.reason
    settings.append({"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"})
    assert judged("gpu-arch-unsupported", "rtx4090x2-workstation", facts).findings


def test_what_nobody_could_tell_is_not_passed() -> None:
    facts = {"torch": {**CPU_BUILD}, "pci": lost("/sys is not readable"), "gpus": lost("no NVML")}
    result = judged("torch-cpu-only", "h100x8-bare-metal", facts)
    assert not result.passed
    assert result.not_tested


CPU_BUILD = {"version": "2.13.0+cpu", "cuda": None}


def lost(reason: str) -> dict[str, str]:
    return {"type": "unknown", "reason": reason}


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        ("ImportError: /x/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "glibcxx-too-old"),
        ("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory", "cuda-lib-not-found"),
        ("ImportError: /x/libtorch_cuda.so: undefined symbol: ncclCommRegister", "nccl-duplicate-pip"),
        ("OSError: libcuda.so.1: cannot open shared object file: No such file or directory", "no-nvidia-driver"),
    ],
)
def test_a_broken_import_names_the_check_that_knows_more(error: str, slug: str) -> None:
    facts = {"torch": {"import_state": "fails", "import_error": error}}
    finding = judged("torch-import-broken", "a100-mig", facts).findings[0]
    assert slug in finding.cause
    assert find_check(slug)
    assert any(f"explain {slug}" in command for fix in finding.fixes for command in fix.commands)


@pytest.mark.parametrize(
    ("words", "cause", "command", "again"),
    [
        ("cannot allocate memory in static TLS block", "static TLS block is used up", "LD_PRELOAD=/x/a.so", False),
        ("failed to map segment from shared object", "noexec", "findmnt -T /x/a.so", False),
        ("file too short", "a full disk", "ls -l /x/a.so", True),
    ],
)
def test_a_broken_import_tells_what_the_loader_means(words: str, cause: str, command: str, *, again: bool) -> None:
    facts = {"torch": {"import_state": "fails", "import_error": f"ImportError: /x/a.so: {words}"}}
    (finding,) = judged("torch-import-broken", "h100x8-bare-metal", facts).findings
    typed = [command for fix in finding.fixes for command in fix.commands]
    assert cause in finding.cause
    assert command in typed[0]
    assert any("--force-reinstall torch==" in one for one in typed) is again


def test_libcuda_that_a_container_was_not_given() -> None:
    error = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    facts = {"torch": {"import_state": "fails", "import_error": error}}
    (finding,) = judged("torch-import-broken", "h100x8-container", facts).findings
    assert finding.fixes[0].commands == ("ddpdoctor explain container-no-gpu",)
    for host, slug in (("h100x8-container", "container-no-gpu"), ("h100x8-bare-metal", "no-nvidia-driver")):
        result = judged("cuda-lib-not-found", host, facts)
        assert result.not_tested
        assert result.not_tested.reason == f"libcuda.so.1 is the driver's: see {slug}"


@pytest.mark.parametrize(
    ("host", "library", "command"),
    [
        ("h100x8-container", "libgomp.so.1", "sudo apt-get install libgomp1"),
        ("h100x8-container", "libfoo.so.2", "apt-file search libfoo.so.2"),
        ("h100x8-container", "libiomp5.so", "/usr/bin/python3 -m pip install intel-openmp"),
        (
            "h100x8-bare-metal",
            "libgomp.so.1",
            "conda install -p /opt/conda/envs/train -c conda-forge libgomp",
        ),
        (
            "h100x8-container",
            "libtorch_cuda.so",
            "/usr/bin/python3 -m pip install --force-reinstall torch==2.13.0+cu130 "
            "--index-url https://download.pytorch.org/whl/cu130",
        ),
    ],
)
def test_a_missing_library_comes_from_whom_it_belongs_to(host: str, library: str, command: str) -> None:
    error = f"ImportError: {library}: cannot open shared object file: No such file or directory"
    facts = {"torch": {"import_state": "fails", "import_error": error}}
    (finding,) = judged("cuda-lib-not-found", host, facts).findings
    assert [command for fix in finding.fixes for command in fix.commands] == [command]
