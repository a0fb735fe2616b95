"""Logs that break off, or begin, within a failure's words: they never speak of a good end."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

STEPS = "".join(f"step {step} loss 0.1\n" for step in range(20))
FAILED = (
    "E1122 22:17:34.143000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 3"
    " (pid: 46094) of binary: /home/ada/venv/bin/python\n"
)
HEADER = "Traceback (most recent call last):\n"
FRAMES = """  File "/home/ada/train/train.py", line 12, in <module>
    main()
  File "/home/ada/train/train.py", line 7, in main
    model(batch)
"""
OF_TORCHRUN = """Traceback (most recent call last):
  File "/home/ada/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/home/ada/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 794, in main
    run(args)
"""
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
SPAWNED = """Traceback (most recent call last):
  File "/home/ada/train/train.py", line 40, in <module>
    mp.spawn(worker, nprocs=4)
  File "/opt/conda/lib/python3.6/site-packages/torch/multiprocessing/spawn.py", line 114, in join
    raise Exception(msg)
Exception: 

-- Process 3 terminated with the following error:
Traceback (most recent call last):
  File "/opt/conda/lib/python3.6/site-packages/torch/multiprocessing/spawn.py", line 19, in _wrap
    fn(i, *args)
  File "/home/ada/train/train.py", line 84, in worker
    loss.backward()
"""


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


def test_the_launchers_own_traceback_is_no_new_attempt() -> None:
    found = judged(STEPS + FAILED + OF_TORCHRUN)
    assert found.outcome is not RunOutcome.NOTHING
    assert not found.ended_well


@pytest.mark.parametrize(
    "behind",
    [
        "",
        "a line\n" * 5,
        "Job finished\n" * 50,
        "".join(f"{'x' * place} {place}\n" for place in range(50)),
        "\n\nraise ChildFailedError(\n",
    ],
)
def test_a_few_lines_behind_a_failure_are_no_new_attempt(behind: str) -> None:
    assert judged(STEPS + FAILED + behind).outcome is not RunOutcome.NOTHING


def test_steps_behind_a_failure_are_a_new_attempt() -> None:
    assert judged(STEPS + FAILED + STEPS).ended_well


def test_mp_spawn_starts_nothing_again() -> None:
    found = judged(STEPS + SPAWNED)
    assert found.outcome is RunOutcome.UNRECOGNISED
    assert found.raised is not None
    assert found.raised.frames[-1].function == "worker"


def test_the_spawners_bare_exception_is_not_the_users() -> None:
    """Until torch 1.5; what counts is the traceback that it shows."""
    lost = judged(STEPS + SPAWNED + "RuntimeError: [../gloo/pair.cc:553] Connection closed by peer [10.0.0.7]:5\n")
    assert lost.outcome is RunOutcome.EFFECTS_ONLY
    own = judged(STEPS + SPAWNED + "KeyError: 'lr'\n")
    assert own.outcome is RunOutcome.USER_ERROR
    assert own.raised is not None
    assert own.raised.exception == "KeyError"


def test_a_log_that_breaks_off_within_a_traceback_says_so() -> None:
    log = read(STEPS + HEADER + FRAMES)
    found = verdict_of(log, catalogue())
    assert found.outcome is RunOutcome.UNRECOGNISED
    assert not found.suspects
    assert "the log breaks off within a traceback; /home/ada/train/train.py:7 in main" in headline(
        judge_log(log, catalogue())
    )


def test_a_box_that_breaks_off_is_a_traceback() -> None:
    """As rich draws one."""
    box = "╭──── Traceback (most recent call last) ────╮\n│ /home/ada/train.py:7 in main              │\n"
    assert judged(STEPS + box).outcome is RunOutcome.UNRECOGNISED
    whole = judged(f"{STEPS}{box}╰───────────────────────────────────────────╯\nKeyError: 'lr'\n")
    assert whole.outcome is RunOutcome.USER_ERROR


def test_the_cut_traceback_of_a_launcher_is_an_effect() -> None:
    assert judged(OF_TORCHRUN).outcome is RunOutcome.EFFECTS_ONLY


@pytest.mark.parametrize("indent", ["  ", ""])
def test_a_traceback_without_its_header_is_one(indent: str) -> None:
    """As `tail` or a paste leaves it; the paste may have lost the indentation."""
    frames = FRAMES if indent else "\n".join(line.strip() for line in FRAMES.splitlines()) + "\n"
    found = judged("e.step()\n" + frames + "KeyError: 'lr'\n")
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.raised is not None
    assert found.raised.exception == "KeyError"
    assert [frame.function for frame in found.raised.frames] == ["<module>", "main"]
    assert [frame.code for frame in found.raised.frames] == ["main()", "model(batch)"]


def test_a_stack_that_was_printed_is_no_traceback() -> None:
    assert judged(STEPS + FRAMES + STEPS).outcome is RunOutcome.NOTHING


def test_a_traceback_that_is_only_quoted_has_no_frames_either() -> None:
    assert not read(STEPS + "> " + HEADER + FRAMES + "KeyError: 'lr'\n" + STEPS).raised


@pytest.mark.parametrize(
    "words", ["RuntimeError: received 0 items of ancdata", "_pickle.UnpicklingError: Weights only load failed"]
)
def test_a_lone_exception_is_no_good_end(words: str) -> None:
    assert not judged(f"{words}\n").ended_well


@pytest.mark.parametrize(
    "words",
    [
        f"{CHILD_FAILED}\n",
        OF_TORCHRUN + f"{CHILD_FAILED}\n{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n",
        "Root Cause (first observed failure):\n",
        "Root Cause (first observed failure):\n[0]:\n  host      : node0\n  rank      : 3 (local_rank: 3)\n",
        "-- Process 3 terminated with the following error:\n",
        "Process name: [[4711,1],3]\n",
    ],
)
def test_of_a_launchers_words_that_break_off_nothing_is_the_cause(words: str) -> None:
    found = judged(STEPS + words)
    assert found.outcome is RunOutcome.EFFECTS_ONLY
    assert not found.suspects


def test_the_entry_that_a_table_breaks_off_in_tells_the_rank() -> None:
    table = "Root Cause (first observed failure):\n[0]:\n  host      : node0\n  rank      : 3 (local_rank: 3)\n"
    (cut,) = read(table).exited
    assert (cut.rank, cut.host, cut.first, cut.exit_code) == (3, "node0", True, None)
    whole = f"{table}  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>\n"
    assert [one.exit_code for one in read(whole).exited] == [1]
    assert len(read(f"{whole}{'=' * 60}\n").exited) == 1


FRAMES_OF_C = (
    "Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1601 (most recent call first):",
    "frame #6: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f5de5a3361d in /opt/torch/lib/libtorch_cuda.so)",
)


@pytest.mark.parametrize("words", FRAMES_OF_C)
def test_the_frames_of_c_alone_speak_of_a_failure(words: str) -> None:
    assert judged(f"{STEPS}{words}\n").outcome is RunOutcome.UNRECOGNISED


def test_a_store_that_went_away_at_the_end_is_none() -> None:
    words = "Exception raised from recvBytes at ../torch/csrc/distributed/c10d/Utils.hpp:670 (most recent call first):"
    assert judged(f"{STEPS}{words}\n").outcome is RunOutcome.NOTHING


TRIES = {
    "master-addr-unreachable": "[W427 01:04:16.149509694 socket.cpp:752] [c10d] The client socket has failed to connect to "
    "[::ffff:10.0.0.7]:29500 (errno: 110 - Connection timed out).\n",
    "nccl-wrong-interface": "node7:4711:4800 [3] NCCL INFO Call to connect returned Connection refused, retrying\n",
}


@pytest.mark.parametrize("slug", TRIES)
def test_tries_to_connect_count_where_the_log_ends_with_them(slug: str) -> None:
    assert [suspect.slug for suspect in judged(STEPS + TRIES[slug] * 5).suspects] == [slug]
    assert judged(TRIES[slug] * 5 + STEPS).outcome is RunOutcome.NOTHING


def test_an_error_behind_what_may_be_got_over_is_no_good_end() -> None:
    tries = TRIES["nccl-wrong-interface"] * 2
    cut = "node7:4711:4800 [3] include/socket.h:403 NCCL WARN Conn\n"
    assert judged(tries + cut).outcome is not RunOutcome.NOTHING
    assert judged(tries + cut + STEPS * 5).outcome is RunOutcome.NOTHING


def test_a_word_of_kubernetes_that_is_only_mentioned_is_no_end() -> None:
    assert not read("limits: checks for 'Too many open files' and OOMKilled are on\n").exited
    assert read("      Reason:       OOMKilled\n").exited


def test_a_frame_whose_label_is_cut_off_goes_with_the_rank_behind_it() -> None:
    text = """  File "/home/ada/train.py", line 7, in step
