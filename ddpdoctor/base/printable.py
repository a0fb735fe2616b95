"""Text from facts made harmless to show: a stranger's snapshot must not steer the terminal."""

from __future__ import annotations

from ddpdoctor.base.text import visible as plain


def one_line(text: str) -> str:
    """`plain`, and on one line."""
    return " ".join(plain(text).split())


__all__ = ["one_line", "plain"]
