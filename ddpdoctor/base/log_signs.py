"""Pieces of log text by which illnesses show themselves. They stand in `checks/`, in the `.signs.toml` beside the check."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class SignRole(str, Enum):
    """Worth of a sign by itself."""

    NAMES = "names"
    """Only this illness says so: it is named by this sign alone."""
    HINTS = "hints"
    """Other illnesses say the same: one hypothesis of several."""
    EFFECT = "effect"
    """What a rank says that fell with another: never the cause, as long as anything else is there."""
    NOISE = "noise"
    """Healthy runs say so, too: recognised, and never blamed."""


class LogSign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of log text by which an illness shows itself.

    text: literal, case-sensitive, as it stands in one line behind the labels of launchers; all lines with it are found.
    why: why it is specific enough for its role, or what to know before trusting it.
    pattern: regular expression that the line's message (without labels, timestamps and colours) must match, too, by `search`; its named
    groups are the sighting's words. "" where the text alone will do.
    near: a second literal that must stand in the same stream (of the same rank), at most `NEAR` lines before or behind, or before it in
    lines without a rank's label; or "".
    anywhere: `near` may also stand before it in another rank's lines of the same file: what one rank does, others suffer from.
    within: lines of the file within which `near` counts, where `NEAR` lines of the stream are too many; or 0.
    fatal: what says so has ended by it, although the check of its illness only warns of what the host is like.
    names_speaker: the word `rank` of the pattern is the rank that says it.
    refutes: texts of the same check's signs that are about something else, or were got over, where this one stands in the log, too.
    refutes_earlier: only those before it.
    alone: it only passes on what another one says, and nothing else in its line counts; of a message of healthy runs.
    starts_run: of a message of healthy runs: what starts runs says so once, as it starts one.
    source: where the text comes from, and so was verified: "torch 2.13.0: torch/csrc/distributed/c10d/socket.cpp", "made to happen
    with torch 2.13.0", "nccl 2.30: bootstrap.cc".
    """

    text: str
    why: str = ""
    role: SignRole = SignRole.NAMES
    pattern: str = ""
    near: str = ""
    anywhere: bool = False
    within: int = 0
    fatal: bool = False
    names_speaker: bool = False
    refutes: tuple[str, ...] = ()
    refutes_earlier: bool = False
    alone: bool = False
    starts_run: bool = False
    source: str = ""


HEALTHY_RUNS: Final = "healthy-runs"
"""Stands in place of a slug for messages that healthy runs print, and that no illness has."""
NEAR = 200
"""Lines of one stream within which a sign's `near` counts."""
