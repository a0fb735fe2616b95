"""A patient that speaks the protocol itself, so that what is heard first is settled."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ddpdoctor.facts.smoke import Ending
from tests.real.smoke_runs import Estate, by_rank, order, train

STAGES = ("import", "shutdown")

PATIENT = """
import json, os, signal, socket, sys, time

channel = json.loads(sys.argv[2])["channel"]

def line(who):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect("\\0" + channel)
    return lambda **message: one.send(json.dumps({"who": who, "at": time.time(), **message}).encode())

def rank(number, seconds):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    say = line(number)
    for stage in ("import", "shutdown"):
        say(stage=stage, state="begun")
        say(stage=stage, state="passed", seconds=0.1)
    time.sleep(seconds)
    say(finished=True)
    os._exit(0)

ranks = []
for number, seconds in ((0, 0.6), (1, 2.5)):
    ranks.append(os.fork())
    if not ranks[-1]:
        rank(number, seconds)
say = line("server")
time.sleep(0.2)
say(ended=ranks[0], status=0)
for one in ranks:
    os.waitpid(one, 0)
line("engine")(finished=True)
"""


def test_an_end_that_is_heard_before_the_last_words_is_no_failure(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{PATIENT}")
    python.chmod(0o755)

    ran = asyncio.run(train(Estate(tmp_path / "files"), order(nproc=2, stages=STAGES), python=str(python)))

    assert {rank: one.ending for rank, one in by_rank(ran).items()} == {0: Ending.FINISHED, 1: Ending.FINISHED}
    assert ran.problem == ""
