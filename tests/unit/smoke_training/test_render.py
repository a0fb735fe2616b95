"""How a smoke training's report reads: healthy, failed, hung, of many ranks, narrow, and as JSON."""

from __future__ import annotations

import io
import json
import unicodedata

import msgspec
import pytest

from ddpdoctor.base.findings import INFO, WARN, Evidence, Finding, Fix
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.facts.smoke import RankEnding, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.contract import Report, build_report, to_json
from ddpdoctor.report.terminal import Screen
from ddpdoctor.smoke_training.analysis.verdict import (
    add_host_findings,
    host_findings,
    judge_plan,
    judge_training,
    needs_host_check,
    own_findings,
    verdict_of,
)
from ddpdoctor.smoke_training.plan import SmokePlan
from ddpdoctor.smoke_training.render import smoke_document
from ddpdoctor.smoke_training.render_marks import Mark, columns, ranks_text
from ddpdoctor.smoke_training.render_words import headline
from tests.support.fixture_hosts import healthy_facts, host_case, to_snapshot
from tests.support.report_schema import check_against_schema
from tests.support.smokes import STAGES, examined_smoke, rank_run, result, smoke_of_ranks

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202egnp[bold]x[/bold] :smile:\nFAIL \ud800"
GONE = "RuntimeError: [pair.cc:537] Connection closed by peer [127.0.0.1]:4711"
KILLED = Finding(
    "rank 1 on node07 was killed by SIGKILL in all_reduce",
    "Nothing but another process sends it.",
    evidence=(Evidence("it was about to do: all_reduce of 4 MiB", "the ranks' own words"),),
    fixes=(Fix("Look for the kernel's OOM killer", ("dmesg -T | grep -i oom",)),),
    rank=1,
)
NO_SHM = Finding("/dev/shm is 64 MiB", fixes=(Fix("Enlarge it", ("mount -o remount,size=16g /dev/shm",)),))


def report(one: Examination, width: int = 80, encoding: str = "utf-8", **options: bool) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="\n")
    Screen(file, width).show(smoke_document(one, **options))
    file.flush()
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined,no-any-return]


def killed(size: int = 4) -> Smoke:
    """Rank 1 is killed in all_reduce; the first of the others have noticed."""
    fates = {rank: rank_run(rank, RankEnding.ENDED, "all_reduce") for rank in range(size)}
    fates[1] = rank_run(1, RankEnding.KILLED, "all_reduce", exit_code=-9)
    if size > 2:
        fates[0] = rank_run(0, RankEnding.RAISED, "all_reduce", words=GONE)
    return smoke_of_ranks(size, fates)


def test_a_healthy_run_says_what_was_trained_and_what_was_not_tested() -> None:
    text = report(examined_smoke(smoke_of_ranks(4)))
    lines = text.splitlines()
    assert lines[0] == "OK    4 ranks trained over gloo on CPU in 4.3 s; 6 stages passed, 1 could not be"
    assert "plan     4 ranks on CPU over gloo (no GPU)" in lines
    assert "        rank  0 1 2 3  slowest" in lines
    assert "  all_reduce  ✓ ✓ ✓ ✓   0.53 s" in lines
    assert "  apex: Apex is not installed" in lines
    assert not [line for line in lines if line.startswith("  apex ")]
    assert lines[-1] == "here." or lines[-1].endswith("1 could not be tested here.")


def test_training_that_was_left_out_is_not_claimed() -> None:
    names = ("import", "device", "barrier", "shutdown")
    facts = smoke_of_ranks(2, {rank: rank_run(rank, names=names) for rank in range(2)}, stages=names)
    assert headline(examined_smoke(facts)) == "2 ranks met over gloo on CPU in 4.3 s; 4 stages passed"


def test_a_killed_rank_is_marked_and_the_others_are_not() -> None:
    one = examined_smoke(killed(), result("smoke-rank-killed", KILLED))
    text = report(one)
    lines = text.splitlines()
    assert lines[0].startswith("FAIL  rank 1 on node07 was killed by SIGKILL in all_reduce")
    assert (
        "  all_reduce  … ✗ … …   0.53 s  rank 1 was killed by SIGKILL; rank 0 lost another rank; ranks 2 and 3 waited"
        in report(one, width=120).splitlines()
    )
    assert any(line.startswith("  all_reduce  … ✗ … …   0.53 s  rank 1 was killed by") for line in lines)
    assert "  not run  training, apex and shutdown" in lines
    assert any("✓ passed" in line and "✗ failed" in line for line in lines)
    assert "dmesg -T | grep -i oom" in map(str.strip, lines)
    assert lines[-1] == "More on the first: ddpdoctor explain smoke-rank-killed"
    assert "3 stages passed, 1 failed, 3 were not run." in " ".join(text.split())


