"""The scaling of a smoke training: a line and a bar a number of ranks, the all_reduce by size, and what is normal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.text import human, one_line, plural
from ddpdoctor.facts.smoke import Bandwidth, Scaling, Smoke, Speed
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.document import Block, Column, Fitted, Lines, Paragraph, Row, Section, StyledText, Table
from ddpdoctor.smoke_training.analysis.normal_bandwidths import GB, Norm, normal_bandwidth

BAR_COLUMNS = 24


def scaling_sections(facts: Smoke, snapshot: Snapshot) -> Iterator[Section]:
    """Nothing where it wasn't asked for."""
    scaling = facts.scaling
    if scaling.problem:
        problem = StyledText(f"not tested: {one_line(scaling.problem)}", "bold magenta")
        yield Section((Paragraph(problem, "scaling", 9),))
    if scaling.speeds:
        yield Section(tuple(_speed_blocks(scaling)))
        yield Section(tuple(_bandwidth_blocks(facts, snapshot)))


def efficiency(speed: Speed, speeds: Sequence[Speed]) -> float | None:
    """Against its number of ranks times the single one; None where that isn't known."""
    single = next(
        (speed for speed in speeds if speed.ranks == 1 and speed.way == "DDP" and speed.samples_per_second), None
    )
    if single is None or not speed.samples_per_second or not speed.ranks:
        return None
    return speed.samples_per_second / (speed.ranks * single.samples_per_second)


def _speed_blocks(scaling: Scaling) -> Iterator[Block]:
    each = f", {plural(scaling.batch, 'sample')} a rank and step" if scaling.batch else ""
    yield Paragraph(StyledText(f"Scaling: the same training at every number of ranks{each}", "bold"))
    yield Fitted(lambda width, unicode: [_speed_table(scaling.speeds, "█" if unicode else "#")])
    most = max((speed.ranks for speed in scaling.speeds if speed.way == "DDP"), default=0)
    if not any(speed.memory for speed in scaling.speeds) and 0 < scaling.cores < most:
        yield Paragraph(
            f"{plural(most, 'rank')} share {plural(scaling.cores, 'core')} here: past {scaling.cores} there is nothing to"
            " gain, whatever is wrong or right."
        )


def _speed_table(speeds: Sequence[Speed], block: str) -> Table:
    """A row a number of ranks, with a bar of blocks."""
    with_memory = any(speed.memory for speed in speeds)
    headings = ("ranks", "samples/s", "efficiency", *(["most on one GPU"] if with_memory else []))
    fastest = max((speed.samples_per_second for speed in speeds), default=0.0)
    rows = (_speed_row(speed, speeds, fastest, block) for speed in speeds)
    return Table(
        tuple(Column(heading, right=True) for heading in headings),
        tuple(Row((*row.cells, *([memory] if with_memory else [])), row.note) for row, memory in rows),
        indent=0,
    )


def _speed_row(speed: Speed, speeds: Sequence[Speed], fastest: float, block: str) -> tuple[Row, str]:
    """The row without the memory, and that."""
    if speed.problem:
        what = f"nn.{speed.way}" if speed.way != "DDP" else "DDP"
        how, style = ("failed", "bold red") if speed.failed else ("not tested", "magenta")
        return Row(
            (StyledText(str(speed.ranks), style), "", ""), StyledText(f"{what} {how}: {one_line(speed.problem)}", style)
        ), ""
    share = efficiency(speed, speeds)
    bar = block * (max(1, round(BAR_COLUMNS * speed.samples_per_second / fastest)) if fastest else 0)
    way = "" if speed.way == "DDP" else f"  nn.{speed.way}, one process over {plural(speed.ranks, 'GPU')}"
    cells = (str(speed.ranks), f"{speed.samples_per_second:,.0f}", f"{share:.0%}" if share is not None else "")
    return Row(cells, (StyledText(bar, "yellow" if way else "green"), way)), human(speed.memory) if speed.memory else ""


def _bandwidth_blocks(facts: Smoke, snapshot: Snapshot) -> Iterator[Block]:
    scaling = facts.scaling
    ranks = max((speed.ranks for speed in scaling.speeds if speed.way == "DDP" and not speed.problem), default=0)
    if not scaling.bandwidths:
        failed = any(speed.failed and speed.way == "DDP" for speed in scaling.speeds)
        why = "the run before it failed" if failed else "needs 2 ranks" if ranks < 2 else "no figures came"
        yield Paragraph(StyledText(f"all_reduce bandwidth not tested: {why}", "magenta"))
        return
    yield Paragraph(StyledText(f"all_reduce over {ranks} ranks: bus bandwidth, as nccl-tests count it", "bold"))
    yield Lines(tuple(f"{human(measured.size):>9}  {rate(measured.bus):>12}" for measured in scaling.bandwidths))
    if scaling.larger:
        yield Paragraph(StyledText(f"Larger messages were not measured, {one_line(scaling.larger)}.", "magenta"))
    norm = normal_bandwidth(snapshot.gpus, snapshot.environment, facts.backend, ranks)
    yield Paragraph(_against(norm, scaling.bandwidths))


def _against(norm: Norm | str, bandwidths: Sequence[Bandwidth]) -> str:
    if isinstance(norm, str):
        return f"Normal here: {norm}."
    best = max(bandwidth.bus for bandwidth in bandwidths)
    much = "at most" if norm.at_most else "about"
    more = f" {norm.words}." if norm.words else ""
    return (
        f"Normal here: {much} {rate(norm.bus)} with large messages over {norm.link} (source: {norm.source}); measured"
        f" {best / norm.bus:.0%} of it.{more}"
    )


def rate(bus: float) -> str:
    """Bytes a second in decimal units, as nccl-tests print them: "374 GB/s", "0.51 GB/s", "0.8 MB/s"."""
    if bus >= GB / 10:
        return f"{bus / GB:.{0 if bus >= 100 * GB else 1 if bus >= 10 * GB else 2}f} GB/s"
    return f"{bus / 1e6:.{0 if bus >= 1e7 else 1}f} MB/s"
