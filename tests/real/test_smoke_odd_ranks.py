"""What comes in from outside: a user's own code in the ranks, a killer, a Python that is none, an end that is ordered."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.facts.smoke import RankEnding, Smoke, StageState
from ddpdoctor.network_check.protocol.messages import ABORTED
from ddpdoctor.smoke_training.local.rank_monitor import PROCESS_END, RankMonitor
from ddpdoctor.smoke_training.training_order import Fault
from tests.support.smoke_runs import Estate, by_rank, order, rank_1_runs, run_ranks, train

SECONDS = 5.0
STAGES = ("import", "device", "rendezvous", "process group", "all_reduce", "shutdown")
SLEEPS = Fault(1, "all_reduce", "sleep")

FLOOD = r"""
DAEMON = True
def main():
    with open("/dev/shm/nccl-" + os.environ["DDPDOCTOR_TEST"], "w+b") as file:
        file.truncate(4096)
        globals()["kept"] = mmap.mmap(file.fileno(), 4096)
    for _ in range(200):
        os.write(1, os.urandom(65536))
    while True:
        os.write(2, b"on and on " * 6000)
"""
JUNK = r"""
DAEMON = False  # Else a rank that is faster than this thread would end before it has done anything.
def main():
    open("/dev/shm/nccl-" + os.environ["DDPDOCTOR_TEST"], "w").close()
    subprocess.Popen(["sleep", "600"], start_new_session=True, close_fds=False)
    doctor = ranks_doctor()
    if doctor is None:
        return
    messages = doctor.messages
    del doctor
    for _ in range(60):
        for junk in (
            b"\xff\xfe", b"[]", b"{}", b"7", b"[" * 60000, b'{"stage": 1}', b'{"stage": "all_reduce", "state": []}',
            b'{"memory": 1e400, "step": ["a"], "at": NaN}', b'{"memory": -5, "device": null}', b'{"who": 0, "finished": 1}',
            b'{"stage": "apex", "state": "begun"}', b'{"step": "' + b"x" * 60000 + b'"}', b'{"figures": 7, "finished": "yes"}',
        ):
            messages.send(junk)
"""
STAYS = r"""
DAEMON = False
def main():
    time.sleep(600)
"""
ABORTS = r"""
DAEMON = False
def main():
    while threading.main_thread().is_alive():
        time.sleep(0.02)
    os.abort()
"""
SIGTERM = r"""
DAEMON = True
def main():
    wait_until_it_sleeps()
    os.kill(os.getpid(), signal.SIGTERM)
"""
NO_ENGINE = r"""
DAEMON = True
def main():
    wait_until_it_sleeps()
    os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
"""
NO_KEEPER = r"""
DAEMON = True
def main():
    wait_until_it_sleeps()
    engine = multiprocessing.parent_process().pid
    with open(f"/proc/{engine}/stat") as stat:
        keeper = int(stat.read().rpartition(")")[2].split()[1])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.kill(keeper, signal.SIGKILL)
"""
NO_SERVER = r"""
DAEMON = True
def main():
    wait_until_it_sleeps()
    os.kill(os.getppid(), signal.SIGKILL)
"""


class Odd:
    """Two ranks, of which rank 1 runs that, too."""

    def __init__(self, folder: Path, main: str) -> None:
        self.estate = Estate(folder / "files")
        rank_1_runs(main, folder / "library", self.estate)

    @property
    def shared(self) -> Path:
        return Path(f"/dev/shm/nccl-{self.estate.mark}")

    def train(self, fault: Fault | None = None) -> Coroutine[Any, Any, Smoke]:
        one = order(fault, nproc=2, seconds=SECONDS, stages=STAGES)
        return self.estate.watched(run_ranks(one, environ=self.estate.environ))


@pytest.mark.slow
@pytest.mark.thorough
def test_nobody_talks_the_doctor_down(short_path: Path) -> None:
    """Megabytes without a line, packets that are no messages, a process that outlives its rank's last word."""
    flood, junk, stays, aborts = (
        Odd(short_path / name, main)
        for name, main in (("flood", FLOOD), ("junk", JUNK), ("stays", STAYS), ("aborts", ABORTS))
    )

    async def go() -> list[Smoke]:
        return await asyncio.gather(flood.train(SLEEPS), junk.train(), stays.train(), aborts.train())

    hung, healthy, stayed, aborted = asyncio.run(go())
    for one in (flood, junk, stays, aborts):
        found = one.estate.left_after(1.0)
        assert found == {}

    culprit = by_rank(hung)[1]
    assert culprit.ending is RankEnding.HUNG
    assert culprit.last is not None
    behind = flood.estate.behind(culprit.last.seconds + SECONDS)
    assert SECONDS - 1 <= culprit.last.seconds <= SECONDS + 6 + behind
    assert "on and on" in culprit.last_line
    assert len(culprit.last_line) <= 300
    assert not flood.shared.exists()  # The rank had it mapped, so it is surely ours.

    assert {rank.ending for rank in healthy.ranks} == {RankEnding.FINISHED}
    assert {stage.state for rank in healthy.ranks for stage in rank.stages} == {StageState.PASSED}
    assert all(0 < rank.memory < 1 << 40 for rank in healthy.ranks)
    # Nobody had it mapped when it was looked at: told, and left alone.
    assert junk.shared.name in healthy.leftovers.unclaimed
    assert healthy.leftovers.processes == ()
    junk.shared.unlink()

    rank = by_rank(stayed)[1]
    assert (rank.ending, rank.step) == (RankEnding.HUNG, PROCESS_END), [
        (rank.ending, rank.exit_code, rank.step, rank.stack_source, rank.ended_after, rank.words)
        for rank in stayed.ranks
    ]
    assert rank.last is not None
    assert (rank.last.name, rank.last.state) == ("shutdown", StageState.HUNG)
    assert rank.stack_source == "faulthandler"
    assert by_rank(stayed)[0].ending is RankEnding.FINISHED

    rank = by_rank(aborted)[1]
    assert (rank.ending, rank.exit_code) == (RankEnding.KILLED, -6)
    assert rank.last is not None
    assert (rank.last.name, rank.last.state) == ("shutdown", StageState.FAILED)
    assert any(frame.startswith("main (library/sitecustomize.py") for frame in rank.stack)
    assert (rank.last_line, aborted.problem) == ("", "")


