"""What a stream can do when it is a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO


def moves_its_cursor(file: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether lines on it can be drawn anew, and in colour: it is a terminal, and doesn't call itself dumb."""
    return file.isatty() and environ.get("TERM", "dumb") not in ("dumb", "unknown")
