"""What explains a failure in the script that a log names, where it lies here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.engine.explanations import Illness
from ddpdoctor.facts.log import Log, LoggedException, LoggedStack
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.diagnosis import LogJudgement
from ddpdoctor.logs.exceptions import is_of_library
from ddpdoctor.scripts.explaining import explain

_OF_A_SCRIPT = "<module>"
"""The function of a traceback's line that is in none."""


def look_into_script(judgement: LogJudgement, scripts: Sequence[str] = ()) -> LogJudgement:
    """Add what explains the failure in the run's script. scripts: paths of it that are known, before those that the log names."""
    explanations = explain((*scripts, *_scripts_of(judgement.log)), _illnesses_of(judgement), judgement.catalogue)
    return msgspec.structs.replace(judgement, explanations=explanations)


def _scripts_of(log: Log) -> Iterator[str]:
    """Yield paths of what the run ran, as the log names them: the launcher's word first, then whose lines its tracebacks go through."""
    yield from (exited.script for exited in log.exited if exited.script)
    traces: list[LoggedException | LoggedStack] = [*log.raised, *log.stacks]
    for trace in traces:
        first = next((frame for frame in trace.frames if frame.function == _OF_A_SCRIPT), None)
        if first and not is_of_library(first.path):
            yield first.path
    # Of processes that the script has started itself no call goes through its first lines.
    yield from (trace.own.path for trace in traces if trace.own)


def _illnesses_of(judgement: LogJudgement) -> tuple[Illness, ...]:
    """Name the illnesses that the log suspects: what brings about an exception of the script's own stands in its traceback."""
    raised = judgement.verdict.raised
    return tuple(
        Illness(
            opinion.check.slug,
            _lines_of(raised) if LogTopic.MISTAKE in opinion.check.stands_for else None,
        )
        for opinion in judgement.opinions
    )


def _lines_of(raised: LoggedException | None) -> tuple[tuple[str, int], ...]:
    return tuple((frame.path, frame.line) for frame in raised.frames) if raised else ()
