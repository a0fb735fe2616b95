"""Lets torch's debug server be started in the ranks of a command, so that `jobs --hang --debug-server` can ask it when they hang."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.facts.hang import PORT_SETTING
from ddpdoctor.run.added_settings import torch_release
from ddpdoctor.run.command_wrappers import wrappers_and_program
from ddpdoctor.run.launchers import Hands, Launcher, launcher_among

HOOK: Final = Path(__file__).with_name("debug_server_hook")
"""Folder of the sitecustomize.py that starts it in each rank: nothing else is found there."""
FIRST_RELEASE: Final = (2, 10)
_HOST_OPTIONS: Final = re.compile(
    r"--?(?:host|hosts|H|hostfile|f|machinefile|default-hostfile|include|num_nodes|ppn|perhost)(?:[= ].*)?"
)
"""By which mpirun, mpiexec and deepspeed are told of hosts."""


class DebugServerSettings(NamedTuple):
    """The settings by which ranks start it, none where they can't; and what the user should know of it."""

    settings: Mapping[str, str]
    note: str


def debug_server_settings(port: int, command: Sequence[str], environ: Mapping[str, str]) -> DebugServerSettings:
    """Choose the settings for that command, whose rank 0 is to listen on that port."""
    wrappers, program = wrappers_and_program(command)
    launcher = launcher_among((*wrappers, program[0]))
    if launcher and launcher.hands is Hands.NOBODY:
        return _none(f"settings don't get through {launcher.name} by themselves; run ddpdoctor behind it")
    release = torch_release(program, environ)
    if release and release < FIRST_RELEASE:
        return _none(f"torch {release[0]}.{release[1]} has none; it came with torch 2.10")
    paths = [str(HOOK), *([environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else [])]
    return DebugServerSettings(
        {PORT_SETTING: str(port), "PYTHONPATH": os.pathsep.join(paths)},
        f"ddpdoctor: torch's debug server will tell where all ranks stand, on rank 0's host: ddpdoctor jobs --hang --debug-server localhost:{port}\n"
        f"ddpdoctor: it has no password: port {port}, and one of each rank's, tell the stacks to whoever reaches them"
        + (_of_other_hosts(launcher.name, port) if launcher and _names_hosts(launcher, program[1:]) else ""),
    )


def _names_hosts(launcher: Launcher, words: Sequence[str]) -> bool:
    own = takewhile(lambda word: not Path(word).name.startswith("python") and not word.endswith(".py"), words)
    return launcher.hands is Hands.THIS_HOST and any(map(_HOST_OPTIONS.fullmatch, own))


def _of_other_hosts(launcher: str, port: int) -> str:
    if launcher == "deepspeed":
        does = f"hands PYTHONPATH to other hosts, and not {PORT_SETTING}: write {PORT_SETTING}={port} into the file .deepspeed_env"
    else:
        does = (
            f"may not hand {PORT_SETTING} and PYTHONPATH to other hosts (Open MPI's doesn't), and then the server knows nothing of their ranks: "
            f"run ddpdoctor behind it, {launcher} ... ddpdoctor run --debug-server {port} -- python train.py"
        )
    return f"\nddpdoctor: {launcher} {does}"


def _none(why: str) -> DebugServerSettings:
    return DebugServerSettings({}, f"ddpdoctor: no debug server: {why}")
