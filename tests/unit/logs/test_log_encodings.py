"""Logs that aren't written as plain lines: in UTF-16, as JSON objects, or not at all."""

import io
import json
import struct
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.parse.encodings import margin_of
from ddpdoctor.logs.reading import DEVICE, NO_TEXT, SOURCE, read_logs

TRACEBACK = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    f()\nKeyError: 'x'"


def read(tmp_path: Path, content: bytes) -> Log:
    path = tmp_path / "train.log"
    path.write_bytes(content)
    return read_logs([str(path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    text = "\n".join(f"[rank1]: {one}" for one in TRACEBACK.split("\n")) + "\nGrüße 🏖️\n"
    log = read(tmp_path, text.encode(encoding))
    assert [(one.exception, one.message, one.line.rank, one.line.number) for one in log.raised] == [
        ("KeyError", "'x'", 1, 4)
    ]
    assert not log.files[0].problem


def test_code_units_that_pieces_cut(tmp_path: Path) -> None:
    text = "step 🏖️\n" * 300_000 + TRACEBACK + "\n"
    log = read(tmp_path, text.encode("utf-16"))
    assert [one.exception for one in log.raised] == ["KeyError"]
    assert log.files[0].lines == 300_004


@pytest.mark.parametrize("size", [1, 5000])
def test_nothing_but_nul(tmp_path: Path, size: int) -> None:
    assert read(tmp_path, b"\0" * size).files[0].problem == NO_TEXT


def test_hole_at_the_start_is_a_log(tmp_path: Path) -> None:
    log = read(tmp_path, b"\0" * 5000 + b"\n" + TRACEBACK.encode())
    assert not log.files[0].problem
    assert [one.exception for one in log.raised] == ["KeyError"]


def test_nul_bytes_are_of_no_line(tmp_path: Path) -> None:
    text = "".join(f"\0[rank1]: {one}\n" for one in TRACEBACK.split("\n"))
    table = "  time      : 2026-01-02_03:04:05\n  host      : gpu17\0\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n"
    log = read(tmp_path, f"{text}Root Cause (first observed failure):\n[0]:\n{table}".encode() + b"\0" * 9000)
    assert [(one.message, one.line.rank, one.line.number) for one in log.raised] == [("'x'", 1, 4)]
    assert [one.host for one in log.exited] == ["gpu17"]
    assert (log.files[0].lines, log.files[0].problem) == (10, "")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_utf_16_without_its_mark(tmp_path: Path, encoding: str, newline: str) -> None:
    text = "Grüße 🏖️\n" + "".join(f"[rank1]: {one}\n" for one in TRACEBACK.split("\n"))
    log = read(tmp_path, text.replace("\n", newline).encode(encoding))
    assert [(one.exception, one.message, one.line.rank, one.line.number) for one in log.raised] == [
        ("KeyError", "'x'", 1, 5)
    ]


def test_numbers_of_two_bytes_are_no_text(tmp_path: Path) -> None:
    assert read(tmp_path, struct.pack("<4000h", *(number % 30 for number in range(4000)))).files[0].problem == NO_TEXT


def test_both_streams_of_docker_in_one(tmp_path: Path) -> None:
    texts = [f"{one}\n".encode() for one in ["step 1", *TRACEBACK.split("\n")]]
    log = read(
        tmp_path, b"".join(struct.pack(">BxxxI", 1 + place % 2, len(one)) + one for place, one in enumerate(texts))
    )
    assert [(one.exception, one.own and one.own.path, one.line.number) for one in log.raised] == [
        ("KeyError", "train.py", 5)
    ]


def test_what_a_terminal_and_a_mark_add(tmp_path: Path) -> None:
    log = read(tmp_path, b"\xef\xbb\xbf" + "".join(f"[rank1]: {one}\r\r\n" for one in TRACEBACK.split("\n")).encode())
    assert [(one.began.rank, one.own and one.own.code, one.message) for one in log.raised] == [(1, "f()", "'x'")]


@pytest.mark.parametrize("escape", ["#033", "^[", "\\x1b", "\\033", "\\u001b", "␛", ""])
def test_colours_that_are_spelled_out(tmp_path: Path, escape: str) -> None:
    lines = [f"{escape}[36m(RayTrainWorker pid=12, ip=10.0.0.1){escape}[0m {one}\n" for one in TRACEBACK.split("\n")]
    log = read(tmp_path, "".join(lines).encode())
    assert [(one.message, one.own and one.own.code) for one in log.raised] == [("'x'", "f()")]
    assert log.hosts == ("RayTrainWorker pid=12, ip=10.0.0.1",)


def test_docker_writes_one_object_a_line(tmp_path: Path) -> None:
    def docker(text: str) -> str:
        return json.dumps({"log": f"{text}\n", "stream": "stderr", "time": "2026-11-22T10:00:00.1Z"})

    lines = ["[rank0]: step 1", *(f"[rank3]: {one}" for one in TRACEBACK.split("\n"))]
    log = read(tmp_path, "".join(f"{docker(line)}\n" for line in lines).encode())
    (raised,) = log.raised
    assert (raised.exception, raised.line.rank, raised.line.number) == ("KeyError", 3, 5)
    assert raised.line.time is not None
    assert log.files[0].lines == 5


def test_logger_writes_a_traceback_into_one_field(tmp_path: Path) -> None:
    steps = [{"ts": f"2026-11-22T10:00:0{i}", "level": "INFO", "rank": i % 2, "msg": "step"} for i in range(4)]
    crash = {"ts": "2026-11-22T10:00:06", "level": "ERROR", "rank": 1, "msg": "crash", "exc": TRACEBACK}
    later = {"ts": "2026-11-22T10:00:07", "level": "ERROR", "rank": 0, "msg": "crash", "exc": TRACEBACK}
    text = "W1122 a launcher's own line\n" + "".join(f"{json.dumps(one)}\n" for one in [*steps, crash, later])
    log = read(tmp_path, text.encode())
    # The lines' numbers are the file's, in which each is one line.
    assert [(one.exception, one.message, one.line.rank, one.line.number) for one in log.raised] == [
        ("KeyError", "'x'", 1, 6),
        ("KeyError", "'x'", 0, 7),
    ]
    assert log.files[0].lines == 7


TIME = "2026-11-22T10:00:00.1Z"


@pytest.mark.parametrize(
    ("before", "form"),
    [
        ("", {"textPayload": "", "timestamp": TIME, "severity": "ERROR", "resource": {"type": "k8s_container"}}),
        ("", {"jsonPayload": {"message": "", "level": "info"}, "timestamp": TIME, "severity": "ERROR"}),
        ("", {"message": "", "timestamp": 1795341600000, "ingestionTime": 1795341600100}),
        ("", {"line": "", "timestamp": TIME, "labels": {"pod": "train-0"}}),
        ("", {"MESSAGE": "", "__REALTIME_TIMESTAMP": "1795341600000000", "PRIORITY": "6"}),
        ("\x1e", {"log": "", "stream": "stderr", "time": TIME}),
        (f"{TIME} stderr F ", {"message": "", "timestamp": TIME, "level": "info"}),
    ],
)
def test_collectors_write_objects_of_their_own(tmp_path: Path, before: str, form: dict[str, object]) -> None:
    lines = ["[rank0]: step 1", *(f"[rank3]: {one}" for one in TRACEBACK.split("\n"))]
    empty = json.dumps(form)
    text = "".join(before + empty.replace(': ""', f": {json.dumps(line)}") + "\n" for line in lines)
    (raised,) = read(tmp_path, text.encode()).raised
    assert (raised.exception, raised.line.rank, raised.line.number) == ("KeyError", 3, 5)
    assert raised.own is not None


def test_an_object_whose_message_is_no_text_stays(tmp_path: Path) -> None:
    log = read(tmp_path, b'{"msg": {"step": 1}, "level": "INFO"}\n' * 50 + TRACEBACK.encode())
    assert [one.line.number for one in log.raised] == [54]


def test_objects_that_are_no_log_stay(tmp_path: Path) -> None:
    log = read(tmp_path, b'{"loss": 1.0, "step": 3}\n' * 50 + TRACEBACK.encode())
    assert [one.line.number for one in log.raised] == [54]


def test_line_that_breaks_off_stays_as_it_is(tmp_path: Path) -> None:
    text = '{"level":"INFO","msg":"a"}\n' * 5 + '{"level":"ERROR","msg":"RuntimeError: CUDA error: out'
    log = read(tmp_path, text.encode())
    assert log.files[0].lines == 6


def test_device_without_an_end_is_not_read() -> None:
    log = read_logs(["/dev/zero"], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))
    assert [(one.bytes, one.problem) for one in log.files] == [(0, DEVICE)]


def test_source_code_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f'"""\n{TRACEBACK}\n"""\n')
    (tmp_path / "train.log").write_text("step 1\n")
    assert [
        one.problem
        for one in read_logs([str(tmp_path / "train.py")], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())).files
    ] == [SOURCE]
    assert [
        Path(one.name).name
        for one in read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())).files
    ] == ["train.log"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (b"> a b\n>\n>   c\n", b"a b\n\n  c\n"),
        (b"    [rank0]: a\n\n      b\n", b"[rank0]: a\n\n  b\n"),
        (b"\tValueError: a\n\t\tb\n", b"ValueError: a\n\tb\n"),
        (b"> > a\n> > b\n", b"a\nb\n"),
        (b"  step 1\n  step 2\n", None),
        (b"  host : node7\n  rank : 3 (local_rank: 3)\n  ValueError: a\n", None),
        (b"  + Exception Group Traceback (most recent call last):\n  | ValueError: a\n", None),
        (b"> a\nb\n", None),
        (b"", None),
    ],
)
def test_what_stands_before_every_line_is_a_margin(text: bytes, plain: bytes | None) -> None:
    margin = margin_of(text)
    assert (margin.sub(b"", text) if margin else None) == plain
