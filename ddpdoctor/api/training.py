"""`smoke`: train a small DDP job on torch's own engine, alone or together with other hosts, and say which rank stopped where."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from ddpdoctor.api.errors import SpokenForError, UsageError, refuse_empty
from ddpdoctor.api.network_checking import WAIT_SECONDS, refuse_wait
from ddpdoctor.api.training_results import JointSmokeResult, SmokeResult
from ddpdoctor.base.signals import StoppedBySignal

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.network_check.job import Flags
    from ddpdoctor.network_check.job import NetcheckJob as NetcheckJob
    from ddpdoctor.smoke_training.multinode.task import JointProgressListener as JointProgressListener
    from ddpdoctor.smoke_training.plan import SmokePlan
    from ddpdoctor.smoke_training.progress import SmokeProgress as SmokeProgress
    from ddpdoctor.smoke_training.training_order import Fault, SmokeOptions

FAULT_VARIABLE = "DDPDOCTOR_SMOKE_FAULT"
"""For tests: one rank misbehaves, {"rank", "stage", "kind"}."""

HEADING = ("target_python", "machine", "container")
"""Groups of facts for the first lines of the report."""

MIN_BURN_IN_SECONDS = 1.0
MAX_BURN_IN_SECONDS = 7 * 86400

IMPORT_AGAIN_SECONDS = 10.0
"""At least, for a look at an import of torch that hung before."""


class SmokeObserver:
    """Whom `smoke` tells how far it is. This one wants to know nothing."""

    def progress(self) -> SmokeProgress:
        """Make the progress that is told how far each rank of this host is."""
        from ddpdoctor.smoke_training.progress import SmokeProgress

        return SmokeProgress()

    def ended(self, result: SmokeResult) -> None:
        """This is the report; also where a signal stops us after the training."""

    def looking_for_the_cause(self, result: SmokeResult) -> str:
        """The training failed, and the host is looked at next. What is said meanwhile."""
        return ""

    def audience(self, job: NetcheckJob) -> JointProgressListener:
        """Make the listener that is told how it goes where others take part."""
        from ddpdoctor.smoke_training.progress import JointProgress

        return JointProgress()

    def ended_together(self, result: JointSmokeResult, job: NetcheckJob) -> None:
        """This is the report where others took part."""


def smoke(
    *,
    nproc: int | None = None,
    nnodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    token: str | None = None,
    wait: float = WAIT_SECONDS,
    backend: str = "auto",
    python: str | None = None,
    timeout: float | None = None,
    stages: Sequence[str] = (),
    duration: float = 0.0,
    scaling: bool = False,
    strict: bool = False,
    observer: SmokeObserver | None = None,
) -> SmokeResult | JointSmokeResult:
    """Train a small DDP job on torch's own engine, stage by stage, each with a deadline. Nothing is left running.

    Args:
        nproc: ranks on this host; None: one a GPU, without any 2.
        nnodes: hosts of the job, each of which calls this; None: the launcher's, else 1.
        node_rank: this host, from 0; None: the launcher's.
        master_addr: where rank 0 runs; None: the launcher's.
        master_port: None: the launcher's, or 29500.
        token: let in only hosts that give the same.
        wait: seconds for hosts that aren't there yet.
        backend: "nccl", "gloo", or "auto": NCCL where there are GPUs.
        python: the Python in which you train; None: the active environment's.
        timeout: seconds that a stage may take; None: 30, the import of torch 90.
        stages: only these, and what they need; (): all.
        duration: seconds to train on, and to watch throughput, temperature, clocks and errors; 0: not.
        scaling: also train at 1, 2, 4 ... ranks.
        strict: over several hosts, warnings count on all of them.
        observer: is told how far it is.

    Raises:
        UsageError: the arguments contradict each other, or the launcher's settings.
        SpokenForError: local rank 0 speaks for this host.
        UnsafeError: root would run another user's Python.
        StoppedBySignal: by a signal that the program turns into one.
    """
    watcher = observer or SmokeObserver()
    if backend not in ("nccl", "gloo", "auto"):
        raise UsageError(f"--backend is nccl, gloo or auto, not {backend}")
    if timeout is not None and not timeout > 0:
        raise UsageError("--timeout is no number of seconds")
    if duration and not MIN_BURN_IN_SECONDS <= duration <= MAX_BURN_IN_SECONDS:
        raise UsageError(
            f"--duration {duration:g}s: from {MIN_BURN_IN_SECONDS:.0f} s to {MAX_BURN_IN_SECONDS // 86400} days are possible"
        )
    refuse_wait(wait)
    refuse_empty(master_addr=master_addr, python=python)
    chosen = _stages(stages)
    if nproc is not None:
        from ddpdoctor.network_check.protocol.messages import MAX_RANKS_PER_HOST

        if nproc > MAX_RANKS_PER_HOST:
            raise UsageError(f"--nproc {nproc}: smoke runs {MAX_RANKS_PER_HOST} ranks on a host at most")
    import msgspec

    from ddpdoctor.api.target_python import refuse_others_python, refuse_what_is_no_python
    from ddpdoctor.network_check.job import Flags
    from ddpdoctor.probes.context import Context
    from ddpdoctor.probes.session import collect_facts
    from ddpdoctor.probes.target_python.choice import choose_python
    from ddpdoctor.smoke_training.plan import GROUPS, plan_training
    from ddpdoctor.smoke_training.stages import with_burn_in
    from ddpdoctor.smoke_training.training_order import SmokeOptions

    path, chosen_by = choose_python(python, os.environ)
    refuse_others_python(path, chosen_by)
    if python is not None:
        with _not_begun():
            refuse_what_is_no_python(python, path)
    options = SmokeOptions(
        python=path,
        nproc=nproc,
        backend=backend,
        timeout=timeout,
        stages=with_burn_in(chosen) if duration else chosen,
        duration=duration,
        stages_given=bool(stages),
        scaling=scaling,
        fault=_fault(),
    )
    for_others = _options(options, stages=stages, python=python, wait=wait, strict=strict)
    flags = Flags(master=master_addr, port=master_port, nnodes=nnodes, node_rank=node_rank, options=for_others)
    job = _job_with_others(options, flags)
    if job is not None:
        from ddpdoctor.api.joint_training import train_with_others

        audience = watcher.audience(job)
        joint = train_with_others(
            job,
            options,
            options_for_others=for_others,
            chosen_by=chosen_by,
            token=token,
            wait=wait,
            strict=strict,
            audience=audience,
        )
        if not audience.has_shown:
            watcher.ended_together(joint, job)
        if joint.stopped_by:
            _end_stopped(joint.stopped_by, "its report stands above, or where node 0 is")
        return joint
    with _not_begun():
        snapshot = collect_facts(Context(path, chosen_by, quick=True), {*GROUPS, *HEADING})
        snapshot = add_imported_torch(snapshot, options, python)
        if plan_training(snapshot, nproc, backend).backend == "nccl":
            of_nccl = collect_facts(Context(path, chosen_by, quick=True), {"nccl"})
            snapshot = msgspec.structs.replace(snapshot, nccl=of_nccl.nccl)
    examination = _train(options, plan_training(snapshot, nproc, backend), snapshot, watcher)
    from ddpdoctor.smoke_training.analysis.verdict import needs_host_check

    if needs_host_check(examination):
        known = watcher.looking_for_the_cause(SmokeResult(examination))
        try:
            examination = _with_host(examination, python, timeout, known)
        except StoppedBySignal as stopped:
            watcher.ended(SmokeResult(examination))
            stopped.text = "Stopped while this host was looked at for the cause; the ranks had ended before."
            raise
    result = SmokeResult(examination)
    watcher.ended(result)
    return result


@contextmanager
def _not_begun() -> Iterator[None]:
    """Say that nothing had begun, where we are stopped in here; what `check --fix` has changed before, it says itself.

    Raises:
        StoppedBySignal: with that text.
    """
    try:
        yield
    except StoppedBySignal as stopped:
        stopped.text = "Stopped before the training had begun."
        raise


def add_imported_torch(snapshot: Snapshot, options: SmokeOptions, python: str | None) -> Snapshot:
    """Builds of torch for Jetson mostly have no NCCL, which only an import tells: it is worth its seconds there."""
    import msgspec

    from ddpdoctor.base.unknown import Unknown
    from ddpdoctor.probes.session import collect_facts, start_probes
    from ddpdoctor.smoke_training.stages import import_seconds

    gpus = snapshot.gpus
    if options.backend == "gloo" or isinstance(gpus, Unknown) or not any(device.integrated for device in gpus.devices):
        return snapshot
    imported = collect_facts(start_probes(python, patience=import_seconds(options.timeout)), {"torch"})
    return msgspec.structs.replace(snapshot, torch=imported.torch)


def _train(options: SmokeOptions, plan: SmokePlan, snapshot: Snapshot, observer: SmokeObserver) -> Examination:
    """Train, unless it is known beforehand that it can't be run.

    Raises:
        StoppedBySignal: in the burn-in, or while its speed was measured; the training has been told of.
    """
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.smoke_training.analysis.verdict import judge_plan, judge_training
    from ddpdoctor.smoke_training.local.training import measure_scaling, train, without_scaling

    hindered = judge_plan(snapshot, plan, catalogue())
    if hindered is not None:
        return hindered
    progress = observer.progress()
    try:
        facts, stopped_by = train(options, plan, progress.update)
        if stopped_by:
            progress.close()
            observer.ended(SmokeResult(judge_training(snapshot, facts, catalogue())))
            _end_stopped(stopped_by, "what was seen until then stands above")
        if options.scaling:
            try:
                facts = measure_scaling(options, plan, facts, progress.update)
            except StoppedBySignal as stopped:
                progress.close()
                observer.ended(SmokeResult(judge_training(snapshot, without_scaling(facts), catalogue())))
                stopped.text = (
                    "Stopped while its speed was measured; the training had ended before. Nothing is left running."
                )
                raise
    finally:
        progress.close()
    return judge_training(snapshot, facts, catalogue())


def _end_stopped(number: int, what_else: str) -> NoReturn:
    """End where a signal has ended the burn-in, and all else was done.

    Raises:
        StoppedBySignal: always.
    """
    stopped = StoppedBySignal(128 + number)
    stopped.text = (
        f"Stopped. The ranks ended their burn-in and all else in order; {what_else}. Nothing is left running."
    )
    raise stopped


def _with_host(examination: Examination, python: str | None, timeout: float | None, known: str) -> Examination:
    """Add the findings of the whole `check` of this host.

    An import of torch that was waited for as long as the user would wait isn't waited for much longer.

    Args:
        examination: of the training.
        python: as for `smoke`.
        timeout: as for `smoke`, in seconds.
        known: as for `collect_facts`.
    """
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.facts.snapshot import GROUPS
    from ddpdoctor.probes.session import collect_facts, start_probes
    from ddpdoctor.smoke_training.analysis.verdict import add_host_findings, nothing_ran, smoke_of
    from ddpdoctor.smoke_training.stages import import_seconds

    facts = smoke_of(examination)
    in_vain = timeout is not None and nothing_ran(facts) and facts.seconds >= import_seconds(timeout)
    patience = max(timeout, IMPORT_AGAIN_SECONDS) if timeout is not None and in_vain else None
    return add_host_findings(
        examination, collect_facts(start_probes(python, patience=patience), GROUPS, known), catalogue()
    )


def _job_with_others(options: SmokeOptions, flags: Flags) -> NetcheckJob | None:
    """The job that others take part in, None where this host trains alone.

    Args:
        options: what was asked for.
        flags: those that say where the others are, and which host this is.

    Raises:
        SpokenForError: local rank 0 speaks for this host.
        UsageError: the arguments contradict each other, or the launcher's settings.
    """
    from ddpdoctor.network_check.job import JobError
    from ddpdoctor.smoke_training.multinode.joint_job import find_joint_job, silent_rank

    if silent := silent_rank(flags, options.nproc, os.environ):
        raise SpokenForError(SmokeResult.command, [f"Local rank {silent}: local rank 0 speaks for this node."])
    try:
        job = find_joint_job(flags, options.nproc, os.environ)
    except JobError as error:
        raise UsageError(str(error)) from error
    if job is not None and options.scaling:
        raise UsageError("--scaling is for one host, and without a launcher: it starts other numbers of ranks")
    return job


def _options(
    options: SmokeOptions, *, stages: Sequence[str], python: str | None, wait: float, strict: bool
) -> tuple[str, ...]:
    """List the options that a command for another host takes over: all that aren't the default, as `facts.meeting.Meeting.options`."""
    return (
        *([f"--nproc {options.nproc}"] if options.nproc is not None else []),
        *([f"--backend {options.backend}"] if options.backend != "auto" else []),
        *([f"--timeout {options.timeout:g}"] if options.timeout is not None else []),
        *([f"--stages {','.join(stages)}"] if stages else []),
        *([f"--duration {options.duration:g}s"] if options.duration else []),
        *([f"--wait {wait:g}"] if wait != WAIT_SECONDS else []),
        *([f"--python {python}"] if python else []),
        *(["--strict"] if strict else []),
    )


def _stages(names: Sequence[str]) -> tuple[str, ...]:
    from ddpdoctor.smoke_training.stages import UnknownStageError, chosen_stages

    wanted = [name.strip() for value in names for name in value.split(",") if name.strip()]
    if names and not wanted:
        raise UsageError("--stages is empty; is the variable in it set?")
    try:
        return chosen_stages(wanted)
    except UnknownStageError as error:
        raise UsageError(str(error)) from error


def _fault() -> Fault | None:
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return None
    import msgspec

    from ddpdoctor.smoke_training.training_order import Fault

    try:
        return msgspec.json.decode(text, type=Fault)
    except msgspec.DecodeError as error:
        raise UsageError(f"{FAULT_VARIABLE}: {error}") from error
