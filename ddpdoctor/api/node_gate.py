"""`gate`: whether this node may be given work, in the language of the scheduler or monitor that asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.api.check_selection import selected_checks
from ddpdoctor.api.checking import CheckResult, check_host
from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.results import CommandResult
from ddpdoctor.base.findings import Owner
from ddpdoctor.base.text import listed
from ddpdoctor.gating.dialects import DIALECTS, Dialect, GateAnswer
from ddpdoctor.gating.outcome import Concern, GateOutcome, concern_of, no_verdict, weigh_concerns

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.gating.job_leftovers import FinishedJob
    from ddpdoctor.gating.name_files import NameFile
    from ddpdoctor.processes.leftovers.ending import Endings
    from ddpdoctor.processes.leftovers.leftover import Leftover
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document

LOOK_SHARE = 0.85
"""Of the time there is: for all that is asked of the host. The rest is for judging, and for scontrol."""
LEFTOVERS_SHARE = 0.5
"""Of the time there is: for the look at what a job has left. The rest is for its end, and for the checks."""
KILL_SECONDS = 25.0
"""That ending leftovers may take: two looks, SIGTERM, SIGKILL, and a look at what is free again."""


class JobLeftovers:
    """What a job has left behind, and what became of it."""

    def __init__(self, left: Sequence[Leftover], endings: Endings, blind_spots: Sequence[str]) -> None:
        self.left = tuple(left)
        self.endings = endings
        self.blind_spots = tuple(blind_spots)


class GateResult(CommandResult):
    """A verdict for one caller.

    Args:
        caller: its name, as `--for` has it.
        outcome: the findings that count, and what comes of them.
        checked: what the checks saw; None where they were not asked.
        leftovers: those of the job that has ended, if that was asked for.
        remarks: what was done to the node, or left undone and why.
    """

    command = "gate"

    def __init__(
        self,
        caller: str,
        outcome: GateOutcome,
        checked: CheckResult | None = None,
        leftovers: JobLeftovers | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        self.caller = caller
        self.outcome = outcome
        self.remarks = tuple(remarks)
        self._checked = checked
        self._leftovers = leftovers

    @property
    def examinations(self) -> Sequence[Examination]:
        return self._checked.examinations if self._checked else ()

    @property
    def problems(self) -> Sequence[str]:
        return (self.outcome.why_unknown,) if self.outcome.verdict == "unknown" else ()

    @property
    def verdict(self) -> Verdict:
        """FAIL where the gate is closed; what isn't the node's closes none."""
        from ddpdoctor.engine.examination import Verdict

        return Verdict(self.outcome.verdict)

    def exit_code(self, *, strict: bool = False) -> int:
        """The caller's.

        Args:
            strict: that of a failure for warnings, too.
        """
        dialect = DIALECTS[self.caller]
        return dialect.codes[2] if strict and self.outcome.verdict == "warn" else dialect.exit_code_of(self.outcome)

    def answer(self) -> GateAnswer:
        """What the caller gets: exit code, standard output, and what goes to descriptor 3."""
        from msgspec import to_builtins

        return DIALECTS[self.caller].answer(self.outcome, to_builtins(self.report()), self.remarks)

    def report(self, *, with_facts: bool = False) -> Report:
        """Build the JSON of all commands, with the gate's own part, typed.

        Args:
            with_facts: also all that was learned of the host.
        """
        from msgspec.structs import replace

        from ddpdoctor.processes.render_zombies import reported_leftovers
        from ddpdoctor.report.reported_gate import ReportedGate

        report = super().report(with_facts=with_facts)
        gate = ReportedGate(
            caller=self.caller,
            line=self.outcome.line,
            failed_checks=self.outcome.slugs,
            not_counted=tuple(dict.fromkeys(concern.slug for concern in self.outcome.others)),
            remarks=self.remarks,
        )
        report = replace(report, host=report.host or os.uname().nodename, gate=gate)
        if self._leftovers is None:
            return report
        return replace(
            report,
            leftovers=reported_leftovers(self._leftovers.left, self._leftovers.endings.all),
            not_seen=self._leftovers.blind_spots,
            freed=tuple(self._leftovers.endings.freed),
        )

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.report.examined_hosts import check_document

        return check_document(self.examinations, self.problems, verbose=verbose, quiet=quiet)


def gate(
    caller: str,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    owners: Iterable[str | Owner] = (Owner.NODE,),
    quick: bool = False,
    drain: bool = False,
    kill: bool = False,
    killswitch: str | None = None,
    timeout: float | None = None,
) -> GateResult:
    """Look at this node, and say whether it may be given work, in the caller's language.

    Args:
        caller: who asks: "slurm-prolog", "npd", "nagios" ...
        select: only these checks or families.
        ignore: not these checks or families.
        owners: whose failures count: "node", "fabric", "user", "unknown".
        quick: don't import torch.
        drain: drain this node of Slurm where the gate is closed, and undrain what we have drained where it is open.
        kill: after a job of Slurm: end what is proven to be left over from it.
        killswitch: the file that switches checks off; None: the usual one, where it is there.
        timeout: seconds for the whole; None: the caller's.

    Raises:
        UsageError: the arguments contradict each other, or name what doesn't exist.
    """
    try:
        seconds = _dialect(caller).seconds_for(timeout)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return gate_until(
        time.monotonic() + seconds,
        caller,
        select=select,
        ignore=ignore,
        owners=owners,
        quick=quick,
        drain=drain,
        kill=kill,
        killswitch=killswitch,
    )


def gate_until(
    until: float,
    caller: str,
    *,
    select: Sequence[str],
    ignore: Sequence[str],
    owners: Iterable[str | Owner],
    quick: bool,
    drain: bool,
    kill: bool,
    killswitch: str | None,
) -> GateResult:
    """Do what `gate` does, within a time limit that has begun already.

    Args:
        until: by the monotonic clock.
        caller: this and all others: as for `gate`.
        select: see there.
        ignore: see there.
        owners: see there.
        quick: see there.
        drain: see there.
        kill: see there.
        killswitch: see there.

    Raises:
        UsageError: see there.
    """
    dialect, counted = _dialect(caller), _owners(owners)
    _refuse_misuse(caller, dialect, counted, drain=drain, kill=kill)
    if killswitch == "":
        raise UsageError("--killswitch is empty; is the variable in it set?")
    from ddpdoctor.gating.name_files import NameFileError
    from ddpdoctor.gating.switched_off import read_switched_off

    try:
        off = read_switched_off(killswitch)
    except NameFileError as error:
        return GateResult(caller, no_verdict(str(error)))
    left_out, remarks = _left_out(ignore, off)
    # A wrong name is told before anything is ended.
    selected_checks(select, ignore)
    try:
        selected_checks(select, left_out)
    except UsageError:
        return GateResult(caller, no_verdict("the kill switch leaves no check of those that were asked for"))
    leftovers: JobLeftovers | None = None
    job_concerns: tuple[Concern, ...] = ()
    if dialect.follows_job:
        from ddpdoctor.gating.job_leftovers import ended_job

        if job := ended_job(os.environ):
            # Before the checks, which are to see the node as the next job finds it.
            leftovers, job_concerns, said = _look_after(job, kill=kill, until=until)
            remarks = (*remarks, *said)
        else:
            remarks = (*remarks, "no leftovers were looked for: SLURM_JOB_ID and SLURM_JOB_UID name no job")
    checked = _check(select, left_out, quick, until)
    (examination,) = checked.examinations
    findings = map(concern_of, checked.report().findings)
    outcome = weigh_concerns(
        sorted((*findings, *job_concerns), key=lambda concern: concern.severity.rank),
        passed=len(examination.passed),
        why_unknown=_why_too_little(checked),
        owners=counted,
    )
    if outcome.verdict == "fail" and dialect.may_block_job:
        from ddpdoctor.gating.slurm_node import SKIPPING_WORD, job_skips_checks

        if job_skips_checks(os.environ, until):
            outcome = no_verdict(f"the job's comment says {SKIPPING_WORD}")
    if drain:
        from ddpdoctor.gating.slurm_node import mark_node

        not_judged = _not_judged(examination, left_out)
        remarks = (*remarks, *mark_node(outcome, os.environ, not_judged=not_judged, until=until))
    if dialect.sends_event:
        from ddpdoctor.gating.nvsentinel_event import send_event

        remarks = (*remarks, *send_event(outcome, os.environ, until))
    return GateResult(caller, outcome, checked, leftovers, remarks)


def refuse_unknown_names(select: Sequence[str], ignore: Sequence[str], owners: Iterable[str | Owner]) -> None:
    """Refuse what no gate could be asked for, before there is one.

    Args:
        select: as for `gate`.
        ignore: as for `gate`.
        owners: as for `gate`.

    Raises:
        UsageError: there is no such check, family or owner.
    """
    _owners(owners)
    selected_checks(select, ignore)


def _dialect(caller: str) -> Dialect:
    if caller not in DIALECTS:
        raise UsageError(f"--for {caller}: there is no such caller; there are {', '.join(DIALECTS)}")
    return DIALECTS[caller]


def _owners(names: Iterable[str | Owner]) -> tuple[Owner, ...]:
    given = [name for name in names if name]
    known = [owner.value for owner in Owner]
    if unknown := [name for name in given if name not in known]:
        raise UsageError(f"--owner: there is no {listed(unknown)}; there are {', '.join(known)}")
    if not given:
        raise UsageError("--owner is empty; is the variable in it set?")
    return tuple(map(Owner, given))


def _refuse_misuse(caller: str, dialect: Dialect, owners: Sequence[Owner], *, drain: bool, kill: bool) -> None:
    if drain and not dialect.drains:
        raise UsageError(f"--drain is for Slurm's own callers; what becomes of the node is {caller}'s to decide")
    if drain and not set(owners) <= {Owner.NODE, Owner.FABRIC}:
        raise UsageError("--drain goes with --owner node and fabric alone: a user's settings take no node out")
    if kill and not dialect.follows_job:
        raise UsageError("--kill is for slurm-epilog alone: elsewhere no job has just ended")


def _left_out(ignore: Sequence[str], off: NameFile) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Checks and families that are left out, and what is wrong with the kill switch: a name in it may be of another release."""
    from ddpdoctor.checks.catalogue import all_checks
    from ddpdoctor.engine.registry import as_written

    known = {name for check in all_checks() for name in (check.slug, check.family)}
    unknown = [name for name in off.names if as_written(name) not in known]
    remarks = off.remarks
    if unknown:
        remarks = (*remarks, f"the kill switch names what is no check of this release: {listed(unknown)}")
    return (*ignore, *(name for name in off.names if name not in unknown)), remarks


