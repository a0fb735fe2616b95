"""Takes the devices out of checkpoints in place, as `fix-checkpoint` does, with its undo files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome


def paths_of(command: str) -> tuple[str, ...]:
    """The files that a `ddpdoctor fix-checkpoint` without any option names; none of any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    paths = words[2:]
    plain = words[:2] == ["ddpdoctor", "fix-checkpoint"] and not any(path.startswith("-") for path in paths)
    return tuple(paths) if plain else ()


def files_of(paths: Sequence[str]) -> tuple[Path, ...]:
    """The files that are meant, as `fix-checkpoint` understands folders and indexes of shards."""
    from ddpdoctor.checkpoints.named_paths import expand

    return expand(map(Path, paths))


def fix(path: Path, *, dry_run: bool) -> CheckpointOutcome:
    """Fix a checkpoint in place. Afterwards the file was read back and verified, or is as it was."""
    from ddpdoctor.checkpoints.fixing import EditOptions
    from ddpdoctor.checkpoints.fixing import fix as fix_one

    return fix_one(path, EditOptions(), dry_run=dry_run)


def undo_size(path: Path) -> int:
    """Bytes of the file's undo file, which grows with every change in place; 0 where there is none."""
    from ddpdoctor.checkpoints.writing.journal import SUFFIX

    try:
        return Path(f"{path}{SUFFIX}").stat().st_size
    except OSError:
        return 0
