"""Finds a free port for the job's store, in place of a taken one."""

from __future__ import annotations

import re
import socket
from contextlib import closing

from ddpdoctor.fixes.settings_lines import Line
from ddpdoctor.knowledge.launchers import MASTER_PORT
from ddpdoctor.probes.taken_ports import error_of_bind

_FREE_PORT_COMMAND = re.compile(rf"export ({'|'.join(MASTER_PORT)})=\$\(.*\)")
MAX_TRIES = 20


def variable_of(command: str) -> str:
    """The variable that the command gives a free port, "" where it is about something else."""
    found = _FREE_PORT_COMMAND.fullmatch(command)
    return found[1] if found else ""


def free_port(variable: str) -> Line | None:
    """A setting of the variable to a port on which torch's store can listen now; None where the system gives none."""
    for _ in range(MAX_TRIES):
        try:
            with closing(socket.socket()) as listener:
                listener.bind(("", 0))
                port = listener.getsockname()[1]
        except OSError:
            return None
        if not error_of_bind(port):
            return Line(variable, f"export {variable}={port}")
    return None
