"""Releases of torch with a known bug, told from the log."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word


@log_check("torch-version-bug", severity=FAIL)
def torch_version_bug(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """This release of torch has a known bug that stops the run.

    ## What breaks
    `init_process_group("gloo")` ends with "makeDeviceForHostname(): unsupported gloo device" on every rank, whatever the
    settings.

    ## Why
    Some builds of torch were made without a transport for gloo: Windows wheels of single releases (2.8 among them), and builds of
    one's own without libuv.

    ## Fix
    Install another release: the next one, or the last one that worked. Settings of gloo or of the network change nothing.
    """
    return Finding(
        summary=f"gloo can't open any device in this build of torch: {word(seen, 'function')}(): unsupported gloo device",
        fixes=(
            Fix(
                "See which release it is, and where it came from",
                ('python -c "import torch; print(torch.__version__, torch.__file__)"',),
            ),
            Fix("Install another release of torch", ("pip install --force-reinstall torch",)),
        ),
    )
