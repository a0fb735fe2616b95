"""The signs by which an illness shows itself in a log, for `explain`: by what each is worth, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.log_signs import NEAR, LogSign, SignRole
from ddpdoctor.base.text import one_line
from ddpdoctor.report.document import Block, Command, Paragraph, StyledText

HEADINGS: Final = {
    SignRole.NAMES: "This illness alone says",
    SignRole.HINTS: "It may be this one, if a log says",
    SignRole.EFFECT: "Said by ranks that fell with another, whose illness it is",
    SignRole.NOISE: "Healthy runs say it, too; alone it means nothing",
}


def sign_blocks(signs: tuple[LogSign, ...]) -> Iterator[Block]:
    """The signs, those first that name the illness."""
    for role, heading in HEADINGS.items():
        fitting = [log_sign for log_sign in signs if log_sign.role is role]
        if fitting:
            yield Paragraph(StyledText(heading, "bold"))
        for log_sign in fitting:
            # Unwrapped: it is there to be searched for.
            yield Command(log_sign.text, 2)
            if log_sign.near:
                yield Paragraph(StyledText(f'and within {NEAR} lines "{one_line(log_sign.near)}"', "dim"), margin=6)
            source = f"[{one_line(log_sign.source)}]" if log_sign.source else ""
            if why := " ".join(filter(None, (one_line(log_sign.why), source))):
                yield Paragraph(StyledText(why, "dim"), margin=6)
