"""Signs of GPUs, drivers and hosts: messages that look alike are told apart, and kernel logs are read in whatever form they come."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue, packaged_signs
from ddpdoctor.facts.log import Log, LogFile
from ddpdoctor.knowledge.xids import BUS_XIDS, CATALOGUE, ECC_XIDS, FAULTS, FOLLOWING, NVLINK_XIDS, PROGRAMS
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from tests.log_corpus import LOGS, log_of
from tests.support.cuda_oom import ALIKE, HELD_BY_OTHERS, OWN_DOING, SURELY_BY_OTHERS
from tests.support.registered_checks import find_check

TORCH2 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. GPU 3 has a total capacity of {total} of which {free} is free."
    " {processes}Of the allocated memory {own} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated. If reserved but"
)
TORCH1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate {wanted} (GPU 0; {total} total capacity; {own} already allocated; {free} free;"
    " {idle} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
)
THIS = "Including non-PyTorch memory, this process has {} memory in use. "
OTHER = "Process 4711 has {} memory in use. "


def torch2(total: str, free: str, own: str, idle: str, processes: str, wanted: str = "2.00 GiB") -> str:
    return TORCH2.format(total=total, free=free, own=own, idle=idle, processes=processes, wanted=wanted)


def torch1(total: str, free: str, own: str, reserved: str) -> str:
    return TORCH1.format(total=total, free=free, own=own, idle=reserved, wanted="20.00 MiB")


OWN = {
    "alone": torch2("79.15 GiB", "1.20 GiB", "75.10 GiB", "1.50 GiB", THIS.format("77.94 GiB")),
    "another rank's context": torch2(
        "79.15 GiB", "1.20 GiB", "75.10 GiB", "120.50 MiB", OTHER.format("498.00 MiB") + THIS.format("77.44 GiB")
    ),
    "itself under another number, in a container": torch2(
        "39.39 GiB", "256.31 MiB", "36.90 GiB", "1.71 GiB", OTHER.format("39.13 GiB")
    ),
    "fragments": torch2("79.15 GiB", "1.20 GiB", "30.10 GiB", "46.50 GiB", THIS.format("77.94 GiB")),
    "more than any GPU has": torch2(
        "79.15 GiB", "70.20 GiB", "7.10 GiB", "120.50 MiB", THIS.format("8.50 GiB"), wanted="400.00 GiB"
    ),
    "torch 1": torch1("15.90 GiB", "19.75 MiB", "14.20 GiB", "14.50 GiB"),
    "torch 1, free for the most": torch1("15.90 GiB", "9.75 GiB", "2.20 GiB", "2.50 GiB"),
    "torch 1, a small GPU": torch1("7.80 GiB", "33.56 MiB", "5.91 GiB", "6.09 GiB"),
    "torch 1.1, with little that lies idle": torch1("10.76 GiB", "8.20 GiB", "643.57 MiB", "32.43 MiB").replace(
        "reserved in total by PyTorch", "cached"
    ),
    "beside a notebook that holds little": torch2(
        "79.15 GiB", "1.20 GiB", "74.10 GiB", "1.50 GiB", OTHER.format("1.20 GiB") + THIS.format("76.74 GiB")
    ),
    "not counted by the driver, in a container": torch2(
        "23.43 GiB", "210.06 MiB", "22.41 GiB", "206.09 MiB", THIS.format("0 bytes")
    ),
    "an absurd size": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
    "ROCm": torch2("63.98 GiB", "1.20 GiB", "60.10 GiB", "1.50 GiB", THIS.format("62.1 GiB")).replace("CUDA", "HIP"),
}
OTHERS = {
    "listed before": torch2(
        "79.15 GiB", "1.20 GiB", "18.10 GiB", "120.50 MiB", OTHER.format("58.20 GiB") + THIS.format("19.50 GiB")
    ),
    "listed behind": torch2(
        "79.15 GiB", "1.20 GiB", "18.10 GiB", "120.50 MiB", THIS.format("19.50 GiB") + OTHER.format("58.20 GiB")
    ),
    "not listed": torch2("139.81 GiB", "12.20 MiB", "9.10 GiB", "120.50 MiB", ""),
    "torch 1": torch1("15.90 GiB", "19.75 MiB", "2.20 GiB", "2.50 GiB"),
    "torch 1, a small GPU": torch1("7.92 GiB", "24.56 MiB", "69.17 MiB", "86.00 MiB"),
    "torch 1.1, half of a small GPU": torch1("3.95 GiB", "23.00 MiB", "1.62 GiB", "9.10 MiB").replace(
        "reserved in total by PyTorch", "cached"
    ),
    "torch 1, MiB": torch1("31.75 GiB", "19.75 MiB", "220.50 MiB", "224.00 MiB"),
}


@pytest.mark.parametrize("message", OWN.values(), ids=OWN)
def test_a_plain_out_of_memory_is_nobody_elses(message: str) -> None:
    assert re.search(OWN_DOING, message)
    assert not re.search(HELD_BY_OTHERS, message)


@pytest.mark.parametrize("message", OTHERS.values(), ids=OTHERS)
def test_what_others_hold_is_not_the_batchs_doing(message: str) -> None:
    assert re.search(HELD_BY_OTHERS, message)
    assert not re.search(OWN_DOING, message)


def test_processes_alike_on_the_first_gpu_may_be_the_runs_own() -> None:
    """Where no rank has chosen its GPU, all hold the same there."""
    alike = TORCH2.replace("GPU 3", "GPU 0").format(
        wanted="2.00 GiB",
        total="23.69 GiB",
        free="101.12 MiB",
        own="0 bytes",
        idle="0 bytes",
        processes=OTHER.format("7.81 GiB") + "Process 4712 has 7.71 GiB memory in use. " + THIS.format("258.00 MiB"),
    )
    pair = alike.replace("7.81 GiB", "11.40 GiB").replace("258.00 MiB", "11.20 GiB").replace("7.71 GiB", "10.00 MiB")
    for one in (alike, pair):
        assert re.search(ALIKE, one)
        assert not re.search(OWN_DOING, one)
        assert not re.search(SURELY_BY_OTHERS, one)
    elsewhere = alike.replace("GPU 0", "GPU 3")
    assert not re.search(ALIKE, elsewhere)
    assert re.search(SURELY_BY_OTHERS, elsewhere)
    assert re.search(SURELY_BY_OTHERS, alike.replace("7.71 GiB", "2.71 GiB"))


def test_each_xid_stands_for_one_illness() -> None:
    groups = (BUS_XIDS, ECC_XIDS, NVLINK_XIDS, FAULTS, PROGRAMS, FOLLOWING)
    counted = Counter(number for group in groups for number in group)
    assert max(counted.values()) == 1
    assert set(counted) <= set(CATALOGUE)
    assert {13, 31} <= set(PROGRAMS)
    assert 63 not in counted


def test_an_xid_is_not_read_into_a_longer_number() -> None:
    pattern = next(re.compile(sign.pattern) for sign in packaged_signs()["gpu-fell-off-bus"] if "Xid" in sign.pattern)
    assert pattern.search("NVRM: Xid (PCI:0000:65:00): 79, pid=18230, GPU has fallen off the bus.")
    assert pattern.search("NVRM: Xid (0000:65:00): 79, GPU has fallen off the bus.")
    assert not pattern.search("NVRM: Xid (PCI:0000:65:00): 790, pid=18230")
    assert not pattern.search("NVRM: Xid (PCI:0000:65:00): 13, pid=79, name=python")


def read(tmp_path: Path, text: str) -> Log:
    file = tmp_path / "run.log"
    file.write_text(text)
    return read_logs([str(file)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))


XID = "NVRM: Xid (PCI:0000:65:00): 79, pid=18230, name=python3, GPU has fallen off the bus."
KERNEL_LOGS = {
    "dmesg": "[432101.551250] ",
    "dmesg -T": "[Fri Jun 12 09:43:01 2026] ",
    "dmesg -x": "kern  :err   : [432101.551250] ",
    "dmesg --time-format iso": "2026-06-12T09:43:01,551250+02:00 ",
    "journalctl -k": "Jun 12 09:43:01 node5 kernel: ",
    "journalctl -o short-iso": "2026-06-12T09:43:01+0200 node5 kernel: ",
    "journalctl -o short-precise": "Jun 12 09:43:01.551250 node5 kernel: ",
    "kern.log with ISO dates": "2026-06-12T09:43:01.551250+02:00 node5 kernel: ",
    "kern.log with dmesg's": "Jun 12 09:43:01 node5 kernel: [432101.551250] ",
    "beside a rank's": "0: ",
}


@pytest.mark.parametrize("prefix", KERNEL_LOGS.values(), ids=KERNEL_LOGS)
def test_a_kernel_log_is_read_in_any_form(tmp_path: Path, prefix: str) -> None:
    lines = ("usb 1-1: new high-speed USB device number 2", XID, "audit: type=1400 audit(1.2:3): apparmor")
    found = verdict_of(read(tmp_path, "".join(f"{prefix}{line}\n" for line in lines)), catalogue())
    assert found.outcome is RunOutcome.ILLNESS
    assert [suspect.slug for suspect in found.suspects] == ["gpu-fell-off-bus"]
    if "node5" in prefix:
        assert found.lead is not None
        assert found.lead.host == "node5"


KILLED = "Out of memory: Killed process 4410 ({}) total-vm:9821122kB, anon-rss:6122011kB, file-rss:8812kB\n"


@pytest.mark.parametrize(
    ("name", "sure"), [("python", True), ("pt_main_thread", True), ("firefox", False), ("postgres", False)]
)
def test_the_kernels_kill_of_something_else_is_no_proof(tmp_path: Path, name: str, sure: bool) -> None:
    log = read(tmp_path, "[  911.001200] " + KILLED.format(name))
    assert [sighting.role.name for sighting in log.sightings if sighting.slug == "host-oom-killed"] == [
        "NAMES" if sure else "HINTS"
    ]


NO_SPACE = "[Errno 28] No space left on device"
FRAME = '  File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 57, in __init__\n    sl = self._semlock = _multiprocessing.SemLock(\n'


@pytest.mark.parametrize(
    ("frame", "message", "slug"),
    [
        ("", f"OSError: {NO_SPACE}: '/scratch/best.pt'", "disk-full"),
        ("", f"OSError: {NO_SPACE}", "disk-full"),
        ("", f"OSError: {NO_SPACE}: '/dev/shm/cache-7'", "shm-too-small"),
        (FRAME, f"OSError: {NO_SPACE}", "shm-too-small"),
        ("", "RuntimeError: unable to open shared memory object </torch_3_4> in read-write mode: No space left on device (28)", "shm-too-small"),
        ("", "RuntimeError: unable to open shared memory object </torch_3_4> in read-write mode: Too many open files (24)", "nofile-limit"),
        ("", "RuntimeError: write(): fd 9 failed with No space left on device", "disk-full"),
    ],
)  # fmt: skip
def test_no_space_where(tmp_path: Path, frame: str, message: str, slug: str) -> None:
    head = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 7, in <module>\n    main()\n'
    found = verdict_of(read(tmp_path, f"{head}{frame}{message}\n"), catalogue())
    assert found.suspects[0].slug == slug


SAID = (
    ("oom-batch-too-large/sick-torch2", "GPU memory is full on rank 3: 2.00 GiB more were wanted", 3, "expandable_segments"),
    ("oom-batch-too-large/sick-torch1", "GPU memory is full on a GPU: 20.00 MiB more were wanted", None, "zombie-gpu-process"),
    ("nccl-cuda-oom/sick-init", "NCCL found no memory for its buffers on rank 3", 3, "NCCL_BUFFSIZE"),
    ("nccl-cuda-driver-mismatch/sick-old-driver", '"API call is not supported in the installed CUDA driver"', 0, "NCCL_CUMEM_ENABLE=0"),
    ("nccl-cuda-driver-mismatch/sick-not-supported", '"operation not supported"', 1, "driver-too-old"),
    ("dataloader-worker-killed/sick-killed", "died by signal: Killed", 1, "host-oom-killed"),
    ("dataloader-worker-killed/sick-segfault", "died by signal: Segmentation fault", 0, "num_workers=0"),
    ("dataloader-worker-killed/sick-exit-code", "died with exit code 3", 1, "num_workers=0"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "words", "rank", "fix"), SAID, ids=[one[0] for one in SAID])
def test_the_finding_says_what_the_log_says(name: str, words: str, rank: int | None, fix: str) -> None:
    slug = name.partition("/")[0]
    check = find_check(slug)
    (found,) = check.predicate(log_of(LOGS / f"{name}.log"))
    assert words in found.summary
    assert found.rank == rank
    assert found.evidence
    assert any(fix in one.text or any(fix in command for command in one.commands) for one in found.fixes)
    assert list(check.predicate(Log(files=(LogFile(name="run.log", lines=1),)))) == []
