"""A file to which several runs of one process were written, one behind the other: the last one is judged."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline, outcome
from tests.support.logs_by_hand import read


def run(error: str, *, steps: int = 8, frames: str = '  File "/w/train.py", line 30, in <module>\n    main()\n') -> str:
    trained = "".join(f"epoch 0 step {step} loss 2.{step}1\n" for step in range(steps))
    return f"{trained}Traceback (most recent call last):\n{frames}{error}\n"


def judged(text: str) -> tuple[str, list[str]]:
    """The exception that leads, and those of the runs before it."""
    verdict = verdict_of(read(text), catalogue())
    assert verdict.raised is not None
    return verdict.raised.message, [before.raised.message for before in verdict.elsewhere if before.raised]


def test_the_last_run_is_judged_and_those_before_it_are_told() -> None:
    assert judged(run("KeyError: 'a'") + run("KeyError: 'b'") + run("KeyError: 'c'")) == ("'c'", ["'a'", "'b'"])


def test_what_every_run_says_is_known_of_each() -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.06 GiB is free."
    verdict = verdict_of(read(run(full) * 5), catalogue())
    assert [suspect.slug for suspect in verdict.suspects] == ["oom-batch-too-large"]
    assert [[suspect.slug for suspect in before.suspects] for before in verdict.elsewhere] == [
        ["oom-batch-too-large"]
    ] * 4


@pytest.mark.parametrize(
    "text",
    [
        # Ranks without labels raise at about the same time.
        run("KeyError: 'a'") + run("KeyError: 'b'", steps=0) + run("KeyError: 'c'", steps=2),
        # Who catches an exception goes on.
        run("KeyError: 'a'", frames='  File "/w/train.py", line 12, in load\n    read(name)\n') + run("KeyError: 'b'"),
        "WARNING: no profile\n" + run("KeyError: 'a'", steps=0) + run("KeyError: 'b'"),
        # Others' may be of any rank.
        "[rank1]: hello\n[rank0]: hello\n" + run("KeyError: 'a'") + run("KeyError: 'b'"),
        run("KeyError: 'a'") + "\nDuring handling of the above exception, another exception occurred:\n\n" + run("KeyError: 'b'", steps=0),
        # What multiprocessing starts is a process of its own.
        run("KeyError: 'a'", frames='  File "<string>", line 1, in <module>\n') + run("KeyError: 'b'"),
    ],
    ids=["at once", "caught", "announced", "ranks", "chained", "spawned"],
)  # fmt: skip
def test_of_one_run_the_first_failure_leads(text: str) -> None:
    assert verdict_of(read(text), catalogue()).elsewhere == ()


def test_steps_behind_the_last_exception_may_have_been_held_back() -> None:
    assert judged(run("KeyError: 'a'") + run("KeyError: 'b'") + run("", steps=12).partition("Traceback")[0]) == (
        "'b'",
        ["'a'"],
    )


BARS = "".join(
    f"Epoch 1:  {done}%|#   | {done}/100 [00:0{done % 10}<01:40,  1.0it/s, loss=2.{done}]\n" for done in range(10, 24)
)
LOGGED = "".join(f"2026-03-01 10:00:{second} INFO uploader: part {second} of 900\n" for second in range(10, 40))


@pytest.mark.parametrize("behind", [BARS, LOGGED], ids=["bars", "a logger"])
def test_who_writes_behind_an_uncaught_exception_may_be_a_child_or_another_rank(behind: str) -> None:
    assert judged(run("KeyError: 'a'") + behind) == ("'a'", [])


def test_what_a_signal_ended_is_over() -> None:
    killed = (
        "step 1 loss 2.5\nstep 2 loss 2.4\n/w/all.sh: line 3: 31337 Killed                  python train.py --lr 0.1\n"
    )
    assert judged(killed + run("KeyError: 'b'")) == ("'b'", [])
    (before,) = verdict_of(read(killed + run("KeyError: 'b'")), catalogue()).elsewhere
    assert before.exited is not None
    assert before.exited.exit_code == -9


def test_slurms_jobs_are_told_apart_by_their_numbers() -> None:
    def cancelled(job: int) -> str:
        step = f"slurmstepd: error: *** STEP {job}.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 ***\n"
        return "".join((
            f"[rank0]: step 1 of {job}\n[rank1]: step 1 of {job}\n",
            f"slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n" * 9,
            step,
        ))  # fmt: skip

    later = "".join(f"[rank0]: loading shard {shard} of 20\n" for shard in range(8))
    verdict = verdict_of(read(cancelled(71) + later + cancelled(72)), catalogue())
    assert len(verdict.elsewhere) == 1


def test_a_run_that_started_its_ranks_itself_ends_with_their_exception() -> None:
    spawned = (
        "rank 0 of world_size 2\nrank 1 of world_size 2\n"
        "Traceback (most recent call last):\n"
        '  File "/w/train.py", line 90, in <module>\n    mp.spawn(work, nprocs=2)\n'
        '  File "/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 340, in spawn\n    return start_processes(fn, args)\n'
        '  File "/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 203, in join\n    raise ProcessRaisedException(msg, error_index, failed_process.pid)\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 1 terminated with the following error:\n"
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap\n    fn(i, *args)\n'
        '  File "/w/train.py", line 40, in work\n    batch["{key}"]\n'
        "KeyError: '{key}'\n"
    )
    text = "".join(spawned.replace("{key}", key) + "reading the configuration\n" * 8 for key in "ab")
    assert judged(text) == ("'b'", ["'a'"])


def clocked(minute: int, then: str) -> str:
    at = f"2026-03-01 10:{minute}:"
    return f"{at}01,100 - Loading the configuration of run 7\n{at}02,100 - Building the user network\n{at}03,100 - built\n{then}"


RAISED = run("KeyError: '{}'", steps=0)


def test_a_run_that_wrote_little_is_known_by_the_files_first_lines_and_their_clocks() -> None:
    text = clocked(10, RAISED.format("a")) + clocked(13, RAISED.format("b")) + clocked(30, "picture 1 written\n")
    verdict = verdict_of(read(text), catalogue())
    assert (verdict.raised, verdict.ended_well) == (None, True)
    assert [before.raised.message for before in verdict.elsewhere if before.raised] == ["'a'", "'b'"]


def test_first_lines_that_python_has_held_back_are_of_the_same_run() -> None:
    """Their clocks are of before the exception."""
    late = f"2026-03-01 10:15:00,100 - epoch 3\n{RAISED.format('a')}"
    assert judged(clocked(10, late) + clocked(11, "picture 1 written\n")) == ("'a'", [])
    # Without clocks nobody knows.
    plain = "Loading the configuration of run 7\nBuilding the user network\n"
    assert judged(f"{plain}{RAISED.format('a')}{plain}picture 1 written\n") == ("'a'", [])


def test_first_lines_that_come_all_the_time_begin_nothing() -> None:
    epochs = "".join(clocked(10 + number // 60, "") for number in range(1200))
    assert judged(f"{epochs}{RAISED.format('a')}" + clocked(40, "picture 1 written\n")) == ("'a'", [])


def test_who_refuses_its_arguments_has_done_nothing() -> None:
    refused = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lr2 0.1\n"
    verdict = verdict_of(read(refused + BARS), catalogue())
    assert (verdict.lead, verdict.ended_well, len(verdict.elsewhere)) == (None, True, 1)
    assert verdict_of(read(refused + "retrying\n"), catalogue()).lead is not None


def test_an_end_at_the_imports_leaves_nothing_for_another_one_to_follow_from() -> None:
    syntax = '  File "/w/train.py", line 71\n    data = read(name)\n    ^\nSyntaxError: invalid syntax\n'
    missing = "Traceback (most recent call last):\n  File \"/w/train.py\", line 3, in <module>\n    from parts import read\nModuleNotFoundError: No module named 'parts'\n"
    assert verdict_of(read(syntax + missing), catalogue()).raised is not None
    assert judged(missing + run("KeyError: 'b'", steps=0)) == ("'b'", ["No module named 'parts'"])
    # Ranks without labels all raise the same.
    assert verdict_of(read(missing * 4), catalogue()).elsewhere == ()
    assert verdict_of(read(missing + BARS), catalogue()).ended_well
    # What a scheduler sums up is no run.
    summed_up = "".join(f"seff says {number}\n" for number in range(30))
    assert verdict_of(read(missing + summed_up), catalogue()).lead is not None


def test_what_comes_again_as_evenly_as_a_clock_begins_no_run() -> None:
    beats = [clocked(minute, RAISED.format("a") if minute == 12 else "") for minute in (10, 11, 12, 13, 14)]
    assert judged("".join(beats)) == ("'a'", [])


def test_the_last_run_says_again_what_an_earlier_one_said() -> None:
    full = "node3:1:1 [0] NCCL INFO retry\nnode3:1:1 [0] include/alloc.h:112 NCCL WARN Cuda failure 'out of memory'\n"
    text = clocked(10, full + RAISED.format("a")) + clocked(23, f"step 1\n{full}")
    assert verdict_of(read(text), catalogue()).suspects[0].slug == "nccl-cuda-oom"


def test_the_errors_of_one_run_leave_room_for_those_of_the_next() -> None:
    got_over = "".join(f"ERROR: sample {number} can't be read\n" for number in range(150))
    text = clocked(10, f"{got_over}done reading\n{RAISED.format('a')}") + clocked(
        23, "step 1\nRuntimeError: the loss is too large, giving up\n"
    )
    verdict = verdict_of(read(text), catalogue())
    assert verdict.lead is not None
    assert verdict.lead.text.startswith("RuntimeError")


HELD_BACK = "".join(f"epoch 0 step {step} loss 2.{step}1\n" for step in range(25))


def test_long_lines_before_an_exception_say_nothing_of_what_python_has_held_back_behind_it() -> None:
    bar = (
        "Loading\n"
        + "".join(f"\r  {done // 10}%|#  | {done}/1000 [00:01<00:09, 9.00it/s]" for done in range(900))
        + "\n"
    )
    assert judged(bar + run("KeyError: 'a'", steps=0) + HELD_BACK) == ("'a'", [])


def test_what_a_job_script_writes_behind_a_failed_import_is_no_run() -> None:
    missing = "Traceback (most recent call last):\n  File \"/w/train.py\", line 3, in <module>\n    from parts import read\nModuleNotFoundError: No module named 'parts'\n"
    for behind in (
        "Uploading: 100%|##########| 3/3 [00:01<00:00, 2.11it/s]\n",
        "".join(f"pkg-{number}==1.1\n" for number in range(160)),
    ):
        assert judged(missing + behind) == ("No module named 'parts'", [])


def test_a_cancelled_job_is_one_run_whatever_its_ranks_still_write() -> None:
    limit = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-05-01T13:00:00 DUE TO TIME LIMIT ***\n"
    saving = "".join(
        f"Signal handler: saving shard {shard} of the checkpoint to /scratch/ada/run/checkpoints/last\n"
        for shard in range(400)
    )
    verdict = verdict_of(read(HELD_BACK + limit + saving), catalogue())
    assert (verdict.suspects[0].slug, verdict.elsewhere) == ("stopped-from-outside", ())


def test_an_exception_that_led_to_another_ends_nothing() -> None:
    def missing(line: int, name: str) -> str:
        return f"Traceback (most recent call last):\n  File \"/w/train.py\", line {line}, in <module>\n    import {name}\nModuleNotFoundError: No module named '{name}'\n"

    chain = f"{missing(4, 'fast')}\nDuring handling of the above exception, another exception occurred:\n\n{missing(6, 'slow')}"
    assert verdict_of(read(chain), catalogue()).elsewhere == ()


def test_a_run_of_which_there_is_only_a_warning_is_not_said_to_have_failed() -> None:
    warned = f"nvidia-smi: Failed to initialize NVML: Unknown Error\n{HELD_BACK}"
    judgement = judge_log(read(clocked(10, warned) + clocked(13, "") + clocked(40, HELD_BACK)), catalogue())
    assert headline(judgement) == "The last run speaks of no failure; 1 earlier run in this log does"


def test_a_helper_that_is_not_found_is_only_perhaps_the_cause() -> None:
    judgement = judge_log(read("reading\njob.sh: line 3: nvidia-smi: command not found\n"), catalogue())
    assert headline(judgement) == "The first failure (-:2); perhaps: PATH doesn't lead to nvidia-smi"
    assert outcome(judgement).endswith("the log alone can't prove it")


PLAIN = "Loading the configuration of the run\nBuilding the user network\n"
"""Without clocks."""
WRITTEN = "".join(f"picture {name} is written\n" for name in "abcdefghijkl")


def test_a_file_that_begins_again_right_behind_two_ends_has_several_runs() -> None:
    failed = PLAIN + RAISED.format("a") + PLAIN + RAISED.format("b")
    # A few lines more may be another rank's.
    assert judged(failed + PLAIN + "waiting for the others\n")[0] == "'a'"
    text = failed + PLAIN + WRITTEN
    verdict = verdict_of(read(text), catalogue())
    assert (verdict.raised, verdict.ended_well) == (None, True)
    assert [before.raised.message for before in verdict.elsewhere if before.raised] == ["'a'", "'b'"]
    # Of runs that wrote a line or two, the first lines soon come again.
    short = "Installed the libraries\n" + RAISED.format("a")
    trained = "Installed the libraries\nThe seed is set\n" + RAISED.format("b")
    text = short * 2 + trained * 2 + "Installed the libraries\nThe seed is set\n" + WRITTEN
    assert verdict_of(read(text), catalogue()).raised is None


def test_first_lines_behind_what_is_tried_again_begin_no_run() -> None:
    tried = (
        PLAIN + "[rank0]: socket.cpp: the server socket has failed to listen on any local network address, try again\n"
    )
    assert judged(tried * 4 + RAISED.format("a")) == ("'a'", [])


def bar(seconds: int, begins: str = "  0%|          | 0/300 [00:00<?, ?it/s]") -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{begins}\r 99%|#########9| 299/300 [{minutes:02}:{rest:02}<00:01,  1.0it/s]\n"


def test_a_bar_that_runs_for_minutes_is_another_runs_where_the_file_begins_again() -> None:
    failed = PLAIN + bar(40) + run("KeyError: 'a'")
    verdict = verdict_of(read(failed + PLAIN + bar(299)), catalogue())
    assert (verdict.raised, len(verdict.elsewhere)) == (None, 1)
    for behind in (
        # Other jobs may run side by side, and other ranks go on for as long as their launcher needs to end them.
        bar(299),
        PLAIN + bar(31),
        # One that had begun before.
        PLAIN + bar(299, " 45%|####5     | 135/300 [02:15<02:45,  1.0it/s]"),
        # What is done behind a failure, too.
        PLAIN + bar(299, "Upload:   0%|          | 0/300 [00:00<?, ?it/s]").replace(" 99%", "Upload:  99%"),
    ):
        assert judged(failed + behind) == ("'a'", [])


def steps(minute: int) -> str:
    return "".join(
        f"[2026-03-01 10:{minute + step}:00,100 INFO test.py] Test: [{step}/124] Data 3.{step}\n" for step in range(5)
    )


LOGGED_FIRST = (
    "[2026-03-01 10:{}:00,100 INFO test.py] => creating model\n[2026-03-01 10:{}:00,100 INFO test.py] => loading data\n"
)


def test_steps_that_go_on_for_minutes_by_their_clocks_are_another_runs_where_the_file_begins_again() -> None:
    failed = LOGGED_FIRST.format(10, 10) + RAISED.format("a")
    assert verdict_of(read(failed + LOGGED_FIRST.format(20, 20) + steps(20)), catalogue()).raised is None
    # Else they may have been held back.
    assert judged(failed + steps(20)) == ("'a'", [])


def test_a_file_that_begins_with_an_end_has_held_back_what_stands_behind_it() -> None:
    assert judged((RAISED.format("a") + PLAIN) * 3)[0] == "'a'"


def test_who_tries_again_says_in_the_end_that_he_gives_up() -> None:
    tried = PLAIN + RAISED.format("a")
    assert judged(tried * 2 + PLAIN + f"{WRITTEN}giving up after 3 attempts\n")[0] == "'a'"


def test_two_launchers_side_by_side_are_one_run() -> None:
    started = (
        "[2026-03-01 10:00:01,577] [INFO] [runner.py:568:main] cmd = python -u train.py\n"
        "[2026-03-01 10:00:02,428] [INFO] [launch.py:145:main] WORLD INFO DICT: {'localhost': [0]}\n"
    )
    failed = "[2026-03-01 10:09:01,356] [ERROR] [launch.py:322:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=0'] exits with return code = 1\n"
    verdict = verdict_of(read(started + HELD_BACK + failed + started + "waiting for all nodes to join\n"), catalogue())
    assert verdict.lead is not None


def test_deepspeed_says_itself_that_a_run_failed() -> None:
    def launched(minute: int, then: str) -> str:
        return (
            f"[2026-03-01 10:{minute}:01,577] [INFO] [runner.py:568:main] cmd = python -u train.py\n"
            f"[2026-03-01 10:{minute}:02,428] [INFO] [launch.py:145:main] WORLD INFO DICT: {{'localhost': [0]}}\n{then}"
        )

    failed = (
        "[2026-03-01 10:12:27,355] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 177\n"
        "[2026-03-01 10:12:27,356] [ERROR] [launch.py:322:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=0'] exits with return code = 1\n"
    )
    verdict = verdict_of(read(launched(10, HELD_BACK + failed) + launched(20, HELD_BACK)), catalogue())
    assert (verdict.lead, len(verdict.elsewhere)) == (None, 1)


FLUSHED = "Loading checkpoint shards: 100%|##########| 4/4 [00:05<00:00,  1.3s/it]\nMap: 100%|#######| 52002/52002 [00:12<00:00, 4100.1 examples/s]\n"


def test_first_lines_that_are_never_held_back_begin_a_run_of_more_steps_than_the_one_that_failed() -> None:
    failed = FLUSHED + run("KeyError: 'a'")
    longer = run("", steps=30).partition("Traceback")[0]
    verdict = verdict_of(read(failed + FLUSHED + longer), catalogue())
    assert (verdict.raised, len(verdict.elsewhere)) == (None, 1)
    # A rank that has come as far, or one that says nothing at its start.
    for behind in (FLUSHED + run("", steps=8).partition("Traceback")[0], PLAIN + longer, longer):
        assert judged(failed + behind) == ("'a'", [])


def test_bars_one_after_the_other_are_another_runs_where_the_file_begins_again() -> None:
    def epochs(count: int, seconds: int = 40) -> str:
        return "".join(f"Epoch {epoch}: 100%|###| 391/391 [00:{seconds}<00:00,  9.7it/s]\n" for epoch in range(count))

    failed = PLAIN + epochs(1) + run("KeyError: 'a'")
    assert verdict_of(read(failed + PLAIN + epochs(6)), catalogue()).raised is None
    for behind in (PLAIN + epochs(3), PLAIN + epochs(1) * 9, epochs(6)):
        assert judged(failed + behind) == ("'a'", [])


@pytest.mark.parametrize(
    "starts",
    [
        "wandb: Agent Starting Run: e5f6a7b8 with config:\n",
        "Sender: LSF System <lsfadmin@host1>\n",
        "nohup: ignoring input\n",
    ],
)
def test_what_starts_runs_says_so(starts: str) -> None:
    trained = run("", steps=2).partition("Traceback")[0]
    verdict = verdict_of(read(starts + run("KeyError: 'a'") + starts + trained), catalogue())
    assert (verdict.raised, len(verdict.elsewhere)) == (None, 1)
    assert judged(starts * 2 + run("KeyError: 'a'") + trained) == ("'a'", [])


def of_slurm(job: int, hour: int, words: str = "DUE TO TIME LIMIT ") -> str:
    return f"slurmstepd: error: *** JOB {job} ON gpu041 CANCELLED AT 2026-03-01T{hour}:30:01 {words}***\n"


def test_steps_long_after_slurm_has_ended_a_job_are_another_ones() -> None:
    at = "".join(
        f"0: [2026-03-01 {{}}:00:{second}] epoch 0 step {second} loss 2.{second}\n" for second in range(10, 20)
    )
    ended = at.format(*["10"] * 10) + of_slurm(812345, 10)
    assert verdict_of(read(ended + at.format(*["12"] * 10)), catalogue()).suspects == ()
    assert verdict_of(read(ended + at.format(*["10"] * 10)), catalogue()).suspects[0].slug == "stopped-from-outside"


def test_slurms_words_on_another_job_leave_the_one_before_alone() -> None:
    at = "0: [2026-03-01 {}:00:10] epoch 0 step 1 loss 2.1\n"
    memory = "slurmstepd: error: Detected 1 oom_kill event in StepId=812345.0. Some of the step tasks have been OOM Killed.\n"
    steps = at.format(10) * 3
    other = verdict_of(read(steps + memory + at.format(14) * 9 + of_slurm(812399, 14)), catalogue())
    assert other.suspects[0].slug == "stopped-from-outside"
    same = verdict_of(read(steps + memory + at.format(10) * 9 + of_slurm(812345, 10, "")), catalogue())
    assert same.suspects[0].slug == "host-oom-killed"


def test_a_script_that_lacks_what_an_earlier_one_was_to_write_leads_back_to_that() -> None:
    def stage(script: str, error: str) -> str:
        return run(error, frames=f'  File "/w/{script}.py", line 30, in <module>\n    main()\n')

    lacks = "FileNotFoundError: [Errno 2] No such file or directory: '/w/base_checkpoints'"
    verdict = verdict_of(
        read(stage("train", "KeyError: 'a'") + stage("tune", lacks) + stage("rate", lacks)), catalogue()
    )
    assert (verdict.raised and verdict.raised.message, verdict.attempt, len(verdict.elsewhere)) == ("'a'", 0, 2)
    # The same script again, or a file that no training makes, is another matter.
    assert judged(stage("train", "KeyError: 'a'") + stage("train", lacks))[0].startswith("[Errno 2]")
    other = lacks.replace("base_checkpoints", "config.yaml")
    assert judged(stage("train", "KeyError: 'a'") + stage("tune", other))[0].startswith("[Errno 2]")
