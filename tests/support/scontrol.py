"""A stand-in for Slurm's scontrol, which shows one node."""

from __future__ import annotations

from pathlib import Path

SHOWN = """NodeName=n2 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.02
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all
   Reason={reason} [root@2026-11-28T02:00:00]
"""


class Scontrol:
    """A stand-in that shows a node, and notes what it was asked to change."""

    def __init__(self, folder: Path, state: str, reason: str) -> None:
        shown = folder / "shown"
        shown.write_text(SHOWN.format(state=state, reason=reason) if reason else f"NodeName=n2\n   State={state} X=1\n")
        self.asked = folder / "asked"
        program = folder / "scontrol"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = show ]; then cat {shown}; else printf "%s\\n" "$@" >>{self.asked}; fi\n'
        )
        program.chmod(0o755)
        self.environ = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": "n2"}

    @property
    def changes(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []
