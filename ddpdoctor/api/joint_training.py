"""A training over several hosts, or over the ranks that a launcher has started: they meet, train, and come to one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ddpdoctor.api.training_results import JointSmokeResult
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.network_check.results import NetcheckOptions
from ddpdoctor.network_check.run import run
from ddpdoctor.smoke_training.multinode.joint_job import launch_command
from ddpdoctor.smoke_training.multinode.task import JointProgressListener, SmokeTask
from ddpdoctor.smoke_training.progress import JointProgress as JointProgress
from ddpdoctor.smoke_training.training_order import Launched

if TYPE_CHECKING:
    from ddpdoctor.network_check.job import NetcheckJob
    from ddpdoctor.network_check.results import RunResult as RunResult
    from ddpdoctor.smoke_training.training_order import SmokeOptions


def train_with_others(
    job: NetcheckJob,
    options: SmokeOptions,
    *,
    options_for_others: tuple[str, ...],
    chosen_by: str,
    token: str | None,
    wait: float,
    strict: bool,
    audience: JointProgressListener,
) -> JointSmokeResult:
    """Meet the others, train, and come to the same verdict on all.

    Args:
        job: which others, and where.
        options: what was asked for here.
        options_for_others: what a command for another host takes over.
        chosen_by: what led to the target Python.
        token: as given.
        wait: seconds for hosts that aren't there yet.
        strict: whether warnings count.
        audience: is told how it goes, and closed.
    """
    if job.launched:
        options = msgspec.structs.replace(
            options,
            launcher=job.launcher,
            launched=Launched(job.node_rank or 0, job.local_rank or 0),
            store_running=job.store_running,
            engine=launch_command(job),
        )
    task = SmokeTask(options, catalogue(), audience.update)
    try:
        end = run(
            NetcheckOptions(
                job=job,
                task=task,
                options=options_for_others,
                token=token,
                wait=wait,
                strict=strict,
                python=options.python,
                chosen_by=chosen_by,
            ),
            audience,
        )
    finally:
        audience.close()
    joint = joint_result(end)
    joint.stopped_by = task.stopped_by
    return joint


def joint_result(end: RunResult) -> JointSmokeResult:
    """The end of a meeting, with what the training came to."""
    smoke = end.examinations[0].snapshot.smoke if end.examinations else None
    return JointSmokeResult(end, smoke if isinstance(smoke, Smoke) else None)
