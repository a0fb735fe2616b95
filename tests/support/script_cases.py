"""Reads fixtures/scripts: training scripts that make a mistake, and honest ones that look the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.engine.registry import Result, judge
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.script import Script
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.scripts.project import ModuleCache
from ddpdoctor.scripts.reading import read_script
from tests.support.registered_checks import find_check

SCRIPTS = Path(__file__).parent.parent.parent / "fixtures" / "scripts"
"""SLUG/sick-NAME.py, SLUG/near-miss-NAME.py, or a folder of that name with train.py and what it imports."""
ORIGINS = ("# hand-made: ", "# recorded: ")
"""How the first line of a script begins; then it says what the script is."""
MAIN = "train.py"


class ScriptCase(NamedTuple):
    """A script, and whether it makes the mistake."""

    slug: str
    name: str
    path: Path

    @property
    def id(self) -> str:
        return f"{self.slug}/{self.name}"

    @property
    def is_sick(self) -> bool:
        return self.name.startswith("sick-")

    def read(self) -> Script:
        """Its facts; its files are named as seen from its folder, as on any machine."""
        with working_folder(self.path.parent):
            return read_script(self.path.name, ModuleCache())

    def judge(self) -> Result:
        """What the check of its mistake makes of it."""
        return judge(find_check(self.slug), Snapshot(script=self.read()), Plan(1, "a test"))


def slugs_with_scripts() -> list[str]:
    """The mistakes that have scripts."""
    return sorted(path.name for path in SCRIPTS.iterdir() if path.is_dir())


def script_cases(slug: str = "", kind: str = "") -> list[ScriptCase]:
    """Scripts of one mistake or of all, by slug and name.

    Args:
        slug: of the mistake.
        kind: how their names begin: "sick-", "near-miss-".
    """
    slugs = [slug] if slug else slugs_with_scripts()
    return [case for one_slug in slugs for case in _cases_of(one_slug) if case.name.startswith(kind)]


def _cases_of(slug: str) -> Iterator[ScriptCase]:
    for path in sorted((SCRIPTS / slug).glob("*")):
        if path.is_dir() and (path / MAIN).is_file():
            yield ScriptCase(slug, path.name, path / MAIN)
        elif path.suffix == ".py":
            yield ScriptCase(slug, path.stem, path)


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """Be in a folder for a while."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
