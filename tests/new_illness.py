"""Begins a new illness: its check with a log sign, cases of hosts, and logs, each to be filled in.

python -m tests.new_illness FAMILY SLUG     such as: python -m tests.new_illness host kernel-too-old

Until they are filled in, the tests of the illness fail: docs/contributing/adding-an-illness.md goes through them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILL_IN = "FILL IN"
CHECK = '''"""FILL IN: what the checks of this file are about."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.snapshot import Machine


@check("{slug}", severity=WARN, owner=Owner.UNKNOWN)
def {function}(machine: Machine) -> Iterator[Finding]:
    """FILL IN: what is wrong, in a sentence.

    ## What breaks
    FILL IN

    ## Why
    FILL IN

    ## Fix
    FILL IN
    """
    if machine.kernel == "FILL IN":
        yield Finding.of(
            "FILL IN: what is wrong, with the figures",
            Evidence("FILL IN: what was seen", "FILL IN: where"),
            Fix("FILL IN: what to do", ("FILL IN: the command",)),
        )
'''
SIGNS = """# How logs show the illnesses of {function}.py.

[[{slug}]]
text = 'FILL IN: words of one line of a log, as they stand there'
why = "FILL IN: why nothing else says so"
source = "FILL IN: where the words come from"
"""
HOST = {"origin": "hand-made", "about": FILL_IN, "base": "h100x8-bare-metal", "facts": {"machine": {"kernel": FILL_IN}}}
LOG = f'origin = "hand-made"\nabout = "{FILL_IN}"\n'


def files_of(family: str, slug: str) -> dict[Path, str]:
    """Each file to be filled in, by its path."""
    function = slug.replace("-", "_")
    logs = ROOT / "fixtures" / "logs" / slug
    hosts = json.dumps({"sick-first": HOST, "near-miss-first": HOST}, indent=1) + "\n"
    return {
        ROOT / "checks" / family / f"{function}.py": CHECK.format(slug=slug, function=function),
        ROOT / "checks" / family / f"{function}.signs.toml": SIGNS.format(slug=slug, function=function),
        ROOT / "fixtures" / "hosts" / f"{slug}.json": hosts,
        logs / "cases.toml": f"[sick-first]\n{LOG}\n[near-miss-first]\n{LOG}",
        logs / "sick-first.log": f"{FILL_IN}\n",
        logs / "near-miss-first.log": f"{FILL_IN}\n",
    }


def refusal(family: str, slug: str) -> str:
    """Why it can't be begun so; "" if it can."""
    families = sorted(path.parent.name for path in (ROOT / "checks").glob("*/__init__.py"))
    if family not in families:
        return f"there is no family {family}: {', '.join(families)}"
    if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+", slug):
        return f"{slug} is no slug: words in lower case with dashes between them, kernel-too-old"
    there = sorted(path.relative_to(ROOT).as_posix() for path in files_of(family, slug) if path.exists())
    return f"{there[0]} is there already" if there else ""


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    if why := refusal(*sys.argv[1:]):
        print(f"Nothing was written: {why}.", file=sys.stderr)
        return 2
    for path, text in files_of(*sys.argv[1:]).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"fill in {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
