"""Which nodes measure the link between them when: a tournament, so that no link shares its ends with another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Pair = tuple[int, int]
"""Two nodes, the one that comes first in the given order first."""


def rounds(nodes: Sequence[int], most: int | None = None) -> Iterator[tuple[Pair, ...]]:
    """Rounds of disjoint pairs by the circle method: over all rounds each pair meets exactly once.

    N nodes take N - 1 rounds; an odd number takes N, in which each sits out once. With `most`, only so many rounds, spread
    evenly: each node meets that many different peers, near ones and far ones.
    """
    count = len(nodes)
    if count < 2:
        return
    # All but the last of an even number stand in a circle; those whose places add up to the round's number (modulo the
    # circle) meet. The one who would meet himself meets the one outside, or sits out.
    circle = count - 1 if count % 2 == 0 else count
    played = circle if most is None else min(most, circle)
    for turn in range(played):
        number = turn * circle // played
        yield tuple(_pairs(nodes, circle, number))


def _pairs(nodes: Sequence[int], circle: int, number: int) -> Iterator[Pair]:
    for place in range(circle):
        other = (number - place) % circle
        if place < other:
            yield nodes[place], nodes[other]
        elif place == other and circle < len(nodes):
            yield nodes[place], nodes[circle]
