"""Clears up after earlier runs of this user's that were killed with all that belonged to them."""

from __future__ import annotations

from collections.abc import Mapping
from shutil import rmtree

from ddpdoctor.probes.smoke_notes import dead_runs
from ddpdoctor.smoke_training.local.shared_memory import SHARED, free, own_files


def clear_up_earlier(environ: Mapping[str, str], shared: str = SHARED) -> None:
    """Removes their folders, and of their shared memory what is still there by the same inode and name, and nobody uses."""
    for run in dead_runs(environ):
        there = own_files(shared)
        ours = {key for key, name in run.noted.items() if there.get(key) == name}
        free(shared, there.keys() - ours, ours)
        rmtree(run.folder, ignore_errors=True)