def _check(select: Sequence[str], ignore: Sequence[str], quick: bool, until: float) -> CheckResult:
    from ddpdoctor.base.time_limit import TimeLimit
    from ddpdoctor.probes.gang import gang_of

    gang = gang_of(os.environ)
    limit = TimeLimit("looking at this host", LOOK_SHARE * max(0.0, until - time.monotonic()))
    settings = gang.settings(os.environ) if gang else {}
    return check_host(select=select, ignore=ignore, quick=quick, settings=settings, limit=limit)


def _why_too_little(checked: CheckResult) -> str:
    """Why too little was seen to call the node well; "" where enough was."""
    (examination,) = checked.examinations
    if not examination.has_too_few_answers:
        return ""
    unanswered, applicable = examination.unanswered
    reasons = [result.not_tested for result in examination.results if result.not_tested]
    first = next(skipped.reason for skipped in reasons if skipped.why.value != "not-applicable")
    return f"{unanswered} of {applicable} checks could not be tested, the first since {first}"


def _not_judged(examination: Examination, left_out: Sequence[str]) -> set[str]:
    """Checks that were not asked, had no answer, or nothing to look at: a GPU that fell off the bus shows nothing ill. What somebody has
    left out is to hold nothing up."""
    from ddpdoctor.checks.catalogue import all_checks
    from ddpdoctor.engine.registry import as_written

    names = set(map(as_written, left_out))
    answered = {result.check.slug for result in examination.results if result.not_tested is None}
    return {
        check.slug for check in all_checks() if check.slug not in answered and not names & {check.slug, check.family}
    }


