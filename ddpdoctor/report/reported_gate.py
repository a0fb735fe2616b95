"""What a gate has come to, as JSON tells it."""

from __future__ import annotations

import msgspec


class ReportedGate(msgspec.Struct, frozen=True, kw_only=True):
    """caller: for whom it speaks, as `--for` names it. line: the whole in one line. failed_checks: the checks that closed it, each once;
    not_counted: those that found what is somebody else's to mend. remarks: what was done to the node, or left undone and why."""

    caller: str
    line: str
    failed_checks: tuple[str, ...]
    not_counted: tuple[str, ...]
    remarks: tuple[str, ...]
