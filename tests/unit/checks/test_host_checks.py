"""What the checks of host, memory and cores say exactly, and how many ranks are planned."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, SkipReason
from tests.support.fixture_hosts import healthy_facts, host_case, judge, lay_over, to_snapshot

SEVERITIES = [
    ("shm-too-small", "docker-default", FAIL),
    ("shm-too-small", "two-gpus-in-podman", FAIL),
    ("shm-too-small", "one-rank-docker-default", WARN),
    ("shm-too-small", "filled-by-others", FAIL),
    ("shm-too-small", "missing", FAIL),
    ("shm-stale-segments", "nccl-after-kill", INFO),
    ("shm-stale-segments", "fills-a-quarter", WARN),
    ("memlock-limit", "docker-several-nodes", FAIL),
    ("memlock-limit", "master-elsewhere", FAIL),
    ("memlock-limit", "half-a-gigabyte", WARN),
    ("memlock-limit", "login-shell", INFO),
    ("nofile-limit", "256", WARN),
    ("nofile-limit", "hundreds-of-ranks", WARN),
    ("nofile-limit", "eight-ranks", INFO),
    ("nofile-limit", "hard-limit-too", INFO),
    ("pids-limit", "pod", WARN),
    ("disk-full", "root-full", FAIL),
    ("disk-full", "scratch-short", WARN),
    ("disk-full", "no-inodes", FAIL),
    ("disk-full", "small-tmp", FAIL),
    ("folder-not-writable", "read-only-working-folder", WARN),
    ("disk-full", "cache-short", WARN),
    ("folder-not-writable", "triton-cache-not-writable", INFO),
    ("disk-unanswered", "nfs-home", FAIL),
    ("cgroup-memory-limit", "docker-8g", FAIL),
    ("cgroup-memory-limit", "slurm-default", WARN),
    ("cgroup-memory-limit", "nearly-used", WARN),
    ("memory-low", "others-hold-it", WARN),
    ("memory-low", "too-many-ranks", FAIL),
    ("host-oom-killed", "rank-an-hour-ago", WARN),
    ("host-oom-killed", "rank-last-week", INFO),
    ("host-oom-killed", "cgroup-counter", WARN),
    ("cgroup-cpu-limit", "quota", WARN),
    ("omp-threads", "all-cores-each", WARN),
    ("dataloader-oversubscribed", "eight-ranks-on-eight-cores", WARN),
    ("dataloader-oversubscribed", "two-ranks-on-two-cores", INFO),
]


def sick(slug: str, name: str) -> Result:
    return judge(host_case(f"{slug}/sick-{name}"))


def near_miss(slug: str, name: str) -> Result:
    return judge(host_case(f"{slug}/near-miss-{name}"))


@pytest.mark.parametrize(("slug", "name", "severity"), SEVERITIES)
def test_severity(slug: str, name: str, severity: Severity) -> None:
    result = sick(slug, name)
    worst = min((finding.severity or result.check.severity for finding in result.findings), key=lambda one: one.rank)
    assert worst is severity


@pytest.mark.parametrize(
    ("slug", "name", "summary"),
    [
        ("shm-too-small", "docker-default", "/dev/shm has only 64 MiB; 8 ranks with DataLoader workers may need 2 GiB"),
        (
            "shm-too-small",
            "filled-by-others",
            "/dev/shm is nearly full: 100 MiB of 1007.7 GiB free; 8 ranks may need 2 GiB",
        ),
        (
            "nofile-limit",
            "eight-ranks",
            "A process may open only 1024 files; 8 ranks with DataLoader workers may need 4096",
        ),
        ("cgroup-cpu-limit", "slurm-one-core", "8 ranks share only 1 core, though the machine has 192"),
        ("omp-threads", "quota", "8 ranks with 12 OpenMP threads each are 96 threads on 16 cores"),
        (
            "host-oom-killed",
            "rank-an-hour-ago",
            "The kernel killed python (process 412377) 40 minutes ago, because memory ran out",
        ),
        (
            "dataloader-oversubscribed",
            "eight-ranks-on-eight-cores",
            "8 ranks on 8 cores leave no core for DataLoader workers",
        ),
    ],
)
def test_summary(slug: str, name: str, summary: str) -> None:
    assert sick(slug, name).findings[0].summary == summary


def test_one_full_file_system_is_one_finding() -> None:
    findings = sick("disk-full", "root-full").findings
    assert len(findings) == 1
    assert len(findings[0].evidence) == 6


def test_where_memory_is_too_small_fewer_ranks_come_before_a_larger_dev_shm() -> None:
    for name, fixes in (("more-ranks-than-memory", 2), ("as-large-as-memory", 1)):
        (found,) = sick("shm-too-small", name).findings
        assert "this host has 23.5 GiB in all" in found.cause
        assert found.fixes[0].text.startswith("Start fewer ranks on this host")
        assert len(found.fixes) == fixes


def test_commands_are_for_this_host() -> None:
    def commands(slug: str, name: str) -> list[str]:
        return [command for finding in sick(slug, name).findings for fix in finding.fixes for command in fix.commands]

    assert commands("nofile-limit", "eight-ranks") == ["ulimit -n 65536"]
    assert commands("omp-threads", "all-cores-each") == ["export OMP_NUM_THREADS=16"]
    assert commands("shm-too-small", "docker-default") == ["mount -o remount,size=4g /dev/shm"]
    assert commands("shm-too-small", "more-ranks-than-memory") == ["sudo mount -o remount,size=23g /dev/shm"]
    assert commands("shm-too-small", "as-large-as-memory") == []
    assert commands("port-range-too-small", "hundred-ports") == [
        'sudo sysctl -w net.ipv4.ip_local_port_range="32768 60999"'
    ]
    assert commands("port-range-too-small", "default-for-500-ranks") == [
        'sudo sysctl -w net.ipv4.ip_local_port_range="10000 65535"',
        "sudo sysctl -w net.ipv4.ip_local_reserved_ports=8080,29400,29500",
    ]
    assert commands("shm-stale-segments", "nccl-after-kill") == [
        "rm -f /dev/shm/nccl-3XkQz1 /dev/shm/nccl-BfG7pU /dev/shm/nccl-sdW0aN"
    ]
    assert commands("memlock-limit", "soft-only") == ["ulimit -l unlimited"]
    assert "limits.d" in commands("nofile-limit", "hard-limit-too")[0]
    assert not commands("nofile-limit", "container")


@pytest.mark.parametrize(
    ("slug", "name", "why", "reason"),
    [
        ("shm-too-small", "size-unknown", SkipReason.UNKNOWN, "/dev/shm: Permission denied"),
        ("shm-stale-segments", "other-users", SkipReason.UNKNOWN, "other users, whose processes can't be looked into, own 3 segments in /dev/shm"),
        ("shm-stale-segments", "without-root", SkipReason.UNKNOWN, "312 processes can't be looked into with the rights of this user, and may use the 2 segments that nobody else uses"),
        ("memlock-limit", "no-rdma", SkipReason.NOT_APPLICABLE, "no RDMA device on this host"),
        ("memlock-limit", "cloud-cpu-mlx5", SkipReason.NOT_APPLICABLE, "no NVIDIA GPU on this host"),
        ("memlock-limit", "root", SkipReason.NOT_APPLICABLE, "this process may lock any amount of memory"),
        ("host-oom-killed", "nobody-can-say", SkipReason.UNKNOWN, "/dev/kmsg: Operation not permitted"),
        ("host-oom-killed", "counter-alone", SkipReason.UNKNOWN, "the counter of this session, container or job shows none, but the kernel log: dmesg: Operation not permitted (kernel.dmesg_restrict lets only root read it)"),
    ],
)  # fmt: skip
def test_what_was_not_tested_is_not_called_fine(slug: str, name: str, why: SkipReason, reason: str) -> None:
    result = near_miss(slug, name)
    assert result.not_tested is not None
    assert (result.not_tested.why, result.not_tested.reason) == (why, reason)


def planned(host: str, nproc: int | None = None, **settings: str) -> tuple[int, str]:
    facts: dict[str, Any] = healthy_facts(host)
    facts["environment"] = {
        "type": "environment",
        "settings": [{"name": name, "value": value} for name, value in settings.items()],
    }
    plan = plan_for(to_snapshot(facts), nproc)
    return plan.nproc, plan.source


def test_plan() -> None:
    hidden = "CUDA_VISIBLE_DEVICES hides every GPU, so one rank"
    assert planned("h100x8-bare-metal") == (8, "the number of GPUs")
    assert planned("h100x8-bare-metal", 3, LOCAL_WORLD_SIZE="4") == (3, "--nproc")
    assert planned("h100x8-bare-metal", LOCAL_WORLD_SIZE="4") == (4, "LOCAL_WORLD_SIZE")
    assert planned("h100x8-bare-metal", LOCAL_WORLD_SIZE="0") == (8, "the number of GPUs")
    assert planned("h100x8-bare-metal", LOCAL_WORLD_SIZE="eight") == (8, "the number of GPUs")
    assert planned("h100x8-bare-metal", OMPI_COMM_WORLD_LOCAL_SIZE="2") == (2, "OMPI_COMM_WORLD_LOCAL_SIZE")
    assert planned("h100x8-bare-metal", CUDA_VISIBLE_DEVICES="0,1") == (2, "CUDA_VISIBLE_DEVICES")
    assert planned("h100x8-bare-metal", CUDA_VISIBLE_DEVICES=" 0, 1 ") == (2, "CUDA_VISIBLE_DEVICES")
    assert planned("h100x8-bare-metal", CUDA_VISIBLE_DEVICES="") == (1, hidden)
    assert planned("h100x8-bare-metal", CUDA_VISIBLE_DEVICES="-1") == (1, hidden)
    assert planned("h100x8-bare-metal", CUDA_VISIBLE_DEVICES="0,-1,1") == (1, "CUDA_VISIBLE_DEVICES")
    assert planned("h100x8-bare-metal", CUDA_VISIBLE_DEVICES="0,8") == (1, "CUDA_VISIBLE_DEVICES")
    assert planned("mi300x8-rocm", HIP_VISIBLE_DEVICES="0,1,2") == (3, "HIP_VISIBLE_DEVICES")
    assert planned("h100x8-bare-metal", HIP_VISIBLE_DEVICES="0") == (8, "the number of GPUs")
    assert planned("cpu-laptop") == (1, "no GPU was found, so one rank")
    assert planned("a100-mig", CUDA_VISIBLE_DEVICES="MIG-41b36db5-2b3c-5fd4-9b1a-0e0c5a1b1c1d") == (
        1,
        "CUDA_VISIBLE_DEVICES",
    )


def test_plan_in_slurm() -> None:
    assert planned("h100x8-slurm", SLURM_NTASKS_PER_NODE="4") == (4, "SLURM_NTASKS_PER_NODE")
    # torchrun is started once a node, and starts the ranks itself.
    assert planned("h100x8-slurm", SLURM_NTASKS_PER_NODE="1") == (8, "the number of GPUs")
    assert planned("cpu-laptop", SLURM_NTASKS_PER_NODE="1") == (1, "SLURM_NTASKS_PER_NODE")
    # `salloc -n 16` asks for cores, and torchrun decides about the ranks.
    assert planned("h100x8-bare-metal", SLURM_TASKS_PER_NODE="16") == (8, "the number of GPUs")

    def on_node(node: str) -> tuple[int, str]:
        return planned(
            "h100x8-slurm", SLURM_NODEID=node, SLURM_STEP_TASKS_PER_NODE="8(x2),4", SLURM_NTASKS_PER_NODE="7"
        )

    for node, count in (("0", 8), ("1", 8), ("2", 4)):
        assert on_node(node) == (count, "SLURM_STEP_TASKS_PER_NODE")
    assert on_node("3") == (7, "SLURM_NTASKS_PER_NODE")


def test_fixture_of_a_list_may_become_unknown() -> None:
    unknown = {"type": "unknown", "reason": "no"}
    assert lay_over([1, 2], unknown) == unknown
    assert lay_over([1, 2], {"0": 5}) == [5, 2]


def test_no_chmod_of_what_is_mounted_read_only() -> None:
    (finding,) = judge(host_case("shm-too-small/sick-read-only")).findings
    assert [fix.commands for fix in finding.fixes] == [("sudo mount -o remount,rw /dev/shm",)]
    (finding,) = judge(host_case("shm-too-small/sick-not-writable")).findings
    assert [fix.commands for fix in finding.fixes] == [("sudo chmod 1777 /dev/shm",)]


def test_no_folder_is_advised_that_cannot_be_written_to() -> None:
    result = judge(host_case("folder-not-writable/sick-read-only-tmp-and-working-folder"))
    commands = [command for finding in result.findings for fix in finding.fixes for command in fix.commands]
    assert commands == ["cd /root", "mkdir -p /root/tmp && export TMPDIR=/root/tmp"]
