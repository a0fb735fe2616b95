"""Hosts out of network namespaces, and looks at them, for tests: a bridge in a namespace of its own, a veth to each host.

Names carry our pid, so that two runs don't meet and what a killed one left behind can be told. The machine's own network
stays as it is. Needs root, `ip` and `unshare` (apt-get install iproute2 util-linux).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import select
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot

NETNS_ETC = Path("/etc/netns")
_numbers = count(1)


class Host:
    """One host: its network namespace, hostname and /etc/hosts."""

    def __init__(self, hostname: str) -> None:
        self.hostname = hostname
        self.namespace = f"ddpdoctor-{os.getpid()}-{next(_numbers)}"
        self.cable: tuple[Host, str] | None = None
        """The switch that its eth0 is plugged into, and the name of that end."""
        self.prefix: Sequence[str] = ()
        """In front of every command: leads into further namespaces."""

    def ip(self, arguments: str) -> None:
        """`ip` inside this host: `host.ip("link set eth0 down")`."""
        _run("ip", "-n", self.namespace, *arguments.split())

    def cut(self) -> None:
        """Takes the carrier from its eth0, as a pulled cable does. Routes and addresses stay."""
        assert self.cable
        switch, port = self.cable
        switch.ip(f"link set {port} down")

    def hosts(self, text: str) -> None:
        """Writes its /etc/hosts, in place: the file is bind-mounted when a command starts."""
        self.etc("hosts", text)

    def etc(self, name: str, text: str) -> None:
        path = NETNS_ETC / self.namespace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def command(self, *command: str) -> list[str]:
        """The command line that runs `command` on this host, under its hostname."""
        script = f'hostname {self.hostname}; exec "$@"'
        return [
            *self.prefix,
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            script,
            "sh",
            *command,
        ]

    def run(
        self, *command: str, environ: Mapping[str, str] | None = None, seconds: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end. Raises where it fails."""
        return subprocess.run(
            self.command(*command), env=environ, timeout=seconds, check=True, capture_output=True, text=True
        )

    def start(self, *command: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts it, with its output on a pipe; end it by its `kill()`."""
        return subprocess.Popen(self.command(*command), env=environ, stdout=subprocess.PIPE, text=True)


@contextmanager
def network(*hostnames: str) -> Iterator[list[Host]]:
    """Hosts on one network: eth0 of the first has 10.77.0.11/24, of the second 10.77.0.12/24, and so on.

    Each has a loopback, /etc/hosts that names them all, and no name server.
    """
    hosts = [Host(name) for name in hostnames]
    switch = Host("switch")
    try:
        _run("ip", "netns", "add", switch.namespace)
        switch.ip("link add br0 type bridge")
        switch.ip("link set br0 up")
        for number, host in enumerate(hosts, 1):
            _run("ip", "netns", "add", host.namespace)
            # A high number, so that a test can put interfaces before it in the kernel's order.
            host.ip(f"link add eth0 index 20 type veth peer name port{number} netns {switch.namespace}")
            switch.ip(f"link set port{number} master br0 up")
            host.cable = (switch, f"port{number}")
            host.ip(f"address add 10.77.0.{10 + number}/24 dev eth0")
            host.ip("link set eth0 up")
            host.ip("link set lo up")
            names = [f"10.77.0.{10 + at} {one.hostname}" for at, one in enumerate(hosts, 1)]
            host.hosts("\n".join(["127.0.0.1 localhost", *names]) + "\n")
            host.etc("resolv.conf", "")
        yield hosts
    finally:
        for host in (*hosts, switch):
            subprocess.run(["ip", "netns", "delete", host.namespace], check=False, capture_output=True)
            shutil.rmtree(NETNS_ETC / host.namespace, ignore_errors=True)


def add_ipv6(host: Host) -> str:
    """Gives eth0 an IPv6 address beside its IPv4 one, fd77::11/64 beside 10.77.0.11, at once usable."""
    last = host.run("ip", "-4", "-brief", "address", "show", "dev", "eth0").stdout.split()[2]
    address = f"fd77::{last.partition('/')[0].rpartition('.')[2]}"
    host.ip(f"address add {address}/64 dev eth0 nodad")
    return address


def take_ipv4(host: Host) -> None:
    """Leaves its eth0 with IPv6 alone."""
    host.ip("-4 address flush dev eth0")


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


GROUPS = ("target_python", "environment", "network", "nccl", "firewall")
PROBE = """
import sys, msgspec
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
sys.stdout.buffer.write(msgspec.json.encode(take_snapshot(Context(sys.executable), sys.argv[1:])))
"""
SHOWN = ("PATH", "HOME", "LANG")

TWO_NODES = {"MASTER_PORT": "29500", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}


def look(host: Host, **settings: str) -> Snapshot:
    """What the probes say on that host, with those settings and no others."""
    environ = {name: os.environ[name] for name in SHOWN if name in os.environ} | settings
    done = host.run(sys.executable, "-c", PROBE, *GROUPS, environ=environ)
    return msgspec.json.decode(done.stdout, type=Snapshot)


def found(snapshot: Snapshot) -> dict[str, Finding]:
    """Slug to finding, of the checks of the network."""
    results = diagnose(snapshot, Plan(2, "--nproc"), select(["network"]))
    assert not [result for result in results if result.not_tested and result.not_tested.why == "crashed"]
    return {result.check.slug: result.findings[0] for result in results if result.findings}


LISTENER = """
import socket, sys, time
one = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
one.bind((sys.argv[1], int(sys.argv[2])))
one.listen()
print("listening", flush=True)
time.sleep(60)
"""


def drop_input(host: Host, *rules: str, policy: str = "accept") -> None:
    """An nft table "inet filter" with those rules on input."""
    filter_packets(host, "input", *rules, policy=policy)


def filter_packets(host: Host, hook: str, *rules: str, policy: str = "accept") -> None:
    """An nft table "inet filter" with those rules on "input" or "output"."""
    lines = "\n".join(rules)
    text = (
        f"table inet filter {{ chain {hook} {{ type filter hook {hook} priority 0; policy {policy};\n{lines}\n}}\n}}\n"
    )
    host.run("sh", "-ec", f"printf %s {shlex.quote(text)} | nft -f -")