@pytest.mark.slow
@pytest.mark.thorough
def test_who_was_killed_is_told_from_those_who_died_of_it(short_path: Path) -> None:
    term, engine, server, keeper = odd = [
        Odd(short_path / name, main)
        for name, main in (("term", SIGTERM), ("engine", NO_ENGINE), ("server", NO_SERVER), ("keeper", NO_KEEPER))
    ]

    async def go() -> list[Smoke]:
        return await asyncio.gather(*(one.train(SLEEPS) for one in odd))

    by_sigterm, without_engine, without_server, without_keeper = asyncio.run(go())
    for one in (term, engine, server, keeper):
        assert one.estate.left_after(1.0) == {}
    rank = by_rank(by_sigterm)[1]
    assert (rank.ending, rank.exit_code, by_sigterm.problem) == (RankEnding.KILLED, -15, "")
    assert without_engine.problem.startswith("torch's engine was ended by SIGKILL")
    assert [rank.ending for rank in without_engine.ranks] == [RankEnding.ENDED] * 2
    assert without_server.problem == "the process that the ranks were forked from has ended"
    assert [rank.ending for rank in without_server.ranks] == [RankEnding.ENDED] * 2
    assert without_keeper.problem == "the process of ddpdoctor that keeps the ranks was ended by SIGKILL"
    assert [rank.ending for rank in without_keeper.ranks] == [RankEnding.ENDED] * 2


@pytest.mark.slow
def test_enough_is_enough_and_what_is_known_is_told(short_path: Path) -> None:
    """Another host has failed: this one's ranks are asked where they are, and ended. Any other end is no answer."""
    answered, stopped = Estate(short_path / "answered"), Estate(short_path / "stopped")

    async def cancelled(estate: Estate, message: str) -> Smoke:
        waiting = asyncio.Event()

        def heard(watch: RankMonitor) -> None:
            if watch.ranks[0].stage == "all_reduce" and watch.ranks[0].steps:
                waiting.set()

        one = order(SLEEPS, nproc=2, seconds=60, stages=STAGES)
        work = run_ranks(one, environ=estate.environ, on_progress=heard)
        return await estate.watched(work, message, waiting)

    async def go() -> list[Smoke | BaseException]:
        both = cancelled(answered, ABORTED), cancelled(stopped, "its user: Ctrl-C")
        return await asyncio.gather(*both, return_exceptions=True)

    ran, end = asyncio.run(go())
    assert isinstance(ran, Smoke)
    assert isinstance(end, asyncio.CancelledError)
    for one in ran.ranks:
        assert (one.ending, one.stack_source) == (RankEnding.ENDED, "faulthandler")
        assert one.last is not None
        assert one.last.name == "all_reduce"
    for estate in (answered, stopped):
        assert estate.left_after(1.0) == {}


def test_a_python_that_is_none_ends_at_once_with_its_words(short_path: Path) -> None:
    complains = short_path / "complains"
    complains.write_text("#!/bin/sh\necho no licence >&2\nexit 3\n")
    crashes = short_path / "crashes"
    crashes.write_text("#!/bin/sh\nkill -SEGV $$\n")
    for one in (complains, crashes):
        one.chmod(0o755)
    library = short_path / "library"
    (library / "torch").mkdir(parents=True)
    (library / "torch" / "__init__.py").write_text("import a_library_of_torch\n")
    cases = (
        (os.fspath(short_path / "nowhere"), f"{short_path}/nowhere: No such file or directory"),
        (os.fspath(complains), 'the target Python ended with exit code 3; it last said "no licence"'),
        (os.fspath(crashes), "the target Python was ended by SIGSEGV"),
        (sys.executable, "ModuleNotFoundError: No module named 'a_library_of_torch'"),
    )

    async def go() -> list[Smoke]:
        return await asyncio.gather(
            *(
                train(Estate(short_path / str(number)), order(nproc=2), python, PYTHONPATH=os.fspath(library))
                for number, (python, _) in enumerate(cases)
            )
        )

    for ran, (_, words) in zip(asyncio.run(asyncio.wait_for(go(), 60)), cases, strict=True):
        assert words in ran.problem
        assert [rank.ending for rank in ran.ranks] == [RankEnding.NEVER_CAME] * 2
