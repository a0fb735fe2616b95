"""Picks from the kernel log the lines that matter to a training job."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists, isdir
from ddpdoctor.probes.programs import find_system_tool
from ddpdoctor.probes.subprocesses import run

MAX_LINES = 200
MAX_LINES_PER_KEY = 100
MAX_LINE_LENGTH = 500
JOURNAL_SECONDS = 8.0

TROUBLE = compile_lazily(rb"error|fail|fatal|fault|timeout|timed out|health|corrupt|reset|down", re.IGNORECASE)
TRAINING = compile_lazily(rb"python|libcuda|libnccl|libtorch|libc10|libcudart|nvidia|torchrun|pt_|ray::")

KEYS: tuple[tuple[bytes, re.Pattern[bytes] | None], ...] = (
    (b"NVRM: Xid", None),
    (b"fallen off the bus", None),
    (b"Killed process", None),
    (b"oom-kill:", None),
    (b"Out of memory", None),
    (b"SXid", None),
    (b"NVSwitch", None),
    (b"segfault at", TRAINING),
    (b"general protection", TRAINING),
    (b"AER:", TROUBLE),
    (b"PCIe Bus Error", None),
    (b"pcieport", TROUBLE),
    (b"mlx5_core", TROUBLE),
    (b"amdgpu", TROUBLE),
    (b"nouveau", None),
    (b"NVRM", None),
    (b"is rejected", re.compile(rb"module")),
    (b"Lockdown:", re.compile(rb"module")),
    (b"nvidia", None),
)
"""What a line must hold, most telling first, and what else it must hold to count."""

LINE = re.compile(rb"(?:<\d+>)?(?:\[\s*(\d+\.\d+)\](?:\[\s*[TC]\d+\])?)?\s*(.*)")
BOOT = re.compile(rb"Linux version |Booting Linux on ")


def probe(context: Context) -> KernelLog | Unknown:
    reasons = []
    for source, read in (("dmesg", _ring_buffer), ("journalctl -k", _journal)):
        text = read(context)
        if isinstance(text, bytes):
            is_complete = BOOT.search(text, 0, 4096) is not None
            return KernelLog(lines=lines_that_matter(text, time.monotonic()), source=source, complete=is_complete)
        reasons.append(f"{source}: {text.reason}")
    return Unknown("; ".join(reasons))


def lines_that_matter(text: bytes, now: float) -> tuple[KernelLine, ...]:
    """The newest 200 such lines, oldest first. `now`: seconds since boot.

    Where there are more than that, a kind of line that floods the log doesn't push out the more telling ones.
    """
    spans: dict[int, int] = {}
    for key, also in KEYS:
        found, end = 0, len(text)
        while found < MAX_LINES_PER_KEY and len(spans) < MAX_LINES and (at := text.rfind(key, 0, end)) >= 0:
            begin = text.rfind(b"\n", 0, at) + 1
            stop = text.find(b"\n", at)
            stop = len(text) if stop < 0 else stop
            if begin not in spans and (also is None or also.search(text, begin, stop)):
                spans[begin] = stop
                found += 1
            end = begin
    return tuple(_line(text[begin:stop], now) for begin, stop in sorted(spans.items()))


def _line(raw: bytes, now: float) -> KernelLine:
    found = LINE.match(raw)
    assert found is not None
    words = found[2].decode("utf-8", "replace")[:MAX_LINE_LENGTH].rstrip()
    return KernelLine(text=words, age=-1.0 if found[1] is None else max(0.0, round(now - float(found[1]), 1)))


SYSLOG_READ_ALL, SYSLOG_SIZE = 3, 10


def _ring_buffer(context: Context) -> bytes | Unknown:
    """All of the kernel's buffer in one system call: /dev/kmsg would take one for each line."""
    if not exists(context.path("/dev/kmsg")):
        return Unknown("there is no /dev/kmsg here, as in most containers")
    try:
        call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).klogctl
    except (OSError, AttributeError):
        return Unknown("the C library has no klogctl")
    size = call(SYSLOG_SIZE, None, 0)
    # The text has a time stamp before each line, which the buffer's size doesn't count.
    space = ctypes.create_string_buffer(max(size, 1 << 16) * 2)
    length = call(SYSLOG_READ_ALL, space, len(space))
    if length < 0:
        return Unknown(f"{os.strerror(ctypes.get_errno())} (kernel.dmesg_restrict lets only root read it)")
    return space.raw[:length]


def _journal(context: Context) -> bytes | Unknown:
    if not isdir(context.path("/run/systemd/system")):
        return Unknown("systemd doesn't run here")
    journalctl = find_system_tool("journalctl", context.root)
    if journalctl is None:
        return Unknown("not installed")
    command = [str(journalctl), "-k", "-b", "--no-pager", "--quiet", "-o", "short-monotonic"]
    ended = run(command, JOURNAL_SECONDS, environ={**context.environ, "LC_ALL": "C"})
    if ended.timed_out:
        return Unknown(f"no answer within {JOURNAL_SECONDS:.0f} s")
    text = re.sub(rb"(?m)^(\[\s*[\d.]+\]) \S+ kernel: ", rb"\1 ", ended.stdout)
    if not ended.ok or not text.strip():
        return Unknown("shows this user no kernel messages (the groups adm and systemd-journal may see them)")
    return text
