"""The way of many ranks to one verdict, in threads over a store in memory: who judges where rank 0 doesn't, and who is named."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch.distributed

from ddpdoctor.api.rank_preflight import PreflightError, PreflightResult
from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.preflight import Preflight, PreflightRank
from ddpdoctor.job_preflight.exchange import Exchange, Gathered, Schedule
from ddpdoctor.job_preflight.job_store import Board, JobPlace
from ddpdoctor.job_preflight.judging import judge
from ddpdoctor.job_preflight.messages import ForeignWords, HostAnswer, JobVerdict, JudgedCheck, OwnAnswer, decode

Change = Callable[[PreflightRank], PreflightRank]


def described(rank: int, world_size: int) -> PreflightRank:
    return PreflightRank(
        rank=rank,
        host=f"n{rank // 8}",
        pid=1000 + rank,
        world_size=world_size,
        backend="gloo",
        python="/venv/bin/python",
        python_version="3.11.7",
        torch="2.13.0+cpu",
    )


def meet(
    ranks: Iterable[int], world_size: int, seconds: float, change: Change = lambda rank: rank
) -> dict[int, tuple[JobVerdict, bool]]:
    """Let these ranks of the job take part, and give what each came to, and whether it judged for all."""
    store = torch.distributed.HashStore()

    def take_part(rank: int) -> tuple[JobVerdict, bool]:
        place = JobPlace(rank, world_size, True)
        answer = OwnAnswer(rank=change(described(rank, world_size)), token=f"{rank}", looks=rank % 8 == 0, gloo=False)
        look = (lambda: HostAnswer(host=f"n{rank // 8}", passed=3)) if answer.looks else None
        exchange = Exchange(
            Board(store, "a store in memory", "test"),
            place,
            answer,
            Schedule(seconds),
            look,
            lambda gathered: judge(gathered, rank, Meeting(), catalogue()),
        )
        return exchange.verdict()

    chosen = list(ranks)
    with ThreadPoolExecutor(len(chosen)) as pool:
        return dict(zip(chosen, pool.map(take_part, chosen), strict=True))


def the_one(outcomes: dict[int, tuple[JobVerdict, bool]]) -> JobVerdict:
    """The verdict that all have, by one of them."""
    assert [judged for _, judged in outcomes.values()].count(True) == 1
    verdicts = {msgspec.json.encode(verdict) for verdict, _ in outcomes.values()}
    assert len(verdicts) == 1
    return next(iter(outcomes.values()))[0]


def found(verdict: JobVerdict) -> dict[str, str]:
    return {check.slug: check.findings[0].summary for check in verdict.checks if check.findings}


def test_many_ranks_agree() -> None:
    began = time.monotonic()
    verdict = the_one(meet(range(40), 40, 200))
    assert time.monotonic() - began < 100
    assert (verdict.verdict, verdict.answered, verdict.judge, found(verdict)) == (Verdict.OK, 40, 0, {})
    assert sorted(host.host for host in verdict.hosts) == ["n0", "n1", "n2", "n3", "n4"]


def test_who_is_missing_is_named_and_rank_0_may_be() -> None:
    verdict = the_one(meet([rank for rank in range(12) if rank not in (0, 7)], 12, 8))
    assert verdict.absent == (0, 7)
    assert found(verdict)["preflight-rank-missing"].startswith("Ranks 0 and 7 did not come to the preflight within 4 s")
    assert verdict.verdict is Verdict.FAIL


def test_a_rank_of_a_smaller_job_is_not_waited_for() -> None:
    began = time.monotonic()
    outcomes = meet(range(4), 4, 200, lambda rank: msgspec.structs.replace(rank, world_size=3 if rank.rank else 4))
    assert found(the_one(outcomes))["world-size-mismatch"].endswith("4 on rank 0 and 3 on ranks 1-3")
    # Nor are those that the larger one would have.
    outcomes = meet(range(3), 4, 200, lambda rank: msgspec.structs.replace(rank, world_size=3 if rank.rank else 4))
    assert found(the_one(outcomes))["world-size-mismatch"].endswith("4 on rank 0 and 3 on ranks 1 and 2")
    assert time.monotonic() - began < 150


def test_the_odd_ones_out_are_told_of_each_kind() -> None:
    def change(rank: PreflightRank) -> PreflightRank:
        settings = (Setting("NCCL_ALGO", "Ring"),) if rank.rank == 3 else ()
        return msgspec.structs.replace(rank, torch="2.1.0" if rank.rank in (5, 6) else rank.torch, settings=settings)

    verdict = the_one(meet(range(8), 8, 200, change))
    assert sorted(found(verdict)) == ["env-not-propagated", "torch-version-mismatch"]
    (torches,) = (check.findings for check in verdict.checks if check.slug == "torch-version-mismatch")
    assert "2.1.0 on n0 (rank 5) and n0 (rank 6)" in torches[0].evidence[0].text
    assert verdict.verdict is Verdict.FAIL


def test_a_rank_that_judges_and_dies_is_replaced() -> None:
    """Rank 0 has answered, and nothing more is heard of it."""
    store = torch.distributed.HashStore()
    board = Board(store, "a store in memory", "test")
    board.post("answer/0", OwnAnswer(rank=described(0, 3), token="0", gloo=False))

    def take_part(rank: int) -> tuple[JobVerdict, bool]:
        answer = OwnAnswer(rank=described(rank, 3), token=f"{rank}", gloo=False)
        judging = lambda gathered: judge(gathered, rank, Meeting(), catalogue())  # noqa: E731
        return Exchange(board, JobPlace(rank, 3, True), answer, Schedule(6), None, judging).verdict()

    with ThreadPoolExecutor(2) as pool:
        verdict = the_one(dict(zip((1, 2), pool.map(take_part, (1, 2)), strict=True)))
    assert (verdict.judge in (1, 2), verdict.absent, verdict.answered) == (True, (), 3)


def test_what_is_said_of_a_job_that_is_yet_to_start_is_not_said_of_this_one() -> None:
    """Ray starts its workers without a launcher's settings, so that a look from outside can't know whose the port is."""
    finding = Finding.of("taken", severity=FAIL)
    host = HostAnswer(host="n0", checks=(JudgedCheck("port-in-use", (finding,)), JudgedCheck("disk-full", (finding,))))
    facts = Preflight(ranks=(described(0, 1),), world_size=1)
    (kept,) = judge(Gathered(facts, (host,), {}), 0, Meeting(), catalogue()).hosts
    assert [check.slug for check in kept.checks] == ["disk-full"]


def test_words_of_somebody_else_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"null", b"{}", b'{"rank": 3}', b"\xff", b'{"new": ' + b"[" * 10**6):
        with pytest.raises(ForeignWords):
            decode(content, OwnAnswer)
    monkeypatch.setattr("ddpdoctor.job_preflight.messages.MAX_MESSAGE_BYTES", 100)
    with pytest.raises(ForeignWords, match="a message of 200 bytes"):
        decode(b" " * 200, OwnAnswer)


@pytest.mark.parametrize("whole", [4.0, 20.0, 60.0, 3600.0])
def test_all_parts_fit_into_the_time(whole: float) -> None:
    schedule = Schedule(whole)
    assert 0 < schedule.arrival < whole
    assert 0 < schedule.calls < schedule.gathering < schedule.reserve
    assert schedule.arrival + schedule.reserve == whole


HOSTILE = "\x1b[2J\x1b]0;mine\x07 \x9b31m and\r\nOK  All is well \u202e\u2028here"
"""Clears a terminal, names its window, and begins a line of its own."""


def hostile_verdict() -> JobVerdict:
    finding = Finding.of(
        HOSTILE, Evidence(HOSTILE, HOSTILE), Fix(HOSTILE, ("ddpdoctor  jobs",)), cause=HOSTILE, severity=FAIL
    )
    too_long = Finding.of("x" * 9000, Fix("Do it", ("true " * 2000,)), severity=FAIL)
    untypeable = Finding.of("one", Fix("Do it", ("ddpdoctor jobs\x1b[2J",)), severity=FAIL)
    checks = (JudgedCheck("world-size-mismatch", (finding, too_long, untypeable) * 30),)
    return JobVerdict(
        verdict=Verdict.FAIL,
        judge=0,
        world_size=2,
        answered=2,
        hosts=(HostAnswer(host=HOSTILE, checks=checks, problem=HOSTILE),),
        checks=checks,
        tokens={0: HOSTILE},
        calls=(HOSTILE,),
        problems=(HOSTILE,),
    )


def test_what_the_store_says_is_fit_to_be_shown() -> None:
    content = msgspec.json.encode(hostile_verdict())
    verdict = decode(content, JobVerdict)
    texts = list(all_texts(verdict))
    assert len(texts) > 100
    assert not [text for text in texts if not text.isprintable() or len(text) > 4100]
    ((shown,), (long,), (left_out,)) = (finding.fixes for finding in verdict.checks[0].findings[:3])
    assert shown.commands == ("ddpdoctor  jobs",)
    assert (long.commands, long.text) == ((), "Do it (the command is not shown: it is too long)")
    assert (left_out.commands, left_out.appliable) == ((), False)
    result = PreflightResult(verdict)
    error = str(PreflightError(result))
    for text in (error, result.to_text(), result.to_text(quiet=True), result.to_markdown()):
        assert not [line for line in text.split("\n") if not line.isprintable()]
        assert not [line for line in text.split("\n") if line.lstrip("> ").startswith("OK")]
    lines = error.split("\n")
    assert len(lines) == 21
    assert lines[1].endswith("All is well \\u202e\\u2028here  [world-size-mismatch]")
    assert lines[-1] == "  and 161 more"
    assert max(map(len, lines)) < 450


def test_a_slug_of_somebody_else_is_no_part_of_a_command() -> None:
    for slug in ("disk-full; reboot", "disk-full\n", "x" * 101, ""):
        content = msgspec.json.encode(JudgedCheck(slug))
        with pytest.raises(ForeignWords):
            decode(content, JudgedCheck)
    for check in catalogue().checks:
        assert decode(msgspec.json.encode(JudgedCheck(check.slug)), JudgedCheck).slug == check.slug


def test_a_path_of_somebody_else_is_quoted_in_a_command() -> None:
    path = "/tmp/it's $(reboot)/python"

    def change(rank: PreflightRank) -> PreflightRank:
        own = msgspec.structs.replace(rank, python=path, problem="torn", backend="nccl")
        return own if rank.rank else rank

    verdict = the_one(meet(range(2), 2, 200, change))
    commands = {
        command: shlex.split(command)
        for check in verdict.checks
        for finding in check.findings
        for fix in finding.fixes
        for command in fix.commands
        if "reboot" in command
    }
    assert list(commands.values()) == [["ddpdoctor", "check", "--python", path]]


def all_texts(value: object) -> Iterator[str]:
    """Each text in a message; commands, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from all_texts(part)
    elif isinstance(value, dict):
        yield from all_texts(tuple(value.values()))
    elif isinstance(value, msgspec.Struct):
        yield from all_texts(msgspec.structs.astuple(value))
