"""The view that a smoke training is given: live where stderr is a terminal, else single lines there."""

from __future__ import annotations

import sys
from typing import TextIO

from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.smoke_training.progress import SmokeLines, SmokeView


def make_view(file: TextIO = sys.stderr) -> SmokeView:
    """The live view on a terminal that can move its cursor, else lines."""
    if moves_its_cursor(file):
        # Here and not above: rich takes its time to load.
        from ddpdoctor.smoke_training.live import SmokeLiveView

        return SmokeLiveView(file)
    return SmokeLines(file)
