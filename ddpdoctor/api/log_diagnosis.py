"""`diagnose_log`: from the logs of a run to what failed first, on which rank, and what to do."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpdoctor.api.errors import NoVerdictError, UsageError, refuse_empty
from ddpdoctor.api.results import CommandResult
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.base.terminal import terminal_is_ours
from ddpdoctor.base.text import human, one_line

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.engine.registry import Catalogue
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.logs.analyze.good_runs import GoodRuns
    from ddpdoctor.logs.diagnosis import LogJudgement
    from ddpdoctor.logs.match.shape_tally import ShapeTally
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document

STDIN = "-"
COMMAND = "diagnose-log"


class LogResult(CommandResult):
    """The diagnosis of a run's log.

    Args:
        judgement: what failed first, what only followed, and what is known of each.
    """

    command = COMMAND

    def __init__(self, judgement: LogJudgement) -> None:
        self.judgement = judgement

    @property
    def examinations(self) -> Sequence[Examination]:
        return (self.judgement.examination,)

    @property
    def verdict(self) -> Verdict:
        return self.judgement.word

    def exit_code(self, *, strict: bool = True) -> int:
        """Give 1 for a warning, too, unless asked not to: it names an illness."""
        return super().exit_code(strict=strict)

    def report(self, *, with_facts: bool = False) -> Report:
        from ddpdoctor.logs.render.json_report import log_report

        return log_report(self.judgement, with_facts=with_facts)

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.logs.render.document import log_document

        return log_document(self.judgement, verbose=verbose, quiet=quiet)


def diagnose_log(
    paths: Sequence[str | os.PathLike[str]],
    *,
    here: bool = False,
    snapshot: str | None = None,
    python: str | None = None,
    signs: Sequence[str | os.PathLike[str]] = (),
    good: Sequence[str | os.PathLike[str]] = (),
) -> LogResult:
    """Find in the logs of a run what failed first, on which rank and host, why, and what to do.

    Args:
        paths: logs of one run, also compressed by gzip, and folders of them; "-" is standard input.
        here: hold what the log says against the facts of this host.
        snapshot: hold it against this saved snapshot of the host that failed.
        python: with `here`, the Python in which training runs; None: the active environment's.
        signs: files, or folders of them, with log signs of the site's own, beside those of /etc/ddpdoctor/signs and of the user's folder.
        good: logs of runs of the same command that ended well, each a file or a folder: what stands in those as well is no cause.

    Raises:
        UsageError: the arguments contradict each other, or a file of signs is wrong.
        NoVerdictError: nothing could be read.
    """
    names = [os.fspath(path) for path in paths]
    if here and snapshot is not None:
        raise UsageError("--here looks at this host; --snapshot takes a saved one instead")
    if python is not None and not here:
        raise UsageError("--python is for --here")
    if not names:
        raise UsageError("no log is named")
    refuse_empty(
        snapshot=snapshot,
        python=python,
        signs=[os.fspath(path) for path in signs],
        good=[os.fspath(path) for path in good],
    )
    if not all(name.strip() for name in names):
        raise UsageError("the name of a log is empty; is the variable in it set?")
    good_names = list(dict.fromkeys(os.fspath(path) for path in good))
    if both := [name for name in good_names if name in names]:
        raise UsageError(f"{both[0]} is named as the log of this run, and by --good as that of a good one")
    if [*names, *good_names, snapshot].count(STDIN) > 1:
        raise UsageError("standard input (-) can be read once only")
    from ddpdoctor.logs.analyze.good_runs import RunComparison, beside_good_runs
    from ddpdoctor.logs.diagnosis import collect_deciding, judge_log
    from ddpdoctor.logs.match.shape_tally import ShapeTally
    from ddpdoctor.logs.reading import NO_TEXT
    from ddpdoctor.scripts.run_script import look_into_script

    checks = _catalogue(signs)
    host = None if snapshot is None else _saved(snapshot)
    good_runs, refused = _good_runs(good_names, checks)
    tally = ShapeTally(good_runs.even) if good_runs else None
    log = _read(list(dict.fromkeys(names)), checks, tally)
    if not any(file.bytes and not file.problem.startswith(NO_TEXT) for file in log.files):
        problems = [f"{_file_name(file.name)}: {file.problem or 'there is nothing in it'}" for file in log.files]
        raise NoVerdictError(COMMAND, problems)
    comparison = RunComparison(refused=refused) if refused else None
    if good_runs and tally:
        log, comparison = beside_good_runs(log, tally, good_runs, checks, refused)
    if here:
        host = collect_deciding(log, checks, python)
    return LogResult(look_into_script(judge_log(log, checks, host, comparison=comparison)))


def _file_name(path: str) -> str:
    return "standard input" if path == STDIN else path


def _saved(path: str) -> Snapshot:
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot

    try:
        return read_snapshot(path)
    except SnapshotError as error:
        raise NoVerdictError(COMMAND, [str(error)]) from error


class _Reading:
    """The reading of logs as the status line shows it."""

    def __init__(self) -> None:
        self._now = ("", 0, 0)
        self._files = 0

    def told(self, name: str, done: int, size: int) -> None:
        self._files += name != self._now[0]
        self._now = (name, done, size)

    def words(self, seconds: float) -> str:
        name, done, size = self._now
        if not name:
            return ""
        of = f" of {human(size)}" if size else ""
        earlier = f", {self._files - 1} read before" if self._files > 1 else ""
        return f"Reading {one_line(_file_name(name))}: {human(done)}{of} ({seconds:.0f} s{earlier})"


def _catalogue(signs: Sequence[str | os.PathLike[str]]) -> Catalogue:
    from ddpdoctor.base.sign_files import SignFileError
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.logs.site_signs import with_site_signs

    try:
        return with_site_signs(catalogue(), [os.fspath(path) for path in signs])
    except SignFileError as error:
        raise UsageError(f"--signs: {error}") from error


def _good_runs(paths: Sequence[str], checks: Catalogue) -> tuple[GoodRuns | None, tuple[tuple[str, str], ...]]:
    """Read the logs of good runs; None where there are none. Also the name of each that isn't one, and why.

    Raises:
        NoVerdictError: one of them can't be read.
    """
    from ddpdoctor.logs.analyze.good_runs import GoodRuns
    from ddpdoctor.logs.comparing import NotGoodError, taken_for_good
    from ddpdoctor.logs.match.shape_tally import ShapeTally

    runs, refused = [], []
    for path in paths:
        tally = ShapeTally()
        log = _read([path], checks, tally)
        if not any(file.bytes for file in log.files):
            problem = next((file.problem for file in log.files if file.problem), "there is nothing in it")
            raise NoVerdictError(COMMAND, [f"--good {_file_name(path)}: {problem}"])
        try:
            runs.append(taken_for_good(_file_name(path), log, tally, checks))
        except NotGoodError as error:
            refused.append((_file_name(path), str(error)))
    return GoodRuns(runs) if runs else None, tuple(refused)


def _read(paths: Sequence[str], checks: Catalogue, shapes: ShapeTally | None) -> Log:
    from ddpdoctor.logs.match.wanted_signs import vocabulary
    from ddpdoctor.logs.reading import read_logs

    reading = _Reading()
    line = StatusLine(reading.words, delay=1.0)
    try:
        if STDIN not in paths:
            return read_logs(
                paths, stdin=io.BytesIO(), vocabulary=vocabulary(checks), progress=reading.told, shapes=shapes
            )
        if terminal_is_ours() and os.isatty(0):
            print(
                "Waiting for a log on standard input: paste it, then press Ctrl-D on a line by itself", file=sys.stderr
            )
        with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
            return read_logs(paths, stdin=stdin, vocabulary=vocabulary(checks), progress=reading.told, shapes=shapes)
    except StoppedBySignal as stopped:
        stopped.text = "Stopped while the log was read; no verdict."
        raise
    finally:
        line.close()
