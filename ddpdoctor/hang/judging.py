"""What the checks make of a job that was looked at, and of its dumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.processes.jobs import TrainingJob, jobs_of

HANG_GROUP: Final = "hang"
GROUPS_OF_REPORT: Final = ("machine", "container", "gpus", "processes")
"""Facts that the report, and the words for what can't be seen, need beside."""


def checks_of_hangs(catalogue: Catalogue) -> tuple[Check, ...]:
    """Pick the checks that say why a job hangs."""
    return tuple(check for check in catalogue.checks if HANG_GROUP in check.groups)


def groups_of_hangs(catalogue: Catalogue) -> set[str]:
    """Name the facts of the host that are looked at first."""
    return set(GROUPS_OF_REPORT).union(*(check.groups for check in checks_of_hangs(catalogue)))


def judge_hang(snapshot: Snapshot, hang: Hang, catalogue: Catalogue) -> Examination:
    """Judge what was seen of a hang. snapshot: of this host, taken before the look."""
    whole = redact_facts(msgspec.structs.replace(snapshot, hang=hang))
    return examine(whole, None, checks_of_hangs(catalogue))


def hang_of(examination: Examination) -> Hang:
    """Return what was seen; empty where nothing was looked at."""
    facts = examination.snapshot.hang
    return Hang() if isinstance(facts, Unknown) else facts


def job_of(examination: Examination) -> TrainingJob | None:
    """Return the job that was looked at; None where there were only dumps."""
    processes, name = examination.snapshot.processes, hang_of(examination).job
    jobs: Sequence[TrainingJob] = () if isinstance(processes, Unknown) else jobs_of(processes)
    return next((job for job in jobs if job.name == name), None)
