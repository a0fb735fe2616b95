"""Whose it is to mend a finding: a scheduler may take a node out of use for what is the node's, and for nothing else."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Owner
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.checks.gpu.hardware import xid_error
from ddpdoctor.checks.host.disks import disk_full
from ddpdoctor.checks.host.shared_memory import shm_too_small
from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.facts.kernel_log import KernelLine
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, KernelLog, Machine, Pci, SharedMemory
from tests.support.fixture_hosts import healthy_facts, to_snapshot

OF_USERS = {"apex", "checkpoint", "code", "launch", "python", "settings", "torch"}
"""Families that judge what a user wrote, installed or set."""


def test_nothing_that_a_user_set_wrote_or_installed_is_the_nodes() -> None:
    assert not [check.slug for check in all_checks() if check.family in OF_USERS and check.owner is Owner.NODE]


def test_broken_hardware_and_drivers_are_the_nodes() -> None:
    for slug in ("gpu-ecc-error", "gpu-fell-off-bus", "nvml-driver-mismatch", "fabric-manager-not-running"):
        assert next(check for check in all_checks() if check.slug == slug).owner is Owner.NODE


@pytest.mark.parametrize(
    ("number", "owner"), [(31, Owner.USER), (79, Owner.NODE), (119, Owner.NODE), (9999, Owner.UNKNOWN)]
)
def test_an_xid_is_whose_fault_it_is(number: int, owner: Owner) -> None:
    line = KernelLine(age=5.0, text=f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1, name=python, what it says")
    log = KernelLog(lines=(line,), source="dmesg")
    unknown = Unknown("not asked")
    host = to_snapshot(healthy_facts("h100x8-bare-metal"))
    assert isinstance(host.pci, Pci)
    assert isinstance(host.machine, Machine)
    (finding,) = xid_error(log, host.pci, unknown, unknown, host.machine, unknown)
    assert finding.owner is owner


@pytest.mark.parametrize(("mount", "owner"), [("/", Owner.NODE), ("/home/ada", None)])
def test_a_full_file_system_is_the_nodes_where_everybody_writes(mount: str, owner: Owner | None) -> None:
    disks = Disks(folders=(Disk(purpose="working folder", path=f"{mount}/x", mount=mount, total=10**12, free=10),))
    (finding,) = disk_full(disks)
    assert finding.owner is owner


@pytest.mark.parametrize(("runtime", "owner"), [(None, Owner.NODE), ("docker", Owner.USER)])
def test_the_size_of_shared_memory_is_said_by_who_starts_the_container(runtime: str | None, owner: Owner) -> None:
    small = SharedMemory(exists=True, size=2**20, free=2**20, writable=True)
    unknown = Unknown("not asked")
    (finding,) = shm_too_small(small, Container(runtime=runtime), unknown, unknown, Plan(8, "the test"))
    assert finding.owner is owner
