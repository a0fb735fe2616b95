"""`check`: look at this host and the Python in which training runs, or at saved snapshots, and say what is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ddpdoctor.api.check_selection import selected_checks
from ddpdoctor.api.errors import UsageError, refuse_empty
from ddpdoctor.api.results import CommandResult

if TYPE_CHECKING:
    from ddpdoctor.api.script_linting import LintResult
    from ddpdoctor.base.time_limit import TimeLimit
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.engine.registry import Check
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.probes.context import Context
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document
    from ddpdoctor.report.reported_scripts import ReportedScript


SCRIPT_SECONDS = 20.0
"""For scripts to be read. The rest of the command's time is the host's."""


class CheckResult(CommandResult):
    """Hosts, judged by checks.

    Args:
        examinations: one of each host.
        problems: why a snapshot, or a script, was not judged.
        checks: by which they were judged.
        python: the target Python of this host; "" for snapshots.
        seconds: from the call to the verdict.
        scripts: what was read of training scripts, if any were named.
    """

    command = "check"

    def __init__(
        self,
        examinations: Sequence[Examination],
        problems: Sequence[str],
        checks: tuple[Check, ...],
        python: str,
        seconds: float,
        scripts: tuple[ReportedScript, ...] | UnsetType = UNSET,
    ) -> None:
        self._examinations = tuple(examinations)
        self._problems = tuple(problems)
        self.checks = checks
        self.python = python
        self.seconds = seconds
        self._scripts = scripts
        self._ended = time.time()

    @property
    def examinations(self) -> Sequence[Examination]:
        return self._examinations

    @property
    def problems(self) -> Sequence[str]:
        return self._problems

    @property
    def verdict(self) -> Verdict:
        from ddpdoctor.engine.examination import conclusion, unless_unjudged

        return unless_unjudged(conclusion(self._examinations), self._problems)

    def report(self, *, with_facts: bool = False) -> Report:
        return replace(super().report(with_facts=with_facts), scripts=self._scripts)

    def exit_code(self, *, strict: bool = False) -> int:
        from ddpdoctor.engine.examination import conclusion

        code = conclusion(self._examinations).exit_code(strict=strict)
        return 2 if self._problems and code == 0 else code

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.report.examined_hosts import check_document

        return check_document(self._examinations, self._problems, verbose=verbose, quiet=quiet)

    def to_prometheus(self) -> str:
        """Build the metrics of this host, as `--prometheus` writes them.

        Raises:
            UsageError: snapshots were judged: when the metrics of a host were learned is the host's to say.
        """
        if not self.python:
            raise UsageError("--prometheus writes the metrics of this host; --snapshot judges a file instead")
        from ddpdoctor.report.metrics import metrics_text

        return metrics_text(self._examinations[0], self.verdict, self._ended, self.seconds)


def check(
    python: str | None = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    snapshots: Sequence[str] = (),
    checkpoints: Sequence[str] = (),
    scripts: Sequence[str] = (),
    nproc: int | None = None,
    quick: bool = False,
) -> CheckResult:
    """Look at this host and at the Python in which training runs, and judge what is seen.

    Args:
        python: the path of that Python; None: the active environment's.
        select: only these checks or families.
        ignore: not these checks or families.
        snapshots: judge these saved files, and not this host.
        checkpoints: files or folders to look into, too. They are read as data and never run.
        scripts: training scripts, notebooks or folders of them to read, too, as `lint` does. They are never run.
        nproc: ranks planned on this host; None: as many as there are GPUs.
        quick: don't import torch.

    Raises:
        UsageError: the arguments contradict each other, or name what doesn't exist.
    """
    if snapshots and (python is not None or quick):
        raise UsageError("--python and --quick look at this host; --snapshot judges a file instead")
    if snapshots and checkpoints:
        raise UsageError("--checkpoint looks at a file of this host; --snapshot judges another file instead")
    if snapshots and scripts:
        raise UsageError("--script reads a file of this host; --snapshot judges another file instead")
    refuse_empty(python=python, checkpoint=checkpoints, script=scripts)
    if snapshots:
        return _check_snapshots(snapshots, selected_checks(select, ignore), nproc)
    from ddpdoctor.base.time_limit import TimeLimit

    with TimeLimit("choosing the Python to look at") as limit:
        read = _lint(scripts, select, ignore) if scripts else None
        result = check_host(
            python, select=select, ignore=ignore, checkpoints=checkpoints, nproc=nproc, quick=quick, limit=limit
        )
    return _with_scripts(result, read) if read else result


def _lint(scripts: Sequence[str], select: Sequence[str], ignore: Sequence[str]) -> LintResult:
    from ddpdoctor.api.script_linting import LintResult, lint
    from ddpdoctor.base.shell import quoted
    from ddpdoctor.base.text import listed
    from ddpdoctor.probes.waiting import ThreadedCall

    # In a thread: a look at a dead file system can't be interrupted.
    reading = ThreadedCall(lambda: lint(scripts, select=select, ignore=ignore), SCRIPT_SECONDS)
    command = " ".join(map(quoted, ("ddpdoctor", "lint", *scripts)))
    problem = f"{listed(scripts)}: not read within {SCRIPT_SECONDS:.0f} s. Without a limit: {command}"
    return reading.result(LintResult((), [problem]))


def _with_scripts(host: CheckResult, scripts: LintResult) -> CheckResult:
    """The result on this host with what scripts came to in place of checks that had none to look at."""
    from ddpdoctor.engine.registry import Result, Skipped, SkipReason
    from ddpdoctor.scripts.judging import merge_results
    from ddpdoctor.scripts.render_json import reported_scripts

    unread = Skipped(SkipReason.UNKNOWN, "none of the scripts that were named could be read")
    judged = {
        result.check.slug: result
        for result in (
            merge_results(scripts.judged, host.checks)
            if scripts.judged
            else (Result(check, not_tested=unread) for check in host.checks if "script" in check.groups)
        )
    }
    (examination,) = host.examinations
    results = tuple(judged.get(result.check.slug, result) for result in examination.results)
    return CheckResult(
        [replace(examination, results=results)],
        [*host.problems, *scripts.problems],
        host.checks,
        host.python,
        host.seconds,
        reported_scripts(scripts.judged),
    )


def check_host(
    python: str | None = None,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    checkpoints: Sequence[str] = (),
    nproc: int | None = None,
    quick: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
    limit: TimeLimit,
) -> CheckResult:
    """Look at this host until the limit's time to look is over, and judge what is seen, with settings as if they were in the environment;
    the other arguments are those of `check`.

    Raises:
        UsageError: as `check` does.
    """
    began = time.monotonic()
    from ddpdoctor.probes.session import collect_facts, start_probes

    context = seen = None
    if not (select or ignore):
        # All checks want all facts: which checks these are can be read while the probes wait.
        context = start_probes(python, quick=quick, checkpoints=checkpoints, settings=settings)
        seen = _look_at_everything(context, limit)
    checks = selected_checks(select, ignore)
    if checkpoints and not any("checkpoints" in check.groups for check in checks):
        raise UsageError("--select and --ignore leave no check that looks into the --checkpoint")
    if context is None:
        needs_import = bool({"torch", "libraries"} & _groups(checks))
        context = start_probes(python, quick=quick or not needs_import, checkpoints=checkpoints, settings=settings)
    snapshot = seen or collect_facts(context, _groups(checks), limit=limit)
    limit.stage = "judging what was seen"
    from ddpdoctor.base.text import listed
    from ddpdoctor.base.unknown import Unknown
    from ddpdoctor.engine.examination import examine

    examination = examine(snapshot, nproc, checks)
    problems = []
    if checkpoints and isinstance(snapshot.checkpoints, Unknown):
        problems.append(f"{listed(checkpoints)}: not looked into: {snapshot.checkpoints.reason}")
    return CheckResult([examination], problems, checks, context.python, time.monotonic() - began)


def _check_snapshots(paths: Sequence[str], checks: tuple[Check, ...], nproc: int | None) -> CheckResult:
    from ddpdoctor.engine.examination import examine

    began = time.monotonic()
    taken, problems = _read(paths)
    examinations = [examine(snapshot, nproc, checks) for snapshot in taken]
    return CheckResult(examinations, problems, checks, "", time.monotonic() - began)


def _look_at_everything(context: Context, limit: TimeLimit) -> Snapshot:
    """A snapshot for all checks. Those that it needs are loaded, and the report's modules, while the probes wait for programs to answer."""
    from ddpdoctor.facts.snapshot import GROUPS
    from ddpdoctor.probes.session import collect_facts

    threading.Thread(target=_load_checks, daemon=True).start()
    return collect_facts(context, GROUPS, limit=limit)


def _load_checks() -> None:
    from ddpdoctor.checks.catalogue import all_checks
    from ddpdoctor.engine.registry import load_needed
    from ddpdoctor.facts.snapshot import Snapshot

    load_needed(all_checks(), Snapshot())
    import ddpdoctor.report.examined_hosts  # noqa: F401
    import ddpdoctor.report.terminal  # noqa: F401


def _groups(checks: tuple[Check, ...]) -> set[str]:
    """Collect the groups that the checks need, and the report's heading."""
    heading = {"target_python", "machine", "container", "gpus", "environment"}
    return heading.union(*(check.groups for check in checks))


def _read(paths: Sequence[str]) -> tuple[list[Snapshot], list[str]]:
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot

    taken, problems = [], []
    for path in paths:
        try:
            taken.append(read_snapshot(path))
        except SnapshotError as error:
            problems.append(str(error))
    return taken, problems
