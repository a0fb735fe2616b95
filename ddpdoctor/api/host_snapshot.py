"""`snapshot`: the facts of this host, to be judged anywhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.api.errors import refuse_empty
from ddpdoctor.engine.snapshots import SnapshotError as SnapshotError
from ddpdoctor.engine.snapshots import encode_line, encode_snapshot, write_snapshot

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

    def to_json_line(self) -> str:
        """The same in one line."""
        return encode_line(self.facts).decode()

    def to_lines(self) -> str:
        """The same packed into short lines, which survive launchers that cut long ones; whoever takes the file's text takes these, too."""
        from ddpdoctor.engine.snapshot_lines import to_lines

        return to_lines(self.facts)

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


def is_mixed_with_others(output: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a launcher reads that output, and those of other hosts beside it.

    Args:
        output: a descriptor.
        environ: the settings by which launchers tell.
    """
    from ddpdoctor.knowledge.launchers import current_launch

    launch = current_launch(environ)
    if launch is None or launch.launcher == "settings" or (launch.world_size or 2) < 2:
        return False
    try:
        mode = os.fstat(output).st_mode
    except OSError:
        return False
    # mpirun makes a terminal for each task's output; nobody types there, as people do in a shell under `srun --pty`.
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (os.isatty(output) and not os.isatty(0))
