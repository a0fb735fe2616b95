"""`fleet`: judge the snapshots of many hosts, compare those that should be alike, and name the odd ones out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from ddpdoctor.api.errors import UsageError, WriteError, refuse_empty, write_problem
from ddpdoctor.api.results import CommandResult
from ddpdoctor.base.shell import quoted

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.engine.registry import Check
    from ddpdoctor.fleet_sweep.outcome import FleetOutcome
    from ddpdoctor.fleet_sweep.profiles import Profile
    from ddpdoctor.fleet_sweep.sweep import Sweep
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document

BY_GPU: Final = "gpu"
BY_PARTITION: Final = "partition"
FILE_ENDINGS: Final = (".txt", ".list", ".lst", ".csv", ".json", ".conf", ".log", ".out")
"""That no host's name has."""
MAX_FILE_BYTES: Final = 64 * 1024 * 1024


class FleetResult(CommandResult):
    """Many hosts, judged and compared.

    Args:
        outcome: what came of it.
    """

    command = "fleet"

    def __init__(self, outcome: FleetOutcome) -> None:
        self.outcome = outcome

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def problems(self) -> Sequence[str]:
        return self.outcome.problems

    @property
    def passing(self) -> tuple[str, ...]:
        """Hosts on which jobs may be put."""
        return self.outcome.passing

    @property
    def failing(self) -> tuple[str, ...]:
        """All others: sick, absent, other than the baseline, not judged, or without a snapshot that could be read."""
        return tuple(sorted(self.outcome.exclusions))

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        return self._document(verbose=verbose, quiet=quiet)

    def _document(
        self, *, verbose: bool = False, quiet: bool = False, renamed: dict[str, str] | None = None
    ) -> Document:
        from ddpdoctor.checks.catalogue import catalogue
        from ddpdoctor.fleet_sweep.render import fleet_document

        return fleet_document(self.outcome, catalogue(), verbose=verbose, quiet=quiet, renamed=renamed)

    def report(self, *, with_facts: bool = False) -> Report:
        """Build what the command's `--json` prints, typed.

        Args:
            with_facts: of no meaning here: the snapshots have the facts.
        """
        return self._report

    @cached_property
    def _report(self) -> Report:
        from ddpdoctor.fleet_sweep.render_json import fleet_report

        return fleet_report(self.outcome)

    def to_markdown(self) -> str:
        """The report for a bug tracker: hosts have numbers in place of names."""
        from ddpdoctor.report.contract import Report
        from ddpdoctor.report.markdown import to_markdown

        names = sorted({*self.outcome.sweep.hosts, *self.outcome.absent, *self.outcome.unjudged})
        renamed = {name: f"host{number:0{len(str(len(names)))}}" for number, name in enumerate(names, 1)}
        nameless = Report(command="fleet", host="", verdict=self.verdict, findings=(), not_tested=(), passed=())
        return to_markdown(self._document(renamed=renamed), nameless, ())

    def to_html(self) -> str:
        """One page with a filter and a heat map of hosts by check; it loads nothing from anywhere."""
        from ddpdoctor.checks.catalogue import catalogue
        from ddpdoctor.fleet_sweep.render_html import fleet_page

        return fleet_page(self.outcome, catalogue())

    def profile(self) -> Profile:
        """What most of the hosts that should be alike have, for the next sweep's baseline."""
        from ddpdoctor.fleet_sweep.profiles import profile_of

        return profile_of(self.outcome.sweep, self.outcome.labels)

    def write_nodes(self, folder: str | os.PathLike[str]) -> tuple[str, str]:
        """Write passing_nodes.txt and failing_nodes.txt, a host a line.

        Returns:
            Their paths.
        Raises:
            WriteError: they can't be written, or there is no host to write: what an earlier sweep wrote stays.
        """
        from ddpdoctor.api.node_lists import write_node_lists

        if not self.passing and not self.failing:
            raise WriteError(f"{os.fspath(folder)}: no lists of nodes were written: the sweep knows of no host")
        return write_node_lists(folder, self.passing, self.failing)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `to_html`.

        Raises:
            WriteError: it can't be written.
        """
        _write(self.to_html(), path)

    def write_profile(self, path: str | os.PathLike[str]) -> None:
        """Write the profile, which `baseline` takes.

        Raises:
            WriteError: it can't be written, or no host was judged: what was saved earlier stays.
        """
        if not self.outcome.sweep.hosts:
            raise WriteError(f"{os.fspath(path)}: no profile was written: no host could be judged")
        _write(self.profile().to_json(), path)


def _write(text: str, path: str | os.PathLike[str]) -> None:
    """Write a file for its owner alone.

    Raises:
        WriteError: it can't be written.
    """
    from ddpdoctor.engine.snapshots import write_private

    try:
        write_private(text.encode(), Path(path))
    except OSError as error:
        raise WriteError(write_problem(path, error)) from error


def fleet(
    inputs: Sequence[str],
    *,
    group_by: str = BY_GPU,
    baseline: str | None = None,
    since: str | None = None,
    expect: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    nproc: int | None = None,
    stdin: IO[bytes] | None = None,
) -> FleetResult:
    """Judge the snapshots of many hosts, and compare those that should be alike.

    Args:
        inputs: files and folders of snapshots; "-": one a line on `stdin`, with a launcher's prefixes or without.
        group_by: what hosts that should be alike have in common: "gpu", "partition", or the path of a fact.
        baseline: the snapshot of a good host, or a saved profile, which must hold.
        since: the files or folder of an earlier sweep.
        expect: a file with the hosts that should answer, or a list of them as Slurm writes it.
        select: only these checks or families.
        ignore: not these checks or families.
        nproc: ranks planned on each host; None: as many as it has GPUs.
        stdin: where "-" is read; None: standard input.

    Raises:
        UsageError: the arguments can't be meant so, or name what can't be read.
    """
    if not inputs:
        raise UsageError("name the snapshots' files or folders, or - for a pipe")
    refuse_empty(inputs=inputs, group_by=group_by, baseline=baseline, since=since, expect=expect)
    stream = stdin or sys.stdin.buffer
    if "-" in inputs and stream.isatty():
        raise UsageError(
            "- reads a pipe, and standard input is a terminal; so: srun --ntasks-per-node=1 ddpdoctor snapshot | ddpdoctor fleet -"
        )
    if since == "-" or baseline == "-" or list(inputs).count("-") > 1:
        raise UsageError("- stands once, and among the snapshots of this sweep")
    from ddpdoctor.api.check_selection import selected_checks
    from ddpdoctor.fleet_sweep.changes import changes
    from ddpdoctor.fleet_sweep.outcome import FleetOutcome
    from ddpdoctor.fleet_sweep.profiles import hold

    checks = selected_checks(select, ignore)
    expected = _expected_hosts(expect) if expect else None
    content = _read_baseline(baseline) if baseline else b""
    sweep = _sweep(inputs, checks, nproc, stream)
    labels = _labels(sweep, group_by)
    profile = _profile(content, baseline or "", group_by) if baseline else None
    before = _sweep([since], checks, nproc, stream) if since else None
    return FleetResult(
        FleetOutcome(
            sweep,
            labels,
            expected=expected,
            no_file=expect if expect and expected == (expect,) and not os.path.exists(expect) else "",  # noqa: PTH110
            held=hold(profile, sweep, labels) if profile else None,
            changes=changes(before, sweep) if before and before.hosts else None,
            problems=tuple(_problems_of_last(before)) if before else (),
        )
    )


def _problems_of_last(before: Sweep) -> Iterator[str]:
    yield from (f"of the last sweep: {problem}" for problem in before.problems)
    if not before.hosts:
        yield "what changed is not told: no snapshot of the last sweep could be read. If this is the first, leave --since out"


def _sweep(inputs: Sequence[str], checks: tuple[Check, ...], nproc: int | None, stdin: IO[bytes]) -> Sweep:
    from ddpdoctor.fleet_sweep.sources import find_sources
    from ddpdoctor.fleet_sweep.sweeping import sweep_over

    return sweep_over(find_sources(inputs, stdin), checks, nproc)


def _labels(sweep: Sweep, group_by: str) -> dict[str, str]:
    from ddpdoctor.fleet_sweep.comparison import by_fact, by_gpu, by_partition

    if group_by == BY_GPU:
        return by_gpu(sweep.hosts)
    if group_by == BY_PARTITION:
        return by_partition(sweep.hosts)
    labels = by_fact(sweep, group_by)
    if labels is None:
        if not sweep.hosts:
            return {}
        raise UsageError(
            f"--group-by takes gpu, partition, or the path of a fact, as driver.kernel_version; no host has a fact {group_by!r}"
        )
    return labels


def _expected_hosts(expect: str) -> tuple[str, ...]:
    """The hosts of a file, one or a list a line, or of the list itself.

    Raises:
        UsageError: it is neither, or names none.
    """
    from ddpdoctor.knowledge.hostlist import HostlistError, expand

    text = expect
    if os.path.exists(expect):  # noqa: PTH110 (a list is no path)
        lines = _read_file(expect, "--expect").decode(errors="replace").splitlines()
        text = ",".join(word for line in lines for word in line.partition("#")[0].split())
    elif "/" in expect or expect.endswith(FILE_ENDINGS):
        raise UsageError(f"--expect: there is no file {expect}")
    try:
        hosts = tuple(dict.fromkeys(expand(text)))
    except HostlistError as error:
        raise UsageError(f"--expect: {error}") from error
    if not hosts:
        raise UsageError("--expect names no host")
    return hosts


def _read_baseline(path: str) -> bytes:
    if os.path.isdir(path):  # noqa: PTH112
        command = f"ddpdoctor fleet {quoted(path)} --save-profile good.json"
        raise UsageError(
            f"--baseline takes one file, and {path} is a folder. To save what most of its hosts have: {command}"
        )
    return _read_file(path, "--baseline")


def _read_file(path: str, option: str) -> bytes:
    from ddpdoctor.base.regular_files import read_start

    try:
        content = read_start(path, MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(f"{option} {path}: larger than {MAX_FILE_BYTES >> 20} MiB")
    return content


def _profile(content: bytes, name: str, group_by: str) -> Profile:
    """The saved profile, or that of the one host whose snapshot it is.

    Raises:
        UsageError: it is neither.
    """
    from ddpdoctor.fleet_sweep.judging import FleetJudge
    from ddpdoctor.fleet_sweep.profiles import ProfileError, profile_of, read_profile

    try:
        if profile := read_profile(content):
            return profile
    except ProfileError as error:
        raise UsageError(f"--baseline {name}: {error}") from error
    judge = FleetJudge(())
    judge.judge(content, name)
    if judge.sweep.problems:
        raise UsageError(f"--baseline takes a snapshot, or what --save-profile wrote: {judge.sweep.problems[0]}")
    return profile_of(judge.sweep, _labels(judge.sweep, group_by))
