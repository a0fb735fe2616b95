"""What the checks of checkpoints share that names one of them. Pure."""

from __future__ import annotations

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.checkpoints.finding_words import short
from ddpdoctor.facts.checkpoints import Checkpoints


def all_read(checkpoints: Checkpoints) -> None:
    """Raises:
    NotKnown: some of the named files could not be read, so that nobody can call them fine.
    """
    unread = [file for file in checkpoints.files if file.problem]
    if len(unread) == 1:
        raise NotKnown(f"{short(unread[0].path)} could not be read (see ckpt-truncated)")
    if unread:
        raise NotKnown(
            f"{len(unread)} of the {len(checkpoints.files)} checkpoints could not be read: see ckpt-truncated"
        )


NOT_TO_BE_LOADED = Fix("Do not load it at all, on any machine and with any option: see ckpt-weights-only")
