"""Reads what NVSentinel tells a preflight container of the pods that start together, as plain settings of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.regular_files import read_start
from ddpdoctor.knowledge.launchers import number

FOLDER: Final = "GANG_CONFIG_DIR"
USUAL_WAIT_SECONDS: Final = 600.0
POLL_SECONDS: Final = 1.0
MAX_FILE_BYTES: Final = 1024 * 1024


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that start together. expected: 0 while nobody has said how many; peers: those that are known, by rank."""

    expected: int = 0
    peers: Mapping[str, int | None] = {}
    master: str = ""
    port: str = ""

    @property
    def is_complete(self) -> bool:
        return 0 < self.expected <= len(self.peers)

    def settings(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What torchrun would be given for this pod; what is set already stays."""
        rank = self.peers.get(environ.get("POD_NAME", ""))
        told = {
            "MASTER_ADDR": self.master,
            "MASTER_PORT": self.port,
            "PET_NNODES": str(self.expected or ""),
            "PET_NODE_RANK": "" if rank is None else str(rank),
        }
        return {name: value for name, value in told.items() if value and name not in environ}


def gang_of(environ: Mapping[str, str]) -> Gang | None:
    """Read who is known now; None where NVSentinel has told of no gang."""
    folder = environ.get(FOLDER, "")
    if not folder:
        return None
    return Gang(
        expected=number(_read(folder, "expected_count")) or 0,
        peers=dict(_peers(_read(folder, "peers"))),
        master=_read(folder, "master_addr"),
        port=_read(folder, "master_port"),
    )


def wait_for_gang(environ: Mapping[str, str], say: Callable[[str], None]) -> Gang | None:
    """Wait until all pods are known, or the time that NVSentinel gives them is over.

    Args:
        environ: names the folder, and how long they may take.
        say: is told whom it waits for, when it begins to.
    Returns:
        The gang, complete or not; None where there is none.
    """
    seconds = number(environ.get("GANG_TIMEOUT_SECONDS", ""))
    until = time.monotonic() + (USUAL_WAIT_SECONDS if seconds is None else seconds)
    has_said = False
    while (gang := gang_of(environ)) is not None and not gang.is_complete and time.monotonic() < until:
        if not has_said:
            say(f"waiting for the gang: {len(gang.peers)} of {gang.expected or '?'} pods have come")
            has_said = True
        time.sleep(POLL_SECONDS)
    return gang


def _read(folder: str, name: str) -> str:
    """A file of a mounted ConfigMap; "" while it isn't there."""
    try:
        return read_start(Path(folder) / name, MAX_FILE_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


def _peers(text: str) -> Iterator[tuple[str, int | None]]:
    """The pods of lines like "worker-0;10.244.1.9;0"; a fourth part names the checks that they run."""
    for line in text.splitlines():
        pod, *others = (part.strip() for part in line.split(";"))
        if pod and others:
            yield pod, number(others[1]) if len(others) > 1 else None
