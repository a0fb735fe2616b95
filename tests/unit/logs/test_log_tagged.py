"""Output that a logger has tagged line by line, and logs that were pasted with what stood around them."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

OOM = """Traceback (most recent call last):
  File "/home/ada/train.py", line 41, in main
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free.
""".splitlines()
TAGS = [
    "2026-11-22 10:00:0{at},000 INFO worker: ",
    "2026-11-22 10:00:0{at}.000 [INFO] [Driver] ",
    "2026-11-22 10:00:0{at} | ERROR | stderr | ",
    "(RayWorker pid=4711) ERROR 11-22 10:00:0{at} ray_utils.py:45] ",
    "[rank3]: ERROR 11-22 10:00:0{at} [core.py:718] ",
    "INFO:launcher:",
    "INFO     ",
]
STEPS = [f"step {step} loss 0.{step}" for step in range(8)]


def tagged(tag: str, lines: list[str]) -> list[str]:
    return [tag.format(at=at % 10) + line for at, line in enumerate(lines)]


def judged(lines: list[str]) -> LogVerdict:
    return verdict_of(read("\n".join(lines) + "\n"), catalogue())


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("flat", [False, True])
def test_a_traceback_that_a_logger_has_tagged_is_read_as_the_programme_wrote_it(tag: str, flat: bool) -> None:
    lines = [line.lstrip() for line in OOM] if flat else OOM
    later = ["cleaning up", "removing", "done with cleaning"] if "INFO" in tag or "stderr" in tag else []
    verdict = judged(tagged(tag, ["loading", *lines, "ended", "", *later]))
    assert verdict.outcome is RunOutcome.ILLNESS
    assert verdict.suspects[0].slug == "oom-batch-too-large"
    assert verdict.raised
    assert verdict.raised.own
    assert (verdict.raised.own.line, verdict.raised.own.code) == (41, "loss = model(batch)")


def test_a_rank_s_label_behind_a_logger_s_is_heard() -> None:
    lines = [f"[rank{rank}]: {line}" for line in OOM for rank in (0, 3)]
    mixed = [line for line in lines if line.startswith("[rank3]") or "Error" not in line]
    verdict = judged(tagged("2026-11-22 10:00:0{at},000 INFO worker: ", mixed))
    assert (verdict.suspects[0].slug, verdict.lead and verdict.lead.rank) == ("oom-batch-too-large", 3)


@pytest.mark.parametrize(
    "line",
    [
        "INFO worker: CUDA out of memory. Tried to allocate 2.00 GiB: batch halved to 16",
        "INFO worker: retried after RuntimeError: CUDA out of memory.",
        "INFO worker: the previous run had: Traceback (most recent call last):",
        "INFO worker: [rank3]: CUDA out of memory. Tried to allocate 2.00 GiB: batch halved to 16",
    ],
)
def test_what_a_logger_only_informs_of_stays_quiet(line: str) -> None:
    verdict = judged([*STEPS, line, *STEPS])
    assert verdict.outcome is RunOutcome.NOTHING
    assert not verdict.suspects


@pytest.mark.parametrize("tag", TAGS[:2])
def test_after_a_caught_traceback_a_logger_s_information_stays_quiet(tag: str) -> None:
    caught = [*OOM[:3], "KeyError: 'label'"]
    informs = "Missing key(s) in state_dict: head.weight; the rest is there"
    verdict = judged(tagged(tag, [*STEPS, *caught, *STEPS, informs, *STEPS, "training finished"]))
    assert verdict.outcome is not RunOutcome.ILLNESS
    lines = [*STEPS, *caught, *STEPS * 4, informs, "training finished"]
    of_an_hour = [f"2026-11-22 10:{at:02}:00,000 INFO worker: {line}" for at, line in enumerate(lines)]
    assert judged(of_an_hour).outcome is RunOutcome.NOTHING
    assert "ckpt-arch-mismatch" not in [one.slug for one in (*verdict.suspects, *verdict.also)]


@pytest.mark.parametrize("said", [["a request failed"], []])
@pytest.mark.parametrize("tag", TAGS[3:5])
def test_an_error_that_the_programme_has_logged_itself_and_went_on_after_is_no_failure(
    tag: str, said: list[str]
) -> None:
    rank = tag[:9] if tag.startswith("[rank3]") else ""
    steps = [rank + step for step in STEPS]
    caught = tagged(tag, [*said, *OOM[:3], "ValueError: the request is longer than 4096 tokens"])
    assert judged([*steps, *caught, *steps]).outcome is RunOutcome.NOTHING
    assert judged([*steps, *caught]).outcome is RunOutcome.USER_ERROR


def test_a_traceback_behind_one_that_was_logged_is_not_taken_for_logged() -> None:
    logged = tagged("ERROR 11-22 10:00:0{at} [core.py:718] ", [*OOM[:3], "ValueError: too long"])
    ended = ["cleaning up", "removing", "done with cleaning", "bye"]
    assert judged([*logged, *OOM[:3], "KeyError: 'label'", *ended]).outcome is RunOutcome.USER_ERROR


def test_a_log_that_begins_within_a_tagged_traceback_leads_with_its_exception() -> None:
    tag = "(RayWorker pid=4711) ERROR 11-22 10:00:0{at} ray_utils.py:45] "
    verdict = judged(tagged(tag, ["    return forward(batch)", *OOM[1:3], "KeyError: 'label'"]))
    assert verdict.lead
    assert verdict.lead.text == "KeyError: 'label'"


def test_determined_s_table_names_the_rank() -> None:
    table = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-22_10:00:05",
        "  host      : node0",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : 1 (pid: 36)",
        "  error_file: <N/A>",
        "============================================================",
    ]
    verdict = judged(tagged("[2026-11-22T10:00:0{at}.405187Z] 0a1b2c3d || ", table))
    assert verdict.lead
    assert verdict.lead.rank == 3


@pytest.mark.parametrize("header", [OOM[0], f"  0%|  | 1/935 [00:01<20:34,  1.32s/it]{OOM[0]}"])
@pytest.mark.parametrize("cut", [[], ['  File "/home/ada/tr']])
def test_a_log_that_breaks_off_at_a_traceback_s_begin_speaks_of_a_failure(header: str, cut: list[str]) -> None:
    assert judged([*STEPS, header, *cut]).outcome is RunOutcome.UNRECOGNISED


ISSUE = [
    "It fails:",
    "```",
    *OOM[:3],
    "KeyError: 'label'",
    "```",
    "### My machine",
    "```",
    *[f"Package {at}: 1.2.3" for at in range(9)],
    "```",
    "I can't see why.",
]


def test_a_logger_s_prefix_in_which_the_log_breaks_off_is_no_code() -> None:
    verdict = judged([*tagged("[INFO] [Driver] ", OOM[:2]), "[INFO] [Dr"])
    assert verdict.raised
    assert verdict.raised.own
    assert not verdict.raised.own.code


PASTED = ["I train on 8 GPUs and get:", "```", *OOM[3:], "```", "torch 2.9"]


@pytest.mark.parametrize(
    "lines",
    [
        ["```", *OOM[3:], "```", *["What could it be?"] * 20],
        ["```", *OOM, "```"],
        PASTED,
    ],
    ids=["at-the-start", "whole", "most-of-it"],
)
def test_a_log_that_was_pasted_with_its_fences_is_no_quotation(lines: list[str]) -> None:
    assert judged(lines).suspects[0].slug == "oom-batch-too-large"


def test_of_an_issue_with_several_blocks_the_traceback_is_read() -> None:
    verdict = judged(ISSUE)
    assert verdict.raised
    assert verdict.raised.exception == "KeyError"
