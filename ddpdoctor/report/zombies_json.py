"""The report of `zombies` as JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from ddpdoctor.examination import Verdict
from ddpdoctor.knowledge.leftovers import Leftover
from ddpdoctor.report.contract import Report, build_report
from ddpdoctor.report.reported_leftovers import reported_leftovers
from ddpdoctor.treatments.ending import Endings


def zombies_report(
    leftovers: Sequence[Leftover],
    spots: Sequence[str],
    problems: Sequence[str],
    ending: Endings | None,
    verdict: Verdict,
) -> Report:
    """spots: where nobody could look. ending: what was done, None where nothing was to be."""
    report = build_report("zombies", [], problems, of_all=verdict)
    return msgspec.structs.replace(
        report,
        host=os.uname().nodename,
        leftovers=reported_leftovers(leftovers, ending.all if ending else ()),
        not_seen=tuple(spots),
        freed=tuple(ending.freed) if ending else (),
    )
