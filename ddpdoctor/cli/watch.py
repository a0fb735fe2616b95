"""`ddpdoctor watch`: says once when a running job has stopped moving, and who lags."""

# Annotations are values here, as in check.py.
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.job_watching import CONFIRM_SECONDS, EVERY_SECONDS
from ddpdoctor.cli.output import refusals

if TYPE_CHECKING:
    from ddpdoctor.watching.events import Event


def watch(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID]", help="The job: the pid of its launcher, a rank, a worker, or the script around them."
        ),
    ] = None,
    all_jobs: Annotated[
        bool, typer.Option("--all", help="All jobs of this host that this user can see, until stopped.")
    ] = False,
    confirm: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=5,
            max=86400,
            help="So long nothing may move before it is told: more than the longest step.",
        ),
    ] = CONFIRM_SECONDS,
    every: Annotated[float, typer.Option(metavar="S", min=0.5, max=3600, help="Between two looks.")] = EVERY_SECONDS,
    on_hang: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run this by the shell when a job has stopped; DDPDOCTOR_JOB, _USER, _PIDS, _RANKS, _SECONDS and _EVIDENCE are set.",
        ),
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where each alarm makes a folder with its evidence. Default: ~/.local/state/ddpdoctor/watch.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.prom", help="Write metrics after each look, for the textfile collector of node_exporter."
        ),
    ] = None,
    ras: Annotated[
        bool,
        typer.Option("--ras", help="Ask NCCL's RAS (2.29.2 or later), too, when a job has stopped."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also say when a rank that works holds the others up.")
    ] = False,
) -> None:
    """Watch a running job, and say once when it has stopped moving, who lags and where.

    It only looks: at the kernel's counters, and at stacks where these stand
    still. Measured with four ranks, that took 0.01 % of a core a rank while the
    job moved, and 0.09 % while ranks waited. It ends nothing; --on-hang COMMAND
    does what you tell it. Of a job that moves it says nothing.

    Exit code: 0 the job ended and never stopped before, 1 it stopped at least
    once, 2 wrong usage, or no such job that this user can watch, 130 or 143
    stopped by a signal.
    """
    from ddpdoctor.api import job_watching

    def tell(event: "Event") -> None:
        _print(event, verbose=verbose)

    with refusals():
        result = job_watching.watch(
            job,
            all_jobs=all_jobs,
            confirm=confirm,
            every=every,
            on_hang=on_hang,
            evidence=evidence,
            prometheus=prometheus,
            ras=ras,
            tell=tell,
        )
    raise typer.Exit(result.exit_code())


def _print(event: "Event", *, verbose: bool) -> None:
    """An event as a line with its time; at once, since it may go into a file that somebody reads as it grows."""
    from ddpdoctor.base.text import one_line

    if event.kind.value == "pause" and not verbose:
        return
    lines = [event.text, *event.details, *([f"evidence: {event.folder}"] if event.folder else [])]
    margin = time.strftime("%Y-%m-%d %H:%M:%S ")
    for number, line in enumerate(lines):
        print(f"{' ' * len(margin) if number else margin}{one_line(line)}")
    print(end="", flush=True)
