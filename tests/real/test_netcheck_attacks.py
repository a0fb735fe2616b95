"""netcheck among strangers, and with nodes that are killed, halted or stopped by their users while it runs.

On every node it ends in time, with an exit code and a line that says why, and leaves nothing running.
"""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.command import command, plain_environ
from tests.support.namespaces import network
from tests.support.netcheck_hosts import MASTER, Ran

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare")]

LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""

KNOCKS = """
import socket, sys, time
def dial():
    return socket.create_connection((sys.argv[1], 29500), 5)
def say(what):
    with dial() as one:
        one.sendall(what)
        try:
            while one.recv(4096):
                pass
        except OSError:
            pass
dial().close()
say(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
say(bytes(range(200, 256)) + b"\\n")
say(bytes.fromhex("16030100c8010000c40303") + bytes(189))
say(b'{"type":"hello","protocol":99,"ddpdoctor":"6.6.6","host":"gpu01"}\\n')
held = [dial() for _ in range(100)]
print("knocked", flush=True)
for second in range(30):
    for one in held:
        try:
            one.send(b"x")
        except OSError:
            pass
    time.sleep(1)
"""


def listening(host) -> set[str]:
    """Where somebody listens for TCP on that host."""
    found = set()
    for line in host.run("tail", "-q", "-n", "+2", "/proc/net/tcp", "/proc/net/tcp6").stdout.splitlines():
        _, local, _, state = line.split()[:4]
        address, port = local.split(":")
        if state == LISTENS:
            numeric = socket.inet_ntoa(bytes.fromhex(address)[::-1]) if len(address) == 8 else address
            found.add(f"{numeric}:{int(port, 16)}")
    return found


