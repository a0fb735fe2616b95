"""How netcheck's verdict reads: on node 0, on the others, from one side alone, and as JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from ddpdoctor.base.findings import INFO, WARN, Evidence, Finding, Fix
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Result, Skipped, SkipReason
from ddpdoctor.facts.fleet import Cell, Fleet, Link, MissingNode, Passed, Phase
from ddpdoctor.facts.meeting import Attempt, Conflict, ConnectOutcome, Meeting
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.verdicts import judge
from ddpdoctor.network_check.protocol.messages import NodeVerdict
from ddpdoctor.network_check.render import document
from ddpdoctor.network_check.render_words import node_rows, part_lines, phase_text
from ddpdoctor.network_check.results import RunResult
from ddpdoctor.report.contract import Report, build_report, to_json
from ddpdoctor.report.merged_findings import folded
from ddpdoctor.report.terminal import text_of
from tests.support.fleets import PHASES, examined, make_fleet, node
from tests.support.registered_checks import find_check
from tests.support.report_schema import check_against_schema

MEETING = Meeting(master="n0", port=29500, launcher="Slurm")
WALL = Finding(
    "n1 drops inbound TCP 32768-60999 (both peers time out; outbound OK)",
    evidence=(Evidence("n0 to n1: no answer, twice", "TCP connections"),),
    fixes=(Fix("Let the job's nodes in", ("nft insert rule inet filter input ip saddr 10.9.0.0/24 accept",)),),
)
LOOPBACK = Finding("gloo takes 127.0.1.1, which nobody else reaches", "/etc/hosts says so")
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202egnp[bold]x[/bold] :smile:\nFAIL"


def verdict(fleet: Fleet, examinations: list[Examination], width: int = 80, **options: bool) -> str:
    ended = RunResult(exit_code=0, meeting=MEETING, examinations=tuple(examinations), fleet=fleet)
    return text_of(document(ended, **options), width)


def part(lines: tuple[str, ...], examination: Examination, width: int = 80, **options: bool) -> str:
    given = NodeVerdict(results=(), verdict="fail", exit_code=1, lines=lines)
    ended = RunResult(exit_code=1, meeting=MEETING, examinations=(examination,), part=given)
    return text_of(document(ended, **options), width)


def alone(meeting: Meeting, examination: Examination, problems: tuple[str, ...] = (), **options: bool) -> str:
    ended = RunResult(exit_code=0, meeting=meeting, examinations=(examination,), problems=problems)
    return text_of(document(ended, **options), 80)


def test_the_worst_comes_first_and_again_with_its_fix() -> None:
    text = verdict(make_fleet(3), examined(3, {1: [WALL], 2: [msgspec.structs.replace(LOOPBACK, severity=WARN)]}))
    lines = text.splitlines()
    assert lines[0].startswith("FAIL  n1 drops inbound TCP 32768-60999")
    assert "(and 1 more)" in " ".join(text.split())
    assert text.index("n1 drops", 100) < text.index("WARN  n2: gloo takes")
    assert "nft insert rule inet filter input ip saddr 10.9.0.0/24 accept" in map(str.strip, lines)
    assert lines[-1] == "More on the first: ddpdoctor explain broken"
    assert "1 problem that will stop or spoil training and 1 warning." in " ".join(lines)


def test_a_fine_fleet_is_said_to_be_so_with_what_was_not_tested() -> None:
    text = verdict(make_fleet(2), examined(2))
    assert text.splitlines()[0].startswith("OK    2 of 2 nodes met, and nothing wrong was found; not tested: gloo")
    assert "Not tested: gloo." in text
    for row in (
        "  PASS        join       0.4 s  2 of 2 nodes came",
        "  PASS        reach      0.2 s  2 of 2 directions open, 1 port each",
        "  PASS        links      0.5 s  1 of 1 pair, at worst 0.10 ms, 9.3 Gbit/s",
        "  NOT TESTED  gloo              --quick",
    ):
        assert row in text.splitlines()


def test_a_phase_that_failed_is_named_even_if_no_check_says_so() -> None:
    phases = (*PHASES[:2], Phase(name="reach", passed=Passed.FAIL, seconds=3.0))
    text = verdict(make_fleet(3, cells={(0, 1): Cell.SILENT}, phases=phases), examined(3))
    assert text.splitlines()[0] == "UNKNOWN  The phase 'reach' failed, and no check knows why"
    assert "nothing wrong" not in text.lower()
    assert "5 of 6 directions open" in text


def test_no_verdict_is_never_called_fine() -> None:
    examinations = examined(2, not_tested={0: Skipped(SkipReason.UNKNOWN, "no answer")})
    silent = msgspec.structs.replace(examinations[1], results=())
    text = verdict(make_fleet(2), [examinations[0], silent])
    assert text.startswith("UNKNOWN  No verdict")
    assert "nothing wrong" not in text.lower()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("count", [1, 2, 8, 512])
def test_it_fits_and_stays_short(count: int, width: int) -> None:
    found = {place: [LOOPBACK] for place in range(0, count, 2)} | {count - 1: [WALL]}
    fleet = make_fleet(count, absent=[MissingNode(rank=count, host="gpu99")])
    examinations = examined(count, found, {0: Skipped(SkipReason.UNKNOWN, "no permission")})
    for text in (
        verdict(fleet, examinations, width),
        part(part_lines(fleet, examinations), examinations[-1], width),
    ):
        lines = text.splitlines()
        assert len(lines) < 110
        assert not any(line != line.rstrip() for line in lines)
        assert all(len(line) <= width for line in lines if "nft insert rule" not in line)
    assert all(len(line) <= 160 for line in part_lines(fleet, examinations))


def test_what_many_nodes_have_in_common_is_said_once() -> None:
    examinations = examined(8, {place: [LOOPBACK] for place in (1, 4, 5, 6)})
    text = verdict(make_fleet(8), examinations, 200)
    assert text.count("FAIL  n1, n4 and 2 more: gloo takes 127.0.1.1") == 2
    assert text.count("/etc/hosts says so") == 1
    assert "all 8 nodes: gloo takes" in verdict(make_fleet(8), examined(8, {key: [LOOPBACK] for key in range(8)}), 200)


def test_findings_that_differ_in_the_nodes_own_name_are_one() -> None:
    found = {place: [Finding(f"n{place} drops inbound TCP 1024-2048")] for place in (1, 2, 6)}
    [(_, _, finding)] = folded(examined(8, found), [f"n{place}" for place in range(8)])
    assert finding.summary == "n1 drops inbound TCP 1024-2048"
    assert finding.evidence[0].text == "the same on n2 and n6"


def test_the_source_of_several_in_a_row_is_said_once() -> None:
    seen = tuple(Evidence(f"n0 and n{place}: 20 Mbit/s", "bulk transfer") for place in (1, 2))
    slow = Finding("n0 is slow", evidence=(*seen, Evidence("tbf on eth0", "rtnetlink")))
    text = verdict(make_fleet(3), examined(3, {0: [slow]}))
    assert text.count("(bulk transfer)") == 1
    assert text.index("n0 and n2: 20 Mbit/s  (bulk transfer)") < text.index("tbf on eth0  (rtnetlink)")


def test_fixes_that_differ_name_their_nodes() -> None:
    def mended_by(command: str) -> Finding:
        return msgspec.structs.replace(LOOPBACK, fixes=(Fix("Install the same", (command,)),))

    found = {0: [mended_by("pip a")], 1: [mended_by("pip a")], 2: [mended_by("pip b")]}
    [(_, _, finding)] = folded(examined(4, found), ["n0", "n1", "n2", "n3"])
    assert [fix.text for fix in finding.fixes] == ["On n0 and n1: Install the same", "On n2: Install the same"]


def test_of_many_findings_of_one_check_the_first_are_whole_and_the_rest_counted() -> None:
    found = {place: [Finding(f"clock is {place}.5 s ahead")] for place in range(1, 9)}
    names = [f"n{place}" for place in range(9)]
    short = folded(examined(9, found), names)
    assert [finding.summary for _, _, finding in short][
        -1
    ] == "5 more of this kind, on n4, n5 and 3 more; -v shows each"
    assert len(short) == 4
    assert len(folded(examined(9, found), names, verbose=True)) == 8


def test_node_0_is_not_blamed_for_who_is_missing() -> None:
    [(_, _, finding)] = folded(examined(2, {0: [Finding("node 2 (gpu07) never came")]}), ["n0", "n1"])
    assert finding.summary == "node 2 (gpu07) never came"
    [(_, _, finding)] = folded(examined(2, {1: [Finding("torch 2.12.1, on n0 2.13.0")]}), ["n0", "n1"])
    assert finding.summary == "n1: torch 2.12.1, on n0 2.13.0"


@pytest.mark.parametrize("place", [0, 1])
def test_a_rank_that_a_finding_names_is_not_named_before_it(place: int) -> None:
    names = ["n1 (rank 0)", "n1 (rank 1)"]
    [(_, _, finding)] = folded(examined(2, {place: [Finding("rank 1 was killed")]}), names)
    assert finding.summary == "rank 1 was killed"
    [(_, _, finding)] = folded(examined(2, {1: [Finding("rank 10 was killed")]}), names)
    assert finding.summary == "n1 (rank 1): rank 10 was killed"
    [(_, _, finding)] = folded(examined(2, {place: [Finding("the disk is full")]}), names)
    assert finding.summary == f"n1 (rank {place}): the disk is full"


def test_a_name_that_is_the_beginning_of_another_is_not_taken_for_it() -> None:
    [(_, _, finding)] = folded(examined(12, {1: [Finding("n11 is far away")]}), [f"n{place}" for place in range(12)])
    assert finding.summary == "n1: n11 is far away"


def test_what_could_not_be_tested_names_its_nodes() -> None:
    text = verdict(make_fleet(3), examined(3, not_tested={2: Skipped(SkipReason.UNKNOWN, "not readable")}))
    assert "  not readable (on n2): other" in text.splitlines()
    everywhere = examined(3, not_tested=dict.fromkeys(range(3), Skipped(SkipReason.UNKNOWN, "not readable")))
    assert "  not readable: other" in verdict(make_fleet(3), everywhere).splitlines()


def test_strangers_at_the_port_are_reported_the_first_few() -> None:
    strangers = tuple(f"10.9.0.{number}: an HTTP request" for number in range(20))
    text = verdict(msgspec.structs.replace(make_fleet(2), strangers=strangers), examined(2), 200)
    assert (
        "refused   10.9.0.0: an HTTP request, 10.9.0.1: an HTTP request, 10.9.0.2: an HTTP request and 17 more" in text
    )


def test_quiet_is_a_line_a_finding_and_the_verdict() -> None:
    examinations = examined(3, {1: [WALL], 2: [LOOPBACK]})
    lines = verdict(make_fleet(3), examinations, 200, quiet=True).splitlines()
    assert lines[0] == f"FAIL  broken: {WALL.summary}"
    assert lines[1] == f"FAIL  broken: n2: {LOOPBACK.summary}"
    assert lines[2].startswith("FAIL  2 problems")


def test_of_many_nodes_only_the_odd_get_a_row() -> None:
    nodes = [node(rank) for rank in range(64)]
    nodes[7] = node(7, torch="2.12.1")
    nodes[9] = node(9, mtu=9000, nccl=Unknown("no answer"))
    nodes[11] = node(11, lost="lost during reach")
    rows, rest = node_rows(make_fleet(64, nodes=nodes, absent=[MissingNode(rank=64, host="gpu99")]))
    assert [row[0] for row in rows] == ["7", "9", "11", "64"]
    assert rows[1][3:6] == ("eth0 (9000)", "2.13.0", "?")
    assert [row[-1] for row in rows] == ["", "", "lost during reach", "did not come"]
    assert rest == "61 nodes alike: eth0 (1500), torch 2.13.0, NCCL none"


def test_a_direction_is_open_where_each_of_its_ports_is() -> None:
    fleet = make_fleet(3, cells={(0, 1): Cell.SILENT})
    other = make_fleet(3, cells={(2, 1): Cell.REFUSED, (0, 1): Cell.SILENT}).reach[0]
    own = msgspec.structs.replace(other, kind="nccl", rows=("-.-", ".--", "---"))
    text = phase_text(
        Phase(name="reach", passed=Passed.FAIL), msgspec.structs.replace(fleet, reach=(*fleet.reach, other, own))
    )
    assert text == "4 of 6 directions open, 2 ports each; 2 of 2 at NCCL's own addresses"


def test_phases_tell_their_figures_or_their_reason() -> None:
    fleet = make_fleet(3, links=[Link(a=0, b=1, round_trip=0.0345, error="cut off")])
    assert phase_text(Phase(name="links", passed=Passed.FAIL), fleet) == ""
    assert phase_text(Phase(name="links", passed=Passed.FAIL, reason="cut off"), fleet) == "cut off"
    assert phase_text(Phase(name="reach", passed=Passed.NOT_TESTED, reason=""), fleet) == ""


def test_another_node_sees_its_own_part_and_the_verdict_on_all() -> None:
    examinations = examined(3, {1: [WALL]})
    lines = part_lines(make_fleet(3), examinations)
    sick, fine = part(lines, examinations[1]), part(lines, examinations[2])
    assert sick.splitlines()[0].startswith("FAIL  n1 drops inbound")
    assert "Let the job's nodes in" in sick
    assert fine.splitlines()[0] == "FAIL  Found elsewhere, see below; nothing was found wrong with n2 itself"
    for text in (sick, fine):
        assert "NOT TESTED  gloo" in text
        assert text.splitlines()[-1] == "FAIL  is the verdict on all nodes; node 0 prints the whole."
    assert "FAIL  n1 drops inbound" in fine
    # With its fix above, it isn't said again.
    assert sick.count("n1 drops inbound") == 1


def test_a_part_hangs_its_lines_beside_their_words() -> None:
    lines = part_lines(make_fleet(3), examined(3, {1: [WALL]}))
    text = part(lines, examined(3)[2], 60).splitlines()
    at = next(number for number, line in enumerate(text) if line.startswith("  FAIL  n1 drops"))
    assert text[at + 1].startswith("        ")
    assert text[at + 1].strip()


def test_a_phase_with_a_warning_has_not_just_passed() -> None:
    examinations = examined(2)
    results = (Result(find_check("slow-link"), (Finding("n0 and n1: 20 Mbit/s", severity=WARN),)),)
    examinations[0] = msgspec.structs.replace(examinations[0], results=results)
    text = verdict(make_fleet(2), examinations)
    assert "  WARN        links " in text
    assert "  PASS        reach " in text
    assert part_lines(make_fleet(2), examinations)[3].startswith("WARN        links ")


def test_of_many_nodes_it_is_said_how_many_pairs_were_measured() -> None:
    fleet = make_fleet(8, links=[Link(a=0, b=1, round_trip=0.0001, forth=940.0, back=940.0)])
    assert phase_text(Phase(name="links", passed=Passed.PASS), fleet).startswith("1 of 28 pairs, at worst")


def test_a_part_keeps_to_a_bounded_number_of_lines() -> None:
    found = {place: [Finding(f"{place} things, all different {'x' * place}", severity=WARN)] for place in range(100)}
    assert len(part_lines(make_fleet(100), examined(100, found))) < 30
    infos = {place: [Finding(f"{place}", severity=INFO)] for place in range(100)}
    assert len(part_lines(make_fleet(100), examined(100, infos))) == len(PHASES)


def test_one_side_tells_each_address_apart_and_who_listens() -> None:
    meeting = Meeting(
        master="n0",
        port=29500,
        attempts=(
            Attempt(address="10.9.0.1", met=ConnectOutcome.CONNECTED),
            Attempt(address="fd00::1", met=ConnectOutcome.SILENT, words="timed out", tries=5),
        ),
        answered_by="an SSH server",
        banner="SSH-2.0-OpenSSH_9.2",
    )
    text = alone(meeting, examined(1)[0])
    assert 'n0, port 29500 answers: an SSH server: "SSH-2.0-OpenSSH_9.2"' in " ".join(text.split())
    assert "10.9.0.1  connected" in text
    assert "tried 5 times" in " ".join(text.split())
    assert text.splitlines()[-1] == "Only this side was looked at: no other node was asked."
    assert alone(meeting, examined(1)[0], quiet=True).splitlines()[-1] == text.splitlines()[-1]


@pytest.mark.parametrize("met", list(ConnectOutcome))
def test_every_outcome_of_a_connection_has_words(met: ConnectOutcome) -> None:
    text = alone(Meeting(master="n0", port=29500, attempts=(Attempt(address="10.9.0.1", met=met),)), examined(1)[0])
    assert "tried     10.9.0.1  " in text


def test_one_side_says_what_is_wrong_once_and_first() -> None:
    meeting = Meeting(master="n0", port=29500, attempts=(Attempt(address="10.9.0.1", met=ConnectOutcome.REFUSED),))
    text = alone(meeting, examined(1, {0: [WALL]})[0])
    assert text.splitlines()[0].startswith("FAIL  n1 drops inbound")
    assert text.count("n1 drops inbound") == 1
    assert text.index("nft insert rule") < text.index("tried     10.9.0.1") < text.index("1 problem")


def test_settings_that_contradict_each_other_are_told_once() -> None:
    conflict = Conflict("--nnodes", "3", "SLURM_STEP_NUM_NODES", "2")
    meeting = msgspec.structs.replace(MEETING, conflicts=(conflict,))
    (examination,) = judge([Snapshot(host="n0", meeting=meeting)], catalogue())
    text = " ".join(alone(meeting, examination).split())
    assert text.count("--nnodes says 3, SLURM_STEP_NUM_NODES says 2; 3 counts") == 1


def test_why_a_node_was_turned_away_is_said_once() -> None:
    words = "node 0 says: node rank 1 is taken by n2"
    away = Finding("node 0 doesn't let this node in", evidence=(Evidence(words, "the hub's answer"),))
    text = alone(Meeting(master="n0", port=29500), examined(1, {0: [away]})[0], (words, "something else"))
    assert text.count(words) == 1
    assert "ended     something else" in text


def test_a_node_that_met_nobody_is_not_called_fine() -> None:
    text = alone(Meeting(master="n0", port=29500, nnodes=3), examined(1)[0])
    assert text.splitlines()[0] == "UNKNOWN  3 nodes were to meet, and this one met none of them"


def test_why_there_is_no_verdict_is_said_first_and_not_as_fine() -> None:
    text = alone(Meeting(master="n0", port=29500), examined(1)[0], ("node 0 stopped: Ctrl-C",))
    assert text.splitlines()[0] == "UNKNOWN  node 0 stopped: Ctrl-C"
    assert text.splitlines()[-2] == "UNKNOWN  node 0 stopped: Ctrl-C."
    assert "nothing wrong" not in text.lower()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_cannot_steer_the_terminal(width: int) -> None:
    nodes = [node(0), node(1, host=HOSTILE, interface=HOSTILE, torch=HOSTILE, lost=HOSTILE)]
    phases = [Phase(name="join", passed=Passed.FAIL, reason=HOSTILE)]
    fleet = make_fleet(2, nodes=nodes, phases=phases, absent=[MissingNode(rank=2, host=HOSTILE)])
    fleet = msgspec.structs.replace(fleet, strangers=(HOSTILE,))
    finding = Finding(HOSTILE, HOSTILE, (Evidence(HOSTILE, HOSTILE),), (Fix(HOSTILE, (HOSTILE,)),))
    examinations = examined(2, {1: [finding]}, {1: Skipped(SkipReason.UNKNOWN, HOSTILE)}, hosts=["n0", HOSTILE])
    meeting = Meeting(
        master=HOSTILE,
        port=1,
        launcher=HOSTILE,
        attempts=(Attempt(address=HOSTILE, met=ConnectOutcome.FAILED, words=HOSTILE),),
        answered_by=HOSTILE,
        banner=HOSTILE,
        listen_error=HOSTILE,
        turned_away=HOSTILE,
    )
    for text in (
        verdict(fleet, examinations, width, verbose=True),
        verdict(fleet, examinations, width, quiet=True),
        part((HOSTILE, *part_lines(fleet, examinations)), examinations[1], width),
        alone(meeting, examinations[1], (HOSTILE,)),
    ):
        assert not any(character in text for character in "\x1b\x07\u202e")
        assert "[bold]" in text
    to_json(build_report("netcheck", examinations, fleet=fleet)).encode("ascii")


def test_json_follows_the_schema_and_names_the_nodes() -> None:
    fleet = make_fleet(3, nodes=[node(0), node(1, nccl=Unknown("no")), node(2)], absent=[MissingNode(rank=3)])
    report = build_report("netcheck", examined(3, {1: [WALL]}), fleet=fleet, seconds=0.5, with_facts=True)
    text = to_json(report)
    given = json.loads(text)
    check_against_schema(given)
    assert given["verdict"] == "fail"
    assert given["seconds"] == 0.5
    assert [finding["node"] for finding in given["findings"]] == ["n1"]
    assert given["phases"][-1] == {"name": "gloo", "passed": "not tested", "seconds": 0.0, "reason": "--quick"}
    assert given["matrix"]["links"][0]["forth"] == 9400.0
    assert given["matrix"]["reach"][0]["rows"] == ["-..", ".-.", "..-"]
    assert given["nodes"][0]["nccl"] is None
    assert "nccl" not in given["nodes"][1]
    assert given["absent"][0]["rank"] == 3
    assert msgspec.json.decode(text, type=Report).nodes == report.nodes


def test_json_of_another_node_has_the_verdict_on_all() -> None:
    report = build_report("netcheck", examined(1), of_all=Verdict.FAIL)
    assert report.verdict is Verdict.FAIL
    assert not {"nodes", "phases", "matrix", "seconds"} & set(json.loads(to_json(report)))