@pytest.mark.parametrize("ending", list(RankEnding))
def test_every_ending_has_words_even_where_no_check_knows_it(ending: RankEnding) -> None:
    code = {RankEnding.KILLED: -11, RankEnding.EXITED: 7}.get(ending)
    bad = rank_run(1, ending, "training", words="ValueError: that's it", exit_code=code, step="step 3 of 10")
    one = examined_smoke(smoke_of_ranks(3, {1: bad}))
    text = " ".join(report(one, verbose=True).split())
    if ending is RankEnding.FINISHED:
        assert verdict_of(one) is Verdict.OK
        return
    assert verdict_of(one) is Verdict.FAIL
    assert text.startswith("FAIL")
    expected = {
        RankEnding.RAISED: "raised",
        RankEnding.WRONG: "had a wrong result",
        RankEnding.EXITED: "exited with code 7",
        RankEnding.KILLED: "was killed by SIGSEGV",
        RankEnding.HUNG: "hung in training",
        RankEnding.ENDED: "was ended in it",
        RankEnding.NEVER_CAME: "was never heard of",
    }
    assert expected[ending] in text
    if ending is not RankEnding.NEVER_CAME:
        assert "ValueError: that's it" in text


def test_who_was_ended_before_its_first_stage_waited_for_nobody() -> None:
    bad = rank_run(1, RankEnding.RAISED, "import", words="ImportError: no such thing")
    late = msgspec.structs.replace(rank_run(2, RankEnding.NEVER_CAME), ending=RankEnding.ENDED, pid=0)
    text = " ".join(report(examined_smoke(smoke_of_ranks(3, {1: bad, 2: late})), verbose=True).split())
    assert "was ended before its first stage" in text
    assert "2 was in import" not in text
    assert "2 waited" not in text


def test_what_no_check_explains_is_told_in_the_ranks_own_words() -> None:
    bad = rank_run(
        2,
        RankEnding.RAISED,
        "training",
        words="ZeroDivisionError: division by zero",
        step="training step 3 of 10",
        last_line="nan!",
        stack=("train (mine.py:3)",),
    )
    text = report(examined_smoke(smoke_of_ranks(4, {2: bad})))
    for words in ("raised in training: ZeroDivisionError", "training step 3 of 10", "nan!", "in train (mine.py:3)"):
        assert words in text
    assert text.startswith("FAIL  training: rank 2 raised")


@pytest.mark.parametrize("size", [1, 2, 8, 64, 500])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("sick", [False, True])
def test_any_number_of_ranks_fits_any_width(size: int, width: int, sick: bool) -> None:
    sick = sick and size > 1
    one = examined_smoke(killed(size) if sick else smoke_of_ranks(size), *([result("x", KILLED)] if sick else []))
    for options in ({}, {"verbose": True}):
        for line in report(one, width, **options).splitlines():
            assert len(line) <= width or "dmesg" in line, line
    assert ("✗" in report(one, width)) is sick


def test_many_ranks_are_told_by_what_became_of_them() -> None:
    fates = {rank: rank_run(rank, RankEnding.ENDED, "training") for rank in range(64)}
    fates[7] = rank_run(7, RankEnding.HUNG, "all_reduce")
    finding = Finding("rank 7 hangs", rank=7)
    lines = report(examined_smoke(smoke_of_ranks(64, fates), result("x", finding))).splitlines()
    assert "        rank  0-6,8-63 7  slowest" in lines
    assert "  all_reduce  ✓        ✗   1.13 s  rank 7 hung" in lines
    assert any(line.startswith("  training    …        ·   1.13 s  ranks 0-6 and 8-63 waited") for line in lines)


def test_columns_never_take_more_room_than_there_is() -> None:
    states = [Mark.PASSED, Mark.FAILED, Mark.WAITED, Mark.NOT_RUN]
    fates = {rank: tuple(states[(rank >> shift) % 4] for shift in (0, 2, 4)) for rank in range(64)}
    assert len({*fates.values()}) > 6
    for room in (8, 20, 40, 76):
        found = columns(fates, room)
        assert len(found) == 1 or sum(len(one.label) + 1 for one in found) - 1 <= room
        assert any(Mark.FAILED in one.marks for one in found)
    assert columns(fates, 8) == columns(fates, 1)
    assert columns(fates, 1)[0].label == "64 ranks"


def test_ranks_are_written_as_ranges() -> None:
    assert columns(dict.fromkeys((3, 0, 1, 2, 5, *range(7, 12)), (Mark.PASSED,)))[0].label == "0-3,5,7-11"
    assert ranks_text([4]) == "rank 4"
    assert ranks_text([1, 0]) == "ranks 0 and 1"
    assert ranks_text(range(0, 64, 2)) == "32 ranks"


