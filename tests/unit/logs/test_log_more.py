"""What the report adds to an error that no sign knows: which process, NCCL's own word, which node, and what to do next."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.diagnosis import LogJudgement, judge_log
from ddpdoctor.logs.render.document import log_document
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.next_steps import next_steps
from ddpdoctor.logs.render.words import more
from ddpdoctor.report.terminal import text_of
from tests.support.logs_by_hand import read

NCCL = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error, NCCL version 2.20.5"
TOLD = (
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 4711 'a word that nobody knows'\n"
)
WARNS = "node0:17:42 [0] transport/net.cc:7 NCCL WARN something that nobody knows\n"
ABORTED = "E1122 02:13:07.651000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 3 (pid: 4711) of binary: /usr/bin/python\n"


def judged(text: str) -> LogJudgement:
    return judge_log(read(text), catalogue())


def shown(text: str) -> str:
    return text_of(log_document(judged(text)), 400)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{NCCL}\n{TOLD}", ["Cuda failure 4711 'a word that nobody knows'"]),
        (
            "".join(f"[rank7]: {line}\n" for line in f"{NCCL}\n{TOLD}".splitlines()),
            ["Cuda failure 4711 'a word that nobody knows'"],
        ),
        (
            f'{WARNS}Traceback (most recent call last):\n  File "/home/ada/a.py", line 7, in f\n    g()\n{NCCL}',
            [WARNS.strip()],
        ),
        (f"(pid=17) {NCCL}\n(pid=18) {WARNS}", [WARNS.strip()]),
        (NCCL, []),
        (
            "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node a\n  Remote daemon: [[1,0],2] on node b\n",
            ["  Remote daemon: [[1,0],2] on node b"],
        ),
        ("RuntimeError: nobody knows it\n" + WARNS, []),
    ],
)
def test_lines_beside_an_error_say_more(text: str, words: list[str]) -> None:
    found = judged(text)
    assert [one.text for one in more(found)] == words
    assert all(word.strip() in headline(found) and word.strip() in shown(text) for word in words)


def test_what_stands_behind_last_error_is_one_and_the_words_themselves_are_none() -> None:
    assert [error.text for error in read("Last error:\nsomething\n").errors] == ["something"]
    assert not read("Last error: 0.3\nstep\nthe Last error: of all\n").errors


def test_of_many_last_errors_only_some_are_kept() -> None:
    assert len(read("Last error:\nsomething\n" * 1000).errors) <= 12


def test_it_is_said_which_process_was_killed() -> None:
    text = shown(ABORTED)
    assert text.startswith(
        "UNKNOWN  Local rank 3 failed first, at 02:13:07: torchrun says that local rank 3 (pid 4711) was killed by SIGABRT"
    )
    assert text.count("(pid 4711) was killed by SIGABRT") == 2


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        (NCCL, ["ddpdoctor check", "export NCCL_DEBUG=INFO", "ddpdoctor check --markdown"]),
        (
            f"{NCCL}\nnode0:17:42 [0] NCCL INFO transport.cc:68 -> 1\n",
            ["ddpdoctor check", "ddpdoctor check --markdown"],
        ),
        (ABORTED, ["ddpdoctor check", "export NCCL_DEBUG=INFO", "ddpdoctor check --markdown"]),
        ("RuntimeError: nobody knows it", ["ddpdoctor check"]),
        ("There are not enough slots available in the system to satisfy the 8", []),
    ],
)
def test_only_what_can_help_is_advised(text: str, commands: list[str]) -> None:
    assert [command for step in next_steps(judged(text)) for command in step.commands] == commands


def test_of_what_only_followed_the_worker_that_ended_is_told() -> None:
    text = f"""{ABORTED.replace("-6", "1")}Traceback (most recent call last):
  File "/opt/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.rendezvous.api.RendezvousClosedError
"""
    assert "torchrun says that local rank 3 (pid 4711) ended with exit code 1" in shown(text)


def test_of_a_long_line_what_was_found_is_shown() -> None:
    text = "Loading: 0%" + " " * 300 + ABORTED.replace("-6", "-9").strip() + " " * 300 + "and more" * 100
    assert "failed (exitcode: -9) local_rank: 3 (pid: 4711)" in " ".join(shown(text).split())


def test_a_worker_of_ray_s_is_no_host() -> None:
    assert "Look at the host of Trainer pid=17" in shown(f"(Trainer pid=17) {NCCL}")
