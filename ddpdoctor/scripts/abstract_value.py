"""The base of all that a script's expressions may be worth."""

from __future__ import annotations


class AbstractValue:
    """Base of them; by itself a value of which nothing is known."""

    __slots__ = ()


UNKNOWN = AbstractValue()
