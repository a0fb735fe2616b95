"""The burn-in of a smoke training: throughput, temperature and memory over its time, each in a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddpdoctor.base.durations import duration_words
from ddpdoctor.base.text import human, one_line, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.burn_in import HostWatch
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.report.document import Block, Fitted, LabelledRows, Paragraph, Section, StyledText
from ddpdoctor.report.sparkline import sparkline
from ddpdoctor.smoke_training.analysis.burn_in import (
    MUCH_WAITING,
    burnt_seconds,
    hottest,
    temperatures,
    throughput,
    waiting_share,
)

LINE_COLUMNS = 40
MIN_WORDS_COLUMNS = 50
"""Columns that are left for labels and words beside a line."""
MAX_HOSTS = 8


def burn_in_sections(facts: Smoke) -> Iterator[Section]:
    """Nothing where it wasn't asked for, or no rank came to it."""
    if not any(run.pace for run in facts.ranks):
        return
    yield Section(
        (
            Paragraph(StyledText(burn_in_words(facts), "bold")),
            Fitted(lambda width, unicode: _lines(facts, width, unicode=unicode)),
        )
    )


def burn_in_words(facts: Smoke) -> str:
    """ "Burn-in: 83 s of 10 min, stopped by Ctrl-C; 64 samples a rank and step"."""
    seconds = burnt_seconds(facts)
    done = duration_words(seconds)
    # The last window may end a step before the time is up.
    whole = seconds > 0.9 * facts.burn_in.asked and not facts.burn_in.stopped
    of_asked = duration_words(facts.burn_in.asked) if whole else f"{done} of {duration_words(facts.burn_in.asked)}"
    stopped = f", stopped by {one_line(facts.burn_in.stopped)}" if facts.burn_in.stopped else ""
    batch = f"; {plural(facts.burn_in.batch, 'sample')} a rank and step" if facts.burn_in.batch else ""
    return f"Burn-in: {of_asked}{stopped}{batch}"


def _lines(facts: Smoke, width: int, *, unicode: bool) -> list[Block]:
    columns = max(8, min(LINE_COLUMNS, width - MIN_WORDS_COLUMNS))
    rows = [
        (label, (sparkline(values, columns, unicode=unicode), "  ", one_line(words)))
        for label, values, words in _series(facts)
    ]
    blocks: list[Block] = [LabelledRows(tuple(rows))]
    if (share := waiting_share(facts)) >= MUCH_WAITING:
        text = (
            f"The ranks waited for a core {share:.0%} of the time: there are more of them than cores, or other programs run here. The"
            " throughput says as much of these as of the training."
        )
        blocks.append(Paragraph(StyledText(text, "magenta")))
    return blocks


def _series(facts: Smoke) -> Iterator[tuple[str, Sequence[float], str]]:
    samples = [value for _, value in throughput(facts)]
    yield "samples/s", samples, f"{median(samples):,.0f} in the middle, {min(samples):,.0f} to {max(samples):,.0f}"
    for host in facts.burn_in.hosts[:MAX_HOSTS]:
        where = f" on {host.host}" if facts.nnodes > 1 else ""
        yield from _of_gpus(host, where)
    memory = _ranks_memory(facts)
    if memory and memory[0]:
        yield "memory", memory, f"all ranks together {human(memory[0])} at first, {human(memory[-1])} at the end"


def _of_gpus(host: HostWatch, where: str) -> Iterator[tuple[str, Sequence[float], str]]:
    """The hottest GPU of a host, which stands for the others."""
    gpu = hottest(host)
    if gpu is None or isinstance(host.gpus, Unknown):
        return
    degrees = [degrees for _, degrees in temperatures(gpu)]
    clocks = [look.clock for look in gpu.looks if look.clock is not None]
    clock = f", clock {max(clocks):,} to {min(clocks):,} MHz" if clocks else ""
    yield (
        f"GPU {gpu.index}{where}",
        degrees,
        f"{degrees[0]} to {max(degrees)} °C{clock}; the hottest of {len(host.gpus)}",
    )


def _ranks_memory(facts: Smoke) -> list[float]:
    """Bytes of all ranks together, window by window, as many as all have."""
    windows = [run.pace for run in facts.ranks if run.pace]
    return [float(sum(window.memory for window in at_once)) for at_once in zip(*windows, strict=False)]
