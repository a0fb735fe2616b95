"""`ddpdoctor smoke`: a reference DDP job in the target Python, stage by stage."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.cli.probing import PythonOption, begin, refuse_others_python, refuse_what_is_no_python
from ddpdoctor.knowledge.netcheck_command import TOKEN_VARIABLE
from ddpdoctor.probes.session import collect_facts

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination
    from ddpdoctor.facts.snapshot import Snapshot
    from ddpdoctor.network_check.job import NetcheckJob
    from ddpdoctor.smoke_training.orders import Fault
    from ddpdoctor.smoke_training.plan import SmokePlan
    from ddpdoctor.smoke_training.train import SmokeOptions

WAIT = 60.0
"""Seconds."""

FAULT_VARIABLE = "DDPDOCTOR_SMOKE_FAULT"
"""For tests: one rank misbehaves, {"rank", "stage", "kind"}."""

HEADING = ("target_python", "machine", "container")
"""Groups of facts for the first lines of the report."""

IMPORT_AGAIN_SECONDS = 10.0
"""At least, for a look at an import of torch that hung before."""

_JOB = "Several hosts"


def smoke(
    nproc: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Ranks on this host, 120 at most. Default: one a GPU; without any, 2.",
            show_default=False,
        ),
    ] = None,
    nnodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="M",
            help="Hosts of the job: run this on each. Default: the launcher's, else 1.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="I",
            help="This host, from 0. Default: the launcher's.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None,
    master_addr: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Where rank 0 runs: MASTER_ADDR. Default: the launcher's.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="PORT",
            help="MASTER_PORT. Default: the launcher's, or 29500.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar=TOKEN_VARIABLE,
            show_envvar=False,
            help="Let in only hosts that give the same, as with netcheck.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=1, max=86400, metavar="SECONDS", help="For hosts that aren't there yet.", rich_help_panel=_JOB
        ),
    ] = WAIT,
    backend: Annotated[
        str, typer.Option(metavar="nccl|gloo|auto", help="Default: NCCL where there are GPUs.", show_default=False)
    ] = "auto",
    python: PythonOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86400,
            metavar="SECONDS",
            help="A stage may take so long, the import of torch at least 30. Default: 30, the import 90.",
            show_default=False,
        ),
    ] = None,
    stages: Annotated[
        list[str] | None,
        typer.Option(
            "--stages",
            metavar="NAMES",
            help="Only these, and what they need (comma-separated or repeated). Default: all.",
            show_default=False,
        ),
    ] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also train at 1, 2, 4 ... N ranks, and show how it scales.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with -v also the facts.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Each rank, and what passed and had nothing to test, by name.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="One line a finding, and the verdict.")] = False,
) -> None:
    """Train a small DDP job on torch's own engine, and say which rank stopped where.

    It runs in the Python in which you train, stage by stage, each with a
    deadline. When a stage fails, `ddpdoctor check` looks at the host for the
    cause. Nothing is left running, whatever happens.

    Exit code: 0 every stage that could be run here passed, 1 something failed,
    --scaling too (or warned, with --strict), 2 wrong usage, or nothing could
    be run.
    """
    if verbose and quiet:
        raise typer.BadParameter("-v and -q exclude each other")
    if backend not in ("nccl", "gloo", "auto"):
        raise typer.BadParameter(f"--backend is nccl, gloo or auto, not {backend}")
    for name, seconds in (("--timeout", timeout), ("--wait", wait)):
        if seconds is not None and seconds != seconds:
            raise typer.BadParameter(f"{name} is no number of seconds")
    for name, value in (("--master-addr", master_addr), ("--python", python)):
        if value is not None and not value.strip():
            raise typer.BadParameter(f"{name} is empty; is the variable in it set?")
    chosen = _stages(stages)
    if nproc is not None:
        from ddpdoctor.network_check.messages import MOST_RANKS_HERE

        if nproc > MOST_RANKS_HERE:
            raise typer.BadParameter(f"--nproc {nproc}: smoke runs {MOST_RANKS_HERE} ranks on a host at most")
    from ddpdoctor.probes.context import Context
    from ddpdoctor.probes.target_python.choice import choose_python
    from ddpdoctor.smoke_training.plan import GROUPS, smoke_plan
    from ddpdoctor.smoke_training.train import SmokeOptions

    path, chosen_by = choose_python(python, os.environ)
    refuse_others_python(path, chosen_by)
    if python is not None:
        with _not_begun():
            refuse_what_is_no_python(python, path)
    wishes = SmokeOptions(
        python=path,
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        master=master_addr,
        port=master_port,
        backend=backend,
        timeout=timeout,
        stages=chosen,
        scaling=scaling,
        fault=_fault(),
    )
    options = _options(wishes, stages=stages, python=python, wait=wait, strict=strict)
    job = _job_with_others(wishes, options)
    if job is not None:
        from ddpdoctor.cli.smoke_hosts import print_end, train_with_others

        end = train_with_others(
            job,
            wishes,
            options=options,
            chosen_by=chosen_by,
            stages_given=bool(stages),
            token=token,
            wait=wait,
            strict=strict,
            shown=lambda end: print_end(end, job, as_json=as_json, verbose=verbose, quiet=quiet),
        )
        raise typer.Exit(end.exit_code)
    with _not_begun():
        snapshot = collect_facts(Context(path, chosen_by, quick=True), {*GROUPS, *HEADING})
        snapshot = _with_torch(snapshot, wishes, python)
    plan = smoke_plan(snapshot, nproc, backend)
    examination = _train(wishes, plan, snapshot, lambda one: _print(one, as_json=as_json, verbose=verbose, quiet=quiet))
    from ddpdoctor.smoke_training.judging import needs_a_look, verdict_of

    if needs_a_look(examination):
        text = "" if quiet else _at_once(examination)
        try:
            examination = _with_host(examination, python, timeout, text)
        except StoppedBySignal as stopped:
            _print(examination, as_json=as_json, verbose=verbose, quiet=quiet)
            stopped.text = "Stopped while this host was looked at for the cause; the ranks had ended before."
            raise
    _print(examination, as_json=as_json, verbose=verbose, quiet=quiet)
    raise typer.Exit(verdict_of(examination).exit_code(strict=strict))


@contextmanager
def _not_begun() -> Iterator[None]:
    """Where we are stopped in here, that is all there is to say; what `check --fix` has changed before, it says itself."""
    try:
        yield
    except StoppedBySignal as stopped:
        stopped.text = "Stopped before the training had begun."
        raise


def _with_torch(snapshot: Snapshot, wishes: SmokeOptions, python: str | None) -> Snapshot:
    """Builds of torch for Jetson mostly have no NCCL, which only an import tells: it is worth its seconds there."""
    import msgspec

    from ddpdoctor.base.unknown import Unknown
    from ddpdoctor.smoke_training.orders import import_seconds

    gpus = snapshot.gpus
    if wishes.backend == "gloo" or isinstance(gpus, Unknown) or not any(device.integrated for device in gpus.devices):
        return snapshot
    imported = collect_facts(begin(python, patience=import_seconds(wishes.timeout)), {"torch"})
    return msgspec.structs.replace(snapshot, torch=imported.torch)


def _train(
    wishes: SmokeOptions, plan: SmokePlan, snapshot: Snapshot, shown: Callable[[Examination], None]
) -> Examination:
    """The training, unless it is known beforehand that it can't be run. shown: tells of it where we are stopped after it,
    while its speed is measured."""
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.smoke_training.judging import before, judge
    from ddpdoctor.smoke_training.train import scaled, train, unscaled
    from ddpdoctor.smoke_training.views import make_view

    hindered = before(snapshot, plan, catalogue())
    if hindered is not None:
        return hindered
    view = make_view()
    try:
        facts = train(wishes, plan, view.heard)
        if wishes.scaling:
            try:
                facts = scaled(wishes, plan, facts, view.heard)
            except StoppedBySignal as stopped:
                view.close()
                shown(judge(snapshot, unscaled(facts), catalogue()))
                stopped.text = (
                    "Stopped while its speed was measured; the training had ended before. Nothing is left running."
                )
                raise
    finally:
        view.close()
    return judge(snapshot, facts, catalogue())


def _at_once(examination: Examination) -> str:
    """What happened, for the seconds in which the host is looked at: a terminal shows it until the report is there, a log
    keeps it."""
    from ddpdoctor.base.text import one_line
    from ddpdoctor.smoke_training.render_words import headline

    text = one_line(headline(examination))
    if moves_its_cursor(sys.stderr):
        return f"{text}. "
    print(f"ddpdoctor smoke: {text}; this host is looked at for the cause", file=sys.stderr, flush=True)
    return ""


def _with_host(examination: Examination, python: str | None, timeout: float | None, known: str) -> Examination:
    """With the whole `check` of this host. An import of torch that was waited for as long as the user would wait isn't
    waited for much longer. known: as in `looking.look`."""
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.facts.snapshot import GROUPS
    from ddpdoctor.smoke_training.judging import nothing_ran, smoke_of, with_host
    from ddpdoctor.smoke_training.orders import import_seconds

    facts = smoke_of(examination)
    in_vain = timeout is not None and nothing_ran(facts) and facts.seconds >= import_seconds(timeout)
    patience = max(timeout, IMPORT_AGAIN_SECONDS) if timeout is not None and in_vain else None
    return with_host(examination, collect_facts(begin(python, patience=patience), GROUPS, known), catalogue())


def _job_with_others(wishes: SmokeOptions, options: tuple[str, ...]) -> NetcheckJob | None:
    """The job that others take part in, None where this host trains alone. options: what a command for another host takes
    over."""
    from ddpdoctor.network_check.job import Flags, JobError
    from ddpdoctor.smoke_training.joining import joint_job, silent_rank

    flags = Flags(
        master=wishes.master, port=wishes.port, nnodes=wishes.nnodes, node_rank=wishes.node_rank, options=options
    )
    if silent := silent_rank(flags, wishes.nproc, os.environ):
        typer.echo(f"Local rank {silent}: local rank 0 speaks for this node.", err=True)
        raise typer.Exit(0)
    try:
        job = joint_job(flags, wishes.nproc, os.environ)
    except JobError as error:
        raise typer.BadParameter(str(error)) from error
    if job is not None and wishes.scaling:
        raise typer.BadParameter("--scaling is for one host, and without a launcher: it starts other numbers of ranks")
    return job


def _options(
    wishes: SmokeOptions, *, stages: list[str] | None, python: str | None, wait: float, strict: bool
) -> tuple[str, ...]:
    """What a command for another host takes over: all that isn't the default, as `facts.meeting.Meeting.options`."""
    return (
        *([f"--nproc {wishes.nproc}"] if wishes.nproc is not None else []),
        *([f"--backend {wishes.backend}"] if wishes.backend != "auto" else []),
        *([f"--timeout {wishes.timeout:g}"] if wishes.timeout is not None else []),
        *([f"--stages {','.join(stages)}"] if stages else []),
        *([f"--wait {wait:g}"] if wait != WAIT else []),
        *([f"--python {python}"] if python else []),
        *(["--strict"] if strict else []),
    )


