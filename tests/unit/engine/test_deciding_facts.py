"""A check whose deciding fact is unknown may not call the host fine: the facts of a host that passes, taken away one by one."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, SkipReason, diagnose
from tests.support.fixture_hosts import healthy_facts, healthy_names, host_case, lay_over, to_snapshot
from tests.support.registered_checks import find_check

UNKNOWN = {"type": "unknown", "reason": "could not be read"}


def gpus(**facts: Any) -> dict[str, Any]:
    return {"gpus": {"devices": {"1": facts}}}


DECIDING: list[tuple[str, str, dict[str, Any]]] = [
    ("shm-too-small", "near-miss-half-of-memory", {"shared_memory": {"writable": UNKNOWN}}),
    ("pids-limit", "h100x8-slurm", {"cgroup": {"pids_limit": 65536, "pids_used": UNKNOWN}}),
    ("cgroup-memory-limit", "h100x8-container", {"cgroup": {"memory_used": UNKNOWN}}),
    ("cgroup-memory-limit", "h100x8-container", {"cgroup": {"memory_reclaimable": UNKNOWN}}),
    ("host-oom-killed", "h100x8-bare-metal", {"kernel_log": UNKNOWN}),
    ("host-oom-killed", "h100x8-bare-metal", {"kernel_log": UNKNOWN, "cgroup": UNKNOWN}),
    ("cgroup-cpu-limit", "h100x8-slurm", {"cgroup": {"cpu_limit": UNKNOWN}}),
    ("cgroup-cpu-limit", "h100x8-slurm", {"machine": {"logical_cores": UNKNOWN}}),
    ("omp-threads", "h100x8-slurm", {"cgroup": {"cpu_limit": UNKNOWN}}),
    ("dataloader-oversubscribed", "h100x8-slurm", {"cgroup": UNKNOWN}),
    ("gpu-ecc-error", "h100x8-bare-metal", gpus(ecc_uncorrected_volatile=UNKNOWN)),
    ("gpu-ecc-error", "h100x8-bare-metal", gpus(row_remap_pending=UNKNOWN)),
    ("gpu-fell-off-bus", "h100x8-bare-metal", {"kernel_log": UNKNOWN}),
    ("gpu-fell-off-bus", "h100x8-bare-metal", {"driver": {"nvml_status": UNKNOWN}}),
    ("gpu-throttled", "h100x8-bare-metal", gpus(throttle_reasons=UNKNOWN)),
    ("pcie-link-degraded", "near-miss-idle-generation", gpus(utilisation=UNKNOWN)),
    ("pcie-link-degraded", "near-miss-idle-generation", {"gpus": UNKNOWN}),
    ("pcie-link-degraded", "near-miss-idle-generation", {"pci": {"devices": {"3": {"link_width": 0}}}}),
    ("fabric-manager-not-running", "h100x8-bare-metal", {"gpus": UNKNOWN}),
    ("fabric-manager-not-running", "h100x8-bare-metal", gpus(fabric_state=UNKNOWN)),
    ("fabric-manager-not-running", "h100x8-bare-metal", gpus(fabric_status=UNKNOWN)),
    ("fabric-manager-not-running", "h100x8-bare-metal", {"driver": {"fabric_manager_version": UNKNOWN}}),
    (
        "fabric-manager-not-running",
        "h100x8-bare-metal",
        {"driver": {"cuda_init": UNKNOWN}, "gpus": {"devices": {"*": {"fabric_state": "not-supported"}}}},
    ),
    ("nvlink-error", "h100x8-bare-metal", {"kernel_log": UNKNOWN}),
    ("nvlink-error", "h100x8-bare-metal", gpus(nvlinks_active=UNKNOWN)),
    ("p2p-acs-iommu", "near-miss-as-root", {"pci": {"devices": {"2": {"acs_redirect": None}}}}),
    ("pcie-aer-errors", "h100x8-bare-metal", {"pci": {"devices": {"*": {"aer_fatal": None, "aer_nonfatal": None}}}}),
    ("p2p-acs-iommu", "near-miss-as-root", {"pci": {"devices": []}}),
    ("p2p-acs-iommu", "near-miss-as-root", {"pci": {"iommu_groups": UNKNOWN}}),
    ("p2p-acs-iommu", "near-miss-as-root", {"machine": {"kernel_command_line": UNKNOWN}}),
    ("p2p-acs-iommu", "near-miss-as-root", gpus(virtualization=UNKNOWN)),
    ("p2p-acs-iommu", "near-miss-as-root", {"gpus": {"p2p": [["self", "unknown"], ["unknown", "self"]]}}),
    ("ckpt-device-pin", "near-miss-one-gpu", {"torch": UNKNOWN}),
    ("ckpt-device-pin", "near-miss-one-gpu", {"torch": {"device_count": UNKNOWN}, "gpus": UNKNOWN}),
    ("ckpt-device-pin", "near-miss-one-gpu", {"torch": {"device_count": UNKNOWN}, "environment": UNKNOWN}),
    ("ckpt-device-in-config", "near-miss-exists", {"torch": {"device_count": UNKNOWN}, "gpus": UNKNOWN}),
    ("ckpt-weights-only", "near-miss-torch-2.5", {"torch": UNKNOWN}),
    ("ckpt-weights-only", "near-miss-torch-2.5", {"torch": {"version": "built by hand"}}),
    ("ckpt-world-size-mismatch", "near-miss-16-of-16", {"environment": UNKNOWN}),
    ("ckpt-truncated", "near-miss-whole", {"checkpoints": UNKNOWN}),
]  # fmt: skip


def judged(slug: str, host: str, changes: dict[str, Any]) -> Result:
    ranks = None
    if host in healthy_names():
        facts = healthy_facts(host)
    else:
        case = host_case(f"{slug}/{host}")
        facts, ranks = lay_over(healthy_facts(case.base), case.facts), case.nproc
    snapshot = to_snapshot(lay_over(facts, changes))
    return diagnose(snapshot, plan_for(snapshot, ranks), [find_check(slug)])[0]


@pytest.mark.parametrize(("slug", "host", "changes"), DECIDING)
def test_without_the_deciding_fact_nothing_is_called_fine(slug: str, host: str, changes: dict[str, Any]) -> None:
    assert judged(slug, host, {}).passed
    result = judged(slug, host, changes)
    assert not result.findings
    assert result.not_tested is not None
    assert result.not_tested.why is SkipReason.UNKNOWN


def test_without_packages_nobody_says_that_accelerate_would_work() -> None:
    result = judged("rtx4000-p2p-unsupported", "sick-accelerate", {"packages": UNKNOWN})
    assert result.not_tested is not None
    assert result.not_tested.why is SkipReason.UNKNOWN


def test_a_small_limit_on_locked_memory_is_no_illness_where_it_may_not_count() -> None:
    result = judged("memlock-limit", "sick-docker-several-nodes", {"limits": {"may_lock_memory": UNKNOWN}})
    assert not result.findings
    assert result.not_tested is not None
    assert result.not_tested.why is SkipReason.UNKNOWN


def test_gpus_outside_of_the_fabric_matter_to_more_than_one_rank() -> None:
    snapshot = to_snapshot(
        lay_over(healthy_facts("h100x8-bare-metal"), {"gpus": {"devices": {"*": {"fabric_state": "in-progress"}}}})
    )
    check = find_check("fabric-manager-not-running")
    assert diagnose(snapshot, plan_for(snapshot, 8), [check])[0].findings
    alone = diagnose(snapshot, plan_for(snapshot, 1), [check])[0].not_tested
    assert alone is not None
    assert alone.reason == "a single rank needs no NVLink"


def test_a_single_rank_has_the_cores_to_itself() -> None:
    snapshot = to_snapshot(healthy_facts("h100x8-bare-metal"))
    result = diagnose(snapshot, plan_for(snapshot, 1), [find_check("omp-threads")])[0]
    assert result.not_tested is not None
    assert result.not_tested.why is SkipReason.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("slug", "host", "changes"),
    [
        ("gpu-ecc-error", "sick-in-a-container", {}),
        (
            "xid-error",
            "h100x8-container",
            {"kernel_log": {"type": "kernellog", "lines": [{"text": "NVRM: Xid (PCI:0000:1b:00): 119, pid=7", "age": 9.0}]}},
        ),
    ],
)  # fmt: skip
def test_a_gpu_is_reset_outside_of_the_container(slug: str, host: str, changes: dict[str, Any]) -> None:
    resets = [
        fix
        for finding in judged(slug, host, changes).findings
        for fix in finding.fixes
        if any("--gpu-reset" in command for command in fix.commands)
    ]
    assert resets
    assert all(fix.text.startswith("On the host, outside of this container: reset ") for fix in resets)
