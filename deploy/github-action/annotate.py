"""Turns a report of `ddpdoctor check --json` into annotations of GitHub Actions, and into the summary and the output of the step."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

LEVELS = {"fail": "error", "warn": "warning", "info": "notice"}


def escaped(text: str, more: str = "") -> str:
    """As GitHub wants the text of a command; `more`: characters that end a property."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def annotation(finding: dict[str, Any]) -> str:
    fixes = [
        line
        for fix in finding["fixes"]
        for line in (f"fix: {fix['text']}", *(f"    {command}" for command in fix["commands"]))
    ]
    text = "\n".join([finding["summary"], f"why: {finding['cause']}", *fixes])
    return f"::{LEVELS[finding['severity']]} title={escaped(finding['slug'], ':,')}::{escaped(text)}"


def append(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8") or "{}")
    if not report:
        return  # It was used wrongly, and has said so.
    for finding in report["findings"]:
        print(annotation(finding))
    rows = [
        f"| {finding['severity']} | {finding['slug']} | {finding['summary'].replace('|', '/')} |"
        for finding in report["findings"]
    ]
    table = ["", "| | check | what was found |", "|---|---|---|", *rows] if rows else []
    passed = f"{len(report['passed'])} checks passed, {len(report['not_tested'])} had nothing to look at or could not be tested."
    append("GITHUB_STEP_SUMMARY", "\n".join([f"### ddpdoctor: {report['verdict']}", "", passed, *table]))
    append("GITHUB_OUTPUT", f"verdict={report['verdict']}")


if __name__ == "__main__":
    main()
