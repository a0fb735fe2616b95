"""NCCL's RAS, played by a process of the tests' own that has a library with NCCL's version mapped, as a rank has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from ddpdoctor.facts.hang import RasCount
from ddpdoctor.facts.processes import Process, ProcessRole, RankPlace
from ddpdoctor.hang import examining
from ddpdoctor.hang.ras import client
from ddpdoctor.hang.ras.client import ask_twice
from ddpdoctor.processes.jobs import TrainingJob
from tests.support import ras_server
from tests.support.command import plain_environ


class Server:
    """One that runs. pid, port."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port

    def said(self) -> str:
        """What it was told over the next connection that ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextmanager
def server(
    folder: Path, *cases: str, version: str = "2.29.3", port: int = 0, within: Sequence[str] = (), **settings: str
) -> Iterator[Server]:
    library = ras_server.write_library(folder, version)
    with ExitStack() as stack:
        if not port:
            # Bound and not listening: the port stays ours, whoever else looks for one.
            held = stack.enter_context(closing(socket.socket()))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        process = subprocess.Popen(
            [*within, sys.executable, ras_server.__file__, str(library), str(port), *cases],
            env={**plain_environ(), "NCCL_RAS_ADDR": f"127.0.0.1:{port}", **settings},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout
            assert int(process.stdout.readline()) == port
            yield Server(process, port)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def job(*pids: int) -> TrainingJob:
    ranks = [
        Process(
            pid=pid, start=1, parent=1, role=ProcessRole.RANK, place=RankPlace(rank=rank, world_size=2, source="RANK")
        )
        for rank, pid in enumerate(pids)
    ]
    return TrainingJob(name="1", ranks=tuple(ranks))


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects nevertheless fails the test."""

    def connect(*place: object) -> None:
        raise AssertionError(place)

    monkeypatch.setattr(socket, "create_connection", connect)


def test_the_counts_of_both_answers_stand_side_by_side(tmp_path: Path) -> None:
    with server(tmp_path, "moving") as one:
        counts, why = ask_twice(job(one.pid), 0.0)
        assert one.said() == one.said() == "CLIENT PROTOCOL 2; TIMEOUT 5; SET FORMAT json; VERBOSE STATUS"
    assert why == ""
    assert counts == tuple(
        RasCount(
            communicator="0xfa93daea854b060b",
            rank=rank,
            host="10.0.0.1",
            pid=4000 + rank,
            first=(("AllReduce", 100), ("Broadcast", 2)),
            second=(("AllReduce", 101), ("Broadcast", 2)),
        )
        for rank in (0, 1)
    )


def test_a_rank_that_is_missing_the_second_time_keeps_its_first_counts(tmp_path: Path) -> None:
    with server(tmp_path, "behind", "missing") as one:
        counts, why = ask_twice(job(one.pid), 0.0)
    assert why == ""
    assert [(count.rank, count.first, count.second, count.status) for count in counts] == [
        (0, (("AllReduce", 100), ("Broadcast", 2)), (("AllReduce", 100), ("Broadcast", 2)), ""),
        (1, (("AllReduce", 99), ("Broadcast", 2)), (), "doesn't answer RAS"),
    ]


def test_a_missing_rank_without_its_comma_is_read_all_the_same(tmp_path: Path) -> None:
    with server(tmp_path, "missing") as one:
        well, _ = ask_twice(job(one.pid), 0.0)
    with server(tmp_path, "no-comma") as one:
        counts, why = ask_twice(job(one.pid), 0.0)
    assert why == ""
    assert counts == well
    assert [count.status for count in counts] == ["", "doesn't answer RAS"]


def test_who_knows_no_json_is_asked_for_text(tmp_path: Path) -> None:
    with server(tmp_path, "text") as one:
        counts, why = ask_twice(job(one.pid), 0.0)
    assert why == ""
    assert [(count.rank, count.pid, count.first, count.second) for count in counts] == [
        (0, 4000, (("AllReduce", 100),), (("AllReduce", 100),)),
        (1, 4001, (("AllReduce", 99),), (("AllReduce", 99),)),
    ]


def test_an_error_is_named(tmp_path: Path) -> None:
    with server(tmp_path, "error") as one:
        counts, _ = ask_twice(job(one.pid), 0.0)
    assert [count.status for count in counts] == ["", "remote process error"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("http", "is no RAS: it said"),
        ("closes", "is no RAS: it said"),
        ("endless", "doesn't stop talking"),
        ("garbage", "isn't the JSON that RAS writes"),
        ("nested", "isn't the JSON that RAS writes"),
        ("cut", "isn't the JSON that RAS writes"),
        ("refuses", "ERROR: Unknown command"),
    ],
)
def test_whatever_else_listens_there_is_told_and_no_more(tmp_path: Path, case: str, why: str) -> None:
    with server(tmp_path, case) as one:
        counts, told = ask_twice(job(one.pid), 0.0)
    assert counts == ()
    assert why in told
    assert told.isprintable()


