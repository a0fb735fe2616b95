"""The report of `jobs --hang`: the verdict, who stands where, what is wrong and why, what could not be seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.text import one_line
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.explanations import Explanation
from ddpdoctor.facts.hang import Frame
from ddpdoctor.hang.judging import hang_of
from ddpdoctor.hang.render_words import Group, advice, groups, headline, outcome, rows
from ddpdoctor.knowledge.torch_frames import is_users_code
from ddpdoctor.report.check_results import (
    explanation_sections,
    finding_lines,
    finding_sections,
    idle_reasons,
    more_on,
    not_tested_sections,
    unknown_reasons,
)
from ddpdoctor.report.document import Block, Command, Document, Lines, Paragraph, Section, StyledText

MARGIN: Final = 10
COMMAND: Final = re.compile(r": ((?:sudo|docker) .*|/\S+ -m pip .*)$", re.DOTALL)
"""At the end of a sentence on what could not be seen."""


def hang_document(
    examination: Examination,
    *,
    verbose: bool = False,
    quiet: bool = False,
    explanations: Sequence[Explanation] = (),
) -> Document:
    """The report for people. verbose: also whole stacks, and what was not tested. quiet: a line a finding, and the verdict. explanations:
    what in the job's script may have brought it about."""
    found = examination.findings
    more = one_line(advice(examination))
    return Document(
        verdict=examination.verdict,
        headline="" if quiet else headline(examination),
        rows=() if quiet else tuple(rows(examination)),
        margin=MARGIN,
        sections=() if quiet else tuple(_sections(examination, explanations, verbose=verbose)),
        lines=finding_lines(found) if quiet else (),
        outcome=outcome(examination),
        hints=(*more_on(found), *([more] if more else [])),
    )


def _sections(examination: Examination, explanations: Sequence[Explanation], *, verbose: bool) -> Iterator[Section]:
    yield Section(tuple(block for group in groups(examination) for block in _group_blocks(group, verbose=verbose)))
    yield from finding_sections(examination.findings)
    yield from explanation_sections(explanations)
    hidden = hang_of(examination).hidden
    if hidden:
        blocks = tuple(block for sentence in hidden for block in _hidden_blocks(sentence))
        yield Section(blocks, StyledText("Could not be seen", "bold magenta"))
    results = examination.results
    unknown = {reason: slugs for reason, slugs in unknown_reasons(results).items() if reason not in hidden}
    yield from not_tested_sections(unknown, idle_reasons(results) if verbose else {}, verbose=verbose)


def _group_blocks(group: Group, *, verbose: bool) -> Iterator[Block]:
    yield Paragraph(StyledText(group.words, "bold"), StyledText(group.ranks, "bold"), len(group.ranks) + 1, 2)
    for detail in group.details:
        yield Paragraph(StyledText(detail, "dim"), indent=6)
    if verbose and group.frames:
        yield _stack(group.frames)


def _stack(frames: Sequence[Frame]) -> Lines:
    """A line a call, the innermost first; those of torch and Python in grey."""
    return Lines(
        tuple(
            StyledText(
                f"        {frame.function} ({frame.path}:{frame.line})",
                "" if is_users_code(frame) else "dim",
            )
            for frame in frames
        )
    )


def _hidden_blocks(sentence: str) -> Iterator[Block]:
    """Say what could not be seen, and the command that would show it."""
    command = COMMAND.search(sentence)
    yield Paragraph(one_line(sentence[: command.start() + 1] if command else sentence), indent=2)
    if command:
        yield Command(command[1], 6)