def _look_after(
    job: FinishedJob, *, kill: bool, until: float
) -> tuple[JobLeftovers, tuple[Concern, ...], tuple[str, ...]]:
    """What the job has left, what of it counts for the node, and what to say of it."""
    from ddpdoctor.base.unknown import Unknown
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.gating.gpu_agents import read_agents
    from ddpdoctor.gating.job_leftovers import end_left, left_by, leftover_concerns, look_for
    from ddpdoctor.processes.leftovers.all_kinds import blind_spots
    from ddpdoctor.processes.leftovers.ending import Endings

    now = time.monotonic()
    first = look_for(job, now + LEFTOVERS_SHARE * max(0.0, until - now))
    agents = read_agents()
    left = left_by(job, first, agents.names)
    is_late = until - time.monotonic() < KILL_SECONDS
    endings = end_left(left, job, first, until) if kill and not is_late else Endings()
    said = [*agents.remarks, *(f"{ending.fate.value}: {ending.leftover.what}" for ending in endings.done)]
    said += [f"free again: {what}" for what in endings.freed]
    if kill and is_late and any(leftover.proven for leftover in left):
        said.append(f"no leftover was ended: less than the {KILL_SECONDS:g} s that it may take were left")
    if isinstance(job.gpus, Unknown):
        said.append(f"memory that the job left on its GPUs was not looked for: {job.gpus.reason}")
    spots = blind_spots(first.processes, first.gpus, first.shared_memory)
    return JobLeftovers(left, endings, spots), tuple(leftover_concerns(left, endings, catalogue())), tuple(said)
