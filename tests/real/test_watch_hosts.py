"""`watch` of a job over two hosts, a watch on each: by network namespaces, with pids of their own, as hosts have them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, plain_environ
from tests.support.namespaces import Host, network
from tests.support.running_jobs import wait_until
from tests.support.watched_jobs import ALARM, TRAINING

pytestmark = [pytest.mark.root, pytest.mark.thorough, pytest.mark.tool("ip", "unshare"), pytest.mark.timeout(600)]

CONFIRM = 12
OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
TRAINS_AND_WATCHES = 'eval "$1" >"$3/training-$4" 2>&1 & eval "$2 $!" >"$3/watched-$4" 2>&1; wait'
"""A batch script on each host. The watch is told the pid of the launcher beside it."""


@contextmanager
def watched_host(host: Host, node: int, folder: Path, wish: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """torchrun with two of four ranks on this host, and a watch beside it; ended with all that they have started."""
    environ = {**plain_environ(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    train = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node),
        "--master-addr", "10.77.0.11", "--master-port", "29500", str(TRAINING), str(folder), json.dumps(wish),
    ]  # fmt: skip
    told = folder / f"blamed-{node}"
    watch = command(
        "watch", "--confirm", str(CONFIRM), "--every", "1", "--evidence", str(folder / f"evidence-{node}"),
        "--on-hang", f'printf %s "$DDPDOCTOR_RANKS" >{told}.new && mv {told}.new {told}',
    )  # fmt: skip
    process = host.start(
        *OWN_PIDS, "sh", "-c", TRAINS_AND_WATCHES, "sh", shlex.join(train), shlex.join(watch), str(folder), str(node),
        environ=environ,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_told(output: Path) -> bool:
    return ALARM in output.read_text()


def test_the_watch_beside_the_rank_that_lags_names_it(tmp_path: Path) -> None:
    wish = {"fault": "sleep", "fault_rank": 3, "step": 0.05, "fault_at": 40}
    outputs = [tmp_path / f"watched-{node}" for node in range(2)]
    blamed = [tmp_path / f"blamed-{node}" for node in range(2)]
    with network("n1", "n2") as hosts, ExitStack() as running:
        for node, host in enumerate(hosts):
            running.enter_context(watched_host(host, node, tmp_path, wish))
        wait_until((tmp_path / "fault").exists, lambda: (tmp_path / "training-0").read_text()[-3000:], 300.0)
        wait_until(lambda: all(map(has_told, outputs)) and all(map(Path.exists, blamed)), "both alarms", 300.0)
    alarms = []
    for output in outputs:
        text = output.read_text()
        assert "2 ranks of 4, looked at every 1 s" in text
        assert "2 ranks on other hosts can't be seen from here: watch there, too." in text
        [alarm] = [line for line in text.splitlines() if ALARM in line]
        alarms.append(alarm.partition(": ")[2])
    there, beside = alarms
    assert re.match(r"ranks? 0 .*waits? in .*; nothing is known of ranks 2 and 3", there), there
    assert re.match(r"rank 3 stands in fault_of_one .*; rank 2 waits for it in ", beside), beside
    assert [path.read_text() for path in blamed] == ["", "3"]
