"""One rank of the real store and collectives: real torch on loopback, and stand-ins that do what broken ones do."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ddpdoctor.base.ownership import foothold_on
from ddpdoctor.facts.fleet import TriedCollective
from ddpdoctor.network_check.analysis.collective_failures import ErrorKind, blamed, kind_of
from ddpdoctor.network_check.phases import run_collective as collectives
from ddpdoctor.network_check.phases.run_collective import collect
from ddpdoctor.network_check.protocol.messages import ABORTED, Collect, Collected, OrderFailed
from tests.support.free_ports import free_port
from tests.support.other_users import User
from tests.support.pythons import bare_venv, fake_torch, real_pythons, stand_in
from tests.support.store_attacks import noting_what_is_unpickled

Came = Collected | OrderFailed


def order(rank: int = 0, port: int = 1, *, backend: str = "gloo", world_size: int = 2, seconds: float = 30) -> Collect:
    return Collect(backend=backend, master="127.0.0.1", port=port, rank=rank, world_size=world_size, seconds=seconds)


def run(*orders: Collect, python: str = sys.executable, environ: Mapping[str, str] | None = None) -> list[Came]:
    """What becomes of these, carried out at once."""

    async def all_of_them() -> list[Came]:
        ranks = (collect(order, python=python, environ={**os.environ, **(environ or {})}) for order in orders)
        return list(await asyncio.gather(*ranks))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("libuv", ["1", "0"])
def test_two_ranks_on_the_port_that_the_hub_has_just_left(libuv: str) -> None:
    async def with_a_hub() -> list[Came]:
        port = free_port()
        hub = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port, reuse_address=True)
        agents = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        hub.close()
        environ = {**os.environ, "USE_LIBUV": libuv}
        ranks = (collect(order(rank, port), python=sys.executable, environ=environ) for rank in (0, 1))
        came = await asyncio.gather(*ranks)
        for _, writer in agents:
            writer.close()
        return list(came)

    for one in asyncio.run(with_a_hub()):
        assert isinstance(one, Collected)
        assert (one.stage, one.ok, one.words, one.hung) == ("end", True, "", False)


def test_ranks_that_nobody_meets_say_so_before_their_deadline() -> None:
    began = time.monotonic()
    server, client, taken = run(
        order(0, free_port(), seconds=12),
        order(1, free_port(), seconds=12),
        order(0, (squatter := socket.create_server(("127.0.0.1", 0))).getsockname()[1], seconds=12),
    )
    squatter.close()
    assert time.monotonic() - began < 20
    assert isinstance(server, Collected)
    assert (server.stage, server.ok, server.hung) == ("store", False, False)
    assert "1/2 clients joined" in server.words
    assert isinstance(client, Collected)
    # torch tries again after a random time: it may be killed while it does.
    assert (client.stage, client.ok) == ("store", False)
    assert "The client socket has timed out" in client.words
    assert isinstance(taken, Collected)
    assert (taken.stage, taken.hung) == ("store", False)
    assert "EADDRINUSE" in taken.words


def test_no_such_interface() -> None:
    (one,) = run(order(world_size=1, port=free_port()), environ={"GLOO_SOCKET_IFNAME": "eth9"})
    assert isinstance(one, Collected)
    assert (one.stage, one.ok) == ("group", False)
    assert one.words == (
        "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9"
    )


def test_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (one,) = run(order(), python=bare_venv(tmp_path / "venv"), environ={"PYTHONPATH": ""})
    assert one == OrderFailed(why="torch is not installed")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo what do you want; exit 3", 'it ended with exit code 3 and said "what do you want"'),
        ("head -c 100000 /dev/urandom", "it ended with exit code 0"),
        ("kill -SEGV $$", "it was ended by SIGSEGV"),
        ("exec sleep 50", "no answer within 1 s"),
    ],
)
def test_what_is_no_python(tmp_path: Path, script: str, why: str) -> None:
    (one,) = run(order(seconds=1), python=stand_in(tmp_path, script))
    assert isinstance(one, OrderFailed)
    assert one.why.startswith(f"the target Python can't be asked: {why}")


def test_a_python_that_is_not_there() -> None:
    (one,) = run(order(), python="/no/such/python")
    assert one == OrderFailed(why="the target Python can't be asked: it can't be started: No such file or directory")


TORCH = """
import os, sys
print("a banner", end="")
class cuda:
    is_available = staticmethod(lambda: True)
    set_device = staticmethod(lambda index: None)
