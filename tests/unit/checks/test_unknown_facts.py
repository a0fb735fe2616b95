"""No sick host is called healthy because the fact that gives it away could not be learned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import msgspec
import pytest

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Verdict, examine
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import SkipReason, diagnose
from ddpdoctor.facts.pci import Pci
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.nvidia import is_compat, own_gpus
from tests.support.fixture_hosts import (
    JSON_NAMES,
    HostCase,
    healthy_facts,
    healthy_names,
    host_case,
    host_cases,
    judge,
    lay_over,
    to_snapshot,
)
from tests.support.registered_checks import find_check

FAMILIES = ("torch", "driver", "gpu", "container", "checkpoint")
SICK = [case for one in all_checks() if one.family in FAMILIES for case in host_cases(one.slug, "sick-")]
UNKNOWN = {"type": "unknown", "reason": "could not be read"}


def with_one_unknown(facts: dict[str, Any], groups: set[str]) -> Iterator[tuple[str, Snapshot]]:
    """The host with each group, each field, and each field of all GPUs and of the last GPU unknown."""
    for group in sorted(JSON_NAMES[group] for group in groups):
        changes: dict[str, dict[str, Any]] = {group: {group: UNKNOWN}}
        if facts[group]["type"] != "unknown":
            changes |= {f"{group}.{field}": {group: {field: UNKNOWN}} for field in facts[group]}
            gpus = facts[group]["devices"] if group == "gpus" else ()
            for which in ("*", str(len(gpus) - 1)) if gpus else ():
                changes |= {f"gpus.{which}.{one}": {group: {"devices": {which: {one: UNKNOWN}}}} for one in gpus[0]}
        for name, change in changes.items():
            with contextlib.suppress(msgspec.ValidationError):  # a field that is always known
                yield name, to_snapshot(lay_over(facts, change))


@pytest.mark.parametrize("case", SICK, ids=lambda case: case.id)
def test_sick_host_with_an_unknown_fact_never_passes(case: HostCase) -> None:
    snapshot = case.snapshot()
    plan = plan_for(snapshot, case.nproc)
    one = find_check(case.slug)
    tried = 0
    for name, changed in with_one_unknown(msgspec.to_builtins(snapshot), one.groups & set(GROUPS)):
        (result,) = diagnose(changed, plan, [one])
        assert not result.passed, f"passes although {name} is unknown"
        if result.not_tested:
            assert result.not_tested.why is not SkipReason.CRASHED, (name, result.not_tested)
            assert result.findings or result.not_tested.why is SkipReason.UNKNOWN, (name, result.not_tested)
        tried += 1
    assert tried >= len(one.groups)


AMD_CARD = {"address": "0000:03:00.0", "vendor": 0x1002, "device": 0x744C, "class_code": 0x030000, "driver": "amdgpu"}
NO_VERSIONS = {"libcuda_version": None, "nvml_version": None, "nvml_driver_version": None}


@pytest.mark.parametrize(
    ("slug", "host", "facts"),
    [
        ("gpu-memory-in-use", "h100x8-bare-metal", {"gpus": {"devices": {"3": {"memory_used": UNKNOWN}}}}),
        ("compute-mode-exclusive", "h100x8-bare-metal", {"gpus": {"devices": {"3": {"compute_mode": UNKNOWN}}}}),
        ("nvml-driver-mismatch", "jetson-orin", {"driver": {"nvml_status": None, **NO_VERSIONS}}),
        ("torch-cpu-only", "cpu-laptop", {"pci": {"devices": [AMD_CARD]}, "gpus": UNKNOWN}),
        ("torch-cpu-only", "cpu-laptop", {"machine": UNKNOWN}),
        (
            "gpu-arch-unsupported",  # only the driver's compiler could serve this GPU
            "h100x8-container",
            {
                "torch": {"arch_list": ["sm_80", "compute_80"]},
                "driver": {"kernel_version": None, "cuda_version": UNKNOWN, **NO_VERSIONS},
            },
        ),
    ],
)
def test_healthy_host_with_an_unknown_fact_is_not_tested(slug: str, host: str, facts: dict[str, Any]) -> None:
    snapshot = to_snapshot(lay_over(healthy_facts(host), facts))
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check(slug)])
    assert not result.findings
    assert result.not_tested
    assert result.not_tested.why is SkipReason.UNKNOWN


def test_unknown_memory_makes_no_gpu_another() -> None:
    facts = {"gpus": {"devices": {"3": {"memory_total": UNKNOWN}}}}
    snapshot = to_snapshot(lay_over(healthy_facts("h100x8-bare-metal"), facts))
    assert diagnose(snapshot, plan_for(snapshot), [find_check("gpu-heterogeneous")])[0].passed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/local/cuda/compat/lib.real/libcuda.so.580.95.05", True),
        ("/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", True),
        ("/opt/conda/cuda-compat/libcuda.so.580.95.05", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", False),
        ("/home/ada/compatible/libcuda.so.1", False),
        (None, False),
    ],
)
def test_libcuda_for_forward_compatibility(path: str | None, expected: bool) -> None:
    assert is_compat(path) is expected


@pytest.mark.parametrize(
    "name",
    [
        "torch-cpu-only/near-miss-bus-unseen",
        "compute-mode-exclusive/near-miss-processes-untold",
        "cuda-compat-unsupported/near-miss-not-asked",
    ],
)
def test_what_decides_and_is_unknown_is_said(name: str) -> None:
    result = judge(host_case(name))
    assert result.not_tested
    assert result.not_tested.why is SkipReason.UNKNOWN


def shows_gpus_to_a_cuda_build(snapshot: Snapshot) -> bool:
    torch, pci = snapshot.torch, snapshot.pci
    return isinstance(torch, Torch) and bool(torch.cuda) and isinstance(pci, Pci) and bool(own_gpus(pci))


BLIND_TORCH = {"cuda_available": False, "device_count": 0, "cuda_error": ""}
SHOWN_ON_THE_BUS = [name for name in healthy_names() if name.startswith(("h100x8", "rtx4090x2", "a100"))]
DRIVERS_SICK = [
    case
    for case in SICK
    if find_check(case.slug).family in ("driver", "container", "gpu") and shows_gpus_to_a_cuda_build(case.snapshot())
]
ASKED = (
    "gpus",
    "driver",
    "environment",
    "machine",
    "container",
    "kernel_log",
    "target_python",
    "packages",
    "processes",
)


def blind(facts: dict[str, Any]) -> Iterator[tuple[str, Snapshot]]:
    """That host with a torch that can use none of its GPUs, and each one and two of its other groups unknown; with GPUs that
    the driver doesn't list, too."""
    facts = lay_over(facts, {"torch": BLIND_TORCH})
    unlisted = {**facts, "gpus": {**facts["gpus"], "devices": [], "vendor": None}}
    for host in (facts, unlisted) if facts["gpus"]["type"] != "unknown" else (facts,):
        for count in range(3):
            for groups in combinations(ASKED, count):
                yield ", ".join(groups), to_snapshot(host | {JSON_NAMES[group]: UNKNOWN for group in groups})


@pytest.mark.parametrize("name", SHOWN_ON_THE_BUS)
def test_no_host_is_ok_whose_gpus_its_cuda_build_of_torch_cannot_use(name: str) -> None:
    tried = 0
    for groups, snapshot in blind(msgspec.to_builtins(to_snapshot(healthy_facts(name)))):
        assert examine(snapshot, None, all_checks()).verdict is not Verdict.OK, groups
        tried += 1
    assert tried > 50


def test_most_of_those_cases_show_gpus() -> None:
    assert len(DRIVERS_SICK) > 80


@pytest.mark.parametrize("case", DRIVERS_SICK, ids=lambda case: case.id)
def test_nor_is_it_whatever_else_ails_it(case: HostCase) -> None:
    for groups, changed in blind(msgspec.to_builtins(case.snapshot())):
        assert examine(changed, None, all_checks()).verdict is not Verdict.OK, groups