def test_silence_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GREETING_SECONDS", 0.1)
    with server(tmp_path, "silent") as one:
        counts, told = ask_twice(job(one.pid), 0.0)
    assert counts == ()
    assert "accepts connections and says nothing" in told


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.27.3", "rank 0 has NCCL 2.27.3, and before 2.29.2 asking could crash it"),
        ("2.29.1", "rank 0 has NCCL 2.29.1"),
        ("two", "doesn't tell its version"),
    ],
)
@pytest.mark.usefixtures("unasked")
def test_an_nccl_that_asking_may_crash_is_never_asked(tmp_path: Path, version: str, why: str) -> None:
    with server(tmp_path, "well", version=version) as one:
        counts, told = ask_twice(job(one.pid), 0.0)
        assert counts == ()
        assert why in told


@pytest.mark.usefixtures("unasked")
def test_the_rank_with_the_oldest_nccl_decides(tmp_path: Path) -> None:
    with server(tmp_path, "well") as one, server(tmp_path, "well", version="2.28.9", port=one.port) as other:
        _, told = ask_twice(job(one.pid, other.pid), 0.0)
        assert "rank 1 has NCCL 2.28.9" in told


@pytest.mark.usefixtures("unasked")
def test_another_job_on_the_port_may_be_older_so_nobody_is_asked(tmp_path: Path) -> None:
    with server(tmp_path, "well") as one, server(tmp_path, "well", version="2.27.3", port=one.port) as other:
        _, told = ask_twice(job(one.pid), 0.0)
        assert f"process {other.pid}, which is none of this job's, listens on port {one.port}" in told


def test_a_stranger_alone_on_the_port_isnt_asked(tmp_path: Path) -> None:
    with server(tmp_path, "well") as stranger, server(tmp_path, "well") as one:
        with server(tmp_path, "well", NCCL_RAS_ADDR=f"localhost:{stranger.port}") as misled:
            _, told = ask_twice(job(misled.pid), 0.0)
        assert "which is none of this job's" in told
        assert ask_twice(job(one.pid), 0.0)[0]


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("NCCL_RAS_ENABLE", "0", "NCCL_RAS_ENABLE=0"),
        ("NCCL_RAS_ADDR", "nonsense\x1b[2J", "no host:port"),
        ("NCCL_RAS_ADDR", "localhost:99999999999999", "no host:port"),
        ("NCCL_RAS_ADDR", "localhost:1", "doesn't listen on port 1"),
    ],
)
@pytest.mark.usefixtures("unasked")
def test_the_ranks_settings_say_where(tmp_path: Path, setting: str, value: str, why: str) -> None:
    with server(tmp_path, "well", **{setting: value}) as one:
        _, told = ask_twice(job(one.pid), 0.0)
    assert why in told
    assert told.isprintable()


def test_a_rank_without_nccl_isnt_asked() -> None:
    _, told = ask_twice(job(os.getpid()), 0.0)
    assert "has no libnccl.so loaded" in told
    _, told = ask_twice(job(), 0.0)
    assert "no rank on this host" in told


@pytest.mark.usefixtures("unasked")
def test_a_library_that_was_replaced_tells_nothing(tmp_path: Path) -> None:
    with server(tmp_path, "well") as one:
        for path in tmp_path.glob("*/libnccl.so.2"):
            path.unlink()
        _, told = ask_twice(job(one.pid), 0.0)
    assert "was replaced while it runs" in told


@pytest.mark.root
@pytest.mark.tool("unshare")
@pytest.mark.usefixtures("unasked")
def test_a_rank_in_another_network_namespace_isnt_asked(tmp_path: Path) -> None:
    with server(tmp_path, "well") as one, server(tmp_path, "well", port=one.port, within=("unshare", "-n")) as other:
        _, told = ask_twice(job(other.pid), 0.0)
        assert "rank 0 is in another network namespace" in told


@pytest.mark.parametrize("wanted", [False, True])
def test_it_is_asked_only_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    asked: list[TrainingJob] = []

    def ask(job: TrainingJob, between: float) -> tuple[tuple[RasCount, ...], str]:
        asked.append(job)
        return (), "asked"

    monkeypatch.setattr(examining, "ask_twice", ask)
    monkeypatch.setattr(examining, "backend_of", lambda _: "nccl")
    told = examining.RasInquiry(job(), 0.0, wanted=wanted).answer()
    assert told == ((), "asked" if wanted else client.UNWANTED)
    assert bool(asked) is wanted
