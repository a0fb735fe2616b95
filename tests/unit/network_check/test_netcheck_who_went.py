"""What is said where a node, or node 0, goes before the verdict: of whom, why, and nothing that isn't known."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

from ddpdoctor.api.network_checking import NetcheckResult
from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.base.findings import Evidence, Finding
from ddpdoctor.base.signals import StoppedBySignal, stop_on_signals
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.fleet import Fleet, Link, MissingNode, Passed
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.admission_errors import ENDED_BY_FAULT
from ddpdoctor.network_check.analysis.link_quality import link_troubles
from ddpdoctor.network_check.analysis.verdicts import judged_phases, verdicts_by_rank
from ddpdoctor.network_check.protocol.messages import NodeVerdict, encode
from ddpdoctor.network_check.render import document
from ddpdoctor.network_check.render_words import part_lines
from ddpdoctor.network_check.results import RunResult
from ddpdoctor.network_check.run import stop_sentence
from ddpdoctor.report.terminal import text_of
from tests.support.fleets import examined, make_fleet, node
from tests.support.hub_clients import agents, client, finish, hub, run
from tests.support.own_signals import signals_restored
from tests.support.registered_checks import find_check

MEETING = Meeting(master="n0", port=29500, nnodes=3, node_rank=0, joined=True)
CTRL_C = "lost during links: stopped by its user: Ctrl-C"
CUT = "lost during links: the connection was closed"


def lost(*words: str) -> Fleet:
    """Node 0, and one that was lost in each of these ways."""
    fleet = make_fleet(1 + len(words))
    nodes = (msgspec.structs.replace(one, lost=why) for one, why in zip(fleet.nodes, ("", *words), strict=True))
    return msgspec.structs.replace(fleet, nodes=tuple(nodes))


def finding(fleet: Fleet, meeting: Meeting = MEETING) -> Finding:
    (result,) = diagnose(Snapshot(fleet=fleet, meeting=meeting), Plan(1, ""), [find_check("rdzv-missing-node")])
    (one,) = result.findings
    return one


@pytest.mark.parametrize("by", ["its user: Ctrl-C", "SIGTERM"])
def test_of_a_node_that_somebody_stopped_nothing_else_is_suspected(by: str) -> None:
    one = finding(lost(f"lost during links: stopped by {by}"))
    assert one.cause == f"netcheck was stopped by {by} on n1; nothing is known to be wrong there."
    assert [fix.commands for fix in one.fixes] == [("ddpdoctor netcheck --master-addr n0 --nnodes 2 --node-rank 1",)]


def test_whoever_nobody_stopped_comes_first() -> None:
    one = finding(lost(CTRL_C, CUT))
    assert one.summary.startswith("n2 (and 1 other) was lost during links: the connection")
    assert one.fixes[0].commands == ("sudo dmesg -T | tail -50",)


def test_a_lost_node_fails_the_phase_in_which_it_was_lost() -> None:
    fleet = lost(CTRL_C)
    examinations = examined(2)
    results = (Result(find_check("rdzv-missing-node"), (finding(fleet),)),)
    examinations[0] = msgspec.structs.replace(examinations[0], results=results)
    failed = [(phase.name, phase.reason) for phase in judged_phases(fleet, examinations) if phase.passed is Passed.FAIL]
    assert failed == [("links", "lost: n1")]


def test_a_node_that_never_came_still_fails_the_meeting() -> None:
    examinations = examined(2)
    results = (Result(find_check("rdzv-missing-node"), (Finding("n1 didn't come", evidence=(Evidence("x", "y"),)),)),)
    examinations[0] = msgspec.structs.replace(examinations[0], results=results)
    failed = [phase.name for phase in judged_phases(make_fleet(2), examinations) if phase.passed is Passed.FAIL]
    assert failed == ["join"]


@pytest.mark.parametrize(("fleet", "count"), [(lost(CTRL_C), 0), (make_fleet(2), 1)])
def test_that_a_lost_node_could_not_be_measured_is_no_link_s_fault(fleet: Fleet, count: int) -> None:
    links = (Link(a=0, b=1, round_trip=0.0, error="Connection refused"),)
    assert len(link_troubles(msgspec.structs.replace(fleet, links=links))) == count


def test_where_node_0_ends_with_a_reason_the_others_say_it() -> None:
    words = f"node 0 says: {ENDED_BY_FAULT}n0 listens at 10.9.0.1 port 29500 and can't reach it itself"
    one = finding(Fleet(), msgspec.structs.replace(MEETING, node_rank=1, left_behind=words))
    assert one.summary == "Node 0 ended without a verdict: n0 listens at 10.9.0.1 port 29500 and can't reach it itself"
    assert "cut" not in one.cause
    assert one.fixes[0].text.startswith("Node 0 prints the fix")
    assert one.fixes[0].commands == ("ddpdoctor netcheck --master-addr n0 --nnodes 3 --node-rank 1",)


def alone(meeting: Meeting, problems: tuple[str, ...] = ()) -> str:
    ended = RunResult(exit_code=2, meeting=meeting, examinations=(examined(1)[0],), problems=problems)
    return text_of(document(ended), 80)


def test_whoever_asked_node_0_did_not_look_at_one_side_only() -> None:
    apart = msgspec.structs.replace(MEETING, joined=False)
    only = "Only this side was looked at"
    assert only not in alone(MEETING, ("the connection was closed by node 0",))
    assert only not in alone(apart, ("node 0 says: node rank 0 is taken",))
    assert only in alone(apart, ("what listens there doesn't know this job's token",))


def in_few_words(lines: tuple[str, ...], examination: Examination) -> list[str]:
    given = NodeVerdict(results=(), verdict=Verdict.FAIL, exit_code=1, lines=lines)
    ended = RunResult(exit_code=1, meeting=MEETING, examinations=(examination,), part=given)
    return text_of(document(ended, quiet=True), 80).splitlines()


def test_in_few_words_every_node_names_what_was_found_on_the_others() -> None:
    examinations = examined(3, {1: [Finding("n1 drops inbound TCP")]})
    lines = (*part_lines(make_fleet(3), examinations), "The phase 'reach' failed, and no check knows why")
    last = "FAIL  is the verdict on all nodes; node 0 prints the whole."
    assert in_few_words(lines, examinations[2]) == ["FAIL  broken: n1 drops inbound TCP", lines[-1], last]
    # On n1 itself it is said once.
    assert in_few_words(lines, examinations[1]) == ["FAIL  broken: n1 drops inbound TCP", lines[-1], last]


def test_a_report_for_strangers_names_no_peer_that_only_sentences_name() -> None:
    fleet = make_fleet(
        2, nodes=(node(0, host="gpu-a"), node(1, host="gpu-b")), absent=(MissingNode(rank=2, host="gpu-c"),)
    )
    own = examined(2, {1: [Finding("gpu-b drops inbound TCP from gpu-a.cluster")]}, hosts=("gpu-a", "gpu-b"))
    judged = [msgspec.structs.replace(one, snapshot=msgspec.structs.replace(one.snapshot, fleet=fleet)) for one in own]
    lines = ("gpu-a: broken: unreachable from gpu-b", "gpu-c didn't come")
    sent = encode(verdicts_by_rank(dict(enumerate(judged)), lines, Verdict.FAIL, 1)[1])
    part = msgspec.json.decode(sent, type=NodeVerdict)
    assert part.hosts == ("gpu-a", "gpu-b", "gpu-c")
    end = RunResult(exit_code=1, meeting=Meeting(joined=True, node_rank=1), examinations=(own[1],), part=part)
    text = NetcheckResult(end).to_markdown()
    assert "broken: unreachable from HOST" in text
    assert not any(name in text for name in part.hosts)


def test_a_node_that_was_refused_is_no_stranger() -> None:
    async def go() -> None:
        async with hub() as one, agents(one, 1) as tasks:
            async with client(one.port, "127.0.0.9", greeted=False):
                pass
            async with client(one.port, "127.0.0.9") as double:
                double.hello(node_rank=0)
                await double.ended()
            async with client(one.port, "127.0.0.8", greeted=False):
                pass
            while not any(stranger.startswith("127.0.0.8") for stranger in one.strangers):
                await asyncio.sleep(0.01)
            assert [double.address for double in one.doubles] == ["127.0.0.9"]
            assert len(one.strangers) == 1
            await one.gather(5)
            await finish(one, *tasks)

    run(go())


@pytest.mark.parametrize(
    ("number", "by"), [(signal.SIGINT, "its user: Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")]
)
@pytest.mark.parametrize("in_touch", [True, False])
def test_whoever_is_stopped_says_what_is_known(number: signal.Signals, by: str, in_touch: bool) -> None:
    heard: list[object] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError as error:
            heard.extend(error.args)
            raise

    with signals_restored():
        stop_on_signals()
        with pytest.raises(StoppedBySignal) as stopped:
            asyncio.run(until_stopped(work(), lambda: stop_sentence(told_others=in_touch)))
    assert (stopped.value.code, heard) == (128 + number, [by])
    told = "; if the test was still going on, the other nodes were told" if in_touch else ""
    assert stopped.value.text == f"Stopped. There is no verdict here{told}."
