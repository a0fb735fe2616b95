"""`snapshot`: the facts of this host, to be judged anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.errors import refuse_empty
from ddpdoctor.engine.snapshots import SnapshotError as SnapshotError
from ddpdoctor.engine.snapshots import encode_snapshot, write_snapshot

if TYPE_CHECKING:
    from ddpdoctor.facts.snapshot import Snapshot


class HostSnapshot:
    """All the facts of this host, without passwords and tokens.

    Args:
        facts: them, typed.
    """

    def __init__(self, facts: Snapshot) -> None:
        self.facts = facts

    def to_json(self) -> str:
        """The file's text, which `check` and `diagnose_log` take as `snapshot`."""
        return encode_snapshot(self.facts).decode()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole, or not at all.

        Raises:
            SnapshotError: it can't be written.
        """
        write_snapshot(self.facts, Path(path))


def snapshot(python: str | None = None, *, checkpoints: Sequence[str] = (), quick: bool = False) -> HostSnapshot:
    """Take the facts of this host, and judge nothing.

    Args:
        python: the Python in which training runs; None: the active environment's.
        checkpoints: files or folders to look into, too; they are read as data and never run.
        quick: without importing torch.

    Raises:
        UsageError: an argument is empty.
    """
    refuse_empty(python=python, checkpoint=checkpoints)
    from ddpdoctor.facts.snapshot import GROUPS
    from ddpdoctor.probes.session import collect_facts, start_probes

    return HostSnapshot(collect_facts(start_probes(python, quick=quick, checkpoints=checkpoints), GROUPS))
