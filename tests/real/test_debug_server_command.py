"""`ddpdoctor jobs --hang --debug-server` as it is typed: at what is no debug server, and at another user's."""

from __future__ import annotations

import json
import time
from subprocess import DEVNULL, PIPE, Popen

import pytest
from torch.distributed import TCPStore

from tests.support import debug_servers
from tests.support.command import ddpdoctor
from tests.support.debug_servers import IN_ALL_REDUCE, calls, job, pages_of, saying, serving
from tests.support.other_users import User

FOREIGN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
page = sys.stdin.buffer.read()
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(page)
    connection.close()
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--debug-server", "node0:1"], "--debug-server is for --hang"),
        (["--hang", "4711", "--debug-server", "node0:1"], "--debug-server is for --hang, without a job"),
        (["--hang", "--ras", "--debug-server", "node0:1"], "--debug-server is for --hang, without a job"),
        (["--hang", "--debug-server", "http://node0:1/"], "it must be HOST:PORT"),
        (["--hang", "--debug-server", ""], "is empty"),
    ],
)
def test_arguments_that_can_not_be_meant(arguments: list[str], words: str) -> None:
    done = ddpdoctor("jobs", *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())


def test_what_is_no_debug_server_is_no_verdict() -> None:
    with serving(saying(b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n")) as port:
        done = ddpdoctor("jobs", "--hang", "--json", "--debug-server", f"127.0.0.1:{port}")
    assert done.returncode == 2
    [problem] = json.loads(done.stdout)["problems"]
    assert problem.startswith(f"torch's debug server at 127.0.0.1:{port} can't be asked: it sends one on to")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(
        f"Asking torch's debug server at 127.0.0.1:{port}: some minutes if ranks don't answer\n"
    )


def test_the_jobs_own_port_is_told_as_another_within_seconds() -> None:
    """A store of torch's takes the connection, and waits for more."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    began = time.monotonic()
    done = ddpdoctor("jobs", "--hang", "--json", "--debug-server", f"127.0.0.1:{store.port}")
    assert time.monotonic() - began < 40
    assert done.returncode == 2
    [problem] = json.loads(done.stdout)["problems"]
    assert (
        "took the connection and said nothing within 10 s. Perhaps it is another port, such as the job's MASTER_PORT"
        in problem
    )


def test_a_report_names_no_hosts_in_markdown() -> None:
    made = calls(("all_reduce", 1, [4], True), ("all_reduce", 2, [4], False))
    pages = job([(200, IN_ALL_REDUCE)] * 2, [(200, made)] * 2, hosts=["secret-host-a", "secret-host-b"])
    with serving(pages_of(pages)) as port:
        done = ddpdoctor("jobs", "--hang", "--markdown", "--seconds", "1", "--debug-server", f"127.0.0.1:{port}")
    assert "train.py:40" in done.stdout, done.stderr
    assert "secret-host" not in done.stdout


@pytest.mark.root
def test_another_users_server_is_said_to_be_anothers_word(eve: User) -> None:
    """She listens where the job's own would."""
    server = Popen(
        ["/usr/bin/python3", "-c", FOREIGN],
        user=eve.uid,
        group=eve.gid,
        extra_groups=[],
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        cwd="/",
    )
    assert server.stdin
    assert server.stdout
    try:
        port = int(server.stdout.readline())
        server.stdin.write(debug_servers.HEAD + debug_servers.page([(200, IN_ALL_REDUCE)] * 2))
        server.stdin.close()
        done = ddpdoctor("jobs", "--hang", "--seconds", "1", "--debug-server", f"localhost:{port}")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    words = " ".join(done.stdout.split())
    assert (
        f"What listens at localhost:{port} belongs to {eve.name}, and not to root: all of this is {eve.name}'s word."
        in words
    )
