"""The pages that are written by hand: what they lead to is there."""

from __future__ import annotations

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


def test_the_readme_can_be_read_at_once() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES


def test_findings_and_explanations_name_a_page_that_is_there() -> None:
    assert [check.slug for check in all_checks() if not (ROOT / check.docs).is_file()] == []
