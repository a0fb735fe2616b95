"""The report of `lint` as SARIF 2.1.0, for code scanning and editors."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from ddpdoctor.base.findings import Finding, Severity, SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import escaped_json, visible
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.registry import Check
from ddpdoctor.scripts.judging import PlacedFinding
from ddpdoctor.scripts.places import place_in_repository
from ddpdoctor.scripts.render_lines import explained

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_LEVELS: Final = {Severity.FAIL: "error", Severity.WARN: "warning", Severity.INFO: "note"}
_PLACE: Final = compile_lazily(r"^(.+):(\d+)$", re.DOTALL)
_FINGERPRINT: Final = "ddpdoctor/v1"


def sarif_log(findings: Sequence[PlacedFinding], problems: Sequence[str], root: str) -> str:
    """The whole log file; its rules are those that found something.

    Args:
        findings: of scripts.
        problems: what could not be judged, a sentence each.
        root: of the repository, absolute.
    """
    checks = list({check.slug: check for check, _, _ in findings}.values())
    rules = {check.slug: number for number, check in enumerate(checks)}
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "ddpdoctor", "version": __version__, "rules": list(map(_rule, checks))}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [
            {
                "executionSuccessful": not problems,
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": visible(problem)}} for problem in problems
                ],
            }
        ],
        "results": list(_results(findings, rules, root)),
    }
    return escaped_json(json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2))


def _rule(check: Check) -> dict[str, Any]:
    more = f"More: {check.docs} in ddpdoctor's documentation, or `ddpdoctor explain {check.slug}`."
    return {
        "id": check.slug,
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": check.section("What breaks") or check.title},
        "help": {"text": f"{check.page}\n\n{more}", "markdown": f"# {check.page}\n\n{more}"},
        "defaultConfiguration": {"level": _LEVELS[check.severity]},
        "properties": {"tags": ["pytorch", "distributed", check.family]},
    }


def _results(findings: Sequence[PlacedFinding], rules: dict[str, int], root: str) -> Iterator[dict[str, Any]]:
    seen: Counter[str] = Counter()
    for check, severity, finding in findings:
        place = finding.place or SourcePlace("", 0)
        here = place_in_repository(place, root)
        # Neither its line's number nor what stands around it: a finding stays the same where other lines change.
        same = "\0".join((check.slug, here.path, here.cell.partition(",")[0], place.text))
        seen[same] += 1
        digest = hashlib.sha256(f"{same}\0{seen[same]}".encode(errors="surrogateescape")).hexdigest()
        yield {
            "ruleId": check.slug,
            "ruleIndex": rules[check.slug],
            "level": _LEVELS[severity],
            "message": {"text": visible(explained(check, finding))},
            "locations": [_location(place, root)],
            "relatedLocations": list(_related(finding, root)),
            "partialFingerprints": {_FINGERPRINT: digest},
        }


def _related(finding: Finding, root: str) -> Iterator[dict[str, Any]]:
    """Yield the places of the evidence."""
    for number, evidence in enumerate(finding.evidence):
        if found := _PLACE.match(evidence.source):
            location = _location(SourcePlace(found[1], int(found[2])), root)
            yield {"id": number, **location, "message": {"text": visible(evidence.text)}}


def _location(place: SourcePlace, root: str) -> dict[str, Any]:
    here = place_in_repository(place, root)
    path = quote(os.fsencode(here.path))
    artifact = {"uri": f"file://{path}"} if PurePath(here.path).is_absolute() else {"uri": path, "uriBaseId": _ROOT}
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if here.line:
        physical["region"] = {"startLine": here.line, "startColumn": here.column}
    location: dict[str, Any] = {"physicalLocation": physical}
    if here.cell:
        location["logicalLocations"] = [{"name": here.cell}]
    return location
