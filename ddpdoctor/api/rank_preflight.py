"""`preflight`: called on every rank before training, it finds what would make the job hang or fail, and says the same on all ranks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Literal

from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.results import CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.engine.registry import Catalogue
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.facts.preflight import Preflight, PreflightRank
    from ddpdoctor.job_preflight.exchange import Schedule
    from ddpdoctor.job_preflight.job_store import JobPlace
    from ddpdoctor.job_preflight.messages import HostAnswer, JobVerdict
    from ddpdoctor.report.document import Document

TIMEOUT_SECONDS: Final = 60.0
LEAST_SECONDS, MOST_SECONDS = 4.0, 86400.0
MAX_FIRST_WORDS: Final = 20
"""Failures that the exception names."""
MAX_LINE_LENGTH: Final = 400
"""Of each."""
NO_ANSWER: Final = "there was no answer"
MARGIN_SECONDS: Final = 2.0
"""For a store that doesn't answer at all: then this rank says so by itself."""

OnIllness = Literal["warn", "stop"]


class PreflightResult(CommandResult):
    """The verdict of all ranks; it is the same on each.

    Args:
        verdict: as it was agreed upon.
    """

    command = "preflight"

    def __init__(self, verdict: JobVerdict) -> None:
        self.agreed = verdict

    @property
    def verdict(self) -> Verdict:
        return self.agreed.verdict

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that did not come in time."""
        return self.agreed.absent

    @property
    def examinations(self) -> Sequence[Examination]:
        from ddpdoctor.job_preflight.judging import examinations_of

        return examinations_of(self.agreed, _catalogue())[1]

    @property
    def problems(self) -> Sequence[str]:
        return self.agreed.problems

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.job_preflight.render import document

        return document(self.agreed, _catalogue(), verbose=verbose, quiet=quiet)


class PreflightError(RuntimeError):
    """The preflight found what will make the job fail, and the job was to be stopped for it.

    Args:
        result: what was found.
    """

    def __init__(self, result: PreflightResult) -> None:
        super().__init__(_first_words(result))
        self.result = result

    def __reduce__(self) -> tuple[type[PreflightError], tuple[PreflightResult]]:
        # Frameworks send exceptions of ranks between processes.
        return type(self), (self.result,)


def preflight(
    *,
    timeout: float = TIMEOUT_SECONDS,
    on_illness: OnIllness = "warn",
    device: Any = None,
    backend: str | None = None,
) -> PreflightResult:
    """Look at the job from within, before training: to be called on every rank, at the same place.

    Each rank tells its versions, settings and device; one rank a host looks at that host; and all try a few collectives over a gloo group
    of their own, beside the job's. It works before and after `init_process_group`. One rank reports on standard error, and only
    what is wrong. Neither NCCL nor any GPU is touched.

    Args:
        timeout: seconds for the whole, from 4 on. A rank that hasn't come by then is named.
        on_illness: "warn" reports and goes on; "stop" also raises on every rank where something fails.
        device: that this rank is going to use, as torch takes it; None: the one that is set, if any is.
        backend: that `init_process_group` will be given, if it is called later.

    Raises:
        UsageError: an argument can't be meant so.
        PreflightError: something fails, and `on_illness` is "stop".
    """
    from ddpdoctor.job_preflight.own_words import why_refused

    check_arguments(timeout, on_illness)
    if why := why_refused(device, backend):
        raise UsageError(why)
    try:
        agreed, reports = _agree(timeout, device, backend)
    except Exception as error:  # The job is not to end for what is our own fault.
        agreed, reports = _no_verdict(f"ddpdoctor itself failed: {type(error).__name__}: {error}"), True
    result = PreflightResult(agreed)
    if reports:
        _report(result)
    if on_illness == "stop" and result.verdict.value == "fail":
        raise PreflightError(result)
    return result


def check_arguments(timeout: object, on_illness: object) -> None:
    """Refuse a time that is none, and what is not to be done about an illness.

    Raises:
        UsageError: one of them can't be meant so.
    """
    if on_illness not in ("warn", "stop"):
        raise UsageError(f"on_illness is 'warn' or 'stop', not {on_illness!r}")
    # A number of numpy's is a Real as well.
    if not isinstance(timeout, Real):
        raise UsageError(f"timeout is a number of seconds, not {timeout!r}")
    if not LEAST_SECONDS <= float(timeout) <= MOST_SECONDS:
        raise UsageError(f"timeout is from {LEAST_SECONDS:.0f} to {MOST_SECONDS:.0f} seconds, not {float(timeout):g}")


def _agree(timeout: float, device: Any, backend: str | None) -> tuple[JobVerdict, bool]:
    """Come to the verdict of all ranks, and find out whether it is this one that reports it."""
    from ddpdoctor.job_preflight.exchange import Schedule
    from ddpdoctor.job_preflight.job_store import NoStore, place_in_job
    from ddpdoctor.job_preflight.own_words import describe_rank
    from ddpdoctor.probes.waiting import ThreadedCall

    place = place_in_job()
    own = describe_rank(place.rank, place.world_size, backend=backend or "", device=device)
    if place.world_size == 1:
        return _alone(own, timeout), True
    schedule = Schedule(timeout)
    # A store whose host is stopped never answers. The thread is left behind then, and this one goes on.
    exchange = ThreadedCall(lambda: _exchange(place, own, schedule), timeout + MARGIN_SECONDS)
    try:
        agreed = exchange.result(NO_ANSWER)
    except (NoStore, RuntimeError) as error:  # torch's own are RuntimeErrors.
        agreed = " ".join(str(error).split())
    if isinstance(agreed, str):
        return _without_store(own, place, agreed), place.rank <= 1 or os.environ.get("LOCAL_RANK") == "0"
    return agreed


def _exchange(place: JobPlace, own: PreflightRank, schedule: Schedule) -> tuple[JobVerdict, bool]:
    """Take part among the ranks, and find out whether this one has come to the verdict.

    Raises:
        NoStore: there is no way to them.
    """
    from importlib import import_module

    from ddpdoctor.job_preflight.exchange import Exchange
    from ddpdoctor.job_preflight.host_look import host_key
    from ddpdoctor.job_preflight.job_store import open_board
    from ddpdoctor.job_preflight.judging import judge
    from ddpdoctor.job_preflight.messages import OwnAnswer

    distributed: Any = import_module("torch.distributed")
    board = open_board(place, schedule.arrival)
    looks = board.is_first(f"looks/{host_key()}")
    answer = OwnAnswer(
        rank=own, token=f"{os.getpid()} {time.time_ns()}", looks=looks, gloo=bool(distributed.is_gloo_available())
    )
    exchange = Exchange(
        board,
        place,
        answer,
        schedule,
        _looker(schedule.whole) if looks else None,
        lambda gathered: judge(gathered, place.rank, _meeting(place), _catalogue()),
    )
    verdict, is_own = exchange.verdict()
    if verdict.tokens.get(place.rank, answer.token) != answer.token:
        text = "the job's store still has the preflight of a process that was this rank before"
        return _no_verdict(text), place.rank == min(verdict.tokens)
    return verdict, is_own


def _looker(seconds: float) -> Callable[[], HostAnswer]:
    from ddpdoctor.job_preflight.host_look import look_at_host
    from ddpdoctor.knowledge.launchers import number

    return lambda: look_at_host(seconds, number(os.environ.get("LOCAL_WORLD_SIZE", "")))


def _no_verdict(why: str) -> JobVerdict:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.job_preflight.messages import JobVerdict

    return JobVerdict(
        verdict=Verdict.UNKNOWN, judge=0, world_size=0, answered=0, hosts=(), checks=(), tokens={}, problems=(why,)
    )


def _alone(own: PreflightRank, timeout: float) -> JobVerdict:
    """The verdict of a program that is no rank of several: on its host."""
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.facts.preflight import Preflight
    from ddpdoctor.job_preflight.exchange import Gathered
    from ddpdoctor.job_preflight.judging import judge

    facts = Preflight(ranks=(own,), world_size=1)
    return judge(Gathered(facts, (_looker(timeout)(),), {}), 0, Meeting(), _catalogue())


def _without_store(own: PreflightRank, place: JobPlace, why: str) -> JobVerdict:
    from ddpdoctor.facts.preflight import Preflight
    from ddpdoctor.job_preflight.exchange import Gathered
    from ddpdoctor.job_preflight.judging import judge

    meeting = _meeting(place)
    where = "that of the process group" if place.in_group else f"{meeting.master} port {meeting.port}"
    facts: Preflight = Preflight(
        ranks=(own,),
        world_size=place.world_size,
        store=where,
        store_failure=why,
        untried="the ranks could not agree to try them",
    )
    return judge(Gathered(facts, (), {}), place.rank, meeting, _catalogue())


def _meeting(place: JobPlace) -> Meeting:
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.knowledge.launchers import current_launch, master_address, master_port

    launch = current_launch(os.environ)
    return Meeting(
        master=master_address(os.environ),
        port=master_port(os.environ) or 0,
        nnodes=place.world_size,
        node_rank=place.rank,
        launcher=launch.launcher if launch else "",
        launched=True,
    )


def _catalogue() -> Catalogue:
    from ddpdoctor.checks.catalogue import catalogue

    return catalogue()


def _report(result: PreflightResult) -> None:
    """Say on standard error what is wrong: at length what fails, in a line each what may; nothing where all is well."""
    word = result.verdict.value
    if word == "ok":
        return
    sys.stderr.write(f"ddpdoctor preflight:\n{result.to_text(quiet=word != 'fail')}\n")
    sys.stderr.flush()


def _first_words(result: PreflightResult) -> str:
    """The failures, a line each, for the exception that ends the job."""
    from ddpdoctor.base.text import clip, one_line

    failing = [finding for finding in result.findings if finding.severity.value == "fail"]
    lines = [f"  {clip(one_line(finding.summary), MAX_LINE_LENGTH)}  [{finding.slug}]" for finding in failing]
    if len(lines) > MAX_FIRST_WORDS:
        lines[MAX_FIRST_WORDS - 1 :] = [f"  and {len(lines) - MAX_FIRST_WORDS + 1} more"]
    return "\n".join(["ddpdoctor's preflight stops the job:", *lines])
