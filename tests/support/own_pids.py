"""A pid namespace with a first process that adopts orphans, as a container with tini has it: nothing that a test ends there can
be anybody else's. It has a loopback of its own. Needs root, `unshare` and `nsenter`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.command import command, plain_environ
from tests.support.running_jobs import RunningJob, wait_until

INIT = """
import fcntl, os, pathlib, signal, socket, struct
pathlib.Path("/proc/self/comm").write_text("tini")
with socket.socket() as lo:
    fcntl.ioctl(lo, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.sigtimedwait({signal.SIGCHLD}, 0.02)
"""


SUBREAPER = """
import ctypes, os, signal, subprocess, sys, time
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
subprocess.Popen(sys.argv[1:])
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
"""
"""Adopts the orphans of what it has started, as slurmstepd, a container's shim, Ray and supervisors do (PR_SET_CHILD_SUBREAPER)."""


class OwnPids:
    """prefix: in front of a command, it runs it inside."""

    def __init__(self, outer: int) -> None:
        self.prefix = ["nsenter", f"--target={outer}", "--pid", "--mount", "--net", "--wd=.", "setsid"]

    def run(self, *words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        settings = plain_environ() | (environ or {})
        return subprocess.run(
            [*self.prefix, *words], env=settings, capture_output=True, text=True, timeout=120, check=False
        )

    def ddpdoctor(self, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(*command(*arguments), environ=environ)

    def leftovers(self) -> list[dict[str, Any]]:
        """As `zombies` tells them."""
        ended = self.ddpdoctor("zombies", "--json")
        found: list[dict[str, Any]] = json.loads(ended.stdout)["leftovers"]
        return found

    def proven(self, *pids: int) -> list[dict[str, Any]]:
        """The leftovers of these pids, once all of them are proven: they must have been there for some seconds."""
        found: list[dict[str, Any]] = []

        def all_proven() -> bool:
            found[:] = [leftover for leftover in self.leftovers() if leftover["pid"] in pids]
            return len(found) == len(pids) and all(one["certainty"] == "proven" for one in found)

        wait_until(all_proven, lambda: f"proven leftovers: {found}")
        return found

    def alive(self, pid: int) -> bool:
        state = self.run("ps", "-o", "stat=", "-p", str(pid)).stdout
        return bool(state) and not state.startswith("Z")


@contextmanager
def own_pids() -> Iterator[OwnPids]:
    unshared = subprocess.Popen(
        ["unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", INIT],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert unshared.stdout
        assert unshared.stdout.readline() == "ready\n"
        (inner,) = Path(f"/proc/{unshared.pid}/task/{unshared.pid}/children").read_text().split()
        yield OwnPids(int(inner))
    finally:
        unshared.kill()
        unshared.wait()


def kill_launcher(job: RunningJob) -> None:
    """As the OOM killer does: its ranks are told nothing."""
    mark = os.fsencode(sys.executable) + b"\0-m\0torch.distributed.run\0"
    (launcher,) = [pid for pid in job.pids() if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(mark)]
    os.kill(launcher, 9)
    wait_until(lambda: launcher not in job.pids(), "the launcher's end")
