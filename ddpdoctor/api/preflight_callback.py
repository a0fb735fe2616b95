"""What the callbacks that run `preflight()` for a framework have in common."""

from __future__ import annotations

from typing import Any

from ddpdoctor.api.rank_preflight import (
    TIMEOUT_SECONDS,
    OnIllness,
    PreflightResult,
    check_arguments,
    preflight,
)


class PreflightCallback:
    """Runs `preflight()` once.

    Args:
        timeout: as for `preflight`.
        on_illness: as for `preflight`.

    Raises:
        UsageError: an argument can't be meant so.
    """

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS, on_illness: OnIllness = "warn") -> None:
        # Here, and not hours later, when the training begins.
        check_arguments(timeout, on_illness)
        super().__init__()
        self.timeout = timeout
        self.on_illness = on_illness
        self.result: PreflightResult | None = None
        """That of this rank, once it has run."""

    def run_once(self, device: Any) -> None:
        """Run it, unless that has been done. device: that this rank is going to use."""
        if self.result is None:
            self.result = preflight(timeout=self.timeout, on_illness=self.on_illness, device=device)