def _stages(names: list[str] | None) -> tuple[str, ...]:
    from ddpdoctor.smoke_training.selection import UnknownStageError, chosen_stages

    wanted = [name.strip() for value in names or () for name in value.split(",") if name.strip()]
    if names and not wanted:
        raise typer.BadParameter("--stages is empty; is the variable in it set?")
    try:
        return chosen_stages(wanted)
    except UnknownStageError as error:
        raise typer.BadParameter(str(error)) from error


def _fault() -> Fault | None:
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return None
    import msgspec

    from ddpdoctor.smoke_training.orders import Fault

    try:
        return msgspec.json.decode(text, type=Fault)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{FAULT_VARIABLE}: {error}") from error


def _print(examination: Examination, *, as_json: bool, verbose: bool, quiet: bool) -> None:
    if as_json:
        _print_json(examination, verbose=verbose)
        return
    from ddpdoctor.report.terminal import make_console
    from ddpdoctor.smoke_training.render_terminal import show_smoke

    show_smoke(make_console(sys.stdout), examination, verbose=verbose, quiet=quiet)


def _print_json(examination: Examination, *, verbose: bool) -> None:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.report.contract import build_report, to_json
    from ddpdoctor.smoke_training.judging import smoke_of, verdict_of

    verdict, facts = verdict_of(examination), smoke_of(examination)
    problems = [facts.problem] if verdict is Verdict.UNKNOWN and facts.problem else []
    print(to_json(build_report("smoke", [examination], problems, with_facts=verbose, of_all=verdict, smoke=facts)))
