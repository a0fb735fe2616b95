"""What a log's lines come to: signs with their words and neighbours, errors, harmless messages, times."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import pytest

from ddpdoctor.base.log_signs import HEALTHY_RUNS, LogSign, SignRole
from ddpdoctor.checks.catalogue import catalogue, packaged_signs
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.match.vocabulary import Vocabulary, Wanted
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs

HARMLESS = packaged_signs()[HEALTHY_RUNS]
SIGNS = [
    ("outer", LogSign("the pump has failed")),
    ("inner", LogSign("pump has")),
    ("other", LogSign("the pump has failed", role=SignRole.HINTS)),
    ("worded", LogSign("valve ", pattern=r"valve (?P<valve>\d+) stuck(?: at (?P<at>\w+))?$")),
    ("near", LogSign("it is cold", near="the heater is off")),
]
WORDS = Vocabulary(SIGNS, HARMLESS, [("ERROR", Wanted.ERROR), ("Error:", Wanted.ERROR), ("error:", Wanted.ERROR)])


def read(*lines: str) -> Log:
    return read_logs(["-"], stdin=io.BytesIO("\n".join(lines).encode() + b"\n"), vocabulary=WORDS)


def of(log: Log, slug: str) -> list[SignMatch]:
    return [sighting for sighting in log.sightings if sighting.slug == slug]


def test_texts_within_each_other_and_of_several_illnesses_are_all_found() -> None:
    log = read("step 1", "the pump has failed", "the pump has stopped")
    assert {(sighting.slug, sighting.line.number, sighting.times) for sighting in log.sightings} == {
        ("outer", 2, 1),
        ("other", 2, 1),
        ("inner", 2, 2),
    }


def test_a_pattern_must_fit_and_gives_its_words() -> None:
    (seen,) = of(read("valve 3 stuck", "[rank1]: valve 4 stuck at noon", "valve x is fine"), "worded")[:1]
    assert seen.words == {"valve": "3"}
    assert [one.words for one in of(read("[rank1]: valve 4 stuck at noon", "valve x"), "worded")] == [
        {"valve": "4", "at": "noon"}
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_a_second_text_counts_before_and_behind(order: int) -> None:
    lines = ["[rank1]: it is cold", *["[rank1]: step"] * 50, "[rank1]: the heater is off"][::order]
    (seen,) = of(read(*lines), "near")
    assert seen.line.text == "it is cold"


def test_a_second_text_far_away_or_missing_does_not_count() -> None:
    assert not of(read("it is cold", *["step"] * 500, "the heater is off"), "near")
    assert not of(read("it is cold"), "near")
    assert not of(read("[rank1]: it is cold", "[rank2]: the heater is off"), "near")


def test_each_rank_is_told_once_and_counted() -> None:
    lines = [f"[rank{rank}]: the pump has failed" for _ in range(30) for rank in range(300)]
    found = of(read(*lines), "outer")
    assert [one.line.rank for one in found] == list(range(300))
    assert {one.times for one in found} == {30}


def test_a_rank_that_says_it_late_is_found_however_often_another_said_it() -> None:
    lines = ["[rank0]: the pump has failed"] * 20_000
    lines[18_000] = "[rank7]: the pump has failed"
    assert [(one.line.rank, one.times) for one in of(read(*lines), "outer")] == [(0, 19_999), (7, 1)]


def test_neighbours_are_of_the_same_stream() -> None:
    before = [f"[rank{rank}]: step {step}" for step in range(3) for rank in range(4)]
    after = [f"[rank{rank}]: bye {step}" for step in range(3) for rank in range(4)]
    (seen,) = of(read(*before, "[rank2]: the pump has failed", *after), "outer")
    assert [one.text for one in seen.before] == ["step 0", "step 1", "step 2"]
    assert [one.text for one in seen.after] == ["bye 0", "bye 1"]


def test_a_progress_bar_hides_nothing() -> None:
    log = read("[rank3]: 10%|#  |\r20%|## |\rthe pump has failed\r30%|###|")
    (seen,) = of(log, "outer")
    assert (seen.line.text, seen.line.rank, seen.line.number) == ("the pump has failed", 3, 1)


def test_colours_hide_nothing() -> None:
    (seen,) = of(read("\x1b[1;31mthe pump\x1b[0m has failed"), "outer")
    assert seen.line.text == "the pump has failed"


def test_lines_without_a_time_have_that_of_their_stream() -> None:
    log = read(
        "2026-11-22T02:13:00Z [rank1]: x",
        "2026-11-22T02:13:30Z [rank2]: x",
        "[rank1]: the pump has failed",
        "nobody's: the pump has failed",
    )
    expected = datetime(2026, 11, 22, 2, 13, tzinfo=timezone.utc).timestamp()
    assert [one.line.time for one in of(log, "outer")] == [expected, None]


def test_a_clock_without_a_year_gets_that_of_the_log() -> None:
    log = read("W0301 10:00:00.5 1 torch/x.py:1] the pump has failed", "2027-03-01 10:00:01 x")
    (seen,) = of(log, "outer")
    assert seen.line.time == datetime(2027, 3, 1, 10, 0, 0, 500_000, timezone.utc).timestamp()


def test_a_mention_is_told_apart_from_what_is_really_said() -> None:
    found = of(read("# the pump has failed means that it is dry", "the pump has failed"), "outer")
    assert [(one.quoted, one.line.number) for one in found] == [(True, 1), (False, 2)]


@pytest.mark.parametrize(
    "line",
    [
        "ERROR something",
        "[ERROR] something",
        "ValueError: bad",
        "train.py: error: unrecognized arguments: --lr",
        "c++: error: x.cpp: No such file",
        "Error: 17 files are missing",
        "RuntimeError:",
        "torch.distributed.DistBackendError:",
    ],
)
def test_a_line_that_speaks_of_an_error_is_kept(line: str) -> None:
    assert [error.text for error in read("step 1", line).errors] == [line]


@pytest.mark.parametrize(
    "line",
    [
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "epoch 1 val_error: 0.31",
        "epoch 1 | train error: 0.29 | lr 0.1",
        "error: 0.31",
        '{"event": "eval", "error": null}',
        "# ERROR is what it says",
        "fatal: not a git repository (or any of the parent directories): .git",
        "the pump has failed: ERROR",
        "Error:",
        "caught a ValueError:",
        "MeanError:0.31",
        "ERROR 11-22 10:00:00 worker.py:45]     return forward(batch)",
        "2026-11-22 10:00:00 | ERROR | stderr | │          │",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert read("step 1", line).errors == ()


def test_an_exception_s_name_alone_is_kept_with_the_first_line_of_its_message() -> None:
    (error,) = read("step 1", "RuntimeError:", "", "        The pump was started", "        before its heater.").errors
    assert error.text == "RuntimeError: The pump was started"


def test_of_a_box_that_a_logger_has_tagged_the_frame_is_told() -> None:
    log = read(*(f"ERROR | stderr | │ {one} │" for one in ("", "/home/ada/train.py:7 in load", "  6 def load():")))
    assert [error.text for error in log.errors] == ["ERROR | stderr | │ /home/ada/train.py:7 in load │"]


def test_errors_are_kept_of_every_rank_and_not_without_end() -> None:
    log = read(*[f"[rank{rank}]: ERROR {number}" for number in range(1000) for rank in range(8)])
    assert {error.rank for error in log.errors} == set(range(8))
    assert len(log.errors) < 200
    assert log.more > 0


@pytest.mark.parametrize("harmless", HARMLESS, ids=lambda one: one.text[:30])
def test_harmless_messages_are_recognised_counted_and_no_error(harmless: object) -> None:
    text = harmless.text  # type: ignore[attr-defined]
    log = read(f"[rank0]: {text}", f"[rank1]: {text} ERROR")
    assert [(one.text, one.times) for one in log.noise if one.text == text] == [(text, 2)]
    assert log.errors == ()


def test_the_runs_size_and_launcher_are_learnt() -> None:
    log = read_logs(
        ["-"],
        stdin=io.BytesIO(
            b"node1:4711:4800 [3] NCCL INFO ncclCommInitRank comm 0x1 rank 11 nranks 16 cudaDev 3 busId 1000 - Init START\n"
            b"node1:4711:4801 [3] NCCL WARN something is wrong\n"
            b"W1122 02:13:07.5 1 torch/distributed/run.py:874] x\n"
        ),
        vocabulary=vocabulary(catalogue()),
    )
    assert (log.world_size, log.ranks, log.hosts, log.launcher) == (16, (11,), ("node1",), "torchrun")
    assert [error.rank for error in log.errors] == [11], "its process has told its rank before"
