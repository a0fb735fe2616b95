"""The pages that are written by hand: what they lead to is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import all_checks
from tests.support.command import ROOT

pytestmark = pytest.mark.quick

PAGES = [*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "checks")]
MOST_README_LINES = 250


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:ddpdoctor|tests)/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert [file for file in named if not (ROOT / file).exists()] == []


def test_the_readme_can_be_read_at_once() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES


def test_findings_and_explanations_name_a_page_that_is_there() -> None:
    assert [check.slug for check in all_checks() if not (ROOT / check.docs).is_file()] == []


def test_the_page_on_json_names_every_field() -> None:
    schema = json.loads((ROOT / "ddpdoctor" / "report" / "report.schema.json").read_text(encoding="utf-8"))["$defs"]
    page = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert {*schema["Report"]["properties"], *schema["ReportedFinding"]["properties"]} - named == set()


def test_each_command_has_its_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {path.stem for path in (ROOT / "docs" / "commands").glob("*.md")}
    assert {page for page in pages if f"(docs/commands/{page}.md)" not in readme} == set()
    assert set(commands()) | {"check-fix"} == pages


def commands() -> list[str]:
    """As `ddpdoctor --help` lists them."""
    from typer.main import get_command

    from ddpdoctor.cli.app import app

    return list(get_command(app).commands)
