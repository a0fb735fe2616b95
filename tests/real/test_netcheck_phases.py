"""Nodes that are killed or halted while the fleet dials and measures, and one whose facts take long or whose ddpdoctor is old.

How it goes while the nodes join, and in the collectives, is in test_netcheck_attacks.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.test_netcheck_attacks import Node, lost, until
from tests.support.command import plain_environ
from tests.support.namespaces import Host, drop_input, network
from tests.support.netcheck_hosts import MASTER, netcheck, start

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft")]

DEADLINE = 50
"""Seconds: what is halted is given up after 15, or when its order has had its time."""

REACH, LINKS = "reach: every node dials every other", "links: latency and bandwidth"

SLOWED = {
    REACH: "tcp dport 32768-60999 ct state new drop",
    LINKS: "tcp sport 32768-65535 tcp dport 32768-65535 ct bytes > 300000 drop",
}
"""What a third node's filter does so that the phase takes seconds: it takes no connections; none goes beyond so many bytes."""

CASES = {
    REACH: {
        29601: (1, signal.SIGKILL),
        29602: (1, signal.SIGSTOP),
        29603: (0, signal.SIGKILL),
        29606: (1, signal.SIGINT),
    },
    LINKS: {
        29604: (1, signal.SIGKILL),
        29605: (1, signal.SIGSTOP),
        29607: (0, signal.SIGKILL),
        29608: (1, signal.SIGINT),
    },
}
"""Per phase, by port: what is done in it to the node of that rank."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with network("n1", "n2", "n3") as found:
        yield found


@pytest.mark.parametrize(
    "phase", [pytest.param(case, marks=pytest.mark.thorough if case == LINKS else ()) for case in CASES]
)
def test_a_node_that_is_killed_or_halted_in_a_phase(phase: str, hosts: list[Host], tmp_path: Path) -> None:
    """Jobs side by side."""
    hosts[2].run("sysctl", "-q", "-w", "net.netfilter.nf_conntrack_acct=1")
    drop_input(hosts[2], SLOWED[phase])
    cases = CASES[phase]
    jobs = {
        port: [
            Node(tmp_path, host, rank, "--quick", "--wait", "30", nnodes=3, port=port)
            for rank, host in enumerate(hosts)
        ]
        for port in cases
    }
    waiting = {jobs[port][who]: number for port, (who, number) in cases.items()}
    halted = []

    def all_signalled() -> bool:
        """Each in the moment that it says so: a job that is ahead of the others would else have left the phase."""
        for one in [one for one in waiting if one.says(phase)]:
            number = waiting.pop(one)
            one.send(number)
            halted.extend([one] if number == signal.SIGSTOP else [])
        return not waiting

    try:
        until(all_signalled, f"every job is at {phase}", 45)
        for port, (who, number) in cases.items():
            ran = [job.end(DEADLINE) for job in jobs[port] if job is not jobs[port][who]]
            case = (phase, who, number, [run.stderr for run in ran])
            if who == 0:
                # There is no verdict on any node; both know why, and n3 that its own filter is one reason.
                own = {"local-firewall"} if phase == REACH else set()
                assert [(run.code, run.slugs) for run in ran] == [(2, set()), (2, own)], case
                assert [run.report["verdict"] for run in ran] == ["unknown"] * 2, case
                assert all("stopped or killed there" in " ".join(run.report["problems"]) for run in ran), case
                continue
            assert [run.code for run in ran] == [1, 1], case
            assert set(lost(ran[0])) == {"n2"}, case
            gone = lost(ran[0])["n2"]
            assert gone.startswith(f"lost during {phase.partition(':')[0]}: "), case
            # Reset, where something was on its way to it.
            closed = gone.endswith(("the connection was closed", "the connection was reset"))
            assert closed == (number == signal.SIGKILL), gone
            assert gone.endswith("stopped by its user: Ctrl-C") == (number == signal.SIGINT), gone
            if number == signal.SIGINT:
                stopped = jobs[port][who].end(DEADLINE)
                assert (stopped.code, "the other nodes were told" in stopped.stderr) == (130, True), stopped.stderr
            assert any(
                "n2 was lost during" in finding["summary"] for finding in ran[0].findings("rdzv-missing-node")
            ), case
            # Nobody else is blamed for what n2 left undone.
            assert set(ran[0].nodes("slow-link")) <= {"n1", "n3"}, ran[0].findings("slow-link")
    finally:
        for one in halted:
            one.send(signal.SIGCONT)
            one.process.kill()
            one.process.wait()
        hosts[2].run("nft", "flush", "ruleset")


def test_whoever_still_looks_at_its_host_is_waited_for_and_named(hosts: list[Host], tmp_path: Path) -> None:
    """Node 0's Python doesn't answer for 10 s: its door is open all the same, and the others are told what they wait for."""
    hung = tmp_path / "python"
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    hung.chmod(0o755)
    given = ("--quick", "--json", "--master-addr", MASTER, "--nnodes", "2", "--wait", "4")
    first = start(hosts[0], *given, "--node-rank", "0", "--python", str(hung))
    second = start(hosts[1], *given, "--node-rank", "1")
    ran = [first.end(DEADLINE), second.end(DEADLINE)]
    assert [(run.code, run.slugs) for run in ran] == [(0, set())] * 2, ran[1].stderr
    assert "Joined; waiting for the facts of n1" in ran[1].stderr
    assert "doesn't" not in ran[1].stderr


def test_everybody_is_told_what_to_run_on_the_node_that_is_missing(hosts: list[Host]) -> None:
    given = ("--quick", "--json", "--master-addr", MASTER, "--nnodes", "3", "--wait", "5")
    running = [start(host, *given, "--node-rank", str(rank)) for rank, host in enumerate(hosts[:2])]
    for ran in [one.end(DEADLINE) for one in running]:
        assert (
            "waiting for node 2. Run on node 2: ddpdoctor netcheck --master-addr 10.77.0.11 --nnodes 3 --node-rank 2"
            in ran.stderr
        )
        assert ran.code == 1


def test_hosts_of_one_name_are_told_apart(hosts: list[Host]) -> None:
    """As machines are that were made from one image."""
    names = [host.hostname for host in hosts]
    try:
        for host in hosts:
            host.hostname = "image"
        drop_input(hosts[1], "ct state new tcp dport 32768-60999 drop")
        ran = netcheck(hosts)
    finally:
        for host, name in zip(hosts, names, strict=True):
            host.hostname = name
        hosts[1].run("nft", "flush", "ruleset")
    report = ran[0].report
    assert [node["host"] for node in report["nodes"]] == ["image (node 0)", "image (node 1)", "image (node 2)"]
    (finding,) = ran[0].findings("firewall-blocked-ports")
    assert finding["node"] == "image (node 1)"
    assert finding["summary"].startswith("image (node 1) drops inbound TCP")


OLD = """
from ddpdoctor.network_check.protocol import agent, messages
messages.PROTOCOL = 0
agent.__version__ = "0.0.1"
from ddpdoctor.cli.main import main
main()
"""


def test_an_older_ddpdoctor_on_one_node(hosts: list[Host]) -> None:
    given = ["netcheck", "--quick", "--json", "--master-addr", MASTER, "--nnodes", "2", "--wait", "20"]
    first = start(hosts[0], *given[1:], "--node-rank", "0")
    old = subprocess.run(
        hosts[1].command(sys.executable, "-c", OLD, *given, "--node-rank", "1"),
        env=plain_environ(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    ran = first.end(DEADLINE)
    assert (ran.code, old.returncode) == (1, 1), old.stderr
    (finding,) = ran.report["findings"]
    assert "turned away: ddpdoctor 0.0.1 here speaks protocol 0" in finding["summary"]
    assert "So node 1 is missing" in finding["cause"]
    assert "speaks protocol 0" in old.stdout
    assert "Traceback" not in old.stderr
