"""Pairs of hosts for tests of how two nodes meet: what is done to each, who squats the port, and one run of all side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import msgspec

from tests.support.namespaces import Host, filter_packets
from tests.support.netcheck_hosts import Ran, start

WAIT = 12
DEADLINE = 60
"""Seconds for a pair to end while all the others run on the same few cores."""

FROM_OTHERS = 'iifname != "lo" tcp dport 29500'
"""Of the filters on the master: what it sends to itself passes, as most rule sets have it."""


def rule(where: str, *words: str) -> Callable[[Host], None]:
    """An nft rule on "input" or "output" of a host."""

    def put(host: Host) -> None:
        filter_packets(host, where, " ".join(words))

    return put


def without_name_server(host: Host) -> None:
    """The one it has doesn't answer, which keeps getaddrinfo waiting for two minutes."""
    host.etc("resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:4\n")
    filter_packets(host, "input", "udp dport 53 drop")


def squat(code: str) -> Callable[[Host], None]:
    """Starts a Python program that takes the port and prints a line when it has it."""

    def go(host: Host) -> None:
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1"}
        process = host.start(sys.executable, "-c", code, environ=environ)
        SQUATTERS.append(process)
        assert process.stdout
        process.stdout.readline()

    return go


SQUATTERS: list[subprocess.Popen[str]] = []

SERVER = """
import socket, threading, time
one = socket.create_server(("0.0.0.0", 29500), backlog=64)
def serve(there):
    {do}
def accept():
    while True:
        there, _ = one.accept()
        threading.Thread(target=serve, args=(there,), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
print("listening", flush=True)
time.sleep(120)
"""
HTTP = """
import http.server
one = http.server.HTTPServer(("0.0.0.0", 29500), http.server.SimpleHTTPRequestHandler)
print("listening", flush=True)
one.serve_forever()
"""
TLS = """
import pathlib, ssl, subprocess, tempfile, socket, threading, time
folder = tempfile.mkdtemp()
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=n1", "-keyout", folder + "/k",
                "-out", folder + "/c"], check=True, capture_output=True)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder + "/c", folder + "/k")
one = socket.create_server(("0.0.0.0", 29500), backlog=64)
print("listening", flush=True)
def serve(there):
    try:
        with context.wrap_socket(there, server_side=True) as secure:
            secure.recv(100)
    except OSError:
        pass
while True:
    there, _ = one.accept()
    threading.Thread(target=serve, args=(there,), daemon=True).start()
"""
STORE = """
import time
from torch.distributed import TCPStore
one = TCPStore("0.0.0.0", 29500, 2, True, wait_for_workers=False, use_libuv={libuv})
print("listening", flush=True)
time.sleep(120)
"""


UNREACHABLE = "master-addr-unreachable"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One pair. zero, one: what is done to node 0's host and to node 1's.

    said_by_zero, said_by_one: slug and a piece of the summary, with {zero} and {one} for the hosts' names and {zero_ip},
    {one_ip} for their addresses; "" where nothing has to be said there.
    master: as on the command line. wait: its --wait, which what is there to stay doesn't use up. alone: node 0 isn't started. mended_on: whose printed commands make the next run pass.
    """

    zero: tuple[Callable[[Host], None], ...] = ()
    one: tuple[Callable[[Host], None], ...] = ()
    master: str = "{zero_ip}"
    alone: bool = False
    said_by_zero: tuple[str, str] = ("", "")
    said_by_one: tuple[str, str] = ("", "")
    code: int = 1
    wait: int = WAIT
    mended_on: str = ""
    slug_of_fix: str = UNREACHABLE
    also: tuple[str, ...] = ()
    """What else is true of these hosts, and may be said on either."""


class Pair:
    """The hosts of one case."""

    def __init__(self, case: Case, zero: Host, one: Host, number: int) -> None:
        self.case, self.zero, self.one = case, zero, one
        self.words = {
            "zero": zero.hostname,
            "one": one.hostname,
            "zero_ip": f"10.77.0.{11 + 2 * number}",
            "one_ip": f"10.77.0.{12 + 2 * number}",
            "zero_ip6": f"fd77::{11 + 2 * number}",
            "one_ip6": f"fd77::{12 + 2 * number}",
        }
        self.ran: list[Ran] = []

    def break_it(self) -> None:
        for change in self.case.zero:
            change(self.zero)
        for change in self.case.one:
            change(self.one)

    @property
    def master(self) -> list[str]:
        return ["--master-addr", self.case.master.format(**self.words)]

    def job(self, rank: int) -> list[str]:
        return ["--nnodes", "2", "--node-rank", str(rank), "--wait", str(self.case.wait)]


def run(pairs: list[Pair], environ: dict[str, dict[str, str]] | None = None) -> None:
    """All at once. environ: by host; whom it names a MASTER_ADDR isn't given one on the command line."""
    running = []
    for pair in pairs:
        hosts = list(enumerate((pair.zero, pair.one)))[pair.case.alone :]
        settings = [(environ or {}).get(host.hostname, {}) for _, host in hosts]
        running.append(
            [
                start(
                    host,
                    *("--json", "--quick"),
                    *(() if "MASTER_ADDR" in given else pair.master),
                    *pair.job(rank),
                    environ=given,
                )
                for (rank, host), given in zip(hosts, settings, strict=True)
            ]
        )
    for pair, started in zip(pairs, running, strict=True):
        pair.ran = [process.end(DEADLINE) for process in started]
