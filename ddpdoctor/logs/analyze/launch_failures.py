"""What launchers write when they can't start a run's processes, or lose a node. Pure."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.base.lazy_patterns import compile_lazily

GIVES_UP: Final = (
    "was unable to reliably start one or more daemons",
    "has lost communication with a remote daemon",
    "daemon has unexpectedly failed after launch",
    "does not know how to route a message to the specified daemon",
    "not enough slots available in the system",
    "nodes which are allocated for this job are already filled",
    "was unable to find the specified executable file",
    "was unable to launch the specified application",
    "but not enough node entries",
    "execvp error on file ",
)
"""Open MPI 3 to 5, whose daemons are ORTE's and later PRTE's, and MPICH end the whole run with these words."""
SSH_FAILURES: Final = (
    "ssh: connect to host ",
    "ssh: Could not resolve hostname ",
    "Permission denied (publickey",
    "Permission denied (password",
    "Permission denied (gssapi",
    "Permission denied (keyboard-interactive",
    "Permission denied (hostbased",
    "Host key verification failed",
    "kex_exchange_identification: ",
    "ssh exited with exit code ",
)
"""OpenSSH's own, and pdsh's of it: a launcher may try again."""
BESIDE_GIVING_UP: Final = ("ORTE_ERROR_LOG: ", "PRTE ERROR: ", "Remote daemon: ")
"""What Open MPI writes before or behind that it gives up: where in it, and which node."""
STARTS_AGAIN: Final = "Worker group FAILED. "
"""By which torchrun's agent tells that an attempt failed, behind which rank it was."""
_GIVES_UP: Final = compile_lazily("|".join(map(re.escape, GIVES_UP)))
_OF_SSH: Final = compile_lazily("|".join(map(re.escape, SSH_FAILURES)) + r"|not reachable via ssh")


def gives_up(text: str) -> bool:
    """Whether a launcher ends the run with that line."""
    return bool(_GIVES_UP.search(text))


def is_of_ssh(text: str) -> bool:
    """Whether another node can't be entered."""
    return bool(_OF_SSH.search(text))


def is_of_launching(text: str) -> bool:
    """Whether the line is about the processes' start, before any rank could say something."""
    return gives_up(text) or is_of_ssh(text) or any(word in text for word in BESIDE_GIVING_UP)
