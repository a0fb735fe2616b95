"""What launchers say of processes that ended, as they print it."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log, ProcessExit
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from ddpdoctor.logs.render.headline import headline


def read(text: str) -> Log:
    return read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue()))


def only(text: str) -> ProcessExit:
    (exited,) = read(text + "\n").exited
    return exited


@pytest.mark.parametrize(
    ("line", "said_by", "exit_code", "rank", "local_rank", "host", "pid"),
    [
        (
            "E1122 22:22:32.823000 11991 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 12008) of binary: /opt/conda/bin/python",
            "torchrun", -9, None, 1, "", 12008,
        ),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 2", "mp.spawn", 2, None, 1, "", None),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL", "mp.spawn", -9, None, 0, "", None),
        ("-- Process 3 terminated with the following error:", "mp.spawn", None, None, 3, "", None),
        ("srun: error: node7: task 3: Exited with exit code 1", "srun", 1, 3, None, "node7", None),
        ("srun: error: node7: task 3: Segmentation fault (core dumped)", "srun", -11, 3, None, "node7", None),
        ("slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT 2026-11-22T02:13:07 DUE TO TIME LIMIT ***", "srun", None, None, None, "node7", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.", "srun", None, None, None, "", None),
        ("mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).", "mpirun", -9, 1, None, "vm", None),
        ("[2026-11-22 02:13:07,123] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9", "deepspeed", -9, None, None, "", None),
        ("subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1.", "subprocess", 1, None, None, "", None),
        ("subprocess.CalledProcessError: Command '['python', '-u', 'train.py', '--local_rank=7']' returned non-zero exit status 1.", "subprocess", 1, None, None, "", None),
        ("run.sh: line 3: 16084 Killed                  python train.py", "shell", -9, None, None, "", 16084),
        ("    Reason:       OOMKilled", "kubernetes", None, None, None, "", None),
        ("command terminated with exit code 137", "kubernetes", 137, None, None, "", None),
        ("RuntimeError: Step 1 exited with non-zero status 1", "subprocess", 1, None, None, "", None),
        ("OSError: train.sh exited with exit code: 2", "subprocess", 2, None, None, "", None),
        ("Pod: ml.llama-worker-0 exited with code 1", "kubernetes", 1, None, None, "llama-worker-0", None),
        ("Error pod llama-worker-0 container pytorch exitCode: 1 terminated message: x", "kubernetes", 1, None, None, "llama-worker-0", None),
        ("llama-worker-0       0/1     Error              0          2m31s", "kubernetes", None, None, None, "llama-worker-0", None),
        ("ml   llama-master-0  0/2     CrashLoopBackOff   8          2m32s", "kubernetes", None, None, None, "llama-master-0", None),
        ("application called MPI_Abort(MPI_COMM_WORLD, 5) - process 3", "mpiexec", 5, 3, None, "", None),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", "mpiexec", -9, None, None, "", None),
        ("=   RANK 3 PID 4711 RUNNING AT n1\n=   KILLED BY SIGNAL: 11 (Segmentation fault)", "mpiexec", -11, 3, None, "n1", 4711),
        ("=   PID 4711 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)", "mpiexec", -9, None, None, "n1", 4711),
        ("prterun noticed that process rank 3 with PID 4711 on node n1 exited on\nsignal 9 (Killed).", "mpirun", -9, 3, None, "n1", 4711),
        ("prterun noticed that process rank 1 with PID 2550555\non node n1 exited on signal 9 (Killed)", "mpirun", -9, 1, None, "n1", 2550555),
        ("[node7:4711:0:4712] Caught signal 7 (Bus error: nonexistent physical address)", "UCX", -7, None, None, "node7", 4711),
        ("ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9.", "composer", -9, 3, None, "", None),
        ("resources failed: container failed with non-zero exit code: 137 (exit code 137)", "determined", 137, None, None, "", None),
        (
            "  Warning  BackOff  2m  kubelet  Back-off restarting failed container init in pod llama-worker-1_ml(8d68-60a7)",
            "kubernetes", None, None, None, "llama-worker-1", None,
        ),
        ("  Warning  BackOff  2m  kubelet  Back-off restarting failed container", "kubernetes", None, None, None, "", None),
        ("llama-worker-1   0/1   Init:Error   0   1m", "kubernetes", None, None, None, "llama-worker-1", None),
    ],
)  # fmt: skip
def test_a_line_or_sentence_of_a_launcher_is_the_end_of_a_process(
    line: str, said_by: str, exit_code: int | None, rank: int | None, local_rank: int | None, host: str, pid: int | None
) -> None:
    found = only(line)
    assert (found.said_by, found.exit_code, found.rank, found.local_rank) == (said_by, exit_code, rank, local_rank)
    assert (found.host, found.pid, found.told_to) == (host, pid, False)


def test_what_a_launcher_ends_itself_was_told_to() -> None:
    assert only(
        "W1122 22:22:32.5 1 torch/distributed/elastic/multiprocessing/api.py:1] Sending process 12007 closing signal SIGTERM"
    ).told_to
    assert only(
        "W1129 10:12:40.5 1 torch/distributed/elastic/multiprocessing/api.py:905] Unable to shutdown process 12007 via "
        "Signals.SIGTERM, forcefully exiting via Signals.SIGKILL"
    ).told_to
    assert only("[2026-11-22 02:13:07,123] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4711").told_to


def test_srun_names_tasks_of_several_hosts_together() -> None:
    found = read("srun: error: node[1-2]: tasks 0-1,4: Killed\n").exited
    assert [(one.rank, one.host, one.exit_code) for one in found] == [(0, "", -9), (1, "", -9), (4, "", -9)]


def test_a_time_limit_is_told() -> None:
    assert (
        "DUE TO TIME LIMIT"
        in only("slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-22T02:13:07 DUE TO TIME LIMIT ***").error
    )


def test_mpiruns_first_process_is_the_first() -> None:
    found = read("The first process to do so was:\n\n  Process name: [[21052,1],3]\n  Exit code:    3\n-----\n").exited
    assert [(one.rank, one.exit_code, one.first) for one in found] == [(3, 3, True)]


def test_a_rank_that_aborts_all_of_mpi_is_the_first() -> None:
    found = read(
        "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n\nNOTE: x\n"
    ).exited
    assert [(one.line.number, one.rank, one.exit_code, one.first) for one in found] == [(1, 2, 1, True)]
    found = read("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 0.\n").exited
    assert [(one.rank, one.exit_code, one.first) for one in found] == [(2, None, True)]


OLD_TABLE = """\
****************************
       train.py FAILED
