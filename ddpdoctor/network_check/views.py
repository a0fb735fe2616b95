"""The view that a netcheck is given: live where stderr is a terminal, else single lines there."""

from __future__ import annotations

import sys
from typing import TextIO

from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.network_check.progress import NetcheckLines, NetcheckView


def make_view(file: TextIO = sys.stderr, command: str = "netcheck") -> NetcheckView:
    """The live view on a terminal that can move its cursor, else lines."""
    if moves_its_cursor(file):
        # Here and not above: rich takes its time to load.
        from ddpdoctor.network_check.live import NetcheckLiveView

        return NetcheckLiveView(file, command=command)
    return NetcheckLines(file, command=command)
