"""`ddpdoctor smoke` of root's on a host where another user attacks what it opens, or owns the folder for its files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.facts.smoke import RankEnding
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.command import ROOT, command, ddpdoctor, plain_environ
from tests.support.free_ports import free_port
from tests.support.namespaces import Host, network
from tests.support.other_users import User
from tests.support.smoke_runs import run_ranks
from tests.support.store_attacks import attacked_by, noting_what_is_unpickled

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with network("n1") as (made,):
        yield made


def smoke_on(host: Host, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        host.command(*command("smoke", *arguments)),
        env=plain_environ() | settings,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_nobody_reaches_the_ranks_store_of_one_host(eve: User, shared: Path, host: Host) -> None:
    fault = json.dumps({"rank": 1, "stage": "training", "kind": "sleep"})
    with attacked_by(eve, shared, host) as attack:
        done = smoke_on(host, "--nproc", "2", "--timeout", "5", DDPDOCTOR_SMOKE_FAULT=fault)
    assert not attack.seen.ran, attack.seen
    assert not attack.seen.stores, attack.seen
    assert "rank 1 hangs in training" in done.stdout, done.stdout + done.stderr


PYTHON_3_10_8 = r"""
import itertools, os
from multiprocessing import connection, util
usual, numbers = connection.arbitrary_address, itertools.count()
def arbitrary_address(family):
    if family == "AF_UNIX" and util.abstract_sockets_supported:
        return "\0listener-%d-%d" % (os.getpid(), next(numbers))
    return usual(family)
connection.arbitrary_address = arbitrary_address
"""
"""Its own choice of an address, which is that of 3.9.0 to 3.10.8 and of 3.11.0."""


def test_nobody_reaches_the_server_that_forks_the_ranks(eve: User, shared: Path, host: Host, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PYTHON_3_10_8)
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    fault = json.dumps({"rank": 1, "stage": "training", "kind": "sleep"})
    with attacked_by(eve, shared, host) as attack:
        done = smoke_on(host, "--nproc", "2", "--timeout", "3", DDPDOCTOR_SMOKE_FAULT=fault, PYTHONPATH=path)
    assert not attack.seen.ran, attack.seen
    assert not attack.seen.servers
    assert "rank 1 hangs in training" in done.stdout, done.stdout + done.stderr


STATIC = """
import asyncio, os, sys
from ddpdoctor.smoke_training.training_order import Fault, TrainingOrder
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
sleeps = Fault(rank=1, stage="training", kind="sleep")
order = TrainingOrder(nproc=2, world_size=2, master="127.0.0.1", port=29500, seconds=5.0, fault=sleeps)
ran = asyncio.run(RankRunner(order, sys.executable, os.environ, lambda monitor: None).run())
print([rank.ending.value for rank in ran.ranks])
"""


def test_nothing_in_the_store_of_several_hosts_is_run(eve: User, shared: Path, host: Host) -> None:
    """It is on the network, as torchrun's: she may disturb the training."""
    with attacked_by(eve, shared, host) as attack:
        done = host.run(sys.executable, "-c", STATIC, environ=plain_environ(), seconds=60)
    assert attack.seen.stores == {29500}
    assert attack.seen.keys - {"init/"}, "of the agents or ranks: how many depends on which she spoils first"
    assert not attack.seen.ran, attack.seen
    assert RankEnding.FINISHED.value not in done.stdout


def test_the_ranks_files_are_where_she_can_not_take_them_away(eve: User, shared: Path) -> None:
    eve.does(f"mkdir -m 777 {shared}/hers")
    take = f"cd {shared}/hers; while :; do mv ddpdoctor-smoke-* taken; sleep 0.01; done 2>/dev/null"
    with subprocess.Popen(["sh", "-c", take], user=eve.uid, group=eve.gid, extra_groups=[]) as taking:
        done = ddpdoctor("smoke", "--nproc", "2", "--stages", "checkpoint", environ={"TMPDIR": f"{shared}/hers"})
        taking.kill()
    words = " ".join(done.stdout.split())
    assert f"since others can't be used ({shared}/hers: {shared}/hers belongs to ddpdoctor-eve)" in words
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((shared / "hers").iterdir()) == []


@pytest.mark.parametrize("master", ["", "127.0.0.1"], ids=["one host", "several hosts"])
def test_no_process_of_a_training_unpickles_what_it_is_sent(master: str, tmp_path: Path) -> None:
    environ, unpickled = noting_what_is_unpickled(plain_environ(), tmp_path)
    order = TrainingOrder(nproc=2, world_size=2, master=master, port=free_port() if master else 0)
    ran = asyncio.run(run_ranks(order, environ=environ))
    assert [found.ending for found in ran.ranks] == [RankEnding.FINISHED] * 2
    assert unpickled() == ""
