"""Lets torch's debug server be started in the ranks of a command, so that `jobs --hang --debug-server` can ask it when they hang."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.run.added_settings import torch_release
from ddpdoctor.run.command_wrappers import wrappers_and_program

HOOK: Final = Path(__file__).with_name("debug_server_hook")
"""Folder of the sitecustomize.py that starts it in each rank: nothing else is found there."""
PORT_SETTING: Final = "DDPDOCTOR_DEBUG_SERVER"
FIRST_RELEASE: Final = (2, 10)
CLOSED_LAUNCHERS: Final = ("ssh", "pdsh", "docker", "podman", "kubectl", "ray", "sudo", "su", "runuser")
"""Commands that start others without our settings."""


class DebugServerSettings(NamedTuple):
    """The settings by which ranks start it, none where they can't; and what the user should know of it."""

    settings: Mapping[str, str]
    note: str


def debug_server_settings(port: int, command: Sequence[str], environ: Mapping[str, str]) -> DebugServerSettings:
    """Choose the settings for that command, whose rank 0 is to listen on that port."""
    wrappers, program = wrappers_and_program(command)
    closed = next((name for name in (*wrappers, Path(program[0]).name) if name in CLOSED_LAUNCHERS), "")
    if closed:
        return _none(f"settings don't get through {closed} by themselves; run ddpdoctor behind it")
    release = torch_release(program, environ)
    if release and release < FIRST_RELEASE:
        return _none(f"torch {release[0]}.{release[1]} has none; it came with torch 2.10")
    paths = [str(HOOK), *([environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else [])]
    return DebugServerSettings(
        {PORT_SETTING: str(port), "PYTHONPATH": os.pathsep.join(paths)},
        f"ddpdoctor: torch's debug server will tell where all ranks stand, on rank 0's host: ddpdoctor jobs --hang --debug-server localhost:{port}\n"
        f"ddpdoctor: it has no password: port {port}, and one of each rank's, tell the stacks to whoever reaches them",
    )


def _none(why: str) -> DebugServerSettings:
    return DebugServerSettings({}, f"ddpdoctor: no debug server: {why}")
