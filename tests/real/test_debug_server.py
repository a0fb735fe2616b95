"""torch's own debug server on real gloo jobs, over one host and over two, which are network namespaces: it listens on all addresses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, plain_environ
from tests.support.namespaces import Host, network
from tests.support.running_jobs import state, wait_until

pytestmark = [pytest.mark.root, pytest.mark.tool("unshare", "ip"), pytest.mark.slow]

PORT = "25999"
SCRIPT = str(Path(__file__).parent.parent / "support" / "served_training.py")


class ServedJob:
    """A job of four ranks, rank 0 on the first host."""

    def __init__(self, folder: Path, hosts: Sequence[Host]) -> None:
        self.folder = folder
        self.hosts = hosts

    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("output-*.txt")))

    def wait_for(self, marker: str) -> int:
        """Wait for what a rank leaves when it has come so far; its pid."""
        wait_until(lambda: (self.folder / marker).exists(), lambda: f"{marker}: {self.output()}")
        return int((self.folder / marker).read_text())

    def do(self, what: str) -> None:
        """Let all ranks do that, and wait until they are at it."""
        (self.folder / ".go").write_text(what)
        (self.folder / ".go").rename(self.folder / "go")
        for rank in range(4):
            self.wait_for(f"rank-{rank}.there")

    def asked(self, *options: str) -> tuple[int, dict[str, Any]]:
        """What `jobs --hang --debug-server` says of it on the last host, once all is there that it asks."""
        told: list[tuple[int, dict[str, Any]]] = []
        server = f"{self.hosts[0].hostname}:{PORT}"
        line = command("jobs", "--hang", "--debug-server", server, "--json", "--seconds", "1", *options)

        def answers() -> bool:
            done = subprocess.run(
                self.hosts[-1].command(*line),
                env=plain_environ(),
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            assert "Traceback" not in done.stderr
            assert done.stdout, done.stderr
            told.append((done.returncode, json.loads(done.stdout)))
            return "hang" in told[-1][1]

        wait_until(answers, lambda: f"the server: {told[-1:]} {self.output()}")
        return told[-1]


@contextmanager
def served(
    folder: Path, launches: Sequence[Sequence[str]], settings: Mapping[str, str] | None = None
) -> Iterator[ServedJob]:
    """A job that is started by one command on each of so many hosts: node0, node1 ..."""
    environ = {
        **plain_environ(),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "SERVED_FOLDER": str(folder),
        **(settings or {}),
    }
    with network(*(f"node{number}" for number in range(len(launches)))) as hosts:
        started = []
        try:
            for host, launch in zip(hosts, launches, strict=True):
                with (folder / f"output-{host.hostname}.txt").open("wb") as output:
                    started.append(
                        subprocess.Popen(
                            host.command(*launch),
                            env=environ,
                            cwd=folder,
                            stdout=output,
                            stderr=output,
                            stdin=subprocess.DEVNULL,
                        )
                    )
            yield ServedJob(folder, hosts)
        finally:
            for pid in pids_of(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in started:
                process.wait(30)


def pids_of(folder: Path) -> list[int]:
    mark = f"SERVED_FOLDER={folder}\0".encode()
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def torchrun() -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "--master-addr",
        "127.0.0.1",
        SCRIPT,
    ]


def by_hand(*ranks: int) -> list[str]:
    """Each for itself, without a launcher's store."""
    settings = "WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29511"
    loop = f"for r in {' '.join(map(str, ranks))}; do RANK=$r {settings} {sys.executable} {SCRIPT} & done; wait"
    return command("run", "--debug-server", PORT, "--hang-after", "0", "--", "sh", "-c", loop)


def assert_named(told: Mapping[str, Any], slug: str, words: str) -> None:
    assert [finding["slug"] for finding in told["findings"]] == [slug], told["findings"]
    assert words in told["findings"][0]["summary"]


STARTS_IT_ITSELF = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.debug import start_debug_server

