"""Files of source code, as `lint` reports them."""

from __future__ import annotations

import msgspec


class ReportedScript(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file. is_distributed: several ranks run it, as far as is seen. problem: why it could not be read."""

    path: str
    is_distributed: bool = False
    problem: str = ""
