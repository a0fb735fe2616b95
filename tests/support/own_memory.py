"""How much memory the tests' own process holds."""

import gc
from pathlib import Path


def start_over() -> int:
    """Bytes of memory that this process holds; its peak is counted from here on (see proc_pid_clear_refs(5))."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Bytes of memory that this process held at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
