"""Pages of torch's debug server, whole and in pieces, and what answers in its place."""

from __future__ import annotations

import asyncio
import html
import socket
import subprocess
import sys
import time

import pytest

from ddpdoctor.facts.hang import Frame, Hang
from ddpdoctor.hang.debug_server import budget, pages, server_look
from ddpdoctor.hang.debug_server.budget import Budget
from ddpdoctor.hang.debug_server.pages import (
    NotServedError,
    RankAnswer,
    ServerAddress,
    fetch_page,
    parse_address,
    resolve,
)
from ddpdoctor.hang.debug_server.server_look import look_at_server
from ddpdoctor.hang.debug_server.told_stacks import parse_stacks
from tests.support.debug_servers import HEAD, IN_ALL_REDUCE, Talk, calls, job, page, pages_of, saying, serving, stack


def fetched(talk: Talk, path: str = "/stacks", seconds: float = 20.0, most: int = 1 << 22) -> pages.Page[RankAnswer]:
    async def fetch(port: int) -> pages.Page[RankAnswer]:
        address = ServerAddress("127.0.0.1", port)
        return await fetch_page(address, await resolve(address), path, lambda answer: answer, seconds, most, Budget())

    with serving(talk) as port:
        return asyncio.run(fetch(port))


def looked(talk: Talk, seconds: int = 0) -> Hang:
    with serving(talk) as port:
        return asyncio.run(look_at_server(ServerAddress("127.0.0.1", port), seconds))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node0:25999", ("node0", 25999)),
        ("node0", ("node0", 25999)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("node0:0", None),
        ("node0:65536", None),
        ("node0:", None),
        ("::1", None),
        ("http://node0:25999", None),
        ("node0:25999/stacks", None),
        ("no de", None),
        ("", None),
    ],
)
def test_addresses(text: str, address: tuple[str, int] | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("size", [1, 3, 64, 100_000])
def test_a_page_is_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    texts = ["<module> & </pre> <h2>Rank 7: x</h2>", "b" * 500, ""]
    whole = HEAD + page([(200, text) for text in texts], hosts=["node0", "node1.example", "[::1]"])

    def talk(connection: socket.socket, path: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(whole), size):
            connection.sendall(whole[at : at + size])

    found = fetched(talk)
    assert [found.by_rank[rank].body.decode() for rank in range(3)] == texts
    assert [found.by_rank[rank].listens for rank in range(3)] == ["node0:40000", "node1.example:40001", "[::1]:40002"]
    assert (len(found.by_rank), found.cut) == (3, "")


def test_the_first_releases_escape_what_ranks_say() -> None:
    told = stack("<module> /home/ada/train.py 60")
    found = fetched(saying(HEAD + page([(200, html.escape(told).replace("&quot;", "&#34;"))])))
    assert found.by_rank[0].body.decode() == told


def test_a_page_that_breaks_off_says_so() -> None:
    whole = HEAD + page([(200, "a"), (200, "b")])
    found = fetched(saying(whole[: whole.index(b"b</pre>")]))
    assert (found.by_rank[0].body, found.by_rank[1].status, found.cut) == (b"a", pages.UNREADABLE, "it breaks off")


def never_ends(begin: bytes, more: bytes) -> Talk:
    def talk(connection: socket.socket, path: str) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(more)

    return talk


def drips(connection: socket.socket, path: str) -> None:
    for byte in HEAD + page([(200, "a")]) * 100:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def is_silent(connection: socket.socket, path: str) -> None:
    time.sleep(30)


def waits_for_its_ranks(connection: socket.socket, path: str) -> None:
    """As torch's does, where a rank has never started its part."""
    if path == "/":
        connection.sendall(HEAD + TITLE)
    else:
        time.sleep(30)


TITLE = b"<h1>Torch Distributed Debug Server</h1>"
REDIRECT = b"HTTP/1.0 302 Found\r\nLocation: http://169.254.169.254/\x1b[31m\r\n\r\n"
HOSTILE: dict[str, tuple[Talk, str]] = {
    "hangs up": (saying(b""), "it answered nothing"),
    "ssh": (saying(b"SSH-2.0-OpenSSH_9.6\r\n"), 'speaks no HTTP: "SSH-2.0-OpenSSH_9.6"'),
    "binary": (saying(b"\x16\x03\x01\x1b[2J" * 900), "speaks no HTTP"),
    "head without end": (never_ends(b"HTTP/1.0 200 OK\r\n", b"X: y\r\n" * 100), "speaks no HTTP"),
    "redirect": (saying(REDIRECT), "it sends one on to \"http://169.254.169.254/?[31m\", where nobody is followed"),
    "no such page": (saying(b"HTTP/1.0 404 Handler not found\r\n\r\n"), 'with HTTP 404: "Handler not found"'),
    "failed": (saying(b"HTTP/1.0 500 \x1b]0;x\x07 " + b"e" * 9000 + b"\r\n\r\n"), "with HTTP 500"),
    "chunked": (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"), "in chunks"),
    "another page": (saying(HEAD + b"<html>Grafana</html>"), 'no debug server of torch\'s: "<html>Grafana</html>"'),
    "no ranks": (saying(HEAD + TITLE + b"</section>"), "it tells of no rank"),
    "no ranks without end": (never_ends(HEAD + TITLE, bytes(1 << 16)), "told of no rank"),
    "silent": (is_silent, "took the connection and said nothing within 0 s. Perhaps it is another port, such as the job's MASTER_PORT"),
    "waits for its ranks": (waits_for_its_ranks, "within 1 s (it waits until every rank has started its part)"),
    "drips": (drips, "within 1 s"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_debug_server_is_named(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, words = HOSTILE[case]
    monkeypatch.setattr(server_look, "PAGE_SECONDS", 1.0)
    monkeypatch.setattr(pages, "FIRST_WORD_SECONDS", 0.4)
    monkeypatch.setattr(pages, "MAX_RANK_BYTES", 1 << 20)
    with pytest.raises(NotServedError) as refused:
        looked(talk)
    assert words in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


def test_nothing_listens() -> None:
    with serving(saying(b"")) as port:
        pass
    with pytest.raises(NotServedError, match="nothing listens there"):
        asyncio.run(look_at_server(ServerAddress("127.0.0.1", port), 0))


def test_a_name_that_is_none() -> None:
    with pytest.raises(NotServedError, match="can't be resolved"):
        asyncio.run(look_at_server(ServerAddress("no-such-host.invalid", 1), 0))


def test_gigabytes_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_RANK_BYTES", 1 << 16)
    begin = HEAD + page([(200, "a"), (200, "b")])
    found = fetched(never_ends(begin[: begin.index(b"b</pre>")], b"b" * 4096))
    assert (found.by_rank[0].body, found.by_rank[1].status) == (b"a", pages.TOO_LONG)
    assert found.cut == "it sent more than 4 MiB"


def test_a_rank_that_says_too_much_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_RANK_BYTES", 1 << 16)
    found = fetched(saying(HEAD + page([(200, "a"), (200, "b" * (1 << 18)), (200, "c")])))
    assert [found.by_rank[rank].status for rank in range(3)] == [200, pages.TOO_LONG, 200]
    assert found.by_rank[2].body == b"c"


def test_ranks_without_number_are_not_counted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_RANKS", 50)
    found = fetched(saying(HEAD + page([(200, "a")] * 200)))
    assert len(found.by_rank) == 50
    assert found.cut == "it tells of more than 50 ranks"


def many_frames(length: int) -> str:
    frames = [f"f{number} /p/{'x' * length}{number}.py 1" for number in range(90)]
    return "".join(stack(*frames).replace("00bb", f"{thread:04x}") for thread in range(20))


def test_one_page_is_kept_no_further_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_look, "PAGE_KEPT_BYTES", 1 << 20)
    hang = looked(pages_of(job([(200, many_frames(40))] * 16, [(200, calls(("all_reduce", 1, [4], False)))] * 16)))
    known = [rank.rank for rank in hang.ranks if rank.watched and rank.watched.last.frames]
    assert known == list(range(len(known)))
    assert 0 < len(known) < 16
    assert [recorded.rank for recorded in hang.recorded] == list(range(16))
    assert hang.hidden[0] == (
        "Of the debug server's pages /stacks: not whole: it tells more than the 1 MiB that are kept of a page."
    )


def test_all_answers_together_are_bounded_and_the_second_look_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that is another each time is the most that a server can let us keep."""
    monkeypatch.setattr(budget, "MAX_KEPT_BYTES", 1 << 18)
    monkeypatch.setattr(server_look, "MAX_LOAD", 100.0)
    asked = iter(range(100_000))

    def talk(connection: socket.socket, path: str) -> None:
        told = stack(*(f"f /p/{next(asked)}{'x' * 400}.py 1" for _ in range(90)))
        connection.sendall(HEAD + page([(200, told if path == "/stacks" else "{}")] * 2))

    hang = looked(talk, 2)
    assert all(rank.watched and len(rank.watched.looks) == 2 and rank.watched.last.frames for rank in hang.ranks)
    assert "The stacks between the looks were not read to the end: all answers together are more than the 256 KiB that are kept." in hang.hidden  # fmt: skip


def test_what_is_taken_in_all_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_TAKEN_BYTES", 1 << 16)
    hang = looked(pages_of(job([(200, IN_ALL_REDUCE + "x" * 9000)] * 16, [(200, "{}")] * 16)))
    assert "all answers together are more than the 64 KiB that are taken" in hang.hidden[0]


def test_a_hostile_server_costs_little_memory() -> None:
    """Frames of few words are the most for their bytes: kept whole, five hundred such ranks were 970 MiB."""
    program = """
import asyncio, re, sys
from ddpdoctor.hang.debug_server.pages import ServerAddress
from ddpdoctor.hang.debug_server.server_look import look_at_server
hang = asyncio.run(look_at_server(ServerAddress("127.0.0.1", int(sys.argv[1])), 0))
print(len(hang.ranks), int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10)
"""
    thread = "Thread 0x00007f00bb (most recent call first):\n" + '  File "/a", line 999 in ab\n' * 95
    whole = page([(200, thread * 32)] * 200)
    with serving(pages_of({"/stacks": whole})) as port:
        done = subprocess.run(
            [sys.executable, "-c", program, str(port)], capture_output=True, text=True, timeout=100, check=False
        )
    assert done.returncode == 0, done.stderr
    ranks, mebibytes = map(int, done.stdout.split())
    assert 100 < ranks < 200
    assert mebibytes < 330


JSONS: dict[str, str] = {
    "broken": '{"version": "2.10", "entries": [',
    "deep": "[" * 100_000,
    "another": '{"a": 1}',
    "no text": "\x00\xff",
}


@pytest.mark.parametrize("case", JSONS)
def test_a_recorder_that_says_nonsense_is_named_and_its_stack_counts(case: str) -> None:
    good = calls(("all_reduce", 1, [4], False))
    hang = looked(pages_of(job([(200, IN_ALL_REDUCE)] * 2, [(200, good), (200, JSONS[case])])))
    assert [recorded.rank for recorded in hang.recorded] == [0]
    assert len(hang.refused) == 1
    assert hang.refused[0].startswith("rank 1's flight recorder: it ")
    assert hang.ranks[1].watched is not None
    assert hang.ranks[1].watched.last.frames[0].function == "all_reduce"


def test_what_ranks_say_can_not_be_obeyed_by_a_terminal() -> None:
    told = stack("\x1b[2Jevil /home/\u202eada/train.py 60")
    counted = [(200, '{"pytorch.wait_counter.\\u001b[2J": {"total_calls": 1, "active_count": 1}}')]
    hang = looked(pages_of(job([(200, told)], [(503, "\x1b]0;no\x07")], counted=counted)))
    assert hang.ranks[0].watched is not None
    [frame] = hang.ranks[0].watched.last.frames
    assert frame == Frame("?[2Jevil", "/home/?ada/train.py", 60)
    assert hang.ranks[0].counters == ("?[2J",)


@pytest.mark.parametrize(
    ("text", "main"),
    [
        (stack("a /x.py 1", "<module> /x.py 2"), "a"),
        # Python 3.14 tells the threads' names.
        (stack("a /x.py 1").replace("0x00007f00bb (", "0x00007f00bb [python] ("), "a"),
        # Of more than a hundred threads the main thread isn't shown, unless it is told by its outermost call.
        (stack("a /x.py 1") + "...\n", ""),
        (stack("b /x.py 1", "<module> /x.py 2") + "\nThread 0x00007f00cc (most recent call first):\n  File \"/y.py\", line 1 in c\n...\n", "b"),
        ("Current thread 0x00007f00aa (most recent call first):\n  <no Python frame>\n", ""),
        ("", ""),
        ("no stack at all", ""),
    ],
)  # fmt: skip
def test_the_main_thread_is_the_last(text: str, main: str) -> None:
    frames = parse_stacks(text.encode()).frames
    assert (frames[0].function if frames else "") == main


def test_a_forked_rank_ends_where_it_was_forked() -> None:
    text = stack("a /x.py 1", "_launch /usr/lib/python3.11/multiprocessing/popen_fork.py 71", "<module> /parent.py 9")
    assert [frame.function for frame in parse_stacks(text.encode()).frames] == ["a"]


def test_other_threads_are_kept_where_they_are_in_more_than_pythons_own_code() -> None:
    text = (
        'Thread 0x00007f00cc (most recent call first):\n  File "/v/torch/autograd/function.py", line 3 in apply\n\n'
        'Thread 0x00007f00dd (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 320 in wait\n\n'
    )
    assert [name for name, _ in parse_stacks((text + IN_ALL_REDUCE).encode()).others] == ["0x00007f00cc"]
