"""The drawing of a progress as rich wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ddpdoctor.report.terminal import lines_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from ddpdoctor.report.progress import Progress


class LiveDrawing:
    """Drawn anew each time; what doesn't fit on the terminal is cut off."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, console.size.height - 1
        unicode = console.encoding.startswith("utf")
        for block in self._progress.drawing(width, height, unicode=unicode):
            for line in lines_of(block, width, unicode=unicode):
                yield Text.assemble(*line, no_wrap=True, overflow="ellipsis")
        # The terminal's own "^C" stands here; behind a full line it would begin a new one, which nobody takes away.
        yield Text()
