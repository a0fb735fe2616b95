"""The way of the ranks' words to one verdict: who has come, what came of their calls, and who judges.

Rank 0 judges. Where it doesn't, because it never came or was stopped, the next one does that is there, as soon as rank 0's time is over;
whoever is first has judged for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ddpdoctor.base.text import clip
from ddpdoctor.facts.preflight import Preflight, PreflightRank, TriedCall
from ddpdoctor.job_preflight.job_store import Board, JobPlace, Pause
from ddpdoctor.job_preflight.messages import CallsOrder, HostAnswer, JobVerdict, OwnAnswer, decode
from ddpdoctor.job_preflight.side_group import SideGroup

M = TypeVar("M", bound=msgspec.Struct)

RESERVE_SECONDS: Final = 15.0
"""Of the whole time at most, for what comes after the last rank has come."""
MAX_RANKS_OF_CALLS: Final = 256
"""gloo connects every rank with every other one."""
OTHERS_SECONDS: Final = 2.0
"""For the other ranks, once one has come that means another job: some will never come."""
TURN_SECONDS: Final = 0.05
MAX_TURNS: Final = 10
"""Each rank waits a moment longer than the one before it until it judges in rank 0's place."""

ANSWER, HOST, CALLS, ORDER, VERDICT = "answer", "host", "calls", "order", "verdict"
"""Keys; the first three with the rank behind them."""


class Schedule(msgspec.Struct, frozen=True):
    """Times, in seconds.

    whole: for everything.
    """

    whole: float

    @property
    def reserve(self) -> float:
        """For what comes after the ranks have come."""
        return min(RESERVE_SECONDS, self.whole / 2)

    @property
    def arrival(self) -> float:
        """For the ranks to come."""
        return self.whole - self.reserve

    @property
    def calls(self) -> float:
        """For the calls, from the order on."""
        return self.reserve * 0.5

    @property
    def gathering(self) -> float:
        """For the answers of all to be there, from the order on. In what is left another rank judges, if need be."""
        return self.reserve * 0.7


class Gathered(msgspec.Struct, frozen=True):
    """All that is judged."""

    facts: Preflight
    hosts: tuple[HostAnswer, ...]
    tokens: dict[int, str]


