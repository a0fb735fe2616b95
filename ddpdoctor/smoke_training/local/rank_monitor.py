"""What is heard of the ranks, and when it is time to give up. Pure: time is told, nothing is done."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ddpdoctor.base.text import masked, signal_name
from ddpdoctor.facts.smoke import RENDEZVOUS, CollectiveCall, Stage, StageState
from ddpdoctor.smoke_training.local.rank_progress import OutputTail, RankProgress, last_words
from ddpdoctor.smoke_training.training_order import TrainingOrder

MOST_WORDS: Final = 1000
MOST_FIGURES: Final = 256
MOST_ENDS: Final = 4096
MOST_GPUS: Final = 1024
MOST_NUMBER: Final = 1 << 62

MOST_CALLS: Final = 16
"""Collectives of a rank that are kept, from the last."""

PROCESS_END: Final = "the end of its process"
"""The step of a rank that has passed all its stages."""


class RankMonitor:
    """All ranks of this host, and the engine that started them.

    torch: its version, once one has said it. engine: what the engine printed. engine_words: why it failed, in its own words.
    """

    def __init__(self, order: TrainingOrder, now: float) -> None:
        self.order = order
        self.began = now
        self.ranks = {rank: RankProgress(rank, local) for local, rank in enumerate(order.ranks)}
        if order.launched is not None:
            self.ranks[order.launched.rank].local_rank = order.launched.local_rank
        for one in self.ranks.values():
            one.since = now
        self.torch = ""
        self.figures: list[Mapping[str, Any]] = []
        self.engine = OutputTail()
        self.engine_pid = 0
        """0 until it can be asked where it is."""
        self.server_pid = 0
        """Of the process that the ranks are forked from."""
        self.engine_words = ""
        self.engine_missing = ""
        self.blamed: set[int] = set()
        """Ranks of which the engine says that they failed first, whereupon it ended the others."""
        self.engine_over = False
        self.killed = ""
        """What ended before its time, so that all ranks ended with it: "torch's engine was ended by SIGKILL"."""
        self.held = ""
        """Of what starts the ranks, where the kernel holds it: "torch's engine (process 12) is stopped"."""
        self.ended_at: float | None = None
        """When ddpdoctor began to end all."""
        self.oom_kills = 0
        """Processes that the kernel killed for want of memory meanwhile."""

        self._came: dict[int, float] = {}
        """When each rank began the rendezvous."""
        self._ends: dict[int, tuple[object, float]] = {}
        """By pid: how children of the server ended, and when. It may be heard before they are."""

    # --- what is heard --------------------------------------------------------------------------------------------------

    def introduced(self, rank: int, pid: int) -> bool:
        """A process says that it is this rank. Nobody speaks for one that has spoken already."""
        one = self.ranks.get(rank)
        if one is None or one.pid:
            return False
        one.pid = pid
        self._settle(one)
        return True

    def hear(self, rank: int, message: Mapping[str, Any], now: float) -> None:
        """One message of a rank. What isn't understood is passed over: a newer or broken target Python may say anything."""
        one = self.ranks.get(rank)
        if one is None:
            return
        if "stage" in message:
            self._stage(one, message, now)
        if "step" in message:
            one.step, one.calls = _text(message["step"]), _text(message.get("calls"))
            one.steps += 1
            self._call(one)
        if "device" in message:
            one.device = _text(message["device"])
        if "torch" in message:
            self.torch = _text(message["torch"])
        if isinstance(message.get("figures"), Mapping) and len(self.figures) < MOST_FIGURES:
            self.figures.append(message["figures"])
        if "contexts" in message:
            one.contexts = tuple(_ranks(message["contexts"], MOST_GPUS))
        if "memory" in message:
            one.memory = int(_number(message["memory"])) or one.memory
        if message.get("finished") is True and one.finished_at is None:
            one.finished_at, one.step, one.calls = now, PROCESS_END, ""

    def _call(self, one: RankProgress) -> None:
        if one.calls:
            before = one.called[-1] if one.called and one.called[-1].stage == one.stage else None
            one.called = [*one.called, CollectiveCall(one.stage, before.number + 1 if before else 1, one.calls)][
                -MOST_CALLS:
            ]

    def _stage(self, one: RankProgress, message: Mapping[str, Any], now: float) -> None:
        name, state = _text(message["stage"]), message.get("state")
        if name not in self.order.stages:
            return
        if state == "begun":
            if name == RENDEZVOUS:
                self._came.setdefault(one.rank, now)
            one.stage, one.since, one.step, one.steps, one.calls = name, now, "", 0, ""
        elif state == "failed":
            one.words = _text(message.get("error"))
            one.wrong = message.get("wrong") is True
            one.culprits = tuple(_ranks(message.get("culprits"), self.order.world_size))
            one.missing = _text(message.get("missing"))
            one.stack = tuple(_texts(message.get("stack")))
            one.stack_source = "its traceback" if one.stack else ""
            one.failed_at = now
        elif state in (StageState.PASSED.value, StageState.NOT_TESTED.value):
            one.done[name] = Stage(
                name=name,
                state=StageState(state),
                seconds=_number(message.get("seconds")),
                words=_text(message.get("words")),
            )
            one.since = now

    def hear_engine(self, message: Mapping[str, Any]) -> None:
        """One message of the engine."""
        failures = message.get("failures")
        if isinstance(failures, Mapping):
            for rank, code in failures.items():
                if _is_number(rank):
                    self.blamed.add(int(rank))
                    self._exit_code(self.ranks.get(int(rank)), code)
            self.engine_words = _text(message.get("error"))
            self.engine_missing = _text(message.get("missing"))
        if message.get("finished") is True or isinstance(failures, Mapping):
            self.engine_over = True
        if message.get("finished") is True and self.ended_at is None:
            self.killed = ""  # The ranks' parent ends with it, and may be heard first.

    def hear_server(self, message: Mapping[str, Any], now: float) -> None:
        """One message of the process that the ranks are forked from: a child of it has ended."""
        pid = message.get("ended")
        if isinstance(pid, int) and len(self._ends) < MOST_ENDS:
            self._ends[pid] = message.get("status"), now
        for rank in self.ranks.values():
            self._settle(rank)

    def _settle(self, one: RankProgress) -> None:
        """What the server has told of its process. Our own moment is when we came to hear of it."""
        if one.pid in self._ends:
            code, moment = self._ends.pop(one.pid)
            self._exit_code(one, code)
            one.gone_at = min(moment, one.gone_at or moment)

    def _exit_code(self, one: RankProgress | None, code: object) -> None:
        """The first that is told; of an engine that has lost its ranks' parent the codes mean nothing."""
        known = isinstance(code, int) and not isinstance(code, bool) and -128 < code < 256
        if one is not None and known and one.exit_code is None and not self.killed:
            one.exit_code = code  # type: ignore[assignment]

    def server_gone(self) -> None:
        """The process that the ranks are forked from has ended."""
        if not self.engine_over and self.ended_at is None and not self.killed:
            self.killed = "the process that the ranks were forked from has ended"

    def engine_ended(self, status: int, now: float) -> None:
        """The keeper has seen the end of the engine, or of the one rank that there is without it."""
        self.engine_over = True
        if self.ended_at is not None:
            return
        if self.order.launched is not None:
            one = self.ranks[self.order.launched.rank]
            self._exit_code(one if one.pid else None, status)
            if one.pid:
                one.gone_at = one.gone_at or now
                return
        if not status or self.engine_words:
            return
        said = last_words(self.engine.output)
        how = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
        whose = "torch's engine" if self.engine_pid and status < 0 else "the target Python"
        self.killed = f"{whose} {how}" + (f'; it last said "{said}"' if said else "")

    def keeper_ended(self, words: str) -> None:
        """The keeper has ended before its time, and all with it."""
        self.engine_over = True
        if self.ended_at is None:
            self.killed = words

    def print(self, rank: int | None, text: bytes) -> None:
        """What a rank printed, or (None) the engine."""
        if rank is None:
            self.engine.print(text)
        elif rank in self.ranks:
            self.ranks[rank].print(text)

    def gone(self, rank: int, now: float) -> None:
        """The rank's connection has ended, and so has the rank."""
        if rank in self.ranks and self.ranks[rank].gone_at is None:
            self.ranks[rank].gone_at = now

    # --- when to give up ------------------------------------------------------------------------------------------------

    def late(self, now: float) -> list[RankProgress]:
        """Ranks whose stage has taken longer than it may."""
        return [rank for rank in self.ranks.values() if now >= self.due(rank)]

    def next_due(self) -> float:
        """When the first of them will be late, or the engine, unless more is heard; infinity where all is over."""
        if self.all_gone and self.all_finished and not self.engine_over:
            return self._engine_due()
        return min((self.due(rank) for rank in self.ranks.values()), default=float("inf"))

    def due(self, one: RankProgress) -> float:
        """When that rank will be late, unless more is heard; infinity where nothing more is waited for."""
        if one.failed_at is not None or one.gone_at is not None:
            return float("inf")
        if one.finished_at is not None:
            # The engine lets none go before all are through.
            last = max((rank.finished_at or float("inf") for rank in self.ranks.values()), default=one.finished_at)
            return last + self.order.seconds
        if one.stage and one.stage in one.done:
            return one.since + self.order.seconds
        began = self._met_at() if one.stage == RENDEZVOUS else one.since
        return began + self.order.seconds_for(one.stage or self.order.stages[0])

    def _met_at(self) -> float:
        """When the last rank of this host comes to the rendezvous: while one is on its way, when that one will be late."""
        on_the_way = [rank for rank in self.ranks.values() if rank.rank not in self._came and not rank.over]
        return max([*self._came.values(), *map(self.due, on_the_way)])

    def held_up(self, late: Iterable[RankProgress]) -> list[RankProgress]:
        """The late ones, and those who are about to be: no further than they. Others are ahead, and wait for them."""
        furthest = max((progress.position for progress in late), default=None)
        return [
            rank
            for rank in self.ranks.values()
            if furthest is not None and rank.failed_at is None and rank.gone_at is None and rank.position <= furthest
        ]

    def engine_late(self, now: float) -> bool:
        """Whether all ranks have ended well, and their engine doesn't end."""
        if self.engine_over or not self.all_finished or not self.all_gone:
            return False
        late = now >= self._engine_due()
        if late and not self.killed:
            self.killed = f"all ranks have ended, but torch's engine hasn't within {self.order.seconds:g} s"
        return late

    def _engine_due(self) -> float:
        return (
            max((rank.gone_at or self.began for rank in self.ranks.values()), default=self.began) + self.order.seconds
        )

    @property
    def failed(self) -> bool:
        """Whether a rank has failed, or gone without a word, or badly after its last one."""
        return any(
            rank.failed_at is not None or rank.speechless or (rank.gone_at is not None and rank.exit_code)
            for rank in self.ranks.values()
        )

    @property
    def unexplained(self) -> bool:
        """Whether it isn't known yet how a rank ended that went without a word, or who has sent it SIGTERM; or why the
        process has ended that the ranks were forked from: the end of the engine, or of the keeper, is heard after it."""
        if self.killed:
            return not self.engine_over
        codes = [rank.exit_code for rank in self.ranks.values() if rank.speechless]
        return None in codes or (-signal.SIGTERM in codes and not self.engine_over)

    @property
    def all_over(self) -> bool:
        return all(rank.over for rank in self.ranks.values())

    @property
    def all_finished(self) -> bool:
        return all(rank.finished_at is not None for rank in self.ranks.values())

    @property
    def all_gone(self) -> bool:
        """No process of a rank that came is there any more."""
        return all(rank.gone_at is not None or not rank.pid for rank in self.ranks.values())


def _text(value: object) -> str:
    return masked(value[:MOST_WORDS]) if isinstance(value, str) else ""


def _texts(value: object) -> Iterable[str]:
    return [_text(one) for one in value[:12] if isinstance(one, str)] if isinstance(value, list) else []


def _number(value: object) -> float:
    """Not negative, finite, and small enough for what it counts; 0 for anything else."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MOST_NUMBER
    return value if usable else 0.0  # type: ignore[return-value]


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10


def _ranks(value: object, below: int) -> Iterable[int]:
    """Ranks, or GPUs, of which there are so many."""
    found = value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < below][:1024]
