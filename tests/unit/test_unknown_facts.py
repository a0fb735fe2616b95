"""No sick host is called healthy because the fact that gives it away could not be learned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpdoctor.facts.planning import plan_for
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.knowledge.nvidia import is_compat
from ddpdoctor.registry import Why, all_checks, diagnose, find_check
from tests.fixture_hosts import HOSTS, fixture_snapshot, healthy_facts, judge, lay_over, read_fixture, to_snapshot

FAMILIES = ("torch", "driver", "gpu", "container", "checkpoint")
SICK = [path for one in all_checks() if one.family in FAMILIES for path in sorted((HOSTS / one.slug).glob("sick-*"))]
UNKNOWN = {"type": "unknown", "reason": "could not be read"}


def with_one_unknown(facts: dict[str, Any], groups: set[str]) -> Iterator[tuple[str, Snapshot]]:
    """The host with each group, each field, and each field of all GPUs and of the last GPU unknown."""
    for group in sorted(groups):
        changes: dict[str, dict[str, Any]] = {group: {group: UNKNOWN}}
        if facts[group]["type"] != "unknown":
            changes |= {f"{group}.{field}": {group: {field: UNKNOWN}} for field in facts[group]}
            gpus = facts[group]["devices"] if group == "gpus" else ()
            for which in ("*", str(len(gpus) - 1)) if gpus else ():
                changes |= {f"gpus.{which}.{one}": {group: {"devices": {which: {one: UNKNOWN}}}} for one in gpus[0]}
        for name, change in changes.items():
            with contextlib.suppress(msgspec.ValidationError):  # a field that is always known
                yield name, to_snapshot(lay_over(facts, change))


@pytest.mark.parametrize("path", SICK, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_sick_host_with_an_unknown_fact_never_passes(path: Path) -> None:
    fixture = read_fixture(path)
    snapshot = fixture_snapshot(fixture)
    plan = plan_for(snapshot, fixture.plan.get("nproc"))
    one = find_check(path.parent.name)
    tried = 0
    for name, changed in with_one_unknown(msgspec.to_builtins(snapshot), one.groups & set(GROUPS)):
        (result,) = diagnose(changed, plan, [one])
        assert not result.passed, f"passes although {name} is unknown"
        if result.not_tested:
            assert result.not_tested.why is not Why.CRASHED, (name, result.not_tested)
            assert result.findings or result.not_tested.why is Why.UNKNOWN, (name, result.not_tested)
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
    assert result.not_tested.why is Why.UNKNOWN


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
    slug = name.partition("/")[0]
    result = judge(HOSTS / f"{name}.json", slug)
    assert result.not_tested
    assert result.not_tested.why is Why.UNKNOWN