============================
Root Cause:
[1]:
  time: 2021-11-22_22:22:30
  rank: 1 (local_rank: 1)
  exitcode: 1 (pid: 4712)
  error_file: /tmp/torchelastic_x/attempt_0/1/error.json
  msg:
    {
      "message": "KeyError: 'lr'",
      "extraInfo": {
        "timestamp": "1637619750"
      }
    }
============================
Other Failures:
[0]:
  time: 2021-11-22_22:22:31
  rank: 0 (local_rank: 0)
  exitcode: -6 (pid: 4711)
  error_file: <N/A>
  msg: "Signal 6 (SIGABRT) received by PID 4711"
****************************
"""


def test_the_table_of_torch_1_9_is_read() -> None:
    found = read(OLD_TABLE).exited
    assert [(one.rank, one.exit_code, one.pid, one.first, one.error) for one in found] == [
        (1, 1, 4712, True, "KeyError: 'lr'"),
        (0, -6, 4711, False, "Signal 6 (SIGABRT) received by PID 4711"),
    ]


def test_an_exception_that_only_the_launcher_tells_of_is_shown() -> None:
    verdict = verdict_of(read(OLD_TABLE.replace("-6", "-15").replace("6 (SIGABRT)", "15 (SIGTERM)")), catalogue())
    assert verdict.outcome is RunOutcome.USER_ERROR
    assert verdict.lead is not None
    assert (verdict.lead.text, verdict.lead.rank) == ("KeyError: 'lr'", 1)


def test_a_title_that_other_texts_have_too_begins_no_table_by_itself() -> None:
    log = read(
        "Root Cause:\nthe disk was full\n  rank: 1 (local_rank: 1)\n  exitcode: 1 (pid: 3)\n====================\n"
    )
    assert log.exited == ()


TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_22:22:32
  host      : node0
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 12007)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 12007
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_22:22:30
  host      : node0
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 12008)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 12008
=======================================================
"""


@pytest.mark.parametrize("label", ["", "[pod/x-0/pytorch] ", "2026-11-22T02:13:07Z "])
def test_torchruns_table_is_read(label: str) -> None:
    found = read("".join(f"{label}{line}\n" for line in TABLE.splitlines())).exited
    assert [(one.rank, one.local_rank, one.exit_code, one.pid, one.first) for one in found] == [
        (8, 0, -15, 12007, False),
        (9, 1, -9, 12008, True),
    ]
    assert (found[1].time or 0) - (found[0].time or 0) == -2


