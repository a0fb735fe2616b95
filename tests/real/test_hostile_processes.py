"""Processes of another user who wants ddpdoctor to see nothing, while root looks: hers alone are not seen, and nobody waits for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process, Processes, ProcessRole
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.processes import listing, reading_limits
from ddpdoctor.processes.jobs import jobs_of, setting
from ddpdoctor.processes.leftovers.all_kinds import blind_spots
from tests.support.command import ddpdoctor
from tests.support.other_users import User, python_for_all

pytestmark = pytest.mark.root

RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731"}
SECRET = "Tr0ub4dor"
CROWD = """
import ctypes, os, sys, threading, time
count, threads, files, deep = (int(word) for word in sys.argv[1:5])
libc = ctypes.CDLL(None)

def look_like_a_rank():
    libc.prctl(15, b"pt_gloo_runloop", 0, 0, 0)
    time.sleep(600)

def go_on():
    for _ in range(threads):
        threading.Thread(target=look_like_a_rank, daemon=True).start()
    for _ in range(files):
        os.open("/dev/null", os.O_WRONLY)

for _ in range(count):
    child = os.fork()
    if deep and child or not deep and not child:
        go_on()
        break
else:
    go_on()
    print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def started(user: User, words: Sequence[str], environ: Mapping[str, str], says: str = "") -> Iterator[int]:
    """A command of that user's, once it has said that; it and all that it started are gone afterwards."""
    process = subprocess.Popen(
        words,
        user=user.uid,
        group=user.gid,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", **environ},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        if says:
            assert process.stdout.readline().strip() == says
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def crowd(
    user: User, count: int, environ: Mapping[str, str], *, threads: int = 0, files: int = 0, deep: bool = False
) -> AbstractContextManager[int]:
    """So many Pythons, each the child of one or of the one before it."""
    words = [python_for_all()[0], "-c", CROWD, *map(str, (count, threads, files, int(deep)))]
    return started(user, words, environ, "ready")


@pytest.fixture
def innocent(ada: User) -> Iterator[int]:
    """The pid of a rank of hers."""
    code = "import time; print('ready', flush=True); time.sleep(600)"
    with started(ada, [python_for_all()[0], "-c", code, "--rank-of-ada"], RANK, "ready") as pid:
        yield pid


def look() -> Processes:
    found = listing.probe(Context(sys.executable))
    assert isinstance(found, Processes), found
    return found


def is_seen_whole(pid: int, found: Processes) -> bool:
    """Whether that rank is known as far as one is."""
    one = found.get(pid)
    return (
        one is not None
        and one.role is ProcessRole.RANK
        and setting(one, "MASTER_PORT") == "29731"
        and not any(isinstance(fact, Unknown) for fact in (one.settings, one.devices, one.listens, one.writes_to))
        and pid in [rank.pid for job in jobs_of(found) for rank in job.ranks]
    )


def of(crowd: int, found: Processes) -> list[Process]:
    """Its processes, which have a session of their own."""
    return [entry for entry in found.listed if entry.session == crowd]


@pytest.mark.parametrize("sign", ["+", "a.", "(a", "%-", "://a", "token="])
def test_settings_that_would_take_a_pattern_for_ever(sign: str, eve: User, innocent: int) -> None:
    long = (sign * 100_000)[:100_000]
    with crowd(eve, 8, RANK | {f"NCCL_{number}": long for number in range(9)} | {"OMPI_COMM_WORLD_X": long}):
        found = ddpdoctor("check", "--quick", "--json", "-v")
    said = json.loads(found.stdout)
    assert not [skipped for skipped in said["not_tested"] if "no answer" in skipped["reason"]]
    listed = next(iter(said["facts"].values()))["processes"]["listed"]
    assert innocent in [entry["pid"] for entry in listed]


@pytest.mark.parametrize("deep", [False, True])
def test_more_processes_than_anybody_has(deep: bool, eve: User, innocent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_limits, "MAX_PROCESSES_OF_A_USER", 100)
    with crowd(eve, 300, RANK, threads=1, deep=deep) as hers:
        found = look()
    assert is_seen_whole(innocent, found)
    (spared,) = [process for process in found.spared if process.uid == eve.uid]
    assert spared.count >= 200
    assert 0 < len(of(hers, found)) <= 100
    assert any(eve.name in spot for spot in blind_spots(found, Unknown("no GPU"), Unknown("not asked")))


def test_more_in_environments_than_is_kept(eve: User, innocent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_limits, "MAX_BYTES_OF_A_USER", 1 << 20)
    with crowd(eve, 20, RANK | {f"NCCL_{number}": "x" * 1000 for number in range(200)}):
        found = look()
    assert is_seen_whole(innocent, found)
    (spared,) = [process for process in found.spared if process.uid == eve.uid]
    assert spared.count >= 10


def test_more_settings_than_anybody_has(eve: User, innocent: int) -> None:
    with crowd(eve, 2, RANK | {f"SLURM_{number}": "x" for number in range(5000)}, threads=1) as hers:
        found = look()
    assert is_seen_whole(innocent, found)
    assert {
        isinstance(one.settings, Unknown) and "more than 500" in one.settings.reason for one in of(hers, found)
    } == {True}


def test_one_environment_without_an_end(eve: User, innocent: int) -> None:
    with crowd(eve, 1, RANK | {f"X{number}": "x" * 120_000 for number in range(12)}, threads=1) as hers:
        found = look()
    assert is_seen_whole(innocent, found)
    assert all(
        isinstance(one.settings, Unknown) and "more than 1 MiB" in one.settings.reason for one in of(hers, found)
    )


def test_time_that_her_processes_take(eve: User, innocent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_limits, "MAX_SECONDS_OF_A_USER", 0.05)
    with crowd(eve, 30, RANK, threads=20, files=900):
        found = look()
    assert [process.uid for process in found.spared if process.uid == eve.uid]
    assert innocent in [entry.pid for entry in found.listed]


def test_open_files_without_an_end(eve: User, innocent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.probes.proc.MAX_DESCRIPTORS", 500)
    with crowd(eve, 0, RANK, threads=1, files=600) as hers:
        found = look()
    assert is_seen_whole(innocent, found)
    assert any(isinstance(one.devices, Unknown) and "open files" in one.devices.reason for one in of(hers, found))


@pytest.mark.parametrize(
    "arguments",
    [
        ["-p", SECRET],
        [f"-p{SECRET}"],
        ["--password", SECRET],
        ["-u", f"ada:{SECRET}"],
        ["--url", f"ftp://ada:{SECRET}@host"],
        [SECRET],
    ],
    ids=str,
)
def test_secrets_in_arguments_of_others(arguments: list[str], ada: User) -> None:
    """In whatever form: arguments of others aren't shown at all, and kept in no snapshot."""
    code = "import time; print('ready', flush=True); time.sleep(600)"
    words = [python_for_all()[0], "-c", f"secret = {SECRET!r}; {code}", *arguments]
    with started(ada, words, RANK | {"PYTHONPATH": f"/home/{SECRET}", "NCCL_NET_PLUGIN_X": SECRET}, "ready") as pid:
        found = look()
        shown = ddpdoctor("snapshot").stdout, ddpdoctor("jobs").stdout, ddpdoctor("zombies", "--json").stdout
    assert is_seen_whole(pid, found)
    one = found.get(pid)
    assert one
    assert one.command.endswith(" -c ...")
    assert SECRET not in repr(found)
    assert not [text for text in shown if SECRET in text]
    assert str(pid) in "".join(shown)
