"""The live table of a smoke training on a terminal's stderr: ranks by stages, and where those are that are still under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ddpdoctor.base.text import plural
from ddpdoctor.report.live import started
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.progress import SmokeProgress, mark_of, places
from ddpdoctor.smoke_training.render_marks import STYLES, Mark, columns, symbol

_MOST_PLACES = 4
_LOW = 12
"""Lines of a terminal in which one place has to do."""
_PER_SECOND = 4


class SmokeLiveView(SmokeProgress):
    """Redraws itself until `close`, which leaves nothing of it on the screen."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._live = started(_Drawing(self), file, _PER_SECOND)

    def close(self) -> None:
        self._live.stop()


class _Drawing:
    """Drawn anew each time."""

    def __init__(self, progress: SmokeProgress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from drawing(self._progress, options.max_width, console.size.height - 1, console.encoding)
        # The terminal's own "^C" stands here; behind a full line it would begin a new one, which nobody takes away.
        yield Text()


def drawing(progress: SmokeProgress, width: int, height: int, encoding: str) -> Iterator[Text]:
    """At most `height` lines: what is over for all ranks is counted where there is no room to show it."""
    watch = progress.watch
    if watch is None or not any(rank.stage for rank in watch.ranks.values()):
        yield _cut(f"smoke  starting; the target Python imports torch  {progress.seconds:.0f} s", "bold")
        return
    order = watch.order
    yield _cut(f"smoke  {plural(len(watch.ranks), 'rank')} over {order.backend}  {progress.seconds:.0f} s", "bold")
    there = places(progress)[: _MOST_PLACES if height > _LOW else 1]
    yield from _table(watch, width, max(1, height - len(there) - 4), encoding)
    for words, seconds, allowed in there:
        yield _cut(f"  {words}  {seconds:.0f} s of {allowed:.0f}", "cyan" if seconds < allowed / 2 else "bold yellow")


def _table(watch: RankMonitor, width: int, most: int, encoding: str) -> Iterator[Text]:
    begun = {one.stage for one in watch.ranks.values()} | {
        name for one in watch.ranks.values() for name in tuple(one.done)
    }
    names = [name for name in watch.order.stages if name in begun]
    hidden = max(0, len(names) - most)
    if hidden:
        yield _cut(f"  {hidden} stages are over", "dim")
    names = names[hidden:]
    fates = {rank: tuple(mark_of(one, name) for name in names) for rank, one in watch.ranks.items()}
    margin = max(map(len, names))
    table = columns(fates, max(8, width - margin - 4))
    yield _cut(f"  {'rank':>{margin}}  " + " ".join(ranks_column.label for ranks_column in table), "dim")
    for place, name in enumerate(names):
        line = Text(f"  {name:<{margin}}  ", no_wrap=True, overflow="ellipsis")
        for ranks_column in table:
            mark: Mark = ranks_column.marks[place]
            line.append(f"{symbol(mark, encoding):<{len(ranks_column.label)}} ", STYLES[mark])
        yield line


def _cut(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
