"""The fate of one finding's fix."""

from __future__ import annotations

from enum import Enum

import msgspec


class FixState(str, Enum):
    """States of a fix."""

    CONFIRMED = "confirmed"
    """Applied; its check passes now, and the smoke training passed."""
    NOT_CONFIRMED = "not-confirmed"
    """Applied, but one of the two did not, or could not be run."""
    LEFT = "left-to-you"
    """Not applied: it is none that ddpdoctor applies itself, nobody said yes, or it could not be applied."""
    WOULD_APPLY = "would-apply"
    """It was a dry run, or nobody could be asked."""


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    """One fix of one finding. commands: what was applied, else what there is to type; reason: why it is in that state."""

    slug: str
    text: str
    commands: tuple[str, ...] = ()
    state: FixState
    reason: str
