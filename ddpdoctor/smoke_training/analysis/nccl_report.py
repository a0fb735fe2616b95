"""What NCCL's own diagnosis says, judged by the checks that judge it in a log."""

from __future__ import annotations

from io import BytesIO
from typing import Final

from ddpdoctor.base.findings import Finding
from ddpdoctor.engine.registry import Catalogue, Result
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.gathering import GatheredLog
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_stream

REPORT: Final = "NCCL's diagnosis"
"""The name under which its lines are evidence."""


def judge_report(smoke: Smoke, catalogue: Catalogue) -> tuple[Result, ...]:
    """What the checks of logs make of it: nothing where NCCL found nothing, or said nothing."""
    if not smoke.nccl_report:
        return ()
    gathered = GatheredLog()
    text = "".join(f"{line}\n" for line in smoke.nccl_report)
    read_stream(BytesIO(text.encode()), REPORT, vocabulary(catalogue), gathered)
    return judge_log(gathered.log(), catalogue).examination.results


def is_of_report(result: Result) -> bool:
    """Whether a result is one of those."""
    return any(map(is_told_by_report, result.findings))


def is_told_by_report(finding: Finding) -> bool:
    """Whether it rests on lines of the report."""
    return any(evidence.source.startswith(f"{REPORT}:") for evidence in finding.evidence)
