"""Servers on loopback that stand in for torch's debug server: as it answers, and as nobody should."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

HEAD = b"HTTP/1.0 200 OK\r\nServer: BaseHTTP/0.6\r\nContent-type: text/html\r\n\r\n"
Answer = tuple[int, str]
"""The status of a rank's answer, and its text."""
Talk = Callable[[socket.socket, str], None]
"""What a server does with a connection that asked for a path."""


def page(answers: Sequence[Answer], *, hosts: Sequence[str] = ("node0",), end: str = "</section>\n") -> bytes:
    """A page as torch 2.13 renders it."""
    parts = [
        "<!doctype html>\n<nav><h1>Torch Distributed Debug Server</h1></nav>\n<section class='content'>\n<h1>Stacks</h1>\n"
    ]
    for rank, (status, text) in enumerate(answers):
        parts.append(
            f"        <h2>Rank {rank}: http://{hosts[rank % len(hosts)]}:4{rank:04d}/handler/x?</h2>\n        \n"
        )
        parts.append(f"            <p>Failed to fetch: status={status}</p>\n" if status != 200 else "")
        parts.append(f"            <pre>{text}</pre>\n        \n    \n")
    return "".join([*parts, end]).encode()


def stack(*calls: str) -> str:
    """faulthandler's text of a rank whose main thread is in these calls, "function path line", the innermost first."""
    frames = "".join('  File "{1}", line {2} in {0}\n'.format(*call.split()) for call in calls)
    asking = "Current thread 0x00007f00aa (most recent call first):\n  <no Python frame>\n\n"
    return f"{asking}Thread 0x00007f00bb (most recent call first):\n{frames}"


IN_ALL_REDUCE = stack(
    "all_reduce /v/torch/distributed/distributed_c10d.py 3252",
    "main /home/ada/train.py 40",
    "<module> /home/ada/train.py 60",
)
IN_SLEEP = stack("prepare /home/ada/data.py 7", "main /home/ada/train.py 33", "<module> /home/ada/train.py 60")
NO_NCCL = (404, "Handler dump_nccl_trace_json not found: Failed to find handler dump_nccl_trace_json")


def calls(*made: tuple[str, int, list[int], bool], group: str = "default_pg", backend: str = "gloo") -> str:
    """A flight recorder's JSON: (name, number, size, done) of each call."""
    entries = [
        {
            "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "record_id": place, "is_p2p": False, "pg_id": 0,
            "process_group": ["0", group], "profiling_name": f"{backend}:{name}", "input_sizes": [size], "input_dtypes": ["Float"],
            "state": "completed" if done and backend == "nccl" else "scheduled", "retired": done, "time_created_ns": 1_795_000_000_000_000_000 + place, "timeout_ms": 600000,
        }
        for place, (name, number, size, done) in enumerate(made)
    ]  # fmt: skip
    last = max((number for _, number, _, _ in made), default=0)
    done = max((number for _, number, _, done in made if done), default=0)
    status = {"0": {"last_enqueued_collective": str(last), "last_completed_collective": str(done)}} if made else {}
    return json.dumps({"version": "2.10", "entries": entries, "pg_config": {}, "pg_status": status}, indent=2)


def counters(name: str, total: int, active: int) -> str:
    """torch's wait counters as JSON: one that was begun so often, and within which a rank is so often."""
    counter = {"total_calls": total, "active_count": active, "total_time_us": 1, "max_time_us": 1}
    return json.dumps({f"pytorch.wait_counter.{name}": counter})


def job(stacks: Sequence[Answer], recorders: Sequence[Answer], **more: Any) -> dict[str, bytes]:
    """The pages of a job of those ranks. more: of `page`, and counters."""
    counted = more.pop("counted", [(200, "{}")] * len(stacks))
    nccl = more.pop("nccl", [NO_NCCL if answer[0] == 200 else answer for answer in stacks])
    return {
        "/stacks": page(stacks, **more),
        "/fr_trace_json": page(recorders, **more),
        "/fr_trace_nccl_json": page(nccl, **more),
        "/wait_counters": page(counted, **more),
    }


def saying(text: bytes) -> Talk:
    """One that says that, and hangs up."""
    return lambda connection, path: connection.sendall(text)


def pages_of(pages: Mapping[str, bytes], later: Mapping[str, bytes] | None = None) -> Talk:
    """One that serves pages; from the second time on those in `later`."""
    asked: set[str] = set()

    def talk(connection: socket.socket, path: str) -> None:
        found = (later if later is not None and path in asked else pages).get(path)
        asked.add(path)
        connection.sendall(b"HTTP/1.0 404 Handler not found: x\r\n\r\n" if found is None else HEAD + found)

    return talk


@contextmanager
def serving(talk: Talk) -> Iterator[int]:
    """A server that does that with each connection; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            asked = connection.recv(4096).decode().split(" ")
            talk(connection, asked[1] if len(asked) > 1 else "")

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Closed alone, it would still be there for who waits in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
