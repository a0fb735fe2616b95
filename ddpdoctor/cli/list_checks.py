"""`ddpdoctor list`: all checks with their family."""

from __future__ import annotations

import sys


def list_checks() -> None:
    """List all checks by family. `ddpdoctor explain SLUG` tells more of one."""
    from ddpdoctor.api.check_pages import check_list
    from ddpdoctor.report.terminal import screen_for

    screen_for(sys.stdout).write(*check_list())
