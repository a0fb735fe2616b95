"""The two files that `srun --exclude` and `--nodelist` read: hosts on which jobs may be put, and all others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from ddpdoctor.api.errors import WriteError, write_problem
from ddpdoctor.knowledge.hostlist import FAILING_NODES, PASSING_NODES

READABLE: Final = 0o644
"""The users' jobs read them, and there is nothing in them but names of hosts."""


def paths_in(folder: str | os.PathLike[str]) -> tuple[str, str]:
    """The paths of both files."""
    return os.path.join(folder, PASSING_NODES), os.path.join(folder, FAILING_NODES)  # noqa: PTH118


def write_node_lists(folder: str | os.PathLike[str], passing: Iterable[str], failing: Iterable[str]) -> tuple[str, str]:
    """Write both files, a host a line.

    Returns:
        Their paths.
    Raises:
        WriteError: they can't be written.
    """
    from ddpdoctor.base.whole_files import write_whole

    paths = paths_in(folder)
    for path, names in zip(paths, (passing, failing), strict=True):
        try:
            write_whole(path, "".join(f"{name}\n" for name in names).encode(), READABLE)
        except OSError as error:
            raise WriteError(write_problem(path, error)) from error
    return paths