class Exchange:
    """This rank's part.

    Args:
        board: where the messages go.
        place: of this rank.
        own: its own words.
        schedule: how long all may take.
        look: looks at this host, if that falls to this rank; None: to another one.
        judge: comes to the verdict.
    """

    def __init__(
        self,
        board: Board,
        place: JobPlace,
        own: OwnAnswer,
        schedule: Schedule,
        look: Callable[[], HostAnswer] | None,
        judge: Callable[[Gathered], JobVerdict],
    ) -> None:
        self._board = board
        self._place = place
        self._own = own
        self._schedule = schedule
        self._look = look
        self._judge = judge
        self._began = time.monotonic()
        self._answers: dict[int, OwnAnswer] = {}
        self._seen: list[HostAnswer] = []

    def verdict(self) -> tuple[JobVerdict, bool]:
        """Take part until there is a verdict.

        Returns:
            The verdict of all, and whether this rank has come to it.
        Raises:
            ForeignWords: a message of another release.
        """
        if self._look is not None:
            threading.Thread(target=self._look_at_host, args=(self._look,), daemon=True).start()
        self._board.post(f"{ANSWER}/{self._place.rank}", self._own)
        order = self._order()
        started = time.monotonic()
        group: SideGroup | None = None
        if not order.untried and self._place.rank not in order.absent:
            group = SideGroup(
                self._board.store, self._place.rank, self._place.world_size, started + self._schedule.calls
            )
            self._board.post(f"{CALLS}/{self._place.rank}", group.try_calls())
        try:
            return self._settled(order, started)
        finally:
            if group is not None:
                group.close()

    def _look_at_host(self, look: Callable[[], HostAnswer]) -> None:
        """Runs in a thread of its own, which never touches the store: one that is still there when the program ends would crash it."""
        try:
            self._seen.append(look())
        except Exception as error:  # It is our fault then, and no rank's.
            problem = clip(f"{type(error).__name__}: {error}")
            self._seen.append(HostAnswer(host=self._own.rank.host, problem=problem))

    def _tell_of_host(self) -> None:
        """Post what the look has come to, once it is there."""
        if self._seen:
            self._board.post(f"{HOST}/{self._place.rank}", self._seen.pop())

    def _wait_for(self, key: str, until: float) -> bytes | None:
        """The message, None where it has not come until then."""
        pause = Pause()
        while True:
            self._tell_of_host()
            found = self._board.read(key)
            if found is not None or time.monotonic() >= until:
                return found
            pause.take(until)

    # --- who has come ---------------------------------------------------------------------------------------------------------

    def _order(self) -> CallsOrder:
        """Wait until all have come or the time for it is over, and for the one order that follows."""
        until = self._began + self._schedule.arrival + self._turn()
        if self._place.rank == 0:
            return self._give_order(self._wait_for_ranks(until))
        found = self._wait_for(ORDER, until)
        if found is not None:
            return decode(found, CallsOrder)
        return self._give_order(self._read_answers())

    def _wait_for_ranks(self, until: float) -> bool:
        """Read the answers as they come. True: all are there, or waiting for more was of no use."""
        pause = Pause()
        while True:
            self._tell_of_host()
            missing = [rank for rank in range(self._place.world_size) if rank not in self._answers]
            # One that is missing is waited for before the next is looked at, until the time is over.
            over = time.monotonic() >= until
            for rank in missing:
                if not self._read_answer(rank) and not over:
                    break
            if len(self._answers) == self._place.world_size:
                return True
            if over:
                return self._contradiction()
            if self._contradiction():
                until = min(until, time.monotonic() + OTHERS_SECONDS)
            pause.take(until)

    def _read_answers(self) -> bool:
        """Read those that are there by now. True: of all ranks."""
        for rank in range(self._place.world_size):
            if rank not in self._answers:
                self._read_answer(rank)
        return len(self._answers) == self._place.world_size

    def _read_answer(self, rank: int) -> bool:
        content = self._board.read(f"{ANSWER}/{rank}")
        if content is not None:
            self._answers[rank] = decode(content, OwnAnswer)
        return content is not None

    def _contradiction(self) -> bool:
        """Whether a rank takes part in a job of another size: then some will never come."""
        return any(answer.rank.world_size != self._place.world_size for answer in self._answers.values())

    def _give_order(self, complete: bool) -> CallsOrder:
        missing = tuple(rank for rank in range(self._place.world_size) if rank not in self._answers)
        order = CallsOrder(absent=() if complete else missing, untried=self._why_untried(missing))
        stands, _ = self._board.settle(ORDER, order)
        return decode(stands, CallsOrder)

    def _why_untried(self, absent: tuple[int, ...]) -> str:
        if self._contradiction():
            return "the ranks don't agree on how many they are"
        if absent:
            return "not all ranks are there"
        if not all(answer.gloo for answer in self._answers.values()):
            return "torch was built without gloo"
        if self._place.world_size > MAX_RANKS_OF_CALLS:
            return f"with more than {MAX_RANKS_OF_CALLS} ranks a gloo group takes too long to make"
        return ""

    # --- what came of it ------------------------------------------------------------------------------------------------------

    def _settled(self, order: CallsOrder, started: float) -> tuple[JobVerdict, bool]:
        gathering_ends = started + self._schedule.gathering
        present = [rank for rank in range(self._place.world_size) if rank not in order.absent]
        if self._place.rank != present[0]:
            turn = self._turn() + (0.2 * self._schedule.reserve if self._place.rank in order.absent else 0.0)
            found = self._wait_for(VERDICT, gathering_ends + turn)
            if found is not None:
                return decode(found, JobVerdict), False
        self._read_answers()
        gathered = self._gather(order, gathering_ends)
        stands, is_own = self._board.settle(VERDICT, self._judge(gathered))
        return decode(stands, JobVerdict), is_own

    def _gather(self, order: CallsOrder, until: float) -> Gathered:
        taking_part = [rank for rank in self._answers if rank not in order.absent]
        calls = {} if order.untried else self._collect(CALLS, taking_part, TriedCall, until)
        lookers = [rank for rank in taking_part if self._answers[rank].looks]
        hosts = self._collect(HOST, lookers, HostAnswer, until)
        unseen = [
            HostAnswer(host=self._answers[rank].rank.host, problem="its rank said nothing of it in time")
            for rank in lookers
            if rank not in hosts
        ]
        facts = Preflight(
            ranks=tuple(self._described(rank) for rank in sorted(taking_part)),
            world_size=self._place.world_size,
            absent=order.absent,
            waited=self._schedule.arrival,
            store=self._board.where,
            calls=tuple(calls[rank] for rank in sorted(calls)),
            untried=order.untried,
            silent=() if order.untried else tuple(sorted(set(taking_part) - set(calls))),
        )
        tokens = {rank: self._answers[rank].token for rank in taking_part}
        return Gathered(facts, (*hosts.values(), *unseen), tokens)

    def _described(self, rank: int) -> PreflightRank:
        # It has written under its own key.
        return msgspec.structs.replace(self._answers[rank].rank, rank=rank)

    def _collect(self, key: str, ranks: list[int], kind: type[M], until: float) -> dict[int, M]:
        found = {}
        for rank in ranks:
            content = self._wait_for(f"{key}/{rank}", until)
            if content is not None:
                found[rank] = decode(content, kind)
        return found

    def _turn(self) -> float:
        return TURN_SECONDS * min(self._place.rank, MAX_TURNS)
