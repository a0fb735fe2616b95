"""`gate --for nvrx --serve`: the verdict on this node, whenever NVRx's launcher asks for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from ddpdoctor.gating.dialects import DIALECTS, SERVED_CALLER
from ddpdoctor.gating.nvrx_service import HealthCheck, NvrxService, serve
from ddpdoctor.gating.nvrx_service import ServiceError as ServiceError

LOOK_SECONDS: Final = 56.0
"""For one look, which takes 50 seconds at most by itself; NVRx waits for 60."""


def serve_nvrx(socket: str, options: Sequence[str], ready: Callable[[], None]) -> None:
    """Answer NVRx's launcher on a unix socket until the process is ended.

    Args:
        socket: its path.
        options: those of the command line that choose what is looked at.
        ready: called once it listens.
    Raises:
        ServiceError: it can't be served; the text says why.
    """
    serve(socket, NvrxService(lambda: _look(options)), ready)


def _look(options: Sequence[str]) -> HealthCheck:
    """Look in a process of its own: what hangs there, or breaks, is no verdict."""
    from ddpdoctor.gating.outcome import no_verdict
    from ddpdoctor.probes.subprocesses import run

    command = (sys.executable, "-m", "ddpdoctor", "gate", "--for", SERVED_CALLER, *options)
    ended = run(command, LOOK_SECONDS, environ=os.environ)
    try:
        told = json.loads(ended.text)
        # All users of this host may ask: the rest of the report is not for them.
        output = json.dumps({name: value for name, value in told.items() if name != "report"})
    except (ValueError, AttributeError):
        why = ended.why_no_answer(LOOK_SECONDS) or f"it ended with exit code {ended.returncode}"
        answer = DIALECTS[SERVED_CALLER].answer(no_verdict(f"ddpdoctor gave no answer: {why}"), {})
        return HealthCheck(answer.code, answer.stdout)
    return HealthCheck(ended.returncode or 0, output)