class Node:
    """netcheck on one host, under way. Its output goes to files, so that a test sees what it says meanwhile."""

    def __init__(self, folder: Path, host, rank: int, *arguments: str, nnodes: int = 2, port: int = 29500) -> None:
        self.host = host
        self.files = [folder / f"{host.hostname}-{port}.{end}" for end in ("stdout", "stderr")]
        given = ["--master-addr", MASTER, "--master-port", port, "--nnodes", nnodes, "--node-rank", rank, *arguments]
        with self.files[0].open("w") as stdout, self.files[1].open("w") as stderr:
            self.process = subprocess.Popen(
                host.command(*command("netcheck", "--json", *map(str, given))),
                env=plain_environ(),
                stdout=stdout,
                stderr=stderr,
            )
        self.began = time.monotonic()

    def until_it_says(self, words: str, seconds: float = 15) -> None:
        until(lambda: self.says(words), f"{self.host.hostname} says {words!r}", seconds)

    def says(self, words: str) -> bool:
        return words in self.files[1].read_text()

    def until_torch_runs(self) -> list[psutil.Process]:
        """Waits for the rank of the collective; gives it."""
        found: list[psutil.Process] = []

        def runs() -> bool:
            children = psutil.Process(self.process.pid).children(recursive=True)
            found[:] = [child for child in children if "collective.py" in " ".join(_command_line(child))]
            return bool(found)

        until(runs, f"{self.host.hostname} runs torch")
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float) -> Ran:
        """Waits so long for its end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"netcheck hangs on {self.host.hostname}: {self.files[1].read_text()}") from None
        stdout, stderr = (path.read_text() for path in self.files)
        assert "Traceback" not in stderr
        assert "exception" not in stderr
        return Ran(
            host=self.host.hostname, code=code, stdout=stdout, stderr=stderr, seconds=time.monotonic() - self.began
        )


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # It has ended meanwhile.
        return []


def until(true, what: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def hosts():
    with network("n1", "n2", "n3") as found:
        yield found


def test_strangers_on_the_port_are_refused_and_named_and_stop_nobody(hosts, tmp_path):
    """A port scan, HTTP, TLS, random bytes, one who says that he is a node, and a hundred connections that say a letter a second."""
    n1, n2, n3 = hosts
    first = Node(tmp_path, n1, 0, "--quick", "--wait", "20")
    first.until_it_says("waiting for")
    assert listening(n1) == {f"{MASTER}:29500"}
    knocking = subprocess.Popen(n3.command(sys.executable, "-c", KNOCKS, MASTER), stdout=subprocess.PIPE, text=True)
    try:
        assert knocking.stdout is not None
        assert knocking.stdout.readline() == "knocked\n"
        second = Node(tmp_path, n2, 1, "--quick", "--wait", "20")
        ran = [first.end(20), second.end(5)]
    finally:
        knocking.kill()
        knocking.communicate()
    assert listening(n1) == set()
    assert [(run.code, run.slugs) for run in ran] == [(0, set()), (0, set())]
    strangers = ran[0].report["strangers"]
    assert all(stranger.startswith("10.77.0.13: ") for stranger in strangers)
    said = "\n".join(strangers)
    for words in (
        "connected and went away without a word (a port scan or a health check)",
        "an HTTP request: GET / HTTP/1.1",
        "bytes that aren't ours: c8 c9 ca",
        "a TLS handshake",
        "gpu01, which speaks protocol 99 and showed no proof",
    ):
        assert words in said


def lost(ran: Ran) -> dict[str, str]:
    """Which hosts went away, and how."""
    return {node["host"]: node["lost"] for node in ran.report["nodes"] if node.get("lost")}


def test_while_they_wait_for_each_other(hosts, tmp_path):
    """Four jobs side by side, each waiting for a third node: of one node 1 is killed, of one it is stopped, and so node 0."""
    cases = {
        29601: (1, signal.SIGKILL),
        29602: (1, signal.SIGINT),
        29603: (0, signal.SIGKILL),
        29604: (0, signal.SIGINT),
    }
    nodes = {
        port: [Node(tmp_path, hosts[rank], rank, "--quick", "--wait", "9", nnodes=3, port=port) for rank in range(2)]
        for port in cases
    }
    for port, (who, number) in cases.items():
        nodes[port][1].until_it_says("waiting for node 2")
        nodes[port][who].send(number)
    # It isn't waited for what can't come any more.
    hub_killed, hub_stopped = ([node.end(4) for node in nodes[port]] for port in (29603, 29604))
    killed, stopped = ([node.end(20) for node in nodes[port]] for port in (29601, 29602))
    assert [one.code for one in killed] == [1, -signal.SIGKILL]
    assert lost(killed[0]) == {"n2": "lost during join: the connection was closed"}
    assert "rdzv-missing-node" in killed[0].slugs
    assert [one.code for one in stopped] == [1, 130]
    assert lost(stopped[0]) == {"n2": "lost during join: stopped by its user: Ctrl-C"}
    assert "the other nodes were told" in stopped[1].stderr
    assert [one.code for one in hub_killed] == [-signal.SIGKILL, 2]
    assert any("netcheck was stopped or killed there" in problem for problem in hub_killed[1].report["problems"])
    assert [one.code for one in hub_stopped] == [130, 2]
    assert any("stopped by its user on node 0" in problem for problem in hub_stopped[1].report["problems"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("who", [0, 1])
def test_in_the_middle_of_the_collective(hosts, tmp_path, who, number):
    """The others don't wait for torch's timeout, and no rank stays behind."""
    nodes = [Node(tmp_path, host, rank, "--wait", "10") for rank, host in enumerate(hosts[:2])]
    ranks = [rank for node in nodes for rank in node.until_torch_runs()]
    nodes[who].send(number)
    ran = [node.end(20) for node in nodes]
    until(lambda: not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks), "ranks end")
    codes = [2, 2] if who == 0 else [1, 1]
    codes[who] = -number if number == signal.SIGKILL else 130
    assert [run.code for run in ran] == codes
    if who:
        why = "the connection was closed" if number == signal.SIGKILL else "stopped by its user: Ctrl-C"
        assert lost(ran[0]) == {"n2": f"lost during gloo: {why}"}
        assert ran[0].slugs == {"rdzv-missing-node"}
        assert ran[0].nodes("rdzv-missing-node") == ["n1"]
    else:
        assert len(ran[1].report["problems"]) == 1


@pytest.mark.thorough
def test_nodes_that_are_halted(hosts, tmp_path):
    """Of one job node 1, of another one node 0 is suspended; both go on when all is over."""
    both = [
        [Node(tmp_path, hosts[rank], rank, "--quick", "--wait", "3", nnodes=3, port=port) for rank in range(2)]
        for port in (29601, 29602)
    ]
    halted, awake = (both[0][1], both[1][0]), (both[0][0], both[1][1])
    for _, second in both:
        second.until_it_says("waiting for node 2")
    for one in halted:
        one.send(signal.SIGSTOP)
    try:
        hub, node = (one.end(30) for one in awake)
    finally:
        for one in halted:
            one.send(signal.SIGCONT)
    assert hub.code == 1
    assert lost(hub)["n2"].endswith("nothing was heard of it for 15 s")
    assert node.code == 1
    assert "rdzv-missing-node" in node.slugs
    assert node.report["problems"] == ["nothing was heard of node 0 for 15 s: is it still running there?"]
    late_node, late_hub = (one.end(30) for one in halted)
    assert late_node.code == 1
    assert "rdzv-missing-node" in late_node.slugs
    assert "node 0 went on without this node" in late_node.report["problems"][0]
    assert late_hub.code == 1
    assert "n2" in lost(late_hub)


def hostile(host, *arguments: object) -> subprocess.Popen[str]:
    """tests/support/hostile.py on that host."""
    tests = Path(__file__).parent.parent
    environ = plain_environ() | {"PYTHONPATH": str(tests.parent)}
    return subprocess.Popen(
        host.command(sys.executable, str(tests / "support" / "hostile.py"), *map(str, arguments)),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )


GUESTS = {
    "huge": "a line of more than 262144 bytes",
    "bomb": "its facts unpack to more than 1 MiB",
    "nonsense": "its facts: not a whole snapshot",
    "many": "a line of more than 65536 bytes",
    "foreign": "it says that it listens at 10.77.0.12, which is another node's address",
    "victim": "it says that it listens at 203.0.113.9, which is a public address outside of the job's networks",
    "loopback": "it says that it listens at 127.0.0.1, which is every node's own",
    "wrong": "it answered Counted where Dialled was expected",
    "count": "it sent JSON that isn't ours",
    "nasty": "",
    "spray": "",
}
"""What a node of the job does that was broken into, and what is said of it: nothing, where it plays along to the end."""


@pytest.mark.parametrize("cases", [tuple(GUESTS)[:6], tuple(GUESTS)[6:]], ids=" ".join)
def test_a_hostile_node_of_the_job_harms_nobody(hosts, tmp_path, cases):
    """Two honest nodes each; the third sends what is too large, false or of another kind."""
    jobs = {}
    for port, case in enumerate(cases, 29601):
        nodes = [Node(tmp_path, hosts[rank], rank, "--quick", "--wait", "8", nnodes=3, port=port) for rank in range(2)]
        jobs[case] = (nodes, hostile(hosts[2], "guest", case, MASTER, port, 2))
    try:
        ran = {case: [node.end(60) for node in nodes] for case, (nodes, _) in jobs.items()}
    finally:
        for _, odd in jobs.values():
            odd.kill()
            odd.communicate()
    for case, (first, second) in ran.items():
        assert (first.code, second.code) == (1, 1), case
        if words := GUESTS[case]:
            assert words in first.stdout, (case, first.report)
        commands = [
            command for finding in first.report["findings"] for fix in finding["fixes"] for command in fix["commands"]
        ]
        assert not any("touch" in command or "\x1b" in command for command in commands), case
        # The two honest ones reach each other, whatever the third said and did.
        for reach in first.report["matrix"]["reach"]:
            assert (reach["rows"][0][1], reach["rows"][1][0]) == (".", "."), (case, reach)
        assert not any(
            finding.get("node") in ("n1", "n2") and finding["slug"].endswith("ports")
            for finding in first.report["findings"]
        )
    assert all(listening(host) == set() for host in hosts[:2])


HUBS = {
    "at_once": "what listens on the master's port sent JSON that isn't ours",
    "forever": "what listens on the master's port sent JSON that isn't ours",
    "random": "what listens on the master's port sent bytes that aren't ours",
    "huge": "a line of more than 4194304 bytes",
    "nested": "what listens on the master's port sent JSON that isn't ours",
    "orders": "node 0 sent order after order without waiting for the answers",
    "nasty": "node 0 says: $(touch",
    "code": "what listens on the master's port sent JSON that isn't ours",
    "part": "",
}


def test_a_hostile_hub_harms_nobody(hosts, tmp_path):
    n1, n2, _ = hosts
    hubs, nodes = [], {}
    try:
        for port, case in enumerate(HUBS, 29701):
            hubs.append(hostile(n1, "hub", case, MASTER, port))
            assert hubs[-1].stdout.readline() == "listening\n"
            nodes[case] = Node(tmp_path, n2, 1, "--quick", "--wait", "8", port=port)
        ran = {case: node.end(40) for case, node in nodes.items()}
    finally:
        for process in hubs:
            process.kill()
            process.communicate()
    for case, one in ran.items():
        if words := HUBS[case]:
            assert one.code == 2, case
            problems = one.report["problems"]
            assert any(words in problem for problem in problems), (case, problems)
            assert all(problem.isprintable() and len(problem) < 400 for problem in problems), case
    # Another version's check, in words of its own.
    assert ran["part"].code == 1
    (odd,) = ran["part"].findings("flux-capacitor")
    assert odd["summary"].startswith("Empty")
    (fix,) = odd["fixes"]
    assert fix["text"] == "From node 0, without a token: Run this"
    assert not fix["appliable"]
