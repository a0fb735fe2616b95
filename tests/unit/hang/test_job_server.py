"""The debug server that a job was started with, and the command that asks it."""

from __future__ import annotations

import asyncio
from itertools import starmap

import pytest

from ddpdoctor.api.running_jobs import HangResult
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.processes import Process, Processes, RankPlace
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.debug_server.job_server import debug_server_of
from ddpdoctor.hang.fixes import ask_its_server
from ddpdoctor.hang.judging import judge_hang
from ddpdoctor.hang.watching import watch
from ddpdoctor.processes.jobs import TrainingJob
from tests.support.hangs import call, collective, dump, hang, rank

SERVER = "node0:25999"
COMMAND = f"ddpdoctor jobs --hang --debug-server {SERVER}"


def served(number: int, **settings: str) -> Process:
    """A rank with these settings."""
    place = RankPlace(rank=number, source="RANK")
    return Process(
        pid=4000 + number, start=1, parent=1, place=place, settings=tuple(starmap(Setting, settings.items()))
    )


@pytest.mark.parametrize(
    ("ranks", "address"),
    [
        ([served(0, DDPDOCTOR_DEBUG_SERVER="25999"), served(1, DDPDOCTOR_DEBUG_SERVER="25999")], "localhost:25999"),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999", MASTER_ADDR="node0")], "node0:25999"),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999", MASTER_ADDR="fe80::1")], "[fe80::1]:25999"),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999")], ""),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999", MASTER_ADDR="node0; rm -r ~")], ""),
        ([served(0, DDPDOCTOR_DEBUG_SERVER="$(id)")], ""),
        ([served(0, MASTER_ADDR="node0")], ""),
    ],
    ids=["here", "on another host", "by IPv6", "nobody says where", "no host", "no port", "without one"],
)
def test_where_the_debug_server_of_a_job_is_asked(ranks: list[Process], address: str) -> None:
    assert debug_server_of(TrainingJob(name="3990", ranks=tuple(ranks))) == address


def test_a_look_at_the_job_tells_of_it() -> None:
    here = served(0, DDPDOCTOR_DEBUG_SERVER="25999")
    job = TrainingJob(name="3990", ranks=(here,))
    assert asyncio.run(watch(job, Processes(watched=0.0), "node01", 0)).own_server == "localhost:25999"


def judged(**more: object) -> Examination:
    """Ranks that all wait in the same call."""
    ranks = [rank(number, collective()) for number in range(2)]
    return judge_hang(Snapshot(host="node01"), hang(*ranks, **more), catalogue())


def commands(examination: Examination) -> list[str]:
    return [command for _, _, finding in examination.findings for fix in finding.fixes for command in fix.commands]


def test_it_is_asked_at_once_and_not_in_the_next_run() -> None:
    without, with_one = commands(judged()), commands(judged(own_server=SERVER))
    assert COMMAND in with_one
    assert COMMAND not in without
    recording = "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
    assert (recording in without, recording in with_one) == (True, False)


def test_where_dumps_tell_of_the_calls_nobody_needs_it() -> None:
    assert COMMAND not in commands(judged(own_server=SERVER, recorded=(dump(0, call(7)), dump(1, call(7)))))


@pytest.mark.parametrize(
    ("server", "command"),
    [("", ""), (SERVER, COMMAND), ("[fe80::1]:25999", "ddpdoctor jobs --hang --debug-server '[fe80::1]:25999'")],
)
def test_the_command_can_be_copied(server: str, command: str) -> None:
    assert ask_its_server(Hang(own_server=server)) == command


def test_its_host_is_in_no_markdown() -> None:
    text = HangResult(judged(own_server="secret-node:25999")).to_markdown()
    assert "--debug-server" in text
    assert "secret-node" not in text
