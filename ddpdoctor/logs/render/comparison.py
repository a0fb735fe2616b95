"""What differs between a run and good ones, in words."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.text import listed, one_line, plural
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.good_runs import RunComparison, StoppedLine
from ddpdoctor.logs.diagnosis import LogJudgement
from ddpdoctor.logs.render.words import clock, place, quoted
from ddpdoctor.report.document import Block, Paragraph, Section, StyledText, evidence_words

MAX_DIFFERENCES: Final = 3
"""Lines of each kind that are shown without -v."""
NOT_ALL_COMPARED: Final = (
    "These runs have more kinds of lines than are kept: a line may be called new that a good run has as well"
)


def comparison_section(judgement: LogJudgement, *, verbose: bool) -> Section:
    """Tell what is new, missing, or stops earlier than in runs that ended well."""
    compared = judgement.comparison
    if compared is None:
        return Section()
    refused: list[Block] = [
        Paragraph(f"{one_line(name)} is not taken for a good run: {one_line(why)}", indent=2)
        for name, why in compared.refused
    ]
    if not compared.good:
        return Section(tuple(refused), "Compared with no good run")
    return Section(
        (*refused, *_differences(judgement, compared, None if verbose else MAX_DIFFERENCES)),
        f"Compared with {listed(map(one_line, compared.good), 3)}, which ended well",
    )


def _differences(judgement: LogJudgement, compared: RunComparison, most: int | None) -> list[Block]:
    log = judgement.log
    new, stopped = compared.new[:most], compared.stopped[:most]
    told = [("new", quoted(line.text), place(log, line)) for line in new]
    if rest := compared.new_kinds - len(new):
        kinds = plural(rest, "other kind" if new else "kind")
        elsewhere = "" if compared.new else ", of which the report tells"
        told.append(("" if new else "new", f"{kinds} of lines{elsewhere}", ""))
    told += [("missing", quoted(line.text), f"{one_line(line.file)}:{line.number}") for line in compared.missing[:most]]
    told += [("stops", _how_it_stops(log, stop), place(log, stop.line)) for stop in stopped]
    until = compared.alike_until
    if until and until not in [stop.line for stop in stopped]:
        told.append(("until", f"the latest line as good runs have it: {quoted(until.text)}", place(log, until)))
    blocks: list[Block] = [
        Paragraph(evidence_words(Evidence(text, source)), StyledText(label, "dim"), 9, 2)
        for label, text, source in told
    ]
    if not (compared.new_kinds or compared.missing or stopped):
        blocks.insert(0, Paragraph("Every kind of line that stands in one of them stands in the other, too", indent=2))
    if not compared.whole:
        blocks.append(Paragraph(StyledText(NOT_ALL_COMPARED, "dim"), indent=2))
    return blocks


def _how_it_stops(log: Log, stopped: StoppedLine) -> str:
    """ "step 57 loss 0.3: 57 such lines, where good runs have 200; the last at 02:13:07"."""
    line = stopped.line
    at = f"; the last at {clock(line.time + log.ahead)}" if line.time is not None and not line.lent else ""
    return f"{quoted(line.text)}: {plural(stopped.times, 'such line')}, where good runs have {stopped.good_times}{at}"
