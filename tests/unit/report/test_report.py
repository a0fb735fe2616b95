"""The reports: terminal, JSON and Markdown, of the same examinations."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Severity
from ddpdoctor.base.text import one_line, visible
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Examination, Verdict, examine, overall
from ddpdoctor.engine.registry import Check, Result, Skipped, SkipReason
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.contract import Report, build_report, to_json
from ddpdoctor.report.document import Block, Column, Document, LabelledRows, Paragraph, Section, Table
from ddpdoctor.report.examined_hosts import check_document
from ddpdoctor.report.markdown import escape, to_markdown
from ddpdoctor.report.privacy import Anonymiser, hosts_in
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind, ReportedLeftover
from ddpdoctor.report.terminal import text_of
from tests.support.fixture_hosts import healthy_facts, healthy_names, host_cases, to_snapshot
from tests.support.report_schema import SCHEMA_FILE, check_against_schema, json_schema
from tests.support.running import processes, rank


def page() -> None:
    """Something is wrong.

    ## What breaks
    Training.

    ## Why
    Because.

    ## Fix
    Mend it.
    """


def made(*findings: Finding, severity: Severity = FAIL, not_tested: Skipped | None = None) -> Examination:
    check = Check("made-up", severity, page)  # type: ignore[arg-type]
    return Examination(Snapshot(host="node01"), Plan(2, "--nproc"), (Result(check, findings, not_tested),))


def on_terminal(*examinations: Examination, width: int = 80, **options: bool) -> str:
    return text_of(check_document(examinations, **options), width)


def in_markdown(*examinations: Examination) -> str:
    return to_markdown(check_document(examinations), build_report("check", examinations), examinations)


FINDING = Finding(
    "it broke", evidence=(Evidence("seen so", "/proc/x"),), fixes=(Fix("Do this", ("command --with 'quotes'",)),)
)


def test_terminal_has_cause_evidence_and_command() -> None:
    text = on_terminal(made(FINDING))
    for part in (
        "FAIL  it broke  [made-up]",
        "why   Because.",
        "seen  seen so  (/proc/x)",
        "fix   Do this",
        "command --with 'quotes'",
    ):
        assert part in text
    assert "1 problem" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_commands_stay_on_one_line_and_the_rest_fits(width: int) -> None:
    command = "torchrun " + " ".join(f"--option-{number}=value" for number in range(20))
    finding = msgspec.structs.replace(
        FINDING, summary="word " * 40, cause="because " * 60, fixes=(Fix("Do", (command,)),)
    )
    lines = on_terminal(made(finding), width=width).splitlines()
    assert [line.strip() for line in lines].count(command) == 1
    assert all(len(line) <= width for line in lines if command not in line)
    assert not any(line != line.rstrip() for line in lines)


def test_worst_first_and_stable() -> None:
    findings = (
        msgspec.structs.replace(FINDING, summary="a", severity=INFO),
        msgspec.structs.replace(FINDING, summary="b", severity=FAIL),
        msgspec.structs.replace(FINDING, summary="c", severity=WARN),
        msgspec.structs.replace(FINDING, summary="d", severity=FAIL),
    )
    assert [finding.summary for _, _, finding in made(*findings).findings] == ["b", "d", "c", "a"]


@pytest.mark.parametrize(
    ("examination", "verdict", "code", "strict_code"),
    [
        (made(), Verdict.OK, 0, 0),
        (made(FINDING), Verdict.FAIL, 1, 1),
        (made(FINDING, severity=WARN), Verdict.WARN, 0, 1),
        (made(FINDING, severity=INFO), Verdict.OK, 0, 0),
        (made(not_tested=Skipped(SkipReason.UNKNOWN, "no")), Verdict.UNKNOWN, 2, 2),
    ],
)
def test_verdict_and_exit_code(examination: Examination, verdict: Verdict, code: int, strict_code: int) -> None:
    assert examination.verdict is verdict
    assert verdict.exit_code(strict=False) == code
    assert verdict.exit_code(strict=True) == strict_code


def test_several_hosts_have_the_worst_verdict() -> None:
    assert overall([made(), made(FINDING)]) is Verdict.FAIL
    assert overall([made(), made(not_tested=Skipped(SkipReason.UNKNOWN, "no"))]) is Verdict.UNKNOWN
    assert overall([]) is Verdict.UNKNOWN


def test_of_several_hosts_each_is_told_and_the_fine_ones_briefly() -> None:
    text = on_terminal(made(), made(FINDING), made(FINDING, severity=WARN), width=200)
    last = [line for line in text.splitlines() if line][-2]
    assert last == (
        "FAIL  node01: Nothing wrong was found; node01 (2): 1 problem that will stop or spoil training; node01 (3): 1 warning."
    )
    assert text.splitlines()[0].startswith("OK    node01: 1 check passed")


def test_no_verdict_is_never_called_fine() -> None:
    text = on_terminal(made(not_tested=Skipped(SkipReason.UNKNOWN, "no answer")))
    assert "No verdict" in text
    assert "no answer: made-up" in text
    assert "Nothing wrong" not in text


def test_a_crashed_check_is_named() -> None:
    assert "ZeroDivisionError: made-up" in on_terminal(
        made(not_tested=Skipped(SkipReason.CRASHED, "ZeroDivisionError"))
    )


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202egnp\ud800[bold]x[/bold] :smile:"


def test_a_hostile_snapshot_cannot_steer_the_terminal() -> None:
    finding = Finding(HOSTILE, HOSTILE, (Evidence(HOSTILE, HOSTILE),), (Fix(HOSTILE, (HOSTILE,)),))
    hostile = Examination(
        Snapshot(host="h" + HOSTILE, machine=Unknown(HOSTILE)), Plan(1, HOSTILE), made(finding).results
    )
    for text in (on_terminal(hostile), on_terminal(hostile, quiet=True), in_markdown(hostile)):
        assert not any(character in text for character in "\x1b\x07\u202e\ud800")
        assert "[bold]x[/bold]" in text.replace("\\", "")
    to_json(build_report("check", [hostile])).encode("ascii")


def test_plain_keeps_what_is_harmless() -> None:
    assert visible("naïve → 中文\n\tok") == "naïve → 中文\n\tok"
    assert one_line("a\nb\x00") == "a b\\x00"


@pytest.mark.parametrize("name", healthy_names())
def test_json_follows_the_published_schema(name: str) -> None:
    report = build_report("check", [examine(to_snapshot(healthy_facts(name)), None, all_checks())], with_facts=True)
    check_json_of(report)


def test_json_of_every_sick_fixture_follows_the_schema() -> None:
    snapshots = [case.snapshot() for case in host_cases(kind="sick-")]
    examinations = [examine(snapshot, 8, all_checks()) for snapshot in snapshots]
    check_json_of(build_report("check", examinations, ["node9.json: truncated"]))
    # What differs between them stands in the findings; the rest is long, and the same.
    for examination in examinations:
        on_terminal(examination, quiet=True)
        in_markdown(examination)
    for examination in examinations[::8]:
        on_terminal(examination, verbose=True)


def check_json_of(report: Report) -> None:
    text = to_json(report)
    check_against_schema(json.loads(text))
    again = msgspec.json.decode(text, type=Report)
    assert again.verdict == report.verdict
    assert len(again.findings) == len(report.findings)


@pytest.mark.quick
def test_published_schema_is_the_generated_one() -> None:
    published = json.loads(SCHEMA_FILE.read_text())
    assert in_one_order(published) == in_one_order(json_schema()), "run: python -m tests.regenerate"


def in_one_order(schema: object) -> object:
    """The schema with its alternatives sorted: msgspec 0.19 gives those of a union in another order than 0.22."""
    if isinstance(schema, dict):
        return {key: in_one_order(value) for key, value in schema.items()}
    if isinstance(schema, list | tuple):
        return sorted((in_one_order(one) for one in schema), key=repr)
    return schema


def test_json_holds_what_the_contract_names() -> None:
    given = json.loads(to_json(build_report("check", [made(FINDING)])))
    assert given["verdict"] == "fail"
    assert given["host"] == "node01"
    assert given["command"] == "check"
    finding = given["findings"][0]
    assert set(finding) == {"slug", "family", "severity", "owner", "summary", "cause", "evidence", "fixes", "docs"}
    assert finding["cause"] == "Because."
    assert finding["fixes"][0]["commands"] == ["command --with 'quotes'"]
    assert "facts" not in given


def test_several_hosts_name_the_node() -> None:
    report = build_report("check", [made(FINDING), made()])
    assert [finding.node for finding in report.findings] == ["node01"]
    assert report.passed == ()


def test_two_snapshots_of_one_host_are_told_apart() -> None:
    report = build_report("check", [made(FINDING), made(), made(FINDING)], with_facts=True)
    assert report.host == "node01, node01 (2), node01 (3)"
    assert [finding.node for finding in report.findings] == ["node01", "node01 (3)"]
    assert isinstance(report.facts, dict)
    assert list(report.facts) == ["node01", "node01 (2)", "node01 (3)"]
    assert "node01 (3): made-up: it broke" in on_terminal(made(FINDING), made(), made(FINDING), quiet=True)


def test_markdown_names_neither_people_nor_hosts() -> None:
    finding = Finding(
        "node01.cluster.example and node01 of /home/ada/x", "8.8.8.8 and 10.0.0.5, fe80::1, 2001:4860:4860::8888", ()
    )
    snapshot = Snapshot(host="node01.cluster.example")
    text = in_markdown(Examination(snapshot, Plan(1, ""), made(finding).results))
    for gone in ("node01", "ada", "8.8.8.8", "2001:4860"):
        assert gone not in text
    for kept in ("10.0.0.5", "fe80::1"):
        assert kept in text


def test_markdown_names_no_host_of_the_settings() -> None:
    settings = (
        Setting("MASTER_ADDR", "node17.cluster.acme.example"),
        Setting("PET_RDZV_ENDPOINT", "login3.hpc.example:29400"),
        Setting("SLURM_JOB_NODELIST", "gpu[01-16]"),
        Setting("NCCL_COMM_ID", "10.0.0.5:1234"),
    )
    finding = Finding("node17.cluster.acme.example and node17 and login3.hpc.example:29400 and 10.0.0.5")
    snapshot = Snapshot(host="login3", environment=Environment(settings=settings))
    text = in_markdown(Examination(snapshot, Plan(1, ""), made(finding).results))
    for gone in ("node17", "acme", "login3", "gpu["):
        assert gone not in text
    assert "NCCL_COMM_ID=10.0.0.5:1234" in text
    assert "MASTER_ADDR=HOST\n" in text


def test_markdown_names_nobody_whose_processes_run_there() -> None:
    finding = Finding("of ada and adamant root", evidence=(Evidence("ada's", "/proc"),))
    snapshot = Snapshot(host="node01", processes=processes(rank(0, user="ada"), rank(1, user="root")))
    text = in_markdown(Examination(snapshot, Plan(1, ""), made(finding).results))
    assert "of USER and adamant root" in text
    assert "USER's" in text


def test_a_commands_markdown_names_neither_its_people_nor_its_hosts() -> None:
    leftover = ReportedLeftover(
        kind=LeftoverKind.RANK,
        certainty=Certainty.DOUBT,
        what="rank 0",
        why="",
        doubts=(),
        command="",
        owner="grace",
        age=1.0,
        pid=7,
        start=1,
        children=(),
        path="",
        size=0,
        memory=0,
        gpus=(),
        gpu_memory=0,
        ports=(),
        segments=(),
    )
    report = msgspec.structs.replace(build_report("zombies", [made(FINDING)]), host="login3", leftovers=(leftover,))
    section = Section((Paragraph("login3, node01 and 10.0.0.5: grace's"),), "What is left on login3")
    text = to_markdown(Document(verdict=Verdict.FAIL, sections=(section,)), report, [made(FINDING)])
    assert text.startswith("## ddpdoctor zombies ")
    assert "\n### What is left on HOST2\n\nHOST2, HOST1 and 10.0.0.5: USER's\n" in text


def test_markdown_shows_text_as_it_is() -> None:
    finding = Finding("<img src=x> | `a` *b* @team #1", fixes=(Fix("x", ("echo '```'",)),))
    text = in_markdown(made(finding))
    assert "<img" not in text
    assert "\n````\necho '```'\n````" in text


def test_anonymiser_leaves_longer_words_alone() -> None:
    anonymise = Anonymiser(Snapshot(host="gpu"))
    assert anonymise("gpu has 8 gpus and gpu-0") == "HOST has 8 gpus and gpu-0"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seen from 8.8.8.8.", "seen from PUBLIC-IP."),
        ("version 1.8.8.8.8", "version 1.8.8.8.8"),
        ("2600::1", "PUBLIC-IP"),
        ("2a00:1450:4001::8a: refused", "PUBLIC-IP: refused"),
        ("2a00:1450:4001:81b:0:0:0:200e:2950", "PUBLIC-IP:2950"),
        ("at 12:34:56, c10::add, fe80::1", "at 12:34:56, c10::add, fe80::1"),
        ("on gke-zebra-training-cl...", "on HOST1"),
        ("on zebra07.corp.example and zebra07", "on HOST3 and HOST2"),
        ("and more...", "and more..."),
    ],
)
def test_anonymiser_on_what_is_cut_or_ends_a_sentence(text: str, told: str) -> None:
    hosts = (Snapshot(host=name) for name in ("gke-zebra-training-cluster-a3", "zebra07", "zebra07.corp.example"))
    assert Anonymiser(*hosts)(text) == told


def test_markdown_names_no_host_of_a_list() -> None:
    assert hosts_in({"log": {"hosts": ["node7", "node8"]}, "host": ""}) == {"node7", "node8"}


@pytest.mark.parametrize("begin", ["> q", "+ a", "- a", "---", "===", "1. z", "12) z"])
def test_no_text_begins_a_block_of_markdown(begin: str) -> None:
    assert not re.match(r"[>+=-]|\d+[.)]", escape(begin))


def test_markdown_calls_nobody() -> None:
    assert escape("@team fixes #1, a # b") == "\\@&#8203;team fixes \\#&#8203;1, a \\# b"
    assert escape("10.0.0.5 answers") == "10.0.0.5 answers"


@pytest.mark.parametrize("block", [LabelledRows(()), Table((), ()), Table((Column("a"),), ())])
def test_nothing_to_tell_raises_nothing(block: Block) -> None:
    text_of(Document(verdict=Verdict.OK, sections=(Section((block,)),)), 60)
