"""`ddpdoctor smoke`: a reference DDP job in the target Python, stage by stage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.network_checking import WAIT_SECONDS
from ddpdoctor.api.training import SmokeObserver
from ddpdoctor.base.terminal import moves_its_cursor
from ddpdoctor.cli.output import (
    JsonOption,
    MarkdownOption,
    QuietOption,
    StrictOption,
    print_result,
    refusals,
    refuse_two_forms,
)
from ddpdoctor.cli.probing import PythonOption
from ddpdoctor.knowledge.netcheck_command import TOKEN_VARIABLE

if TYPE_CHECKING:
    from ddpdoctor.api.results import CommandResult
    from ddpdoctor.api.training_results import JointSmokeResult, SmokeResult
    from ddpdoctor.network_check.job import NetcheckJob
    from ddpdoctor.smoke_training.multinode.task import JointProgressListener
    from ddpdoctor.smoke_training.progress import SmokeProgress

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
    ] = WAIT_SECONDS,
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

    refuse_two_forms(as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)

    def shown(result: CommandResult) -> None:
        print_result(result, as_json=as_json, as_markdown=as_markdown, verbose=verbose, quiet=quiet)

    with refusals(as_json=as_json):
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
            observer=_AtTheTerminal(shown, quiet=quiet),
        )
    raise typer.Exit(result.exit_code(strict=strict))


class _AtTheTerminal(SmokeObserver):
    """Shows how far the ranks are, and the report as soon as there is one."""

    def __init__(self, shown: Callable[[CommandResult], None], *, quiet: bool) -> None:
        self._shown = shown
        self._quiet = quiet

    def progress(self) -> SmokeProgress:
        from ddpdoctor.report.live import show_on
        from ddpdoctor.smoke_training.progress import SmokeProgress

        return show_on(sys.stderr, SmokeProgress())

    def ended(self, result: SmokeResult) -> None:
        self._shown(result)

    def looking_for_the_cause(self, result: SmokeResult) -> str:
        """What happened, for the seconds in which the host is looked at: a terminal shows it until the report is there, a log
        keeps it."""
        if self._quiet:
            return ""
        text = result.headline
        if moves_its_cursor(sys.stderr):
            return f"{text}. "
        print(f"ddpdoctor smoke: {text}; this host is looked at for the cause", file=sys.stderr, flush=True)
        return ""

    def audience(self, job: NetcheckJob) -> JointProgressListener:
        from ddpdoctor.cli.smoke_hosts import TerminalAudience, print_joint

        return TerminalAudience(lambda result: print_joint(result, job, self._shown), job)

    def ended_together(self, result: JointSmokeResult, job: NetcheckJob) -> None:
        from ddpdoctor.cli.smoke_hosts import print_joint

        print_joint(result, job, self._shown)
