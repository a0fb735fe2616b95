"""The report of `fix-checkpoint` as JSON: each file's outcome, and what the checks say of the files as they are now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Verdict, examine
from ddpdoctor.engine.registry import Check
from ddpdoctor.facts.checkpoints import Checkpoints
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.report.contract import Report, build_report
from ddpdoctor.report.reported_checkpoints import Action, CheckpointOutcome

NOT_ASKED = Unknown("fix-checkpoint looks at the files alone; `ddpdoctor check --checkpoint FILE` at the host, too")


def fixing_report(outcomes: Sequence[CheckpointOutcome], checks: Iterable[Check]) -> Report:
    """The same checks that found an illness prove its treatment; they know the files and nothing else of this host.

    A file that a dry run would fix fails on any host.
    """
    files = tuple(facts for outcome in outcomes if (facts := outcome.after or outcome.before) is not None)
    groups = dict.fromkeys(GROUPS, NOT_ASKED) | {"checkpoints": Checkpoints(files=files)}
    snapshot = msgspec.structs.replace(Snapshot(host=os.uname().nodename), **groups)
    examination = examine(snapshot, None, checks)
    problems = [f"{outcome.path}: {outcome.error}" for outcome in outcomes if outcome.action is Action.REFUSED]
    report = build_report("fix-checkpoint", [examination], problems)
    unfixed = any(outcome.action is Action.WOULD_FIX for outcome in outcomes)
    files_told = tuple(
        # What was found is facts, and facts hold no commands.
        msgspec.structs.replace(outcome, commands=outcome.before.commands)
        if outcome.before and not outcome.commands
        else outcome
        for outcome in outcomes
    )
    return msgspec.structs.replace(report, files=files_told, verdict=Verdict.FAIL if unfixed else report.verdict)
