"""Fixes that an ordinary user can't carry out: they say so, and what to do instead, in the same words everywhere."""

from __future__ import annotations

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import without_capital
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.container import Container

NEEDS_ROOT = "(needs root, or ask the administrator)"


def runtime_of(container: Maybe[Container]) -> str | None:
    """The runtime of the container that this is ("docker"); None outside of one, or where that isn't known."""
    return None if isinstance(container, Unknown) else container.runtime


def by_root(text: str, commands: tuple[str, ...] = ()) -> Fix:
    """A fix whose text ends with who can carry it out."""
    return Fix(f"{text} {NEEDS_ROOT}", commands)


def on_the_host(fix: Fix, container: Maybe[Container]) -> Fix:
    """The same fix, but in a container, whose root can't carry it out, it says where to."""
    if not runtime_of(container):
        return fix
    return Fix(f"On the host, outside of this container: {without_capital(fix.text)}", fix.commands)
