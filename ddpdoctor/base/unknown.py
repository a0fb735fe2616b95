"""Parts of every group of facts: typed, frozen, with `Unknown` where something could not be learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ddpdoctor.base.findings import Evidence

T = TypeVar("T")
Default = TypeVar("Default")


class Unknown(msgspec.Struct, frozen=True, tag_field="type", tag="unknown"):
    """A fact that could not be learned, and why. Never a missing key, and never "fine"."""

    reason: str


Maybe = Union[T, Unknown]  # noqa: UP007 (a generic alias needs the old spelling on 3.10)
"""`Maybe[int]` is an int, or the reason why there is none. Use `known()` to get at the value in a check."""


class Source(msgspec.Struct, frozen=True):
    """Origin of a fact, for the evidence line ("statvfs of /dev/shm"). Stands in the field's annotation."""

    text: str


class Otherwise(msgspec.Struct, frozen=True):
    """Value to go on with where the whole group is unknown, for a field that decides nothing: fixes need a name for it."""

    value: Any


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """Base of the groups. A subclass's fields are `Annotated[type, Source(...)]`; its docstring names the units."""

    def seen(self, field: str, text: object = None) -> Evidence:
        """The evidence that field gives: its value (or `text`, the value as a person reads it) and its source."""
        value = getattr(self, field) if text is None else text
        if isinstance(value, Unknown):
            value = f"unknown ({value.reason})"
        label = field.replace("_", " ")
        return Evidence(f"{label}: {value}", sources(type(self)).get(field, ""))


@cache
def sources(group: type[Facts]) -> dict[str, str]:
    """Field name to source text, for one group."""
    hints = get_type_hints(group, include_extras=True)
    return {
        name: extra.text
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for extra in get_args(hint)[1:]
        if isinstance(extra, Source)
    }


@cache
def _without(group: type[Facts]) -> dict[str, Any]:
    """Field name to what stands for it where the group is unknown: `Otherwise.value`, or `Unknown` itself for a `Maybe`."""
    standing: dict[str, Any] = {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if Unknown in get_args(kind):
            standing[name] = Unknown
        for extra in extras:
            if isinstance(extra, Otherwise):
                standing[name] = extra.value
    return standing


class NotLearned:
    """Stands for a group of facts that is unknown: only a check that gets to a fact which decides ends for want of it."""

    def __init__(self, group: type[Facts], reason: str) -> None:
        self._group = group
        self.reason = reason

    def seen(self, field: str, text: object = None) -> Evidence:
        """The evidence of a field that only words rest on."""
        return Evidence(f"{field.replace('_', ' ')}: {getattr(self, field) if text is None else text}")

    def __contains__(self, name: object) -> bool:
        raise NotKnown(self.reason)

    def __getattr__(self, name: str) -> Any:
        standing = _without(self._group).get(name, NotKnown)
        if standing is NotKnown:
            raise NotKnown(self.reason)
        return Unknown(self.reason) if standing is Unknown else standing


class NotKnown(Exception):
    """Raised by `known()`: the check that asked is reported as not tested, with this reason."""


def known(value: Maybe[T]) -> T:
    """The value of a fact, or a group of facts.

    Raises:
        NotKnown: the fact could not be learned. The engine turns this into "not tested: <reason>".
    """
    if isinstance(value, Unknown | NotLearned):
        raise NotKnown(value.reason)
    return value


def if_known(look: Callable[..., T], *arguments: Any, default: Default) -> T | Default:
    """What a look at facts gives, or what to go on with where one of them could not be learned: nothing may be called fine by it."""
    try:
        return look(*arguments)
    except NotKnown:
        return default


def known_or(value: Maybe[T], default: Default) -> T | Default:
    """The value of a fact, or what to go on with where it could not be learned: nothing may be called fine by it."""
    return default if isinstance(value, Unknown) else value
