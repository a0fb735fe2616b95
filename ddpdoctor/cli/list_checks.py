"""`ddpdoctor list`: all checks with their family."""

from __future__ import annotations

import sys
from itertools import groupby


def list_checks() -> None:
    """List all checks by family. `ddpdoctor explain SLUG` tells more of one."""
    from rich.text import Text

    from ddpdoctor.checks.catalogue import all_checks, all_prescriptions
    from ddpdoctor.report.terminal import Hanging, make_console

    console = make_console(sys.stdout)
    checks = all_checks()
    margin = max(len(check.slug) for check in checks) + 4
    for family, members in groupby(checks, key=lambda check: check.family):
        console.print(Text(family, "bold"))
        for member in members:
            console.print(Hanging(Text(f"  {member.slug}"), Text(member.title, "dim"), margin))
    console.print(Text(f"{len(checks)} checks", "dim"))
    for topic in all_prescriptions():
        title = topic.title[:1].lower() + topic.title[1:]
        console.print(Text(f"ddpdoctor explain {topic.slug} works out for this host {title}", "dim"))