def main(when):
    if when == "first":
        start_debug_server(port=25998, start_method="spawn")
    dist.init_process_group("gloo")
    if when == "later":
        start_debug_server(port=25998, start_method="spawn")
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print("sum", int(total))
    dist.destroy_process_group()

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (
            "later",
            "torch's debug server runs already, by --debug-server: the script's start_debug_server() does nothing",
        ),
        ("first", "the script has started torch's debug server itself: ask it at the port that the script gives it"),
    ],
)
def test_a_script_that_starts_the_server_itself_runs_on(tmp_path: Path, when: str, words: str) -> None:
    """It has the function in hand before the hook starts the server."""
    (tmp_path / "train.py").write_text(STARTS_IT_ITSELF)
    launch = [*torchrun()[:-1], str(tmp_path / "train.py"), when]
    launch[launch.index("4")] = "2"
    with network("node0") as [host]:
        done = subprocess.run(
            host.command(*command("run", "--debug-server", PORT, "--no-remember", "--hang-after", "0", "--", *launch)),
            env={**plain_environ(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "sum 2" in done.stdout
    assert done.stderr.count(f"ddpdoctor: {words}\n") == 1
    assert "no debug server" not in done.stderr


@pytest.mark.parametrize("by", ["run", pytest.param("script", marks=pytest.mark.thorough)])
def test_a_healthy_job_moves_and_then_a_rank_brings_another_size(tmp_path: Path, by: str) -> None:
    """Under torchrun, whether the script starts the server itself or doesn't know of it."""
    launch = torchrun() if by == "script" else command("run", "--debug-server", PORT, "--", *torchrun())
    with served(tmp_path, [launch], {"SERVED_BY_SCRIPT": PORT if by == "script" else ""}) as job:
        job.wait_for("rank-3.training")
        code, told = job.asked()
        assert (code, told["verdict"], told["findings"]) == (0, "ok", [])
        assert [rank["host"] for rank in told["hang"]["ranks"]] == ["node0"] * 4
        job.do("shape")
        code, told = job.asked()
        assert code == 1
        assert_named(told, "collective-desync", "rank 1 called all_reduce Float[7] at number")
        assert "ranks 0, 2 and 3 called all_reduce Float[4]" in told["findings"][0]["summary"]


def test_from_another_host_it_leads_over_groups_and_hosts_to_the_rank_that_all_wait_for(tmp_path: Path) -> None:
    """Then that rank is stopped, and at last rank 0 killed."""
    with served(tmp_path, [by_hand(0, 1), by_hand(2, 3)]) as job:
        job.do("chain")
        code, told = job.asked("--strict")
        assert code == 1
        assert_named(
            told, "rank-busy-outside-collectives", "rank 3 (node1) stands in sleep_for_good (served_training.py:"
        )
        assert "ranks 0-2 (node0 and node1) wait for it in all_reduce" in told["findings"][0]["summary"]
        evidence = " ".join(piece["text"] for piece in told["findings"][0]["evidence"])
        assert "rank 2 (node1) called all_reduce number 2, rank 3 (node1) did not" in evidence
        assert "ranks 0 and 1 (node0) wait for ranks that wait for it" in evidence
        output = job.output()
        assert f"ddpdoctor jobs --hang --debug-server localhost:{PORT}" in output
        assert "it has no password" in output
        assert "GET /stacks" not in output  # torch's server would log who asks.

        os.kill(job.wait_for("rank-3.there"), signal.SIGSTOP)
        _, told = job.asked()
        assert told["findings"][0]["rank"] == 3
        assert "it is stopped, or not to be reached" in told["hang"]["ranks"][3]["watched"]["looks"][-1]["source"]

        # Without rank 0 nothing of the server is left.
        os.kill(job.wait_for("rank-0.there"), signal.SIGKILL)
        wait_until(lambda: not serving(tmp_path), "the end of what served the pages")


def serving(folder: Path) -> list[int]:
    found = []
    for pid in pids_of(folder):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes() and state(pid) != "Z":
                found.append(pid)
    return found
