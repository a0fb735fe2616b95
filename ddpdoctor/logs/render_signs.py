"""The signs by which an illness shows itself in a log, for `explain`: by what each is worth, and why."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from ddpdoctor.base.log_signs import NEAR, LogSign, SignRole
from ddpdoctor.base.text import one_line, visible
from ddpdoctor.report.terminal import Hanging

HEADINGS: Final = {
    SignRole.NAMES: "This illness alone says",
    SignRole.HINTS: "It may be this one, if a log says",
    SignRole.EFFECT: "Said by ranks that fell with another, whose illness it is",
    SignRole.NOISE: "Healthy runs say it, too; alone it means nothing",
}


def show_signs(console: Console, signs: tuple[LogSign, ...]) -> None:
    """Nothing where it has none."""
    if not signs:
        return
    console.print()
    console.print(Markdown("## How it shows itself in a log"))
    for role, heading in HEADINGS.items():
        fitting = [sign for sign in signs if sign.role is role]
        if fitting:
            console.print(Hanging(Text(), Text(heading, "bold"), 0))
        for log_sign in fitting:
            _show(console, log_sign)


def _show(console: Console, sign: LogSign) -> None:
    # Unwrapped: it is there to be searched for.
    console.print(Text("  " + visible(sign.text), "cyan"), soft_wrap=True)
    if sign.near:
        console.print(Hanging(Text(), Text(f'and within {NEAR} lines "{one_line(sign.near)}"', "dim"), 6))
    why = one_line(sign.why)
    source = f"[{one_line(sign.source)}]" if sign.source else ""
    if why or source:
        console.print(Hanging(Text(), Text(" ".join(one for one in (why, source) if one), "dim"), 6))
