"""Fine points of the checks on driver, GPUs, hardware, interconnect and containers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, INFO, WARN
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, Result, SkipReason, diagnose
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpu, Gpus, MigInstance
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.nvidia import called, older
from ddpdoctor.knowledge.xids import CATALOGUE, SXID_LINE, normal_address, reported
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.kernel_log import lines_that_matter
from ddpdoctor.probes.pci import probe as look_at_pci
from tests.support.fixture_hosts import (
    JSON_NAMES,
    HostCase,
    healthy_facts,
    healthy_names,
    host_case,
    host_cases,
    to_snapshot,
)
from tests.support.registered_checks import find_check

FAMILIES = ("driver", "gpu", "container")
OURS = [check for check in all_checks() if check.family in FAMILIES and check.groups != {"log"}]
SICK = [case for our in OURS for case in host_cases(our.slug, "sick-")]
TWO_CAUSES = {
    "compute-mode-exclusive/sick-two-ranks-a-gpu": {"nproc-exceeds-gpus"},
    "rtx4000-p2p-unsupported/sick-old-driver": {"p2p-acs-iommu"},
}
"""Hosts that rightly have a second finding."""


@pytest.mark.parametrize("case", SICK, ids=lambda case: case.id)
def test_one_cause_gives_one_finding(case: HostCase) -> None:
    snapshot = case.snapshot()
    results = diagnose(snapshot, plan_for(snapshot, case.nproc), OURS)
    found = {result.check.slug for result in results if result.findings}
    assert found - {case.slug} == TWO_CAUSES.get(case.id, set())


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.slug)
def test_nothing_known_is_never_an_illness(one: Check) -> None:
    """A group that is unknown, each alone and all at once, gives no finding and no crash."""
    unknown = {"type": "unknown", "reason": "could not be read"}
    for host in healthy_names():
        facts = healthy_facts(host)
        for missing in (*({name} for name in sorted(one.groups)), one.groups):
            snapshot = to_snapshot({**facts, **dict.fromkeys(missing, unknown)})
            assert_no_illness(diagnose(snapshot, plan_for(snapshot), [one])[0], host)


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.slug)
def test_a_fact_that_is_unknown_is_never_an_illness(one: Check) -> None:
    """The same for every single field that may be unknown."""
    for host in ("h100x8-bare-metal", "h100x8-container", "a100-mig", "rtx4090x2-workstation"):
        snapshot = to_snapshot(healthy_facts(host))
        for changed in snapshots_with_one_unknown(snapshot, one):
            assert_no_illness(diagnose(changed, plan_for(changed), [one])[0], host)


def snapshots_with_one_unknown(snapshot: Snapshot, one: Check) -> list[Snapshot]:
    raw: dict[str, Any] = msgspec.to_builtins(snapshot)
    unknown = {"type": "unknown", "reason": "could not be read"}
    groups = {JSON_NAMES[group] for group in one.groups & set(GROUPS)}
    tried = [{**raw, group: {**raw[group], field: unknown}} for group in groups for field in raw[group]]
    for field in raw["gpus"]["devices"][0] if "gpus" in groups else ():
        devices = [{**gpu, field: unknown} for gpu in raw["gpus"]["devices"]]
        tried.append({**raw, "gpus": {**raw["gpus"], "devices": devices}})
    changed = []
    for facts in tried:
        with contextlib.suppress(msgspec.ValidationError):  # a field that is always known
            changed.append(msgspec.convert(facts, Snapshot))
    assert changed or not groups - {"pci", "kernel_log"}
    return changed


def assert_no_illness(result: Result, host: str) -> None:
    assert result.not_tested is None or result.not_tested.why is not SkipReason.CRASHED, result.not_tested
    for finding in result.findings:
        raise AssertionError(f"{host}: {finding.summary}")


def host(name: str, **groups: Any) -> Snapshot:
    return to_snapshot({**healthy_facts(name), **groups})


def judged(slug: str, snapshot: Snapshot, nproc: int | None = None) -> Result:
    return diagnose(snapshot, plan_for(snapshot, nproc), [find_check(slug)])[0]


def log(*lines: tuple[float, str]) -> dict[str, Any]:
    return {"type": "kernellog", "lines": [{"text": text, "age": age} for age, text in lines]}


@pytest.mark.parametrize("number", sorted(CATALOGUE))
def test_every_xid_is_told_in_plain_words(number: int) -> None:
    entry = CATALOGUE[number]
    text = f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=77, name=python, something"
    result = judged("xid-error", host("h100x8-bare-metal", kernel_log=log((30.0, text))))
    if number == 45:
        assert result.passed
        return
    (finding,) = result.findings
    assert finding.summary.startswith(f"Xid {number} on 0000:1b:00")
    assert entry.meaning in finding.summary
    assert len(finding.summary) <= 160
    assert finding.severity is entry.severity
    assert finding.evidence[0].text == text


@pytest.mark.parametrize(
    ("number", "age", "severity"),
    [
        (119, 3600.0, FAIL),
        (119, -1.0, FAIL),
        (119, 100000.0, WARN),
        (31, 3600.0, WARN),
        (31, 100000.0, INFO),
        (43, 3600.0, INFO),
        (43, 100000.0, None),
    ],
)
def test_an_old_xid_counts_less(number: int, age: float, severity: object) -> None:
    text = f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=77, name=python"
    result = judged("xid-error", host("h100x8-bare-metal", kernel_log=log((age, text))))
    assert [finding.severity for finding in result.findings] == ([severity] if severity else [])


def test_the_drivers_own_advice_comes_first() -> None:
    snapshot = host(
        "h100x8-bare-metal",
        kernel_log=log(
            (30.0, "NVRM: Xid (PCI:0000:1b:00): 95, pid=77, name=python, Uncontained: LTC TAG"),
            (
                29.0,
                "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            ),
        ),
    )
    (finding,) = judged("xid-error", snapshot).findings
    assert "Node Reboot Required" in finding.fixes[0].text


def test_xid_lines_of_all_ages_of_the_driver() -> None:
    lines = (
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        "[ 1234.5] NVRM: Xid (PCI:0000:C6:00): 79, pid=1101234, name=nvc:[driver], GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
    )
    given = KernelLog(lines=tuple(KernelLine(text=line) for line in lines))
    assert [(one.number, one.gpu) for one in reported(given)] == [(14, "0000:03:00"), (79, "0000:c6:00")]
    assert [one.number for one in reported(given, SXID_LINE)] == [20034]


@pytest.mark.parametrize("spelling", ["0000:C6:00", "c6:00.0", "00000000:C6:00.0", "0000:c6:00.0"])
def test_addresses_compare_equal(spelling: str) -> None:
    assert normal_address(spelling) == "0000:c6:00"


@pytest.mark.parametrize("code", [1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 16, 17, 20, 23, 27, 999, 4711])
def test_every_nvml_code_gets_words(code: int) -> None:
    driver = {**healthy_facts("h100x8-bare-metal")["driver"], "nvml_status": code, "nvml_message": "Some Words"}
    (finding,) = judged("nvml-unavailable", host("h100x8-bare-metal", driver=driver), 8).findings
    assert finding.summary.endswith(f"(code {code})")
    assert finding.severity in (None, FAIL)
    assert finding.fixes


GPUS = Gpus(
    vendor="nvidia",
    devices=(
        Gpu(index=0, uuid="GPU-aaaa-1"),
        Gpu(
            index=1,
            uuid="GPU-bbbb-2",
            mig_enabled=True,
            mig_instances=(MigInstance(uuid="MIG-x"), MigInstance(uuid="MIG-y")),
        ),
        Gpu(index=2, uuid="GPU-cccc-3", lost=True),
        Gpu(index=3, uuid="GPU-dddd-4"),
    ),
)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, ["0", "MIG-x", "MIG-y", "3"]),
        ("", []),
        ("-1", []),
        ("3,0", ["3", "0"]),
        (" 3 , 0 ", ["3", "0"]),
        ("0,9,3", ["0"]),
        ("0,-1,3", ["0"]),
        ("GPU-dddd,GPU-aaaa-1", ["3", "0"]),
        ("MIG-y", ["MIG-y"]),
        ("MIG-unlisted", ["MIG-unlisted"]),
        ("2", []),
        ("NoDevFiles", []),
    ],
)  # fmt: skip
def test_which_gpus_are_visible(value: str | None, seen: list[str]) -> None:
    settings = () if value is None else (Setting("CUDA_VISIBLE_DEVICES", value),)
    visible = visible_gpus(GPUS, Environment(settings=settings))
    assert [one.slice.uuid if one.slice else str(one.gpu.index) for one in visible] == seen


def test_without_the_environment_all_gpus_are_visible() -> None:
    assert len(visible_gpus(GPUS, Unknown("not readable"))) == 4


@pytest.mark.parametrize(
    ("indices", "words"), [([3], "GPU 3"), ([0, 1], "GPUs 0 and 1"), ([0, 1, 2, 3], "GPUs 0-3"), ([0, 2, 3], "GPUs 0, 2 and 3")]
)  # fmt: skip
def test_gpus_are_named_shortly(indices: list[int], words: str) -> None:
    assert called([Gpu(index=index) for index in indices]) == words


@pytest.mark.parametrize(
    ("version", "limit", "answer"),
    [("525.60.13", "525.105.17", True), ("550.144.03", "550.40.07", False), (None, "1", False), ("?", "1", False)],
)  # fmt: skip
def test_driver_versions_compare_by_number(version: str | None, limit: str, answer: bool) -> None:
    assert older(version, limit) is answer


def test_a_fix_names_the_gpus_that_are_left() -> None:
    facts = healthy_facts("h100x8-bare-metal")["gpus"]
    facts["devices"][3]["row_remap_failed"] = True
    (finding,) = judged("gpu-ecc-error", host("h100x8-bare-metal", gpus=facts)).findings
    commands = [command for fix in finding.fixes for command in fix.commands]
    assert "export CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7" in commands


def test_the_fabric_manager_is_asked_for_in_the_drivers_version() -> None:
    driver = {
        **healthy_facts("h100x8-bare-metal")["driver"],
        "fabric_manager": "failed",
        "fabric_manager_version": "580.65.06",
        "cuda_init": 802,
    }
    (finding,) = judged("fabric-manager-not-running", host("h100x8-bare-metal", driver=driver)).findings
    commands = [command for fix in finding.fixes for command in fix.commands]
    assert any("nvidia-fabricmanager-580='580.95.05-*'" in command for command in commands)
    assert "580.65.06" in finding.cause


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=77, name=python, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "Loading of module with unavailable key is rejected",
        "Loading of unsigned module is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    ],
)
def test_the_probe_keeps_the_kernel_lines_that_checks_read(line: str) -> None:
    kept = lines_that_matter(f"<6>[ 12.500000] {line}\n<6>[ 13.0] usb 1-1: new device\n".encode(), 20.0)
    assert [one.text for one in kept] == [line]


@pytest.mark.parametrize(("written", "domain"), [("DMA-FQ\n", "DMA-FQ"), ("identity\n", "identity"), (None, None)])
def test_the_probe_tells_the_iommu_domain(tmp_path: Path, written: str | None, domain: str | None) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    if written is not None:
        (device / "iommu_group").mkdir()
        (device / "iommu_group/type").write_text(written)
    pci = look_at_pci(Context("/usr/bin/python3", root=tmp_path, environ={}))
    assert not isinstance(pci, Unknown)
    assert [gpu.iommu_domain for gpu in pci.nvidia_gpus] == [domain]


def test_what_follows_from_a_memory_error_is_not_told_beside_it() -> None:
    findings = judged("xid-error", host_case("xid-error/sick-double-bit").snapshot()).findings
    assert [finding.summary.split(" on ")[0] for finding in findings] == ["Xid 48"]


@pytest.mark.parametrize(
    ("fixture", "cause"),
    [
        ("sick-no-gpus-flag", "started without its GPUs"),
        ("sick-void", "NVIDIA_VISIBLE_DEVICES is 'void'"),
        ("sick-utility-only", "comes with `compute`"),
        ("sick-apptainer-without-nv", "the driver's libraries are not"),
        ("sick-host-driver-gone", "own NVIDIA driver isn't loaded"),
    ],
)
def test_a_container_is_told_why_it_has_no_gpu(fixture: str, cause: str) -> None:
    (finding,) = judged("container-no-gpu", host_case(f"container-no-gpu/{fixture}").snapshot()).findings
    assert cause in finding.cause
