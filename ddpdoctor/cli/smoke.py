"""`ddpdoctor smoke`: a reference DDP job in the target Python, stage by stage."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.network_checking import WAIT_SECONDS
from ddpdoctor.api.training import SmokeObserver
from ddpdoctor.base.error_lines import complain
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.base.text import one_line
from ddpdoctor.cli.beside_report import leave, write_all
from ddpdoctor.cli.job_options import PANEL, MasterAddrOption, MasterPortOption, TokenOption, WaitOption
from ddpdoctor.cli.options import JsonOption, MarkdownOption, PythonOption, QuietOption, StrictOption
from ddpdoctor.cli.output import ReportForm

if TYPE_CHECKING:
    from ddpdoctor.api.training import JointProgressListener, NetcheckJob, SmokeProgress
    from ddpdoctor.api.training_results import JointSmokeResult, SmokeResult


def smoke(
    nproc: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Ranks on this host, 120 at most. Default: one a GPU; without any, 2.",
        ),
    ] = None,
    nnodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="M",
            help="Hosts of the job: run this on each. Default: the launcher's, else 1.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="I",
            help="This host, from 0. Default: the launcher's.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    master_addr: MasterAddrOption = None,
    master_port: MasterPortOption = None,
    token: TokenOption = None,
    wait: WaitOption = WAIT_SECONDS,
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
        ),
    ] = None,
    stages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Only these, and what they need (comma-separated or repeated). Default: all.",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Train on for so long (90s, 10m, 1h), and watch throughput, heat and errors.",
        ),
    ] = None,
    picture: Annotated[
        str | None,
        typer.Option(metavar="FILE.svg", help="With --duration: draw the throughput over its time."),
    ] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also train at 1, 2, 4 ... N ranks, and show how it scales.")
    ] = False,
    as_json: JsonOption = False,
    as_markdown: MarkdownOption = False,
    strict: StrictOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Each rank, and what passed and had nothing to test, by name.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a small DDP job on torch's own engine, and say which rank stopped where.

    It runs in the Python in which you train, stage by stage, each with a
    deadline. When a stage fails, `ddpdoctor check` looks at the host for the
    cause. Nothing is left running, whatever happens.

    Exit code: 0 every stage that could be run here passed, 1 something failed,
    --scaling too (or warned, with --strict), 2 wrong usage, or nothing could
    be run.
    """
    from ddpdoctor.api import training

    form = ReportForm(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)

    seconds = _seconds(duration)
    _refuse_picture(picture, duration)
    at_the_terminal = _AtTheTerminal(form, picture)
    with form.refusals(), at_the_terminal.complaints():
        result = training.smoke(
            nproc=nproc,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            token=token,
            wait=wait,
            backend=backend,
            python=python,
            timeout=timeout,
            stages=stages or (),
            duration=seconds,
            scaling=scaling,
            strict=strict,
            observer=at_the_terminal,
        )
    leave(at_the_terminal.problems, result.exit_code(strict=strict))


def _seconds(duration: str | None) -> float:
    """Seconds of --duration; 0.0 without it.

    Raises:
        typer.BadParameter: it is none.
    """
    from ddpdoctor.base.durations import seconds_of

    if duration is None:
        return 0.0
    try:
        seconds = seconds_of(duration)
    except ValueError as error:
        raise typer.BadParameter(f"--duration: {error}") from error
    if not seconds:
        raise typer.BadParameter("--duration is 0; leave it out, or write 90s, 10m or 1h30m")
    return seconds


def _refuse_picture(path: str | None, duration: str | None) -> None:
    """Refuse before a long run what could not be written after it.

    Raises:
        typer.BadParameter: there would be nothing to draw, or it can't be written there.
    """
    from ddpdoctor.api.errors import write_problem
    from ddpdoctor.api.pictures import refuse_foreign_file
    from ddpdoctor.base.whole_files import check_writable

    if path is None:
        return
    if duration is None:
        raise typer.BadParameter("--picture draws the burn-in: add --duration")
    if not path.endswith(".svg"):
        raise typer.BadParameter(f"--picture {path}: it is an SVG, so that its name should end in .svg")
    try:
        refuse_foreign_file(path)
        check_writable(path)
    except OSError as error:
        raise typer.BadParameter(f"--picture: {write_problem(path, error, 'it cannot be written there')}") from error


class _AtTheTerminal(SmokeObserver):
    """Shows how far the ranks are, and the report as soon as there is one."""

    def __init__(self, form: ReportForm, picture: str | None) -> None:
        self._form = form
        self._picture = picture
        self.problems: tuple[str, ...] = ()
        """Why the picture was not written."""

    @contextmanager
    def complaints(self) -> Iterator[None]:
        """Say why the picture was not written where a signal ends us, too.

        Raises:
            StoppedBySignal: as it came.
        """
        try:
            yield
        except StoppedBySignal:
            for problem in self.problems:
                complain(one_line(problem))
            raise

    def _draw(self, result: SmokeResult | JointSmokeResult) -> None:
        path = self._picture
        if path is not None:
            self.problems = write_all([lambda: result.write_picture(path)])

    def progress(self) -> SmokeProgress:
        from ddpdoctor.report.live import show_on

        return show_on(sys.stderr, super().progress())

    def ended(self, result: SmokeResult) -> None:
        # Before the report: who reads that may end before it does.
        self._draw(result)
        self._form.print(result)

    def looking_for_the_cause(self, result: SmokeResult) -> str:
        """Say what happened, for the seconds in which the host is looked at: a terminal shows it until the report is there, a log
        keeps it."""
        if self._form.quiet:
            return ""
        text = result.headline
        if moves_its_cursor(sys.stderr):
            return f"{text}. "
        print(f"ddpdoctor smoke: {text}; this host is looked at for the cause", file=sys.stderr, flush=True)
        return ""

    def audience(self, job: NetcheckJob) -> JointProgressListener:
        from ddpdoctor.cli.smoke_hosts import TerminalAudience

        return TerminalAudience(lambda result: self.ended_together(result, job), job)

    def ended_together(self, result: JointSmokeResult, job: NetcheckJob) -> None:
        from ddpdoctor.cli.smoke_hosts import print_joint

        self._draw(result)
        print_joint(result, job, self._form.print)
