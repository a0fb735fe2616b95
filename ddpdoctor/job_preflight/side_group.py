"""Collectives that the ranks try together, over a gloo group of their own beside the job's: torch is told nothing of it, so that the names
and numbers of the job's own groups stay what they are, also where a rank doesn't take part."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import clip
from ddpdoctor.facts.preflight import GROUP, TriedCall

SMALL, LARGE = 1, 1 << 18
"""Numbers of 4 bytes: 4 B fit into any packet, 1 MiB needs many large ones."""

_WAITED: Final = compile_lazily(r"(?i)timed? ?out|timeout|connection closed by peer|connection reset by peer")


class SideGroup:
    """A gloo group over the job's store.

    Args:
        store: torch's, under a prefix of this call's.
        rank: this one's.
        world_size: ranks that take part: all of the job.
        until: the end of each call, by the clock `time.monotonic()`.
    """

    def __init__(self, store: Any, rank: int, world_size: int, until: float) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._until = until
        self._group: Any = None

    def try_calls(self) -> TriedCall:
        """Make the group, and call each collective once. It ends in time, also where another rank never calls."""
        began = time.monotonic()
        call = GROUP
        try:
            for call, make in self._calls():  # noqa: B007
                make()
        except Exception as error:
            words = clip(str(error))
            waited = bool(_WAITED.search(words))
            return TriedCall(
                rank=self._rank, call=call, ok=False, words=words, waited=waited, seconds=time.monotonic() - began
            )
        return TriedCall(rank=self._rank, call=call, ok=True, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Let go of it, once no other rank is in a call any more: theirs would fail."""
        self._group = None

    def _calls(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return (
            (GROUP, self._make),
            ("barrier", lambda: self._wait(self._group.barrier())),
            ("all_reduce of 4 B", lambda: self._sum(SMALL)),
            ("all_reduce of 1 MiB", lambda: self._sum(LARGE)),
            ("all_gather of 4 B", self._gather),
        )

    def _make(self) -> None:
        distributed: Any = import_module("torch.distributed")
        store = distributed.PrefixStore("gloo", self._store)
        self._group = distributed.ProcessGroupGloo(store, self._rank, self._world_size, self._left())

    def _sum(self, count: int) -> None:
        torch: Any = import_module("torch")
        # Whatever the program has chosen as its default: on the CPU.
        numbers = torch.full((count,), self._rank + 1, dtype=torch.int32, device="cpu")
        self._wait(self._group.allreduce([numbers]))
        wanted = self._world_size * (self._world_size + 1) // 2
        if not bool((numbers == wanted).all()):
            raise ValueError(f"wrong result: {int(numbers[0])} in place of {wanted}")

    def _gather(self) -> None:
        torch: Any = import_module("torch")
        own = torch.full((1,), self._rank, dtype=torch.int32, device="cpu")
        gathered = [torch.zeros(1, dtype=torch.int32, device="cpu") for _ in range(self._world_size)]
        self._wait(self._group.allgather([gathered], [own]))
        ranks = [int(number) for number in gathered]
        if ranks != list(range(self._world_size)):
            raise ValueError(f"wrong result: {clip(str(ranks))} in place of the ranks in their order")

    def _wait(self, work: Any) -> None:
        work.wait(self._left())

    def _left(self) -> timedelta:
        # 0 would mean for ever.
        return timedelta(seconds=max(0.05, self._until - time.monotonic()))
