"""`explain` and `list`: what is known of each check, and what is worked out for this host where a topic says so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from ddpdoctor.api.errors import NoVerdictError, UsageError, refuse_empty
from ddpdoctor.base.log_signs import NEAR, LogSign, SignRole
from ddpdoctor.base.text import one_line, without_capital
from ddpdoctor.report.document import Block, Command, Paragraph, Section, StyledText, Words

if TYPE_CHECKING:
    from ddpdoctor.engine.registry import Check

HEADINGS_OF_SIGNS: Final = {
    SignRole.NAMES: "This illness alone says",
    SignRole.HINTS: "It may be this one, if a log says",
    SignRole.EFFECT: "Said by ranks that fell with another, whose illness it is",
    SignRole.NOISE: "Healthy runs say it, too; alone it means nothing",
}


class CheckPage(NamedTuple):
    """What is known of a check, or of a topic.

    Args:
        heading: its name, family and severity.
        text: in Markdown.
        signs: how it shows itself in a log.
        docs: where its page with an example lies in the project's repository; "" for a topic.
        topic: what can be worked out for a host, by `work_out`; None for a check.
    """

    heading: Words
    text: str
    signs: tuple[Block, ...]
    docs: str
    topic: Check | None


class WorkedOut(NamedTuple):
    """What a topic prescribes for one host. is_empty: nothing could be worked out, and `sections` say why."""

    host: str
    sections: Sequence[Section]
    is_empty: bool


def find_pages(name: str) -> list[CheckPage]:
    """Find the page of that topic or check, or those of that family.

    Raises:
        UsageError: there is none; names the nearest.
    """
    from ddpdoctor.checks.catalogue import all_checks, all_prescriptions, catalogue
    from ddpdoctor.engine.registry import as_written, nearest_names

    written = as_written(name)
    if listed := catalogue().get(written):
        return [_page(listed, is_topic=False)]
    # Only now: who asks for the topics has all modules imported.
    topics, checks = all_prescriptions(), all_checks()
    for known in (topics, checks):
        if found := [check for check in known if check.slug == written]:
            return [_page(found[0], is_topic=known is topics)]
    if family := [check for check in checks if check.family == written]:
        return [_page(check, is_topic=False) for check in family]
    nearest = nearest_names(name, {check.slug for check in (*checks, *topics)} | {check.family for check in checks})
    hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "`ddpdoctor list` shows them all."
    raise UsageError(f"there is no check called {name!r}. {hint}")


def _page(check: Check, *, is_topic: bool) -> CheckPage:
    kind = StyledText(f"  ({check.family}, {check.severity.value})", "dim")
    signs = tuple(_sign_blocks(check.log_signs))
    heading = (StyledText(check.slug, "bold"), kind)
    return CheckPage(heading, check.page, signs, "" if is_topic else check.docs, check if is_topic else None)


def _sign_blocks(signs: tuple[LogSign, ...]) -> Iterator[Block]:
    """The signs by which it shows itself in a log, by what each is worth, and why: those first that name the illness."""
    for role, heading in HEADINGS_OF_SIGNS.items():
        fitting = [log_sign for log_sign in signs if log_sign.role is role]
        if fitting:
            yield Paragraph(StyledText(heading, "bold"))
        for log_sign in fitting:
            # Unwrapped: it is there to be searched for.
            yield Command(log_sign.text, 2)
            if log_sign.near:
                yield Paragraph(StyledText(f'and within {NEAR} lines "{one_line(log_sign.near)}"', "dim"), margin=6)
            source = f"[{one_line(log_sign.source)}]" if log_sign.source else ""
            if why := " ".join(filter(None, (one_line(log_sign.why), source))):
                yield Paragraph(StyledText(why, "dim"), margin=6)


def work_out(topic: Check, python: str | None = None, snapshot: str | os.PathLike[str] | None = None) -> WorkedOut:
    """Work out what the topic prescribes for this host.

    Args:
        topic: of a page.
        python: the Python in which training runs; None: the active environment's.
        snapshot: of a saved file, and not of this host.

    Raises:
        UsageError: an argument is empty.
        NoVerdictError: the file can't be read.
    """
    from ddpdoctor.engine.examination import examine
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot
    from ddpdoctor.probes.session import collect_facts, start_probes
    from ddpdoctor.report.check_results import result_sections

    if snapshot is None:
        refuse_empty(python=python)
        facts = collect_facts(start_probes(python, quick="torch" not in topic.groups), topic.groups)
    else:
        try:
            facts = read_snapshot(os.fspath(snapshot))
        except SnapshotError as error:
            raise NoVerdictError("explain", [str(error)]) from error
    examination = examine(facts, None, [topic])
    return WorkedOut(one_line(facts.host), result_sections(examination, verbose=True), not examination.findings)


def check_list() -> list[Block]:
    """List all checks by family, and all topics."""
    from ddpdoctor.checks.catalogue import all_checks, all_prescriptions

    checks = all_checks()
    margin = max(len(check.slug) for check in checks) + 4
    blocks: list[Block] = []
    for family, members in groupby(checks, key=lambda check: check.family):
        blocks.append(Paragraph(StyledText(family, "bold")))
        blocks += [Paragraph(StyledText(member.title, "dim"), f"  {member.slug}", margin) for member in members]
    blocks.append(Paragraph(StyledText(f"{len(checks)} checks", "dim")))
    for topic in all_prescriptions():
        words = f"ddpdoctor explain {topic.slug} works out for this host {without_capital(topic.title)}"
        blocks.append(Paragraph(StyledText(words, "dim")))
    return blocks
