"""What a folder is."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.checkpoints.recognised import Recognised


def recognise_folder(path: Path) -> Recognised:
    return Recognised(kind="folder", called="a folder")
