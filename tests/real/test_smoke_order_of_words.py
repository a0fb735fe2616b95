"""Target Pythons that speak the protocol themselves, so that what is heard first is settled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from ddpdoctor.facts.smoke import RankEnding, Smoke
from tests.support.smoke_runs import Estate, by_rank, order, train

STAGES = ("import", "shutdown")

LINES = """
import json, os, signal, socket, sys, time

channel = json.loads(sys.argv[2])["channel"]

def line(who):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect("\\0" + channel)
    return lambda **message: one.send(json.dumps({"who": who, "at": time.monotonic(), **message}).encode())
"""

TWO_RANKS = """
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

LONE_ENGINE = """
say = line("engine")
say(stage="import")
if not os.fork():
    server = line("server")
    server(stage="import")
    line(0)(stage="import", state="begun")
    line(1)(stage="import", state="begun")
    time.sleep(0.5)
    os._exit(0)
time.sleep(SECONDS)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""The ranks and their parent go at once; the engine after them, though it may have been the reason."""

SLOW_RANKS = """
def parent_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])

doctor = parent_of(os.getppid())
engine = line("engine")
engine(stage="import")
ranks = []
for number in range(16):
    ranks.append(os.fork())
    if not ranks[-1]:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        say = line(number)
        for stage in ("import", "device", "shutdown"):
            say(stage=stage, state="begun")
            time.sleep(0.5 if stage == "import" else 3.5)
            for step in range(150):
                say(step=f"step {step}")
            say(stage=stage, state="passed", seconds=0.1)
        say(finished=True)
        os._exit(0)
time.sleep(1)
os.kill(doctor, signal.SIGSTOP)
time.sleep(8)
os.kill(doctor, signal.SIGCONT)
for one in ranks:
    os.waitpid(one, 0)
engine(finished=True)
"""
"""They take 3.5 s for a stage, which may take 7, and of which the doctor hears nothing for 8 s: much is said by then."""

DOCTOR = """
import asyncio, os, sys
from tests.support.smoke_runs import order, run_ranks

work = run_ranks(order(nproc=16, seconds=7.0, stages=("import", "device", "shutdown")), python=sys.argv[1], environ=os.environ)
print({one.ending.value for one in asyncio.run(work).ranks})
"""


def python_that_runs(source: str, folder: Path) -> str:
    """An executable, in a new folder."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\n{LINES}{source}")
    python.chmod(0o755)
    return str(python)


def test_an_end_that_is_heard_before_the_last_words_is_no_failure(tmp_path: Path) -> None:
    python = python_that_runs(TWO_RANKS, tmp_path / "patient")

    ran = asyncio.run(train(Estate(tmp_path / "files"), order(nproc=2, stages=STAGES), python=python))

    assert {rank: run.ending for rank, run in by_rank(ran).items()} == {0: RankEnding.FINISHED, 1: RankEnding.FINISHED}
    assert ran.problem == ""


def test_the_end_of_all_ranks_is_told_by_its_cause_where_that_is_heard_in_time(tmp_path: Path) -> None:
    async def with_engine_for(seconds: float) -> Smoke:
        folder = tmp_path / f"{seconds:g}"
        python = python_that_runs(LONE_ENGINE.replace("SECONDS", str(seconds)), folder)
        return await train(Estate(folder / "files"), order(nproc=2, stages=STAGES), python=python)

    async def go() -> list[Smoke]:
        return await asyncio.gather(with_engine_for(1.5), with_engine_for(600))

    killed, stays = asyncio.run(go())
    assert killed.problem == "torch's engine was ended by SIGKILL"
    assert stays.problem == "the process that the ranks were forked from has ended"
    for ran in (killed, stays):
        assert [rank.ending for rank in ran.ranks] == [RankEnding.ENDED] * 2


def test_a_doctor_who_was_stopped_hears_what_was_said_before_calling_anyone_late(tmp_path: Path) -> None:
    python = python_that_runs(SLOW_RANKS, tmp_path / "patient")
    estate = Estate(tmp_path / "files")

    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, python],
        env=estate.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("{'finished'}\n", "")
    assert estate.left_after(1.0) == {}
