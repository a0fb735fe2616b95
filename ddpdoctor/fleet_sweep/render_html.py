"""A sweep as one page: a filter, a heat map of hosts by check, and the tables. It loads nothing, and shows every text as text."""

from __future__ import annotations

import base64
import hashlib
import pkgutil
from typing import Any, Final

import msgspec

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import one_line, plural
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.fleet_sweep.outcome import FleetOutcome
from ddpdoctor.fleet_sweep.render import fleet_document
from ddpdoctor.fleet_sweep.sweep import STATES, FleetHost
from ddpdoctor.knowledge.hostlist import FAILING_NODES, PASSING_NODES
from ddpdoctor.report.document import Paragraph, Section, Table, plain

_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""In a script element nothing may look like its end, or like a comment."""
_TELLING: Final = {STATES[name] for name in ("fail", "warn", "unknown", "crashed")}


def fleet_page(outcome: FleetOutcome, catalogue: Catalogue) -> str:
    """Build the page.

    Args:
        outcome: what there is to tell.
        catalogue: of all checks.
    """
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = msgspec.json.encode(_data(outcome, catalogue)).decode()
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    # The data last: it may hold the marks of the others.
    page = _resource("page.html").replace("@SCRIPT_HASH@", digest).replace("@SCRIPT@", script)
    return page.replace("@DATA@", data)


def _resource(name: str) -> str:
    content = pkgutil.get_data(__package__, name)
    assert content is not None
    return content.decode()


def _data(outcome: FleetOutcome, catalogue: Catalogue) -> dict[str, Any]:
    sweep = outcome.sweep
    states = sweep.hosts.values()
    columns = [place for place in range(len(sweep.checks)) if any(host.states[place] in _TELLING for host in states)]
    document = fleet_document(outcome, catalogue)
    return {
        "verdict": outcome.verdict.value,
        "outcome": f"{outcome.verdict.value.upper()}  {document.outcome}. {document.counts}".strip(),
        "about": f"ddpdoctor fleet {__version__}, {plural(sweep.read, 'snapshot')}; "
        f"{len(outcome.passing):,} in {PASSING_NODES}, {len(outcome.exclusions):,} in {FAILING_NODES}",
        "columns": [sweep.checks[place] for place in columns],
        "sections": [section for section in map(_section, document.sections) if section["rows"]],
        "hosts": [_host(outcome, sweep.hosts[name], columns) for name in sorted(sweep.hosts)]
        + [_without_snapshot(outcome, name, len(columns)) for name in sorted({*outcome.absent, *outcome.unjudged})],
    }


def _host(outcome: FleetOutcome, host: FleetHost, columns: list[int]) -> dict[str, str]:
    found = [finding for finding in outcome.sweep.findings_of(host) if finding.severity is not Severity.INFO]
    why = outcome.exclusions.get(host.name, "")
    return {
        "name": host.name,
        "verdict": host.verdict.value,
        "group": one_line(outcome.labels[host.name]),
        "why": one_line(why),
        "slugs": ", ".join(dict.fromkeys(finding.slug for finding in found if finding.slug not in why)),
        "odd": one_line(", ".join(outcome.odd_hosts.get(host.name, ()))),
        "states": "".join(host.states[place] for place in columns),
    }


def _without_snapshot(outcome: FleetOutcome, name: str, columns: int) -> dict[str, str]:
    verdict = Verdict.FAIL if name in outcome.absent else Verdict.UNKNOWN
    return {
        "name": name,
        "verdict": verdict.value,
        "group": "",
        "why": outcome.exclusions[name],
        "slugs": "",
        "odd": "",
        "states": " " * columns,
    }


def _section(section: Section) -> dict[str, Any]:
    """A part of the report for a terminal, as rows of words."""
    rows: list[list[str]] = []
    for block in section.blocks:
        if isinstance(block, Table):
            rows += [[*map(plain, row.cells), plain(row.note)] for row in block.rows]
        elif isinstance(block, Paragraph):
            rows.append([text for text in (plain(block.label), plain(block.text)) if text])
    return {"title": plain(section.title) or "Not judged, or without an answer", "rows": rows}
