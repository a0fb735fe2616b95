"""Whether what a host's facts show is the very thing that a log names: the GPU, adapter, architecture, library or setting. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ddpdoctor.base.findings import Finding
from ddpdoctor.facts.log import SignMatch

_SHAPES: Final = (
    re.compile(r"(?<![\w:])(?:PCI:)?[0-9a-f]{4,8}:(?P<object>[0-9a-f]{2}:[0-9a-f]{2})(?!\w)", re.IGNORECASE),
    re.compile(r"(?<!\w)(?:sm|compute)_(?P<object>\d+)"),
    re.compile(r"(?<!\w)(?P<object>(?:GLIBCXX|CXXABI)_[\d.]*\d)"),
    re.compile(r"(?<!\w)(?P<object>[a-z][a-z0-9]{0,15}_\d+)(?!\w)"),
    re.compile(r"(?<!\w)(?P<object>[A-Z][A-Z0-9]*_[A-Z][A-Z0-9_]*)(?!\w)"),
)
"""Addresses on the bus, architectures, symbols' versions, InfiniBand's devices, settings: by its looks it is known what a word names."""


def other_than_named(finding: Finding, seen: Iterable[SignMatch]) -> str:
    """What the log names, where the finding speaks of others of that kind and not of it; else ""."""
    text = "\n".join((finding.summary, *(evidence.text for evidence in finding.evidence)))
    for word in dict.fromkeys(word.strip() for match in seen for word in match.words.values()):
        shape = next((one for one in _SHAPES if one.fullmatch(word) or one.fullmatch(word.partition(".")[0])), None)
        named = shape.match(word) if shape else None
        if shape and named:
            found = {one["object"].lower() for one in shape.finditer(text)}
            if found and named["object"].lower() not in found:
                return word
    return ""
