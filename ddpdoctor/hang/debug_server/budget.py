"""How much of all that a debug server answers is taken, and how much of that is kept, from the first question to the last."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.text import human

MAX_TAKEN_BYTES: Final = 1 << 30
"""1,024 ranks tell some 17 MiB of stacks at a time, and a long inquiry asks for them dozens of times."""
MAX_KEPT_BYTES: Final = 64 << 20
"""Written out as text; Python needs some five times as much for it. Two looks at 1,024 ranks are about half of it."""


class OverBudgetError(Exception):
    """What is beyond, as the end of a sentence."""


class Budget:
    """What one inquiry may take and keep. Each part of it may use what is left up to its share, so that a first page of the server's
    leaves something for the last."""

    def __init__(self) -> None:
        self._taken = self._kept = 0
        self._share = 1.0

    def open(self, share: float) -> None:
        """Begin the next part of the inquiry. share: of the whole, from 0 to 1, what was used before included."""
        self._share = share

    def take(self, size: int) -> None:
        """Count bytes that have come.

        Raises:
            OverBudgetError: that is too much.
        """
        self._taken += size
        if self._taken > MAX_TAKEN_BYTES * self._share:
            raise OverBudgetError(f"all answers together are more than the {human(MAX_TAKEN_BYTES)} that are taken")

    def keep(self, size: int) -> None:
        """Count what is to be kept, by its size as text.

        Raises:
            OverBudgetError: that is too much, and isn't counted.
        """
        if self._kept + size > MAX_KEPT_BYTES * self._share:
            raise OverBudgetError(f"all answers together are more than the {human(MAX_KEPT_BYTES)} that are kept")
        self._kept += size
