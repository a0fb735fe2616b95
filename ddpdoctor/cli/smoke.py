"""`ddpdoctor smoke`: a reference DDP job in the target Python, stage by stage."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.network_checking import WAIT_SECONDS
from ddpdoctor.api.training import SmokeObserver
from ddpdoctor.base.terminal import moves_its_cursor
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

    with form.refusals():
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
            scaling=scaling,
            strict=strict,
            observer=_AtTheTerminal(form),
        )
    raise typer.Exit(result.exit_code(strict=strict))


class _AtTheTerminal(SmokeObserver):
    """Shows how far the ranks are, and the report as soon as there is one."""

    def __init__(self, form: ReportForm) -> None:
        self._form = form

    def progress(self) -> SmokeProgress:
        from ddpdoctor.report.live import show_on

        return show_on(sys.stderr, super().progress())

    def ended(self, result: SmokeResult) -> None:
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
        from ddpdoctor.cli.smoke_hosts import TerminalAudience, print_joint

        return TerminalAudience(lambda result: print_joint(result, job, self._form.print), job)

    def ended_together(self, result: JointSmokeResult, job: NetcheckJob) -> None:
        from ddpdoctor.cli.smoke_hosts import print_joint

        print_joint(result, job, self._form.print)