[rank1]:     product(a, b)
[rank1]:   File "/home/ada/model.py", line 9, in product
[rank1]:     return a @ b
[rank1]: RuntimeError: nobody knows it
"""
    (found,) = read(text).raised
    assert (found.exception, found.line.rank, found.began.rank) == ("RuntimeError", 1, 1)
    assert [frame.line for frame in found.frames] == [7, 9]


def test_such_a_frame_before_a_rank_s_other_words_stays_nobodys() -> None:
    (found,) = read('  File "/home/ada/train.py", line 7, in step\n[rank1]: epoch 3 begins\n').raised
    assert (found.exception, found.began.rank) == ("", None)


@pytest.mark.parametrize(
    ("left", "slugs"),
    [
        ("RuntimeError: ProcessGroupNCCL is only supp", ["no-nvidia-driver"]),
        ("RuntimeError: ProcessGroupNCCL is only", []),
        ("RuntimeError: ProcessGroupNCCL is only supported for odd jobs", []),
        ("RuntimeError: ProcessGroupNCCL is only supp\nstep 3", []),
    ],
    ids=["within a word", "at a word's end", "other words", "the log goes on"],
)
def test_a_sign_in_whose_words_the_log_breaks_off_is_known(left: str, slugs: list[str]) -> None:
    text = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n    dist.init_process_group("nccl")\n'
    found = verdict_of(read(text + left), catalogue())
    assert [suspect.slug for suspect in found.suspects if suspect.slug != "user-code-error"][:1] == slugs
