"""`jobs`: the training jobs that run on this host, and why one of them is stuck."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ddpdoctor.api.errors import NoVerdictError, UsageError, refuse_empty
from ddpdoctor.api.results import CommandResult, HostResult

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.processes.overview import Overview
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document

COMMAND = "jobs"


class JobsResult(CommandResult):
    """The jobs of this host, rank by rank.

    Args:
        overview: them, and what the checks say of them.
    """

    command = COMMAND

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    @property
    def examinations(self) -> Sequence[Examination]:
        return (self._overview.examination,)

    @property
    def verdict(self) -> Verdict:
        return self._overview.verdict

    def report(self, *, with_facts: bool = False) -> Report:
        from ddpdoctor.processes.render_jobs import jobs_report

        return jobs_report(self._overview, with_facts=with_facts)

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.processes.render_jobs import jobs_document

        return jobs_document(self._overview, verbose=verbose, quiet=quiet)


class HangResult(HostResult):
    """The ranks of one job, and what they wait for; the examination has the facts of the hang."""

    command = COMMAND

    def _report_fields(self) -> dict[str, Any]:
        from ddpdoctor.hang.judging import hang_of

        return {"hang": hang_of(self._examination)}

    def _other_hosts(self) -> Collection[str]:
        from ddpdoctor.hang.judging import hang_of

        hang = hang_of(self._examination)
        return [server.rpartition(":")[0].strip("[]") for server in (hang.server, hang.own_server) if server]

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.hang.render import hang_document

        return hang_document(self._examination, verbose=verbose, quiet=quiet)


@overload
def jobs(job: str | int | None = None) -> JobsResult: ...
@overload
def jobs(
    job: str | int | None = None,
    *,
    hang: Literal[True],
    dumps: Sequence[str] = (),
    ras: bool = False,
    debug_server: str | None = None,
    seconds: int | None = None,
) -> HangResult: ...
@overload
def jobs(
    job: str | int | None = None,
    *,
    hang: bool = False,
    dumps: Sequence[str] = (),
    ras: bool = False,
    debug_server: str | None = None,
    seconds: int | None = None,
) -> JobsResult | HangResult: ...
def jobs(
    job: str | int | None = None,
    *,
    hang: bool = False,
    dumps: Sequence[str] = (),
    ras: bool = False,
    debug_server: str | None = None,
    seconds: int | None = None,
) -> JobsResult | HangResult:
    """Look at the training jobs that run on this host; no process is stopped, signalled or attached to.

    Args:
        job: only this one: the pid of its launcher, a rank, a worker, or the script around them.
        hang: say why it is stuck: where each rank stands, and what the others wait for.
        dumps: of torch's flight recorder: folders, files, or patterns; also from other hosts.
        ras: with `hang`, ask NCCL's RAS, too.
        debug_server: HOST:PORT of torch's debug server: with `hang`, ask it for the ranks of all hosts, instead of the processes of this one.
        seconds: how long `hang` watches; None: 3.

    Raises:
        UsageError: the arguments contradict each other.
        NoVerdictError: there is no such job, more than one is meant, the processes can't be seen, or the debug server tells nothing.
    """
    name = None if job is None else str(job)
    if name is not None and not name.strip():
        raise UsageError("the job is empty; is the variable in it set?")
    refuse_empty(dumps=dumps)
    if seconds is not None and not hang:
        raise UsageError("--seconds is for --hang")
    if ras and not hang:
        raise UsageError("--ras is for --hang")
    if debug_server is not None:
        refuse_empty(debug_server=debug_server)
        return _served_hang(debug_server, seconds, alone=hang and name is None and not dumps and not ras)
    return _hang(name, hang, dumps, ras, seconds) if hang or dumps else _overview(name)


def _served_hang(address: str, seconds: int | None, *, alone: bool) -> HangResult:
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.hang.debug_server.pages import parse_address
    from ddpdoctor.hang.examining import SECONDS, NotExaminedError, examine_server

    if not alone:
        raise UsageError(
            "--debug-server is for --hang, without a job, --dumps and --ras: the server tells of its own job alone"
        )
    server = parse_address(address)
    if server is None:
        raise UsageError(f"--debug-server {address}: it must be HOST:PORT, as node0:25999")
    try:
        return HangResult(examine_server(server, catalogue(), seconds or SECONDS))
    except NotExaminedError as error:
        raise NoVerdictError(COMMAND, [str(error)], error.host) from error


def _hang(name: str | None, hang: bool, dumps: Sequence[str], ras: bool, seconds: int | None) -> HangResult:
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.hang.examining import SECONDS, NotExaminedError, examine_job

    watched = hang or name is not None
    try:
        return HangResult(examine_job(name, catalogue(), tuple(dumps), seconds or SECONDS, watched=watched, ras=ras))
    except NotExaminedError as error:
        raise NoVerdictError(COMMAND, [str(error)], error.host) from error


def _overview(name: str | None) -> JobsResult:
    from ddpdoctor.base.text import pid_named
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.probes.context import Context
    from ddpdoctor.probes.session import collect_facts
    from ddpdoctor.processes.overview import UnknownJobError, checks_of_jobs, groups_of, overview

    checks = checks_of_jobs(catalogue())
    asked = pid_named(name or "")
    snapshot = collect_facts(Context(sys.executable, "ddpdoctor", quick=True, asked=asked), groups_of(checks))
    try:
        return JobsResult(overview(snapshot, checks, name))
    except UnknownJobError as error:
        raise NoVerdictError(COMMAND, [str(error)], snapshot.host) from error