def test_a_table_that_the_log_breaks_off_in_is_read_as_far_as_it_goes() -> None:
    whole = TABLE.index("  error_file", TABLE.index("Root"))
    assert [one.rank for one in read(TABLE[:whole]).exited] == [8, 9]


def test_local_ranks_become_ranks_where_the_table_pairs_them() -> None:
    log = read("[default1]:KeyError: 'x'\n" + TABLE)
    assert 9 in {one.rank for one in log.last}


@pytest.mark.parametrize(
    "line",
    [
        "The exit code 1 means that it failed",
        "task 3: exited",
        "loss 0.5 (exitcode: 1)",
        "on line 3: 5 apples",
        "Failures: 0",
    ],
)
def test_other_text_is_no_end(line: str) -> None:
    assert read(line + "\n").exited == ()


@pytest.mark.parametrize(
    "line",
    [
        "Pod: ml.llama-worker-0 exited with code 0",
        "Error pod llama-worker-0 container pytorch exitCode: 0 terminated message: x",
        "RuntimeError: ninja exited with exit code 1",
        "RuntimeError: Step 1 exited with exit code 0",
        "RuntimeError: DataLoader worker (pid 17) exited unexpectedly with exit code 1",
        "llama-worker-0   1/1   Running   3   2m31s",
        "The status CrashLoopBackOff 8 is told by 0/2 of the pods",
    ],
)
def test_these_are_no_ends_of_processes(line: str) -> None:
    assert not read(line + "\n").exited


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "launch.py", line 3, in <module>\n    raise RuntimeError(\n'
        "RuntimeError: Step 1 exited with non-zero status 1\n",
        "Pod: ml.llama-worker-0 exited with code 1\n",
        "NAME             READY   STATUS    RESTARTS   AGE\nllama-worker-0   0/1     Error     0          2m\n",
        "NAME             READY   STATUS             RESTARTS   AGE\n"
        "llama-worker-0   0/1     CrashLoopBackOff   8          2m\n",
    ],
)
def test_that_a_child_or_a_pod_failed_is_an_effect(text: str) -> None:
    verdict = verdict_of(read(text), catalogue())
    assert (verdict.outcome, verdict.suspects) == (RunOutcome.EFFECTS_ONLY, ())


CUT_TABLE = """\
  time      : 2026-11-22_22:19:57
  host      : node3
  rank      : 5 (local_rank: 1)
  exitcode  : -11 (pid: 9956)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 9956
"""


def test_of_a_table_whose_beginning_is_cut_off_the_last_entry_is_of_the_first_failure() -> None:
    found = only(CUT_TABLE + "=" * 60)
    assert (found.rank, found.local_rank, found.host, found.exit_code, found.pid) == (5, 1, "node3", -11, 9956)
    assert found.first
    lead = verdict_of(read(CUT_TABLE + "=" * 60), catalogue()).lead
    assert lead is not None
    assert (lead.rank, lead.host) == (5, "node3")


def test_an_earlier_entry_of_such_a_table_is_not() -> None:
    others = (
        CUT_TABLE
        + "-" * 60
        + "\nRoot Cause (first observed failure):\n[0]:\n"
        + CUT_TABLE.replace(": 5 (", ": 4 (").replace("9956", "9955")
    )
    assert [(one.rank, one.first) for one in read(others + "=" * 60).exited] == [(5, False), (4, True)]


@pytest.mark.parametrize("line", ["Process finished with exit code 1", "run.sh: exited with status 9"])
def test_a_log_whose_last_line_tells_a_bad_code_is_not_called_fine(line: str) -> None:
    verdict = verdict_of(read(f"step 1 loss 0.5\n{line}\n"), catalogue())
    assert verdict.outcome is RunOutcome.UNRECOGNISED
    assert verdict.lead
    assert verdict.lead.text == line


KILLED_LATER = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_10:13:29
  host      : node1
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 4031)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4031
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_10:12:58
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4032)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_whom_torchrun_kills_half_a_minute_after_another_failed_ran_out_of_no_memory() -> None:
    judgement = judge_log(read(KILLED_LATER), catalogue())
    assert judgement.verdict.outcome is RunOutcome.EFFECTS_ONLY
    assert (
        headline(judgement) == "Torchrun says that rank 1 (pid 4032) ended with exit code 1; why, this log doesn't say"
    )
    at_once = judge_log(read(KILLED_LATER.replace("10:13:29", "10:12:58")), catalogue())
    assert [suspect.slug for suspect in at_once.verdict.suspects] == ["host-oom-killed"]
