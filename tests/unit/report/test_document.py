"""A `Document` on its media: empty lines, columns, colours on a terminal; headings, lists, tables and fences in Markdown."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.engine.examination import Verdict
from ddpdoctor.report.contract import build_report
from ddpdoctor.report.document import (
    Column,
    Command,
    Document,
    Fitted,
    LabelledRows,
    Lines,
    Paragraph,
    Row,
    Section,
    StyledText,
    Table,
)
from ddpdoctor.report.markdown import to_markdown
from ddpdoctor.report.terminal import Screen, text_of

TABLE = Table(
    (Column("rank", right=True), Column("host"), Column("state", leaves=1)),
    (Row(("0", "n0", "running")), Row(("12", "n1", "stopped"), StyledText("by SIGSTOP", "bold red"))),
)
DOCUMENT = Document(
    verdict=Verdict.FAIL,
    headline="Rank 12 is stopped",
    rows=(("host", "n0"), ("python", "/usr/bin/python3")),
    sections=(
        Section((TABLE,), "Ranks"),
        Section(),
        Section(
            (
                Paragraph("It was stopped", StyledText("why", "dim"), 6, 2),
                Paragraph("by whom nobody knows", indent=6),
                Command("kill -CONT 4712"),
                Command("ps | less"),
            ),
            StyledText("What to do", "bold magenta"),
        ),
        Section((Lines(("a   b", "  c  d")), Fitted(lambda width, unicode: [Paragraph(f"{width} columns")]))),
    ),
    outcome="1 problem",
    counts="3 checks passed.",
    hints=("More: ddpdoctor explain x",),
)


def in_markdown(document: Document) -> str:
    return to_markdown(document, build_report("made-up", [], of_all=document.verdict), [])


def test_on_a_terminal() -> None:
    assert text_of(DOCUMENT, 60) == (
        "FAIL  Rank 12 is stopped\n"
        "\n"
        "host    n0\n"
        "python  /usr/bin/python3\n"
        "\n"
        "Ranks\n"
        "  rank  host  state\n"
        "     0  n0    running\n"
        "    12  n1    stopped  by SIGSTOP\n"
        "\n"
        "What to do\n"
        "  why   It was stopped\n"
        "      by whom nobody knows\n"
        "    kill -CONT 4712\n"
        "    ps | less\n"
        "\n"
        "a   b\n"
        "  c  d\n"
        "60 columns\n"
        "\n"
        "FAIL  1 problem. 3 checks passed.\n"
        "More: ddpdoctor explain x\n"
    )


def test_in_markdown() -> None:
    title, verdict, *rest = in_markdown(DOCUMENT).split("\n\n")
    assert title.startswith("## ddpdoctor made-up ")
    assert verdict == "**FAIL** Rank 12 is stopped."
    assert rest == [
        "| | |\n|---|---|\n| host | n0 |\n| python | /usr/bin/python3 |",
        "### Ranks",
        "| rank | host | state | |\n|---|---|---|---|\n| 0 | n0 | running | |\n| 12 | n1 | stopped | by SIGSTOP |",
        "### What to do",
        "- **why** It was stopped\n  - by whom nobody knows",
        "```\nkill -CONT 4712\nps | less\n```",
        "```\na   b\n  c  d\n```",
        "100 columns",
        "1 problem. 3 checks passed.",
        "More: ddpdoctor explain x\n",
    ]


@pytest.mark.parametrize(
    "document", [DOCUMENT, Document(verdict=Verdict.OK), Document(verdict=Verdict.OK, outcome="x")]
)
def test_colours_add_nothing_but_colours(document: Document) -> None:
    file = io.StringIO()
    Screen(file, 60, colour=True).show(document)
    coloured = file.getvalue()
    for code in ("\x1b[1;31m", "\x1b[1;35m", "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[1;32m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == text_of(document, 60)


def test_a_column_leaves_where_there_is_no_room_and_a_note_goes_below() -> None:
    assert text_of(Document(verdict=Verdict.OK, sections=(Section((TABLE,)),)), 24).splitlines() == [
        "  rank  host",
        "     0  n0",
        "    12  n1    by SIGSTOP",
    ]
    narrow = text_of(Document(verdict=Verdict.OK, sections=(Section((TABLE,)),)), 20).splitlines()
    assert narrow[-2:] == ["    12  n1", "    by SIGSTOP"]


@pytest.mark.parametrize("width", [20, 33, 80])
def test_what_is_wide_is_counted_as_it_is_drawn(width: int) -> None:
    text = text_of(Document(verdict=Verdict.OK, outcome="検査 " * 30), width)
    assert all(sum(2 if ord(letter) > 0x2FFF else 1 for letter in line) <= width for line in text.splitlines())


def test_what_a_terminal_obeys_is_written_out_wherever_it_stands() -> None:
    evil = "\x1b[31mred\u202e\nline"
    rows: tuple[tuple[str, str], ...] = ((evil, evil),)
    document = Document(
        verdict=Verdict.FAIL,
        headline=evil,
        rows=rows,
        sections=(
            Section(
                (
                    Paragraph(evil, evil),
                    Command(evil, label=evil),
                    Lines((evil,)),
                    LabelledRows(rows),
                    Table((Column(evil),), (Row((evil,), evil),)),
                ),
                evil,
            ),
        ),
        lines=(evil,),
        outcome=evil,
        counts=evil,
        hints=(evil,),
        folded=((evil, evil),),
    )
    for text in (text_of(document, 80), in_markdown(document)):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_markdown_shows_text_as_it_is() -> None:
    text = in_markdown(Document(verdict=Verdict.OK, headline="<b> | `x` *y*", hints=(StyledText("# no", "bold"),)))
    assert "&lt;b> \\| \\`x\\` \\*y\\*" in text
    assert text.endswith("\n\n\\# no\n")
