"""A `Document` as Markdown, to paste into a bug report: headings, tables, fenced commands, without names of people and hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import one_line, visible
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.contract import Report
from ddpdoctor.report.document import (
    Block,
    Command,
    Document,
    Fitted,
    LabelledRows,
    Lines,
    Paragraph,
    Section,
    Table,
    ToldFinding,
    Words,
    pieces,
    placed_summary,
    plain,
)
from ddpdoctor.report.privacy import Anonymiser, hosts_in, people_in

WIDTH: Final = 100
"""Columns, for what depends on them."""
MAX_INDENT: Final = 2
"""Columns of an item that stands by itself; one further in belongs to that before it."""

Anonymise = Callable[[str], str]

_CALLS: Final = re.compile(r"\\[@#](?=\w)")
_BEGINS_BLOCK: Final = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=[>+=-]))(.)")
"""Quotes, lists, lines and headings, which begin so."""


def to_markdown(
    document: Document, report: Report, examinations: Sequence[Examination], hosts: Collection[str] = ()
) -> str:
    """A command's report for a bug tracker.

    Args:
        document: what there is to tell.
        report: the same for programs, whose fields tell which words are names.
        examinations: of the hosts, whose names are taken out.
        hosts: names of others that neither the report nor the examinations have in a field.
    """
    anonymise = _anonymiser(report, [examination.snapshot for examination in examinations], hosts)
    headline = document.headline or " ".join(filter(None, (f"{document.outcome}.", document.counts)))
    return _Writer(anonymise).written(f"ddpdoctor {report.command} {report.version}", headline, document)


def _anonymiser(report: Report, snapshots: list[Snapshot], hosts: Collection[str]) -> Anonymise:
    facts = msgspec.to_builtins([report, {"hosts": hosts}, *(snapshot.meeting for snapshot in snapshots)])
    others = hosts_in(facts) - {snapshot.host for snapshot in snapshots}
    everybody = [*snapshots, *(Snapshot(host=host) for host in sorted(others))]
    return Anonymiser(*everybody, people=people_in(facts))


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line, and in which GitHub finds nobody to call."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    for character in "\\`*_[]|#~@":
        text = text.replace(character, "\\" + character)
    # GitHub looks for names and numbers when the backslashes are gone already.
    text = _CALLS.sub(r"\g<0>&#8203;", text)
    return _BEGINS_BLOCK.sub(r"\1\\\2", text)


def code(text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{visible(text)}\n{fence}"


class _Writer:
    """Writes one report. anonymise: takes the names out of a text."""

    def __init__(self, anonymise: Anonymise) -> None:
        self._anonymise = anonymise

    def written(self, title: str, headline: str, document: Document) -> str:
        verdict = document.verdict.value.upper()
        parts = [f"## {title}", f"**{verdict}** {self._text(headline)}".rstrip(" .") + "."]
        sections = (Section((LabelledRows(document.rows),)) if document.rows else Section(), *document.sections)
        for section in sections:
            if section.title:
                parts.append(f"### {self._text(plain(section.title))}")
            parts += self._blocks(section.blocks)
        if document.headline and document.outcome:
            parts.append(self._text(f"{document.outcome}. {document.counts}"))
        parts += [self._text(plain(hint)) for hint in document.hints]
        for summary, text in document.folded:
            parts.append(
                f"<details><summary>{self._text(summary)}</summary>\n\n{code(self._anonymise(text))}\n\n</details>"
            )
        return "\n\n".join(filter(None, parts)) + "\n"

    def _text(self, words: Words) -> str:
        return escape(self._anonymise(plain(words)))

    def _blocks(self, blocks: Sequence[Block]) -> Iterator[str]:
        """Parts between which there is an empty line; paragraphs in a row are one list, commands in a row one block of code."""
        paragraphs: list[str] = []
        commands: list[str] = []
        for block in blocks:
            if paragraphs and not isinstance(block, Paragraph):
                yield "\n".join(paragraphs)
                paragraphs = []
            if commands and not isinstance(block, Command):
                yield code("\n".join(commands))
                commands = []
            if isinstance(block, Paragraph):
                paragraphs.append(self._paragraph(block, nested=bool(paragraphs)))
            elif isinstance(block, Command):
                if block.label:
                    yield self._text(block.label)
                commands.append(self._anonymise(block.text))
            elif isinstance(block, Lines):
                yield code(self._anonymise("\n".join(plain(line).rstrip() for line in block.lines)))
            elif isinstance(block, LabelledRows):
                yield self._rows([("", ""), *block.rows])
            elif isinstance(block, Table):
                yield self._table(block)
            elif isinstance(block, Fitted):
                yield from self._blocks(block.build(WIDTH, True))
            else:
                yield from self._finding(block)
        if paragraphs:
            yield "\n".join(paragraphs)
        if commands:
            yield code("\n".join(commands))

    def _paragraph(self, paragraph: Paragraph, *, nested: bool) -> str:
        label = self._text(paragraph.label)
        spans = pieces(paragraph.text)
        if len(spans) == 1 and spans[0].style == "cyan" and "`" not in spans[0].text:
            text = f"`{one_line(self._anonymise(spans[0].text))}`"
        else:
            text = self._text(paragraph.text)
        if not label and not paragraph.indent + paragraph.margin:
            return text
        bullet = "  - " if nested and not label and paragraph.indent + paragraph.margin > MAX_INDENT else "- "
        return f"{bullet}{f'**{label}** ' if label else ''}{text}"

    def _rows(self, rows: Sequence[Sequence[Words]]) -> str:
        lines = ["|".join(["", *(f" {self._text(cell)} " if plain(cell) else " " for cell in row), ""]) for row in rows]
        return "\n".join([lines[0], "|".join(["", *("---" for _ in rows[0]), ""]), *lines[1:]])

    def _table(self, table: Table) -> str:
        noted = any(row.note for row in table.rows)
        headings = [column.heading.strip() for column in table.columns]
        return self._rows(
            [[*headings, *([""] if noted else [])]]
            + [[*row.cells, *([row.note] if noted else [])] for row in table.rows]
        )

    def _finding(self, told: ToldFinding) -> Iterator[str]:
        finding = told.finding
        yield f"### {told.severity.value.upper()} {told.check.slug}: {self._text(placed_summary(finding))}"
        yield self._text(told.cause)
        yield "\n".join(
            f"- seen: {self._text(evidence.text)}{f' ({self._text(evidence.source)})' if evidence.source else ''}"
            for evidence in finding.evidence
        )
        for fix in finding.fixes:
            yield f"Fix: {self._text(fix.text)}"
            if fix.commands:
                yield code(self._anonymise("\n".join(fix.commands)))
