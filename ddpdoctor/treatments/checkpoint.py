"""Takes the devices out of checkpoints in place, as `fix-checkpoint` does, with its undo files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.outcomes import Outcome


def paths_of(command: str) -> tuple[str, ...]:
    """The files that a `ddpdoctor fix-checkpoint` without any option names; none of any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    paths = words[2:]
    plain = words[:2] == ["ddpdoctor", "fix-checkpoint"] and not any(one.startswith("-") for one in paths)
    return tuple(paths) if plain else ()


def fix(paths: Sequence[str], *, dry_run: bool) -> list[Outcome]:
    """One outcome a file. Each was read back and verified, or is as it was."""
    from ddpdoctor.checkpoints.fixing import Wishes
    from ddpdoctor.checkpoints.fixing import fix as fix_one
    from ddpdoctor.checkpoints.folders import expand

    return [fix_one(path, Wishes(), dry_run=dry_run) for path in expand(map(Path, paths))]
