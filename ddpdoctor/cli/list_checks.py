"""`ddpdoctor list`: all checks with their family."""

from __future__ import annotations

import sys
from itertools import groupby


def list_checks() -> None:
    """List all checks by family. `ddpdoctor explain SLUG` tells more of one."""
    from ddpdoctor.checks.catalogue import all_checks, all_prescriptions
    from ddpdoctor.report.document import Paragraph, StyledText
    from ddpdoctor.report.terminal import screen_for

    screen = screen_for(sys.stdout)
    checks = all_checks()
    margin = max(len(check.slug) for check in checks) + 4
    for family, members in groupby(checks, key=lambda check: check.family):
        screen.write(Paragraph(StyledText(family, "bold")))
        for member in members:
            screen.write(Paragraph(StyledText(member.title, "dim"), f"  {member.slug}", margin))
    screen.write(Paragraph(StyledText(f"{len(checks)} checks", "dim")))
    for topic in all_prescriptions():
        title = topic.title[:1].lower() + topic.title[1:]
        screen.write(Paragraph(StyledText(f"ddpdoctor explain {topic.slug} works out for this host {title}", "dim")))
