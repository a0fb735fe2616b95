"""Releases of torch with a known bug, told from the log."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.sightings import lines, sightings, word


@check("torch-version-bug", severity=FAIL)
def torch_version_bug(log: Log) -> Iterator[Finding]:
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
    seen = sightings(log, "torch-version-bug")
    if not seen:
        return
    yield Finding(
        summary=f"gloo can't open any device in this build of torch: {word(seen, 'function')}(): unsupported gloo device",
        evidence=lines(log, seen),
        fixes=(
            Fix(
                "See which release it is, and where it came from",
                ('python -c "import torch; print(torch.__version__, torch.__file__)"',),
            ),
            Fix("Install another release of torch", ("pip install --force-reinstall torch",)),
        ),
    )
