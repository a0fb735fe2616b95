"""`ddpdoctor --install-completion`, which is typer's own: what root is kept from before typer writes into a home folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path


def installs_completion(arguments: Sequence[str]) -> bool:
    """Whether the options before the command ask for it."""
    return "--install-completion" in takewhile(lambda argument: argument.startswith("-"), arguments)


def refuse_foreign_home() -> str:
    """Say why root must not write there: typer follows whatever the home folder's owner laid in the way. "" if it may."""
    from ddpdoctor.base.ownership import foothold_on

    if os.geteuid() != 0:
        return ""
    foothold = foothold_on(Path.home())
    if foothold is None:
        return ""
    return (
        f"Root does not install the completion into {Path.home()}: {foothold.words}. Run it as that user, without sudo, or "
        "for root itself: HOME=/root ddpdoctor --install-completion"
    )