class Numbers(float):
    min = max = lambda self: Numbers(self + float(os.environ.get("OFF", 0)))
    item = lambda self: float(self)
ones = lambda count, device: Numbers(2)
"""
DISTRIBUTED = """
import os
is_available = lambda: True
is_gloo_available = lambda: os.environ.get("WITHOUT") != "gloo"
rendezvous = lambda url, timeout: iter([(None, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))])
def init_process_group(backend, **kwargs):
    if os.environ.get("GROUP"):
        exec(os.environ["GROUP"])
all_reduce = barrier = lambda *arguments: None
"""


def fake(tmp_path: Path, backend: str = "gloo", /, *, seconds: float = 20, python: str = "", **environ: str) -> Came:
    """What becomes of a rank with a torch that talks to nobody, in whose init_process_group `GROUP` is executed."""
    folder = fake_torch(tmp_path / "fake", TORCH)
    (folder / "torch" / "distributed.py").write_text(DISTRIBUTED)
    one = order(backend=backend, seconds=seconds)
    return run(one, python=python or sys.executable, environ={"PYTHONPATH": str(folder), **environ})[0]


def failed(one: Came) -> tuple[str, str]:
    assert isinstance(one, Collected)
    assert not one.ok
    assert not one.hung
    return one.stage, one.words


def test_a_wrong_sum_is_a_failure(tmp_path: Path) -> None:
    assert failed(fake(tmp_path, OFF="0.5")) == ("all_reduce of 4 B", "wrong sum: 2.5 instead of 2")


def test_a_torch_without_gloo(tmp_path: Path) -> None:
    assert fake(tmp_path, WITHOUT="gloo") == OrderFailed(why="this torch is built without gloo")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_rank_that_is_ended_by_a_signal(tmp_path: Path, name: str) -> None:
    crash = f"import signal; os.kill(os.getpid(), signal.{name})"
    assert failed(fake(tmp_path, GROUP=crash)) == ("group", f"ended by {name}")


def test_an_exit_in_the_middle(tmp_path: Path) -> None:
    code = "import sys; print('[rank0]:[E1121 10:00:00.1 a.cpp:7] [c10d] the end', file=sys.stderr); print('  frame', file=sys.stderr); os._exit(7)"
    assert failed(fake(tmp_path, GROUP=code)) == ("group", 'ended with exit code 7; it last said "the end"')


def test_the_stack_and_control_characters_are_left_out(tmp_path: Path) -> None:
    error = r"raise RuntimeError('[/a/b/pair.cc:152] no\x1b[2J\nway\nException raised from f at /x.cpp:3\nframe #0')"
    assert failed(fake(tmp_path, GROUP=error)) == ("group", "RuntimeError: [pair.cc:152] no?[2J way")


def test_a_flood_of_output_and_words(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('{' * 20_000_000); sys.stdout.flush(); raise ValueError('x' * 100_000)"
    stage, words = failed(fake(tmp_path, GROUP=code))
    assert stage == "group"
    assert words.startswith("ValueError: xxx")
    assert len(words) <= 600


def test_what_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, time; p = subprocess.Popen(['sleep', '77']); print(p.pid, file=open(os.environ['PIDS'], 'w')); time.sleep(60)"
    pids = tmp_path / "pids"
    one = fake(tmp_path, seconds=3, GROUP=code, PIDS=str(pids))
    assert isinstance(one, Collected)
    assert (one.stage, one.words, one.hung) == ("group", "no end within 3 s", True)
    assert one.seconds < 8
    # It was killed; the kernel may need a moment to take it down.
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(pids.read_text()))
        until = time.monotonic() + 10
        while child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
            time.sleep(0.02)
        assert child.status() == psutil.STATUS_ZOMBIE


def test_who_cancels_leaves_nothing_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python = stand_in(tmp_path, f"echo $$ > {pids}; exec sleep 77")

    async def cancel() -> None:
        task = asyncio.create_task(collect(order(), python=python, environ=os.environ))
        while not pids.exists() or not pids.read_text().strip():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    began = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - began < 10
    assert not psutil.pid_exists(int(pids.read_text()))


def test_enough_is_answered_with_the_stage(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    folder = fake_torch(tmp_path / "fake", TORCH)
    (folder / "torch" / "distributed.py").write_text(DISTRIBUTED)
    hang = "import time; print(os.getpid(), file=open(os.environ['PIDS'], 'w'), flush=True); time.sleep(60)"
    environ = {**os.environ, "PYTHONPATH": str(folder), "GROUP": hang, "PIDS": str(pids)}

    async def stop() -> Came:
        task = asyncio.create_task(collect(order(), python=sys.executable, environ=environ))
        while not pids.exists() or not pids.read_text().strip():
            await asyncio.sleep(0.02)
        task.cancel(ABORTED)
        return await task

    began = time.monotonic()
    one = asyncio.run(stop())
    assert time.monotonic() - began < 10
    assert isinstance(one, Collected)
    assert (one.stage, one.ok, one.hung) == ("group", False, True)
    assert one.words.startswith("no end within")
    assert not psutil.pid_exists(int(pids.read_text()))


def test_nccl_leaves_its_log_where_we_can_read_it(tmp_path: Path) -> None:
    code = r"""
assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_RUNTIME_CONNECT"], backend) == ("INFO", "0", "nccl")
line = "n1:77:91 [0] misc/socket.cc:500 NCCL WARN Call to connect to 172.17.0.1<4711> failed : Connection timed out\n"
open(os.environ["NCCL_DEBUG_FILE"], "w").write("n1:77:91 [0] NCCL INFO Bootstrap : Using docker0\n" + line)
raise RuntimeError("NCCL error in: unhandled system error")
"""
    stage, words = failed(fake(tmp_path, "nccl", GROUP=code))
    assert stage == "group"
    assert words == (
        "RuntimeError: NCCL error in: unhandled system error;"
        " NCCL: Call to connect to 172.17.0.1<4711> failed : Connection timed out"
    )


def test_every_python_that_torch_2_runs_on_can_run_it(tmp_path: Path) -> None:
    old = real_pythons().get("3.8")
    for number, python in enumerate(filter(None, [old, sys.executable])):
        one = fake(tmp_path / str(number), python=python)
        assert isinstance(one, Collected)
        assert (one.stage, one.ok) == ("end", True)


def rank(node: int, words: str = "", *, hung: bool = False) -> TriedCollective:
    return TriedCollective(node=node, backend="gloo", stage="group", ok=not words, words=words, hung=hung)


def test_the_rank_with_an_error_of_its_own_is_blamed() -> None:
    refused = "RuntimeError: timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:9$1"
    waited = "DistStoreError: wait timeout after 7285ms, keys: /0//cpu//0/1"
    assert kind_of(rank(0, refused)) is ErrorKind.ERROR
    assert kind_of(rank(0, waited)) is ErrorKind.WAITED
    assert [
        one.node
        for one in blamed([rank(0, waited), rank(1, refused), rank(2, "no end within 9 s", hung=True), rank(3)])
    ] == [1]
    assert blamed([rank(0, waited), rank(1, "RuntimeError: Connection reset by peer")]) == []
    assert [
        one.node for one in blamed([rank(0, "RuntimeError: Connection closed by peer"), rank(1, "ended by SIGKILL")])
    ] == [1]


@pytest.mark.root
def test_nccl_s_log_is_not_where_another_user_could_replace_it(eve: User, shared: Path) -> None:
    eve.does(f"mkdir -m 777 {shared}/hers")
    with collectives._log_of_nccl("nccl", {"TMPDIR": f"{shared}/hers"}) as log:
        assert log is not None
        assert foothold_on(log.parent) is None
        assert log.parent.stat().st_mode & 0o777 == 0o700
    assert not log.parent.exists()
    assert list((shared / "hers").iterdir()) == []


def test_no_rank_unpickles_what_it_is_sent(tmp_path: Path) -> None:
    environ, unpickled = noting_what_is_unpickled(os.environ, tmp_path)
    port = free_port()
    ended = run(order(0, port), order(1, port), environ=environ)
    assert [isinstance(rank, Collected) and rank.ok for rank in ended] == [True, True]
    assert unpickled() == ""
