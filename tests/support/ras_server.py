"""A rank's RAS, as a program: `python tests/support/ras_server.py LIBNCCL PORT CASE...`. It maps that library, listens as NCCL does
(SO_REUSEPORT), and answers one connection by each case, the last one again and again.

CASE: well, stuck, behind (rank 1 has fewer), moving, missing, no-comma (the same as some releases write it), error, text (it doesn't
know JSON, and says as text that rank 1 has fewer); and what no RAS does: http, silent, endless, garbage, nested,
cut, refuses, closes.
"""

from __future__ import annotations

import json
import mmap
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path


def answer(case: str, number: int) -> bytes:
    """In NCCL's own layout, all of src/ras/client_support.cc's keys."""
    done = [100, 100]
    if case == "behind":
        done = [100, 99]
    if case == "moving":
        done = [100 + number, 100 + number]
    ranks = [rank(one, {"Broadcast": 2, "AllReduce": count, "Send": 0}) for one, count in enumerate(done)]
    missing = []
    if case in ("missing", "no-comma"):
        ranks.pop()
        missing = [{**rank(1, {}), "status": {"unresponsive": True, "considered_dead": False}}]
    if case == "error":
        ranks[1]["status"]["async_error"] = 6
    if case == "text":
        return TEXT
    said = json.dumps(
        {
            "nccl_version": "2.29.3",
            "cuda_runtime_version": 12090,
            "cuda_driver_version": 13000,
            "timestamp": "2026-01-01 00:00:00",
            "communicators_count": 1,
            "communicators": [
                {
                    "hash": "0xfa93daea854b060b",
                    "secondary_hash": "0x1:0x2",
                    "size": 2,
                    "ranks_count": len(ranks),
                    "missing_ranks_count": len(missing),
                    "ranks": ranks,
                    "missing_ranks": missing,
                }
            ],
            "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
        },
        indent=2,
    )
    if case == "no-comma":
        said = said.replace(
            '"nvml_dev": 1,\n          "status": {\n            "unresponsive"',
            '"nvml_dev": 1\n          "status": {\n            "unresponsive"',
        )
    return said.encode()


TEXT = b"""Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  MISMATCH

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 100 -- GPU 0 managed by process 4000 on node 10.0.0.1
  Rank 1 has launched up to operation 99 -- GPU 1 managed by process 4001 on node 10.0.0.1

"""


def rank(number: int, counts: dict[str, int]) -> dict[str, object]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    place = {"rank": number, "host": "10.0.0.1", "pid": 4000 + number, "cuda_dev": number, "nvml_dev": number}
    return {**place, "status": status, "collective_counts": counts}


def attend(one: socket.socket, case: str, number: int) -> None:
    if case == "closes":
        one.recv(1000)
        return
    if case == "silent":
        time.sleep(3600)
    if case == "http":
        one.recv(1000)
        one.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        return
    held = b""
    while True:
        while b"\n" not in held:
            piece = one.recv(4096)
            if not piece:
                return
            held += piece
        line, _, held = held.partition(b"\n")
        said.append(line.decode())
        if line == b"CLIENT PROTOCOL 2":
            one.sendall(b"SERVER PROTOCOL 2\n")
        elif line == b"TIMEOUT 5":
            one.sendall(b"OK\n")
        elif line == b"SET FORMAT json":
            one.sendall(b"ERROR: Unknown command set format json\n" if case in ("refuses", "text") else b"OK\n")
        elif line == b"VERBOSE STATUS":
            break
    if case == "endless":
        while True:
            one.sendall(b" " * (1 << 16))
    wrong = {"garbage": b"\xff\x00{]", "nested": b"[" * 1_000_000, "cut": answer("well", number)[:200]}
    one.sendall(wrong.get(case) or answer(case, number))


said: list[str] = []


def write_library(folder: Path, version: str) -> Path:
    """Write a file that NCCL's version stands in, as in a libnccl.so.2, in a new folder below that one."""
    library = folder / f"{version}-{len(list(folder.iterdir()))}" / "libnccl.so.2"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF" + bytes(5000) + f"NCCL version {version}+cuda12.9\0".encode() + bytes(5000))
    return library


def map_library(path: str) -> mmap.mmap:
    """Map it, for as long as what is returned lives."""
    with open(path, "rb") as file:  # noqa: PTH123 (it runs apart from the project)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def main(library: str, port: int, cases: list[str]) -> None:
    mapped = map_library(library)
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own.bind(("127.0.0.1", port))
    own.listen(64)
    print(own.getsockname()[1], flush=True)
    number = 0
    while True:
        one, _ = own.accept()
        case = cases[min(number, len(cases) - 1)]
        with one, suppress(OSError):
            attend(one, case, number)
        number += 1
        print(*said, sep="; ", flush=True)
        said.clear()
        assert mapped


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
