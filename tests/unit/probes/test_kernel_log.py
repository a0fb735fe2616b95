"""Which lines of the kernel log are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.probes import kernel_log
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.kernel_log import lines_that_matter

KEPT = [
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "NVRM: GPU at PCI:0000:3b:00: GPU-5c7d1e00-3a4f-b1c2-9d0e-7f21c0a4e800",
    "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "Out of memory: Killed process 4711 (python3) total-vm:104857600kB, anon-rss:83886080kB",
    "Memory cgroup out of memory: Killed process 4712 (pt_data_worker) total-vm:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_1,task=python,pid=4711,uid=1000",
    "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
    "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "mlx5_core 0000:18:00.0: poll_health:825:(pid 0): Fatal error 1 detected",
    "python3[4711]: segfault at 0 ip 00007f1c8a4d1a2b sp 00007ffd5e error 4 in libcuda.so.580.95.05[7f1c8a000000]",
    "traps: python3[4711] general protection fault ip:7f sp:7f error:0 in libnccl.so.2[7f]",
    "nouveau 0000:01:00.0: NVIDIA GA102 (172000a1)",
    "amdgpu 0000:05:00.0: amdgpu: ring gfx timeout, signaled seq=1, emitted seq=3",
]
LEFT_OUT = [
    "Linux version 6.8.0-52-generic (buildd@lcy02-amd64-046)",
    "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
    "mlx5_core 0000:18:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:18:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x8 link)",
    "gnome-shell[812]: segfault at 8 ip 00007f sp 00007f error 4 in libmutter.so[7f]",
    "amdgpu 0000:05:00.0: amdgpu: SE 4, SH per SE 1, CU per SH 10, active_cu_number 36",
    "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
]


@pytest.mark.parametrize("line", KEPT)
def test_kept(line: str) -> None:
    assert lines_that_matter(f"<3>[  100.500000] {line}\n".encode(), now=160.5) == (KernelLine(text=line, age=60.0),)


@pytest.mark.parametrize("line", LEFT_OUT)
def test_left_out(line: str) -> None:
    assert lines_that_matter(f"<3>[  100.500000] {line}\n".encode(), now=160.5) == ()


@pytest.mark.parametrize(
    ("raw", "age"),
    [
        (b"<3>[   10.000000] NVRM: x", 90.0),
        (b"<3>[   10.000000][ T1234] NVRM: x", 90.0),
        (b"<3>[   10.000000][    C0] NVRM: x", 90.0),
        (b"[   10.000000] NVRM: x", 90.0),
        (b"<3>NVRM: x", -1.0),
        (b"NVRM: x", -1.0),
        (b"<3>[  100.200000] NVRM: x", 0.0),
    ],
)
def test_time_stamps(raw: bytes, age: float) -> None:
    assert lines_that_matter(raw, now=100.0) == (KernelLine(text="NVRM: x", age=age),)


def test_order_and_length_and_bytes_that_are_no_text() -> None:
    text = b"<4>[ 1.0] NVRM: one \xff\n<4>[ 2.0] quiet\n<4>[ 3.0] NVRM: " + b"y" * 9000 + b"\n<4>[ 4.0] NVRM: Xid 79"
    lines = lines_that_matter(text, now=5.0)
    assert [(line.text[:11], line.age) for line in lines] == [
        ("NVRM: one \ufffd", 4.0),
        ("NVRM: yyyyy", 2.0),
        ("NVRM: Xid 7", 1.0),
    ]
    assert max(len(line.text) for line in lines) == kernel_log.MAX_LINE_LENGTH


def test_flood_does_not_push_out_what_matters_more() -> None:
    flood = b"".join(b"<4>[%d.0] NVRM: nvidia: chatter %d\n" % (1000 + i, i) for i in range(5000))
    text = b"<3>[ 1.0] NVRM: Xid (PCI:0000:3b:00): 79\n<3>[ 2.0] Out of memory: Killed process 1 (python)\n" + flood
    lines = lines_that_matter(text, now=10000.0)
    assert len(lines) == kernel_log.MAX_LINES
    assert [line.text for line in lines[:2]] == [
        "NVRM: Xid (PCI:0000:3b:00): 79",
        "Out of memory: Killed process 1 (python)",
    ]
    assert lines[-1].text == "NVRM: nvidia: chatter 4999"


def test_newest_of_many_xids_are_kept() -> None:
    text = b"".join(b"[%d.0] NVRM: Xid (PCI:0000:3b:00): 31, number %d\n" % (i, i) for i in range(1000))
    lines = lines_that_matter(text, now=1000.0)
    assert lines[-1].text.endswith("number 999")
    assert len(lines) == kernel_log.MAX_LINES


def test_a_big_buffer_without_anything_that_matters() -> None:
    text = b"".join(
        b'<6>[%9d.123456] audit: type=1400 apparmor="ALLOWED" operation="open" %d\n' % (i, i) for i in range(130_000)
    )
    assert len(text) > 10_000_000
    assert lines_that_matter(text, now=1e6) == ()


def answer_with(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(kernel_log, "_ring_buffer", lambda context: text)


@pytest.mark.parametrize(
    ("first", "complete"),
    [
        (b"<5>[    0.000000] Linux version 6.8.0", True),
        (b"<6>[    0.000000] Booting Linux on physical CPU 0x0", True),
        (b"<6>[ 9999.000000] audit: type=1400", False),
        (b"", False),
    ],
)
def test_whether_the_boot_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, complete: bool
) -> None:
    answer_with(monkeypatch, first + b"\n" + b"<6>[ 9999.5] filler\n" * 500)
    found = kernel_log.probe(Context("python", root=tmp_path))
    assert isinstance(found, KernelLog)
    assert found.complete is complete


def test_container_without_kmsg(tmp_path: Path) -> None:
    found = kernel_log.probe(Context("python", root=tmp_path, environ={"PATH": "/nowhere"}))
    assert found == Unknown(
        "dmesg: there is no /dev/kmsg here, as in most containers; journalctl -k: systemd doesn't run here"
    )


def journal(folder: Path, script: str) -> Context:
    """A root where systemd runs, /dev/kmsg is missing and journalctl is that shell script."""
    (folder / "run/systemd/system").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/journalctl").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin/journalctl").chmod(0o755)
    return Context("python", root=folder, environ={"PATH": f"{folder}/bin:/usr/bin:/bin"})


def test_journal(tmp_path: Path) -> None:
    found = kernel_log.probe(
        journal(
            tmp_path,
            "echo '[    0.000000] node01 kernel: Linux version 5.15.0-139-generic'\n"
            "echo '[    5.100000] node01 kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05'",
        )
    )
    assert isinstance(found, KernelLog)
    assert (found.source, found.complete) == ("journalctl -k", True)
    (line,) = found.lines
    assert line.text == "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05"
    assert line.age > 0


@pytest.mark.parametrize("script", ["echo hint >&2", "exit 1"])
def test_journal_that_shows_nothing_is_not_a_clean_log(tmp_path: Path, script: str) -> None:
    found = kernel_log.probe(journal(tmp_path, script))
    assert isinstance(found, Unknown)
    assert "shows this user no kernel messages" in found.reason


def test_journal_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "JOURNAL_SECONDS", 0.3)
    found = kernel_log.probe(journal(tmp_path, "sleep 30"))
    assert isinstance(found, Unknown)
    assert "journalctl -k: no answer" in found.reason


@pytest.mark.root
def test_log_of_this_host_is_what_dmesg_shows() -> None:
    for _ in range(5):
        text = kernel_log._ring_buffer(Context("python"))
        assert isinstance(text, bytes)
        shown = subprocess.run(["dmesg", "--raw"], capture_output=True, check=True).stdout
        # While other tests make the kernel speak, the oldest lines go.
        if text.splitlines()[:20] == shown.splitlines()[:20]:
            break
    assert text.splitlines()[:20] == shown.splitlines()[:20]
    assert len(text.splitlines()) > 20


@pytest.mark.root
def test_user_who_may_not_read_it_is_told_so() -> None:
    """Whether others may read it is kernel.dmesg_restrict's to say."""
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1"
    code = (
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from ddpdoctor.probes import kernel_log; from ddpdoctor.probes.context import Context\n"
        "print(type(kernel_log._ring_buffer(Context('python'))).__name__)"
    )
    # Imports come first, since the other user may not be allowed to read this checkout.
    code = "import ddpdoctor.probes.kernel_log, ddpdoctor.probes.context\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("Unknown" if restricted else "bytes")
