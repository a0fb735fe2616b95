"""What is heard of the ranks, and when it is time to give up. Pure: time is told, nothing is done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ddpdoctor.facts.smoke import Call, Ending, RankRun, Stage, State
from ddpdoctor.probes.patient.asking import last_lines, printable
from ddpdoctor.smoke.orders import Order

MOST_KEPT: Final = 64 * 1024
"""Bytes of what a rank printed, from its end."""

MOST_WORDS: Final = 1000

MOST_CALLS: Final = 16
"""Collectives of a rank that are kept, from the last."""

CONSEQUENCES: Final = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|recvValue failed|sendBytes failed|failed to recv"
    r"|Connection refused|remote process exited|NCCL communicator was aborted|DistNetworkError|DistStoreError"
)
"""In the words of a rank that failed because another one had gone."""


class Heard:
    """One rank, as far as it has been heard of. Times are the doctor's own (time.monotonic())."""

    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.pid = 0
        self.done: dict[str, Stage] = {}
        self.stage = ""
        self.since = 0.0
        self.step = ""
        self.steps = 0
        self.calls = ""
        self.called: list[Call] = []
        self.device = "cpu"
        self.words = ""
        self.wrong = False
        self.culprits: tuple[int, ...] = ()
        self.missing = ""
        self.memory = 0
        self.output = b""
        self.finished_at: float | None = None
        self.failed_at: float | None = None
        self.gone_at: float | None = None
        self.exit_code: int | None = None
        self.stack: tuple[str, ...] = ()
        self.stack_source = ""
        self.process_state = ""

    @property
    def over(self) -> bool:
        return self.finished_at is not None or self.failed_at is not None or self.gone_at is not None

    @property
    def position(self) -> tuple[int, int]:
        """How far it has come: stages that are over, steps in the present one."""
        return len(self.done), self.steps


