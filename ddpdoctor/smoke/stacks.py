"""Where a rank is: its own answer to a signal, or what the kernel says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ddpdoctor.probes.patient.asking import printable
from ddpdoctor.smoke.watching import Heard

ASKING_SECONDS: Final = 0.4
"""After which a rank that could answer has done so: faulthandler needs no GIL."""

MOST_FRAMES: Final = 12

THREAD: Final = re.compile(rb"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
FRAME: Final = re.compile(r'^\s*File "([^"]*)", line (\d+) in (.+)$', re.MULTILINE)
STATES: Final = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "in the kernel",
    "Z": "ended, and not yet taken away",
}


def stack_of(one: Heard, printed: bytes) -> None:
    """Fills in what is known. printed: what came on its output since it was asked."""
    one.process_state = process_state(one.pid)
    frames = frames_of(printed)
    if frames:
        one.stack, one.stack_source = frames, "faulthandler"
    else:
        one.stack_source = "it didn't answer"
    # The answer isn't what the rank printed.
    begin = THREAD.search(printed)
    if begin:
        kept = len(one.output) - len(printed) + begin.start()
        one.output = one.output[:kept]


def frames_of(printed: bytes) -> tuple[str, ...]:
    """The main thread's frames in faulthandler's output, innermost first. It prints that thread last."""
    threads = THREAD.split(printed)
    if len(threads) < 2:
        return ()
    found = FRAME.findall(threads[-1].decode("utf-8", "replace"))
    return tuple(f"{name} ({short(path)}:{line})" for path, line, name in found[:MOST_FRAMES])


def short(path: str) -> str:
    """From its package on: "torch/distributed/distributed_c10d.py"."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return printable(path.rpartition(folder)[2])
    return printable("/".join(path.rsplit("/", 2)[-2:]))


def process_state(pid: int) -> str:
    """What the kernel says, where it says more than that the process waits or runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    words = STATES.get(state, "")
    if state != "D":
        return words
    try:
        return f"{words}: {Path(f'/proc/{pid}/wchan').read_text()}"
    except OSError:
        return words
