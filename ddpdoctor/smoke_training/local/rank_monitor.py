"""Watches the ranks of this host: collects their messages and ends, and decides when to give up. Pure: it is told the time."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ddpdoctor.base.text import masked, signal_name
from ddpdoctor.facts.burn_in import PaceWindow
from ddpdoctor.facts.smoke import RENDEZVOUS, CollectiveCall, Stage, StageState
from ddpdoctor.smoke_training.local.nccl_report import NcclReport
from ddpdoctor.smoke_training.local.rank_progress import OutputTail, RankProgress, last_words
from ddpdoctor.smoke_training.stages import BURN_IN
from ddpdoctor.smoke_training.training_order import TrainingOrder

MAX_TEXT_LENGTH: Final = 1000
MAX_FIGURES: Final = 256
MAX_ENDED_PIDS: Final = 4096
MAX_GPUS: Final = 1024
MAX_NUMBER: Final = 1 << 62

MAX_CALLS: Final = 16
"""Collectives of a rank that are kept, from the last."""

PROCESS_END: Final = "the end of its process"
"""The step of a rank that has passed all its stages."""


class RankMonitor:
    """All ranks of this host, torch's elastic engine that started them, and the server process that they are forked from."""

    def __init__(self, order: TrainingOrder, now: float) -> None:
        self.order = order
        self.began = now
        self.ranks = {rank: RankProgress(rank, local) for local, rank in enumerate(order.ranks)}
        if order.launched is not None:
            self.ranks[order.launched.rank].local_rank = order.launched.local_rank
        for progress in self.ranks.values():
            progress.since = now
        self.torch = ""
        """Its version, once a rank has said it."""
        self.figures: list[Mapping[str, Any]] = []
        self.engine = OutputTail()
        self.nccl_report = NcclReport()
        self.engine_pid = 0
        """0 until the engine can be asked for its stack."""
        self.server_pid = 0
        self.engine_words = ""
        """Why the engine failed, by itself."""
        self.blamed: set[int] = set()
        """Ranks of which the engine says that they failed first, whereupon it ended the others."""
        self.is_engine_over = False
        self.stopped = ""
        """Who has had the burn-in ended, "Ctrl-C"; "" where nobody has."""
        self.killed = ""
        """The end of something before its time, so that all ranks ended with it: "torch's engine was ended by SIGKILL"."""
        self.engine_state = ""
        """The state of what starts the ranks, where the kernel holds it: "torch's engine (process 12) is stopped"."""
        self.ended_at: float | None = None
        """The moment when ddpdoctor began to end all."""
        self.oom_kills = 0
        """Processes that the kernel killed for want of memory meanwhile."""

        self._rendezvous_began: dict[int, float] = {}
        """By rank."""
        self._ended_children: dict[int, tuple[object, float]] = {}
        """By pid: how children of the server ended, and when. That may be known before their own words."""

    # --- what comes in --------------------------------------------------------------------------------------------------

    def introduce(self, rank: int, pid: int) -> bool:
        """Accept a process as this rank, unless there is no such rank or another process is it already."""
        progress = self.ranks.get(rank)
        if progress is None or progress.pid:
            return False
        progress.pid = pid
        self._apply_end(progress)
        return True

    def take_rank_message(self, rank: int, message: Mapping[str, Any], now: float) -> None:
        """Take in a message of a rank. What isn't understood is passed over: a newer or broken target Python may say anything."""
        progress = self.ranks.get(rank)
        if progress is None:
            return
        if "stage" in message:
            self._take_stage(progress, message, now)
        if "step" in message:
            progress.step, progress.calls = _text(message["step"]), _text(message.get("calls"))
            progress.steps += 1
            progress.heard_at = now
            self._count_call(progress)
        if "device" in message:
            progress.device = _text(message["device"])
        if "torch" in message:
            self.torch = _text(message["torch"])
        if isinstance(message.get("figures"), Mapping) and len(self.figures) < MAX_FIGURES:
            self.figures.append(message["figures"])
        if isinstance(message.get("window"), Mapping):
            progress.add_window(_window(message["window"]))
        if "contexts" in message:
            progress.contexts = tuple(_ranks(message["contexts"], MAX_GPUS))
        if "memory" in message:
            progress.memory = int(_number(message["memory"])) or progress.memory
        if message.get("finished") is True and progress.finished_at is None:
            progress.finished_at, progress.step, progress.calls = now, PROCESS_END, ""

    @property
    def burn_in_batch(self) -> int:
        """Samples a rank and step of the burn-in; 0 where no rank has said it."""
        told = (figures["burn_in_batch"] for figures in self.figures if "burn_in_batch" in figures)
        return int(_number(next(told, 0)))

    def _count_call(self, progress: RankProgress) -> None:
        if progress.calls:
            before = progress.called[-1] if progress.called and progress.called[-1].stage == progress.stage else None
            progress.called = [
                *progress.called,
                CollectiveCall(progress.stage, before.number + 1 if before else 1, progress.calls),
            ][-MAX_CALLS:]

    def _take_stage(self, progress: RankProgress, message: Mapping[str, Any], now: float) -> None:
        name, state = _text(message["stage"]), message.get("state")
        if name not in self.order.stages:
            return
        if state == "begun":
            if name == RENDEZVOUS:
                self._rendezvous_began.setdefault(progress.rank, now)
            progress.stage, progress.since, progress.step, progress.steps, progress.calls = name, now, "", 0, ""
            progress.heard_at = now
        elif state == "failed":
            progress.words = _text(message.get("error"))
            progress.wrong = message.get("wrong") is True
            progress.culprits = tuple(_ranks(message.get("culprits"), self.order.world_size))
            stack = message.get("stack")
            progress.stack = tuple(filter(None, map(_text, stack[:12]))) if isinstance(stack, list) else ()
            progress.stack_source = "its traceback" if progress.stack else ""
            progress.failed_at = now
        elif state in (StageState.PASSED.value, StageState.NOT_TESTED.value):
            progress.done[name] = Stage(
                name=name,
                state=StageState(state),
                seconds=_number(message.get("seconds")),
                words=_text(message.get("words")),
            )
            progress.since = now

    def take_engine_message(self, message: Mapping[str, Any]) -> None:
        failures = message.get("failures")
        if isinstance(failures, Mapping):
            for rank, code in failures.items():
                if isinstance(rank, str) and rank.isascii() and rank.isdigit() and len(rank) < 10:
                    self.blamed.add(int(rank))
                    self._set_exit_code(self.ranks.get(int(rank)), code)
            self.engine_words = _text(message.get("error"))
        if message.get("finished") is True or isinstance(failures, Mapping):
            self.is_engine_over = True
        if message.get("finished") is True and self.ended_at is None:
            self.killed = ""  # The ranks' parent ends with it, and may be heard first.

    def take_server_message(self, message: Mapping[str, Any], now: float) -> None:
        """Take in that a child of the server has ended."""
        pid = message.get("ended")
        if isinstance(pid, int) and len(self._ended_children) < MAX_ENDED_PIDS:
            self._ended_children[pid] = message.get("status"), now
        for rank in self.ranks.values():
            self._apply_end(rank)

    def _apply_end(self, progress: RankProgress) -> None:
        """Enter what the server has said of a rank's end, if it has."""
        if progress.pid in self._ended_children:
            code, moment = self._ended_children.pop(progress.pid)
            self._set_exit_code(progress, code)
            progress.gone_at = min(moment, progress.gone_at or moment)

    def _set_exit_code(self, progress: RankProgress | None, code: object) -> None:
        """Enter a rank's first exit code. Those of an engine that has lost its ranks' parent mean nothing."""
        known = isinstance(code, int) and not isinstance(code, bool) and -128 < code < 256
        if progress is not None and known and progress.exit_code is None and not self.killed:
            progress.exit_code = code  # type: ignore[assignment]

    def note_server_end(self) -> None:
        if not self.is_engine_over and self.ended_at is None and not self.killed:
            self.killed = "the process that the ranks were forked from has ended"

    def note_engine_end(self, status: int, now: float) -> None:
        """Take in the end of the engine, or of the one rank that there is without it, as the reaper has seen it. status: exit code;
        negative: the signal's number."""
        self.is_engine_over = True
        if self.ended_at is not None:
            return
        if self.order.launched is not None:
            progress = self.ranks[self.order.launched.rank]
            self._set_exit_code(progress if progress.pid else None, status)
            if progress.pid:
                progress.gone_at = progress.gone_at or now
                return
        if not status or self.engine_words:
            return
        said = last_words(self.engine.output)
        how = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with exit code {status}"
        whose = "torch's engine" if self.engine_pid and status < 0 else "the target Python"
        self.killed = f"{whose} {how}" + (f'; it last said "{said}"' if said else "")

    def note_reaper_end(self, words: str) -> None:
        """Take in that the reaper has ended before its time, and all with it."""
        self.is_engine_over = True
        if self.ended_at is None:
            self.killed = words

    def add_output(self, rank: int | None, text: bytes) -> None:
        """Take in what a rank printed, or (None) the engine."""
        if rank is None:
            self.engine.add_output(text)
        elif rank in self.ranks:
            self.nccl_report.add_output(rank, text)
            self.ranks[rank].add_output(text)

    def note_disconnect(self, rank: int, now: float) -> None:
        """Take in that a rank's connection has ended, and so has the rank."""
        if rank in self.ranks and self.ranks[rank].gone_at is None:
            self.ranks[rank].gone_at = now

    # --- when to give up ------------------------------------------------------------------------------------------------

    def late_ranks(self, now: float) -> list[RankProgress]:
        """The ranks whose stage has taken longer than it may."""
        return [rank for rank in self.ranks.values() if now >= self.due(rank)]

    def next_due(self) -> float:
        """The moment when the first rank, or the engine, will be late unless it gets on; infinity where all is over."""
        if self.all_gone and self.all_finished and not self.is_engine_over:
            return self._engine_deadline()
        return min((self.due(rank) for rank in self.ranks.values()), default=float("inf"))

    def due(self, progress: RankProgress) -> float:
        """The moment when that rank will be late unless it gets on; infinity where nothing more is waited for."""
        if progress.failed_at is not None or progress.gone_at is not None:
            return float("inf")
        if progress.finished_at is not None:
            # The engine lets none go before all are through.
            last = max((rank.finished_at or float("inf") for rank in self.ranks.values()), default=progress.finished_at)
            return last + self.order.seconds
        if progress.stage and progress.stage in progress.done:
            return progress.since + self.order.seconds
        if progress.stage == BURN_IN:
            return progress.heard_at + self.order.seconds
        began = self._met_at() if progress.stage == RENDEZVOUS else progress.since
        return began + self.order.seconds_for(progress.stage or self.order.stages[0])

    def _met_at(self) -> float:
        """The moment when the last rank of this host comes to the rendezvous: while one is on its way, when that one will be late."""
        on_the_way = [rank for rank in self.ranks.values() if rank.rank not in self._rendezvous_began and not rank.over]
        return max([*self._rendezvous_began.values(), *map(self.due, on_the_way)])

    def stuck_ranks(self, late: Iterable[RankProgress]) -> list[RankProgress]:
        """The late ranks, and those that are about to be: no further than they. Others are ahead, and wait for them."""
        furthest = max((progress.position for progress in late), default=None)
        return [
            rank
            for rank in self.ranks.values()
            if furthest is not None and rank.failed_at is None and rank.gone_at is None and rank.position <= furthest
        ]

    def is_engine_late(self, now: float) -> bool:
        """Whether all ranks have ended well, and their engine doesn't end."""
        if self.is_engine_over or not self.all_finished or not self.all_gone:
            return False
        late = now >= self._engine_deadline()
        if late and not self.killed:
            self.killed = f"all ranks have ended, but torch's engine hasn't within {self.order.seconds:g} s"
        return late

    def _engine_deadline(self) -> float:
        return (
            max((rank.gone_at or self.began for rank in self.ranks.values()), default=self.began) + self.order.seconds
        )

    @property
    def has_failed(self) -> bool:
        """Whether a rank has failed, or gone without a word, or badly after its last progress."""
        return any(
            rank.failed_at is not None or rank.has_vanished or (rank.gone_at is not None and rank.exit_code)
            for rank in self.ranks.values()
        )

    @property
    def is_unexplained(self) -> bool:
        """Whether it isn't known yet how a rank ended that went without a word, or who has sent it SIGTERM; or why the
        server has ended: the end of the engine, or of the reaper, is known after it."""
        if self.killed:
            return not self.is_engine_over
        codes = [rank.exit_code for rank in self.ranks.values() if rank.has_vanished]
        return None in codes or (-signal.SIGTERM in codes and not self.is_engine_over)

    @property
    def all_over(self) -> bool:
        """Whether nothing more is waited for on any rank."""
        return all(rank.over for rank in self.ranks.values())

    @property
    def all_finished(self) -> bool:
        """Whether every rank has said that it is through."""
        return all(rank.finished_at is not None for rank in self.ranks.values())

    @property
    def all_gone(self) -> bool:
        """Whether no process of a rank that came is there any more."""
        return all(rank.gone_at is not None or not rank.pid for rank in self.ranks.values())


def _text(value: object) -> str:
    return masked(value[:MAX_TEXT_LENGTH]) if isinstance(value, str) else ""


def _number(value: object) -> float:
    """The value where it is a number, not negative, and less than MAX_NUMBER; else 0."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_NUMBER
    return value if usable else 0.0  # type: ignore[return-value]


def _window(told: Mapping[str, Any]) -> PaceWindow:
    waited = told.get("waited")
    return PaceWindow(
        at=_number(told.get("at")),
        steps=_number(told.get("steps")),
        own=_number(told.get("own")),
        waited=-1.0 if waited == -1 else min(_number(waited), 1.0),
        memory=int(_number(told.get("memory"))),
    )


def _ranks(value: object, below: int) -> Iterable[int]:
    """The numbers of ranks, or of GPUs, in a list."""
    numbers = value if isinstance(value, list) else []
    return [
        number for number in numbers if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < below
    ][:1024]