class Watch:
    """All ranks of this host. `torch`: its version, once one has said it; `engine_words`: why the engine failed."""

    def __init__(self, order: Order, now: float) -> None:
        self.order = order
        self.began = now
        self.ranks = {rank: Heard(rank, local) for local, rank in enumerate(order.ranks)}
        if order.launched is not None:
            self.ranks[order.launched.rank].local_rank = order.launched.local_rank
        for one in self.ranks.values():
            one.since = now
        self.torch = ""
        self.figures: list[Mapping[str, Any]] = []
        self.engine_words = ""
        self.engine_missing = ""
        self.engine_output = b""
        self.engine_over = False

    def hear(self, rank: int, message: Mapping[str, Any], now: float) -> None:
        """One message of a rank. What isn't understood is passed over: a newer or broken patient may say anything."""
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
        if isinstance(message.get("figures"), Mapping):
            self.figures.append(message["figures"])
        if isinstance(message.get("memory"), int):
            one.memory = message["memory"]
        if message.get("finished"):
            one.finished_at = now

    def _call(self, one: Heard) -> None:
        if one.calls:
            before = one.called[-1] if one.called and one.called[-1].stage == one.stage else None
            one.called = [*one.called, Call(one.stage, before.number + 1 if before else 1, one.calls)][-MOST_CALLS:]

    def _stage(self, one: Heard, message: Mapping[str, Any], now: float) -> None:
        name, state = _text(message["stage"]), message.get("state")
        if state == "begun":
            one.stage, one.since, one.step, one.steps, one.calls = name, now, "", 0, ""
        elif state == "failed":
            one.words = _text(message.get("error"))
            one.wrong = bool(message.get("wrong"))
            one.culprits = tuple(rank for rank in message.get("culprits", ()) if isinstance(rank, int))
            one.missing = _text(message.get("missing"))
            one.failed_at = now
        elif state in (State.PASSED.value, State.NOT_TESTED.value):
            seconds = message.get("seconds")
            one.done[name] = Stage(
                name=name,
                state=State(state),
                seconds=float(seconds) if isinstance(seconds, (int, float)) else 0.0,
                words=_text(message.get("words")),
            )
            one.since = now

    def hear_engine(self, message: Mapping[str, Any]) -> None:
        """One message of the engine."""
        failures = message.get("failures")
        if isinstance(failures, Mapping):
            for rank, code in failures.items():
                if str(rank).isdigit() and int(rank) in self.ranks and isinstance(code, int):
                    self.ranks[int(rank)].exit_code = code
            self.engine_words = _text(message.get("error"))
            self.engine_missing = _text(message.get("missing"))
        if message.get("finished") or isinstance(failures, Mapping):
            self.engine_over = True

    def print(self, rank: int | None, text: bytes) -> None:
        """What a rank printed, or (None) the engine."""
        if rank is None:
            self.engine_output = (self.engine_output + text)[-MOST_KEPT:]
        elif rank in self.ranks:
            self.ranks[rank].output = (self.ranks[rank].output + text)[-MOST_KEPT:]

    def gone(self, rank: int, now: float) -> None:
        """The rank's connection has ended, and so has the rank."""
        if rank in self.ranks and self.ranks[rank].gone_at is None:
            self.ranks[rank].gone_at = now

    # --- when to give up ------------------------------------------------------------------------------------------------

    def late(self, now: float) -> list[Heard]:
        """Ranks whose stage has taken longer than it may."""
        return [one for one in self.ranks.values() if not one.over and now >= self._due(one)]

    def next_due(self) -> float:
        """When the first of them will be late, unless more is heard; infinity where all are over."""
        return min((self._due(one) for one in self.ranks.values() if not one.over), default=float("inf"))

    def _due(self, one: Heard) -> float:
        return one.since + self.order.seconds_for(one.stage or self.order.stages[0])

    @property
    def failed(self) -> bool:
        """Whether a rank has failed or gone without a word."""
        return any(one.failed_at is not None or (one.gone_at and not one.finished_at) for one in self.ranks.values())

    @property
    def all_over(self) -> bool:
        return all(one.over for one in self.ranks.values())

    @property
    def all_finished(self) -> bool:
        return all(one.finished_at is not None for one in self.ranks.values())

    # --- what it came to ------------------------------------------------------------------------------------------------

    def runs(self, host: str, late: Iterable[Heard] = ()) -> tuple[RankRun, ...]:
        """What each rank came to. late: those whose time was up when all were ended."""
        hung = {one.rank for one in late}
        return tuple(self._run(one, host, hung) for _, one in sorted(self.ranks.items()))

    def _run(self, one: Heard, host: str, hung: set[int]) -> RankRun:
        ending = self._ending(one, hung)
        over_at = one.finished_at or one.failed_at or one.gone_at
        return RankRun(
            rank=one.rank,
            local_rank=one.local_rank,
            host=host,
            node=self.order.node_rank,
            pid=one.pid,
            device=one.device,
            stages=tuple(self._stages(one, ending)),
            ending=ending,
            ended_after=round((over_at or one.since) - self.began, 3),
            exit_code=one.exit_code if ending in (Ending.EXITED, Ending.KILLED, Ending.RAISED, Ending.WRONG) else None,
            words=one.words[:MOST_WORDS],
            culprits=one.culprits,
            step=one.step,
            steps=one.steps,
            calls=one.calls,
            called=tuple(one.called),
            last_line=last_line(one.output),
            stack=one.stack,
            stack_source=one.stack_source,
            process_state=one.process_state,
            memory=one.memory,
        )

    def _ending(self, one: Heard, hung: set[int]) -> Ending:
        if one.finished_at is not None:
            return Ending.FINISHED
        if one.failed_at is not None:
            return Ending.WRONG if one.wrong else Ending.RAISED
        if one.rank in hung:
            return Ending.HUNG if one.pid else Ending.NEVER_CAME
        if one.gone_at is not None:
            if one.exit_code is None:
                return Ending.ENDED
            return Ending.KILLED if one.exit_code < 0 else Ending.EXITED
        return Ending.ENDED if one.pid else Ending.NEVER_CAME

    def _stages(self, one: Heard, ending: Ending) -> Iterable[Stage]:
        for name in self.order.stages:
            if name in one.done:
                yield one.done[name]
            elif name == one.stage and ending is not Ending.FINISHED:
                failed = ending in (Ending.RAISED, Ending.WRONG, Ending.EXITED, Ending.KILLED)
                over_at = one.failed_at or one.gone_at or one.since
                yield Stage(
                    name=name,
                    state=State.FAILED if failed else State.HUNG,
                    seconds=round(max(0.0, over_at - one.since), 3),
                    words=one.words[:MOST_WORDS],
                )
            else:
                yield Stage(name=name, state=State.NOT_RUN)


def is_consequence(words: str) -> bool:
    """Whether these are the words of one whom another one's end has ended."""
    return bool(CONSEQUENCES.search(words))


def last_line(output: bytes) -> str:
    """The last line with something in it."""
    lines = [line.strip() for line in last_lines(output, 40).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _text(value: object) -> str:
    return printable(value)[:MOST_WORDS] if isinstance(value, str) else ""
