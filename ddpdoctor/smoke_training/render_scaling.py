"""How the smoke training scales: a line and a bar a number of ranks, the all_reduce by size, and what is normal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from ddpdoctor.base.text import human, one_line, plural
from ddpdoctor.facts.smoke import Bandwidth, Scaling, Smoke, Speed
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.terminal import Hanging
from ddpdoctor.smoke_training.analysis.normal_bandwidths import GB, Norm, normal_bandwidth

_BAR = 24
"""Characters."""


def show_scaling(console: Console, facts: Smoke, snapshot: Snapshot) -> None:
    """Nothing where it wasn't asked for."""
    scaling = facts.scaling
    if scaling.problem:
        console.print(Hanging(Text("scaling  "), Text(f"not tested: {one_line(scaling.problem)}", "bold magenta"), 9))
        console.print()
    if not scaling.speeds:
        return
    for line in (*_speed_lines(scaling, console.encoding), Text(), *_bandwidth_lines(facts, snapshot)):
        console.print(Hanging(Text(), line, 0))
    console.print()


def efficiency(speed: Speed, speeds: Sequence[Speed]) -> float | None:
    """Against its number of ranks times the single one; None where that isn't known."""
    single = next((one for one in speeds if one.ranks == 1 and one.way == "DDP" and one.samples_per_second), None)
    if single is None or not speed.samples_per_second or not speed.ranks:
        return None
    return speed.samples_per_second / (speed.ranks * single.samples_per_second)


def _speed_lines(scaling: Scaling, encoding: str) -> Iterator[Text]:
    each = f", {plural(scaling.batch, 'sample')} a rank and step" if scaling.batch else ""
    yield Text(f"Scaling: the same training at every number of ranks{each}", "bold")
    with_memory = any(speed.memory for speed in scaling.speeds)
    memory_head = f"{'most on one GPU':>17}" if with_memory else ""
    yield Text(f"{'ranks':>5}  {'samples/s':>10}{'efficiency':>12}{memory_head}", "dim")
    fastest = max((speed.samples_per_second for speed in scaling.speeds), default=0.0)
    for speed in scaling.speeds:
        yield _speed_line(speed, scaling.speeds, fastest, encoding, with_memory=with_memory)
    most = max((speed.ranks for speed in scaling.speeds if speed.way == "DDP"), default=0)
    if not with_memory and 0 < scaling.cores < most:
        yield Text(
            f"{plural(most, 'rank')} share {plural(scaling.cores, 'core')} here: past {scaling.cores} there is nothing to"
            " gain, whatever is wrong or right."
        )


def _speed_line(one: Speed, speeds: Sequence[Speed], fastest: float, encoding: str, *, with_memory: bool) -> Text:
    way = "" if one.way == "DDP" else f"  nn.{one.way}, one process over {plural(one.ranks, 'GPU')}"
    if one.problem:
        what = f"nn.{one.way}" if one.way != "DDP" else "DDP"
        how, style = ("failed", "bold red") if one.failed else ("not tested", "magenta")
        return Text(f"{one.ranks:>5}  {what} {how}: {one_line(one.problem)}", style)
    share = efficiency(one, speeds)
    text = f"{one.ranks:>5}  {one.samples_per_second:>10,.0f}"
    text += f"{f'{share:.0%}' if share is not None else '':>12}"
    if with_memory:
        text += f"{human(one.memory) if one.memory else '':>17}"
    bar = max(1, round(_BAR * one.samples_per_second / fastest)) if fastest else 0
    block = "█" if encoding.lower().startswith("utf") else "#"
    return Text(f"{text}  ").append(block * bar, "green" if one.way == "DDP" else "yellow").append(way)


def _bandwidth_lines(facts: Smoke, snapshot: Snapshot) -> Iterator[Text]:
    scaling = facts.scaling
    ranks = max((speed.ranks for speed in scaling.speeds if speed.way == "DDP" and not speed.problem), default=0)
    if not scaling.bandwidths:
        failed = any(speed.failed and speed.way == "DDP" for speed in scaling.speeds)
        why = "the run before it failed" if failed else "needs 2 ranks" if ranks < 2 else "no figures came"
        yield Text(f"all_reduce bandwidth not tested: {why}", "magenta")
        return
    yield Text(f"all_reduce over {ranks} ranks: bus bandwidth, as nccl-tests count it", "bold")
    for bandwidth in scaling.bandwidths:
        yield Text(f"{human(bandwidth.size):>9}  {rate(bandwidth.bus):>12}")
    if scaling.larger:
        yield Text(f"Larger messages were not measured, {one_line(scaling.larger)}.", "magenta")
    yield Text(
        _against(normal_bandwidth(snapshot.gpus, snapshot.environment, facts.backend, ranks), scaling.bandwidths)
    )


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
