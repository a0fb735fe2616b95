"""Small file systems and low limits for real: namespaces and ulimits around a probe in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, WARN
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.disks import Disks
from ddpdoctor.facts.limits import Limits
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.registered_checks import find_check

SILENT = """
import ctypes, os, sys
server = os.open("/dev/fuse", os.O_RDWR)  # Nobody ever answers what the kernel asks here.
options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
assert ctypes.CDLL(None).mount(b"silent", sys.argv.pop(1).encode(), b"fuse.silent", 0, options) == 0
"""
ROOT = Path(__file__).parent.parent.parent
MIB = 1024**2
PROBE = """
import sys, msgspec
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
sys.stdout.buffer.write(msgspec.json.encode(take_snapshot(Context(sys.executable), sys.argv[1:])))
"""


def snapshot_within(script: str, *groups: str, unshared: bool = False) -> Snapshot:
    """What a probe sees that is started by the last line of a shell script, `"$@"`, in a mount namespace if asked."""
    command = ["bash", "-euc", script, "bash", sys.executable, "-c", PROBE, *groups]
    if unshared:
        command = ["unshare", "--mount", "--propagation", "private", *command]
    ended = subprocess.run(
        command,
        capture_output=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/", "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return msgspec.json.decode(ended.stdout, type=Snapshot)


def judged(snapshot: Snapshot, slug: str, nproc: int) -> Result:
    return diagnose(snapshot, Plan(nproc, "--nproc"), [find_check(slug)])[0]


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_small_shared_memory() -> None:
    snapshot = snapshot_within(
        'mount -t tmpfs -o size=16m tmpfs /dev/shm; "$@"', "shared_memory", "container", unshared=True
    )
    assert isinstance(snapshot.shared_memory, SharedMemory)
    assert snapshot.shared_memory.size == 16 * MIB
    result = judged(snapshot, "shm-too-small", 2)
    assert [finding.severity for finding in result.findings] == [FAIL]
    assert "16 MiB" in result.findings[0].summary


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_full_shared_memory() -> None:
    snapshot = snapshot_within(
        'mount -t tmpfs -o size=600m tmpfs /dev/shm; head -c 590M /dev/zero > /dev/shm/x; "$@"',
        "shared_memory",
        "container",
        unshared=True,
    )
    result = judged(snapshot, "shm-too-small", 2)
    assert "nearly full" in result.findings[0].summary


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_shared_memory_that_is_large_enough() -> None:
    snapshot = snapshot_within(
        'mount -t tmpfs -o size=512m tmpfs /dev/shm; "$@"', "shared_memory", "container", unshared=True
    )
    assert judged(snapshot, "shm-too-small", 2).passed


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_full_working_folder(tmp_path: Path) -> None:
    snapshot = snapshot_within(
        f'mount -t tmpfs -o size=4m tmpfs {tmp_path}; cd {tmp_path}; head -c 4M /dev/zero > x; "$@"',
        "disks",
        unshared=True,
    )
    summaries = [finding.summary for finding in judged(snapshot, "disk-full", 1).findings if finding.severity is FAIL]
    assert summaries == [f"{tmp_path} is short of space: 0 B of 4 MiB free; on it: working folder"]


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_read_only_working_folder(tmp_path: Path) -> None:
    snapshot = snapshot_within(
        f'mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}; cd {tmp_path}; "$@"',
        "disks",
        unshared=True,
    )
    findings = [
        finding
        for finding in judged(snapshot, "folder-not-writable", 1).findings
        if "working folder" in finding.summary
    ]
    assert [(finding.severity, finding.cause) for finding in findings] == [(WARN, "It is mounted read-only.")]


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_no_inodes_left(tmp_path: Path) -> None:
    snapshot = snapshot_within(
        f'mount -t tmpfs -o nr_inodes=20 tmpfs {tmp_path}; cd {tmp_path}; "$@"', "disks", unshared=True
    )
    summaries = [finding.summary for finding in judged(snapshot, "disk-full", 1).findings]
    assert any(f"{tmp_path} is short of inodes" in summary for summary in summaries)


@pytest.mark.root
@pytest.mark.tool("unshare")
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="the kernel offers no /dev/fuse, which no package brings")
def test_a_file_system_that_never_answers(tmp_path: Path) -> None:
    start = time.monotonic()
    ended = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-c",
            SILENT + PROBE,
            str(tmp_path),
            "disks",
        ],
        capture_output=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": "/", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert time.monotonic() - start < 20, "the thread that hangs must not keep the others, or the end, waiting"
    snapshot = msgspec.json.decode(ended.stdout, type=Snapshot)
    summaries = [finding.summary for finding in judged(snapshot, "disk-unanswered", 1).findings]
    assert summaries == [f"The file system of {tmp_path} doesn't answer"]
    assert isinstance(snapshot.disks, Disks)
    assert "home" in [folder.purpose for folder in snapshot.disks.folders]


def test_few_open_files() -> None:
    snapshot = snapshot_within('ulimit -Sn 256; "$@"', "limits")
    findings = judged(snapshot, "nofile-limit", 8).findings
    assert findings[0].summary.startswith("A process may open only 256 files; 8 ranks")
    assert findings[0].fixes[0].commands[0].startswith("ulimit -n ")


def test_enough_open_files() -> None:
    snapshot = snapshot_within('ulimit -n 4096; "$@"', "limits", "environment")
    assert judged(snapshot, "nofile-limit", 8).passed


LOCK = "import ctypes as c; assert c.CDLL(None).mlock(c.create_string_buffer(1 << 20), 1 << 20)"


@pytest.mark.tool("unshare")
def test_root_of_a_user_namespace_is_bound_by_the_limit_on_locked_memory() -> None:
    script = f"""ulimit -l 64; exec unshare --user --map-root-user bash -euc '{sys.executable} -c "{LOCK}"; "$@"' bash "$@\""""
    limits = snapshot_within(script, "limits").limits
    assert isinstance(limits, Limits)
    assert limits.may_lock_memory is False
    assert limits.memlock_soft == 64 * 1024


def test_one_core() -> None:
    snapshot = snapshot_within('taskset -c "$(taskset -pc $$ | grep -o "[0-9]*$")" "$@"', "machine", "cgroup")
    result = judged(snapshot, "dataloader-oversubscribed", 1)
    assert result.findings[0].summary == "1 rank on 1 core leaves no core for DataLoader workers"
