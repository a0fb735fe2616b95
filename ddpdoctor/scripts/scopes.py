"""Where a followed script stands: the function that is followed just now, and all that stands around it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.script import Ranks
from ddpdoctor.scripts.abstract_value import AbstractValue
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.values import CallRecord, Guard, LoopSpot, ProjectClass, Spot

MAX_PLAIN_CONDITIONS: Final = 32
"""Conditions within each other, up to which those that are no question of the rank are kept."""


class FollowedFunction:
    """A function that is followed.

    Args:
        module: in which it stands.
        scopes: its names, then those of the functions around it, the innermost first.
        home: the class whose method it is.
        owner: the object or class that the method belongs to.
    """

    __slots__ = ("branches", "globals", "home", "module", "owner", "returns", "scopes", "statement", "yields")

    def __init__(
        self,
        module: ProjectModule,
        scopes: tuple[dict[str, AbstractValue], ...],
        home: ProjectClass | None = None,
        owner: AbstractValue | None = None,
    ) -> None:
        self.module = module
        self.scopes = scopes
        self.home = home
        self.owner = owner
        self.returns: list[AbstractValue] = []
        self.yields = False
        self.branches = 0
        """Conditions within the function under which it is followed: what is stored there may not be."""
        self.globals: set[str] = set()
        self.statement: ast.stmt | None = None
        """That is followed just now."""

    @property
    def names(self) -> dict[str, AbstractValue]:
        """Its own names."""
        return self.scopes[0]


class Surroundings:
    """All around the statement that is followed: conditions, loops, context managers and callers, the outermost first; and what was recorded."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self.loops: list[LoopSpot] = []
        self.within: list[str] = []
        self.callers: list[Spot] = []
        self.guards_at_callers: list[int] = []
        """How many there were at each of them."""
        self.is_reached = True
        self.asks_for_first_rank = False
        """Whether somewhere it was asked for the first rank, of all or of a node."""
        self.records: list[CallRecord] = []
        self.events = 0
        """Escapes and loops over results that were noted."""

    def enter(self, guards: Iterable[Guard]) -> None:
        """Come to where these conditions hold, too. Of those that tell no ranks apart there may be thousands: of the first ones is told."""
        for guard in guards:
            if guard.ranks is not Ranks.ALL or len(self.guards) < MAX_PLAIN_CONDITIONS:
                self.guards.append(guard)
                self.asks_for_first_rank = self.asks_for_first_rank or guard.ranks in (Ranks.ZERO, Ranks.LOCAL_ZERO)

    def come_from(self, caller: Spot) -> None:
        """Come to a function from where it is called."""
        self.callers.append(caller)
        self.guards_at_callers.append(len(self.guards))

    def depths(self) -> tuple[int, int, int, int]:
        """How much there is of each, for `restore`."""
        return len(self.guards), len(self.loops), len(self.within), len(self.callers)

    def restore(self, depths: tuple[int, int, int, int]) -> None:
        """Leave what was entered since."""
        for stack, depth in zip((self.guards, self.loops, self.within, self.callers), depths, strict=True):
            del stack[depth:]  # type: ignore[attr-defined]
        del self.guards_at_callers[depths[-1] :]