def test_a_terminal_without_unicode_or_colour_gets_plain_marks() -> None:
    text = report(examined_smoke(killed(), result("x", KILLED)), encoding="ascii")
    assert text.isascii()
    assert "?" not in text
    assert "  all_reduce  ~ x ~ ~   0.53 s" in text
    assert "x failed" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 80])
def test_no_words_of_a_rank_steer_the_terminal(width: int) -> None:
    bad = rank_run(
        0,
        RankEnding.RAISED,
        "training",
        words=HOSTILE,
        host=HOSTILE,
        device=HOSTILE,
        step=HOSTILE,
        last_line=HOSTILE,
        stack=(HOSTILE,),
        process_state=HOSTILE,
    )
    good = rank_run(1, words=HOSTILE)
    facts = smoke_of_ranks(
        2, {0: bad, 1: good}, problem=HOSTILE, chosen=HOSTILE, engine=HOSTILE, torch=HOSTILE, python=HOSTILE
    )
    for options in ({}, {"verbose": True}, {"quiet": True}):
        text = report(examined_smoke(facts), width, **options)
        odd = {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs")} - {"\n"}
        assert not odd
        assert not [line for line in text.splitlines() if line.startswith(("FAIL \\", "FAIL ?"))]


def test_secrets_in_a_rank_s_words_are_taken_out_and_what_is_no_text_made_legible() -> None:
    bad = rank_run(
        0,
        RankEnding.RAISED,
        "training",
        words=f"no such host: https://ada:hunter2@example.org {HOSTILE}",
        last_line="HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123",
        stack=("login(password='hunter2') (mine.py:1)",),
    )
    facts = redact_facts(smoke_of_ranks(1, {0: bad}, problem="--token hunter2 isn't valid"))
    text = to_json(build_report("smoke", [examined_smoke(facts)], with_facts=True, smoke=facts))
    assert msgspec.json.decode(text)["smoke"]["ranks"][0]["ending"] == "raised"
    shown = report(examined_smoke(facts), verbose=True)
    for one in (text, shown):
        assert "hunter2" not in one
        assert "hf_abc" not in one
    assert "https://[redacted]@example.org" in shown


def test_what_check_finds_on_the_host_follows_and_mere_information_does_not() -> None:
    host = (
        result("shm-too-small", NO_SHM, family="host"),
        result("chatty", Finding("it is warm"), family="host", severity=WARN),
        result("good-to-know", Finding("good to know"), family="host", severity=INFO),
    )
    one = examined_smoke(killed(), result("smoke-rank-killed", KILLED), *host)
    text = report(one)
    assert text.index("What `ddpdoctor check` finds on this host") < text.index("FAIL  /dev/shm is 64 MiB")
    assert text.index("rank 1 on node07", 100) < text.index("What `ddpdoctor check`")
    assert "it is warm" in text
    assert "good to know" not in text
    nothing = report(examined_smoke(killed(), result("x", KILLED), result("fine", family="host")))
    assert "Nothing that would explain it: 1 check passed." in nothing


def test_what_the_ranks_words_are_a_sign_of_comes_first_of_the_host_s_findings() -> None:
    host = host_case("shm-too-small/sick-docker-default").snapshot()
    words = "RuntimeError: unable to open shared memory object </torch_1> in read-write mode"
    facts = smoke_of_ranks(2, {1: rank_run(1, RankEnding.RAISED, "training", words=words)})
    one = add_host_findings(judge_training(Snapshot(host="node07"), facts, catalogue()), host, catalogue())
    assert host_findings(one)[0][0].slug == "shm-too-small"
    assert [found[0].slug for found in own_findings(one)] == ["smoke-rank-failed"]
    assert verdict_of(one) is Verdict.FAIL
    everything = {check.slug for check in all_checks()}
    assert {of.check.slug for of in one.results} >= {slug for slug in everything if not slug.startswith("smoke-")}


def test_more_ranks_than_gpus_are_known_beforehand() -> None:
    host = to_snapshot(healthy_facts("h100x8-bare-metal"))
    assert judge_plan(host, SmokePlan(nproc=8, backend="nccl", chosen="8 ranks"), catalogue()) is None
    assert judge_plan(host, SmokePlan(nproc=16, backend="gloo", chosen="16 ranks"), catalogue()) is None
    hindered = judge_plan(
        host, SmokePlan(nproc=16, backend="nccl", chosen="16 ranks on GPU over nccl (--nproc)"), catalogue()
    )
    assert hindered is not None
    assert verdict_of(hindered) is Verdict.FAIL
    assert not needs_host_check(hindered)
    text = report(hindered)
    assert text.startswith("FAIL  16 ranks are planned on 8 GPUs")
    assert text.splitlines()[-2] == "FAIL  Nothing was started."


def test_the_host_s_failures_do_not_make_the_training_fail() -> None:
    one = examined_smoke(smoke_of_ranks(2), result("x"), result("shm-too-small", NO_SHM, family="host"))
    assert verdict_of(one) is Verdict.OK


def test_quiet_is_a_line_a_finding_and_the_verdict() -> None:
    one = examined_smoke(killed(), result("smoke-rank-killed", KILLED), result("shm-too-small", NO_SHM, family="host"))
    lines = report(one, width=200, quiet=True).splitlines()
    assert lines == [
        "FAIL  smoke-rank-killed: rank 1 on node07 was killed by SIGKILL in all_reduce",
        "FAIL  shm-too-small: /dev/shm is 64 MiB",
        "FAIL  The training did not pass. 3 stages passed, 1 failed, 3 were not run.",
        "More on the first: ddpdoctor explain smoke-rank-killed",
    ]


def test_verbose_names_each_rank() -> None:
    lines = report(examined_smoke(killed(), result("x", KILLED), result("fine")), width=120, verbose=True).splitlines()
    assert "rank 1   node07 pid 1001, cpu, at most 256 MiB: was killed by SIGKILL in all_reduce after 4.2 s" in lines
    assert "  fine" in lines


def test_where_nothing_ran_there_is_no_verdict() -> None:
    never = {rank: rank_run(rank, RankEnding.NEVER_CAME) for rank in range(2)}
    one = examined_smoke(smoke_of_ranks(2, never, problem="the target Python ended with exit code 1"))
    assert verdict_of(one) is Verdict.UNKNOWN
    text = report(one)
    assert text.startswith("UNKNOWN  No verdict, since nothing could be run: the target Python ended")
    assert "✓" not in text
    sick = examined_smoke(one.snapshot.smoke, result("torch-missing", Finding("no torch")))  # type: ignore[arg-type]
    assert verdict_of(sick) is Verdict.FAIL
    assert "FAIL  No rank could be started." in report(sick)


def test_a_warning_of_its_own_is_shown_with_the_training_that_passed() -> None:
    one = examined_smoke(smoke_of_ranks(2), result("smoke-slow", Finding("rank 1 is slow"), severity=WARN))
    assert verdict_of(one) is Verdict.WARN
    assert report(one).startswith("WARN  rank 1 is slow")
    assert "2 ranks trained over gloo on CPU, with a warning." in " ".join(report(one).split())


@pytest.mark.parametrize("facts", [smoke_of_ranks(2), killed(), Smoke()])
def test_the_json_is_as_the_schema_says(facts: Smoke) -> None:
    one = examined_smoke(facts, result("smoke-rank-killed", KILLED))
    text = to_json(build_report("smoke", [one], with_facts=True, of_all=verdict_of(one), smoke=facts))
    check_against_schema(json.loads(text))
    report = msgspec.json.decode(text, type=Report)
    assert report.smoke == facts
    assert report.verdict is verdict_of(one)
    assert report.findings[0].rank == 1
    assert text.isascii()


def test_real_checks_judge_a_healthy_run_fine() -> None:
    one = judge_training(Snapshot(host="node07"), smoke_of_ranks(2), catalogue())
    assert verdict_of(one) is Verdict.OK
    assert set(STAGES) >= {"training"}


def test_the_head_says_how_long_the_import_may_take_and_where_files_went() -> None:
    folder = "in /dev/shm, since others can't be used (/tmp: No space left on device)"
    text = report(examined_smoke(smoke_of_ranks(2, import_seconds=90.0, folder=folder)), width=120)
    lines = text.splitlines()
    assert "engine   torch.distributed.elastic; 4.3 s in all; a stage may take 30 s, import 90 s" in lines
    assert f"files    {folder}" in lines
    usual = report(examined_smoke(smoke_of_ranks(2, import_seconds=30.0)), width=120)
    assert "engine   torch.distributed.elastic; 4.3 s in all; a stage may take 30 s" in usual.splitlines()
    assert "files " not in usual
    apart = smoke_of_ranks(2, import_seconds=90.0, nnodes=2, stages=("import", "rendezvous", "shutdown"))
    assert "a stage may take 30 s, import and rendezvous 90 s" in report(examined_smoke(apart), width=120)


@pytest.mark.parametrize(
    ("stage", "limit"), [("import", "the stage import may take 90 s"), ("all_reduce", "a stage may take 30 s")]
)
def test_a_hang_says_what_that_stage_may_take(stage: str, limit: str) -> None:
    fates = {0: rank_run(0, RankEnding.HUNG, stage), 1: rank_run(1, RankEnding.HUNG, stage)}
    one = judge_training(Snapshot(host="node07"), smoke_of_ranks(2, fates, import_seconds=90.0), catalogue())
    found = [finding for check, _, finding in own_findings(one) if check.slug == "smoke-hang"]
    assert limit in [evidence.text for finding in found for evidence in finding.evidence]
