"""What redraws itself on a terminal while something takes its time, and leaves nothing behind."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live


def started(drawing: RenderableType, file: TextIO, per_second: float) -> Live:
    """Drawn anew so many times a second, until `stop()`; what doesn't fit on the terminal is cut off."""
    live = Live(
        drawing,
        console=Console(file=file, markup=False, emoji=False, highlight=False),
        refresh_per_second=per_second,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )
    live.start()
    return live
