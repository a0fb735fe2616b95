"""What the checks make of a job that was looked at, and of its dumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.hang import Hang, RasCount
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.processes.jobs import TrainingJob, jobs_of

if TYPE_CHECKING:
    from ddpdoctor.hang.flight_recorder.collect_dumps import Dumps

GROUP: Final = "hang"
HEADING: Final = ("machine", "container", "gpus", "processes")
"""Groups that the report, and the words for what can't be seen, need beside."""


def checks_of_hangs(catalogue: Catalogue) -> tuple[Check, ...]:
    """The checks that say why a job hangs."""
    return tuple(check for check in catalogue.checks if GROUP in check.groups)


def groups_of_hangs(catalogue: Catalogue) -> set[str]:
    """The facts of the host that are looked at first."""
    return set(HEADING).union(*(check.groups for check in checks_of_hangs(catalogue)))


def with_dumps(hang: Hang, dumps: Dumps) -> Hang:
    """With what the flight recorders of its ranks have written."""
    return msgspec.structs.replace(hang, recorded=dumps.recorded, dumps=dumps.note, refused=dumps.refused)


def with_counts(hang: Hang, counts: tuple[RasCount, ...], why_not: str) -> Hang:
    """With what NCCL's RAS says, or why it doesn't."""
    return msgspec.structs.replace(hang, counts=counts, ras=why_not)


def judge_hang(snapshot: Snapshot, hang: Hang, catalogue: Catalogue) -> Examination:
    """snapshot: this host's, taken before the look."""
    whole = redact_facts(msgspec.structs.replace(snapshot, hang=hang))
    return examine(whole, None, checks_of_hangs(catalogue))


def hang_of(examination: Examination) -> Hang:
    """Empty where nothing was looked at."""
    facts = examination.snapshot.hang
    return Hang() if isinstance(facts, Unknown) else facts


def job_of(examination: Examination) -> TrainingJob | None:
    """The job that was looked at; None where there were only dumps."""
    processes, name = examination.snapshot.processes, hang_of(examination).job
    jobs: Sequence[TrainingJob] = () if isinstance(processes, Unknown) else jobs_of(processes)
    return next((job for job in jobs if job.name == name), None)
