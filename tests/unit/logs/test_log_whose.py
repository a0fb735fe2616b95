"""Which rank a failure is of, and how much a launcher's word on an end counts."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:42145"
MISMATCH = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage\nLast error:\nMismatched NCCL version detected : rank 0 version 22703 rank 4 version 22705"
TORCHRUN = "E1122 14:02:52.577000 4711 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {}) local_rank: {} (pid: 48) of binary: python\n"
TABLE = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_14:02:52
  host      : node1
  rank      : {0} (local_rank: {0})
  exitcode  : 1 (pid: 48)
  error_file: <N/A>
============================================================
"""
NCCL_TESTS = """#  Rank  0 Group  0 Pid   4710 on  node0 device  0 [0x18] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   4711 on  node1 device  0 [0x18] NVIDIA A100-SXM4-80GB
node0:4710:4773 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3
"""
NCCL_LOST = "node{0}:471{0}:4763 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.9<44717>\n"
MPIRUN = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[31877,1],{}]
  Exit code:    3
"""
PORT_ERROR = "NET/IB : Got completion from peer 10.0.0.3<48211> with status=12 opcode=0 len=0 vendor err 129 (Send)"


def traceback(error: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in <module>\n    step()\n{error}\n'
    )


def labelled(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def judged(text: str) -> tuple[Log, LogVerdict]:
    log = read(text)
    return log, verdict_of(log, catalogue())


@pytest.mark.parametrize(
    "end",
    [
        TORCHRUN.format(1, 0) + "srun: error: node1: task 1: Exited with exit code 1\n",
        "command terminated with exit code 1\n",
        TORCHRUN.format(1, 0),
    ],
)
def test_an_end_of_no_known_rank_says_less_than_a_ranks_own_words(end: str) -> None:
    _, found = judged(labelled(4, traceback(MISMATCH)) + end)
    assert [suspect.slug for suspect in found.suspects] == ["nccl-version-mismatch"]
    assert found.lead is not None
    assert found.lead.rank == 4


def test_a_rank_that_ends_itself_still_leads_where_srun_starts_the_ranks() -> None:
    text = (
        labelled(0, traceback(LOST))
        + labelled(2, traceback(LOST))
        + "srun: error: node1: task 1: Exited with exit code 3\n"
    )
    _, found = judged(text)
    assert (found.outcome, found.lead and found.lead.rank) == (RunOutcome.USER_ERROR, 1)


@pytest.mark.parametrize(("rank", "between"), [(0, 0), (0, 400), (1, 0)])
def test_an_exit_code_behind_words_of_the_same_rank_is_no_mistake_of_the_script(rank: int, between: int) -> None:
    _, found = judged(NCCL_TESTS + "working\n" * between + NCCL_LOST.format(1 - rank) + MPIRUN.format(rank))
    own = rank == 0 and not between
    assert found.outcome is (RunOutcome.ILLNESS if own else RunOutcome.USER_ERROR)
    assert found.lead is not None
    assert found.lead.rank == rank


@pytest.mark.parametrize("mixed", [True, False])
def test_the_tables_word_counts_where_tracebacks_are_mixed(mixed: bool) -> None:
    """Else the order of lines is proof: of failures in the same second torchrun names the one it looks at first."""
    one, other = (labelled(rank, traceback("KeyError: 'labels'")).splitlines(keepends=True) for rank in (1, 0))
    lines = [line for both in zip(one, other, strict=True) for line in both] if mixed else [*one, *other]
    _, found = judged("".join(lines) + TORCHRUN.format(1, 0) + TABLE.format(0))
    assert found.lead is not None
    assert found.lead.rank == (0 if mixed else 1)


def test_of_ranks_that_srun_lists_together_none_was_first() -> None:
    text = "7: step 1\n8: step 1\n7: step 2\n8: step 2\n7: step 3\n8: step 3\n" * 3
    for ranks in ("8-15", "8"):
        log = read(text + f"srun: error: node2: task{'s' * ('-' in ranks)} {ranks}: Segmentation fault\n")
        said = headline(judge_log(log, catalogue()))
        assert ("Rank 8 on node2" if ranks == "8" else "Ranks 8-15 on node2 failed alike") in said


def test_whoever_repeats_nccls_words_has_said_them() -> None:
    warned = f"node1:33:36 [3] transport/net_ib.cc:1689 NCCL WARN {PORT_ERROR}\n"
    repeated = "[rank11]:[E1122 11:02:33.881021110 ProcessGroupNCCL.cpp:1548] [Rank 11] Process group watchdog thread terminated with exception: NCCL error: remote process exited\n"
    alone = judged(warned + repeated + f"Last error:\n{PORT_ERROR}\n")[1].lead
    assert alone is not None
    assert (alone.rank, alone.host) == (11, "node1")
    others = repeated.replace("11", "12") + f"Last error:\n{PORT_ERROR}\n"
    both = judged(warned + repeated + f"Last error:\n{PORT_ERROR}\n" + others)[1].lead
    assert both is not None
    assert both.rank is None


def test_the_host_of_a_rank_is_what_nccl_calls_it() -> None:
    said = "[1,1]<stdout>:3f5a2c1d9e0b:24:27 [0] include/socket.h:382 NCCL WARN Call to connect timeout : Connection timed out\n"
    fell = "".join(f"[1,1]<stderr>:{line}\n" for line in traceback("KeyError: 'labels'").splitlines())
    lead = judged(said + fell)[1].lead
    assert lead is not None
    assert (lead.rank, lead.host) == (1, "3f5a2c1d9e0b")


def test_a_spawned_process_is_known_by_its_launchers_word() -> None:
    word = "-- Process 2 terminated with the following error:\n" + traceback("KeyError: 'labels'")
    lead = judged("a notice\n" + traceback("KeyError: 'labels'") + word)[1].lead
    assert lead is not None
    assert lead.rank == 2


def test_one_event_is_told_once() -> None:
    killed = "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:192kB, anon-rss:1kB, file-rss:7kB\n"
    found = judged("      Reason:       OOMKilled\n" + killed)[1]
    assert [suspect.slug for suspect in found.suspects] == ["cgroup-memory-limit"]
    assert not found.also


def test_whose_words_a_rank_repeats_is_on_its_host() -> None:
    warned = "node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)\n"
    error = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled system error\nncclSystemError: System call failed.\nLast error:\n"
    fell = labelled(14, traceback(error + warned.rpartition("NCCL WARN ")[2]))
    other = "node4:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>\n"
    lead = judged(other + warned + fell)[1].lead
    assert lead is not None
    assert (lead.rank, lead.host) == (14, "node5")
    assert lead.text.startswith("torch.distributed.DistBackendError")


def test_whom_a_table_names_first_is_not_explained_by_what_its_peers_say_without_labels() -> None:
    rows = "".join(
        TABLE.split("[0]:")[1].replace("===", "---").format(rank).replace("48", f"49{rank}") for rank in (0, 1)
    )
    table = f"Failures:\n[1]:{rows}" + TABLE.format(3)
    _, verdict = judged(traceback(LOST) * 2 + TORCHRUN.format(1, 3) + table)
    assert verdict.lead
    assert verdict.lead.rank == 3
    assert verdict.outcome is RunOutcome.USER_ERROR
