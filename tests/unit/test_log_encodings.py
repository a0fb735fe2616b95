"""Logs that aren't written as plain lines: in UTF-16, as JSON objects, or not at all."""

import io
import json
from pathlib import Path

import pytest

from ddpdoctor.facts.log import Log
from ddpdoctor.logs.reading import DEVICE, NO_TEXT, SOURCE, read_logs

TRACEBACK = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    f()\nKeyError: 'x'"


def read(tmp_path: Path, content: bytes) -> Log:
    path = tmp_path / "train.log"
    path.write_bytes(content)
    return read_logs([str(path)], stdin=io.BytesIO())


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


def test_docker_writes_one_object_a_line(tmp_path: Path) -> None:
    def docker(text: str) -> str:
        return json.dumps({"log": f"{text}\n", "stream": "stderr", "time": "2026-11-22T10:00:00.1Z"})

    lines = ["[rank0]: step 1", *(f"[rank3]: {one}" for one in TRACEBACK.split("\n"))]
    log = read(tmp_path, "".join(f"{docker(one)}\n" for one in lines).encode())
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


def test_objects_that_are_no_log_stay(tmp_path: Path) -> None:
    log = read(tmp_path, b'{"loss": 1.0, "step": 3}\n' * 50 + TRACEBACK.encode())
    assert [one.line.number for one in log.raised] == [54]


def test_line_that_breaks_off_stays_as_it_is(tmp_path: Path) -> None:
    text = '{"level":"INFO","msg":"a"}\n' * 5 + '{"level":"ERROR","msg":"RuntimeError: CUDA error: out'
    log = read(tmp_path, text.encode())
    assert log.files[0].lines == 6


def test_device_without_an_end_is_not_read() -> None:
    log = read_logs(["/dev/zero"], stdin=io.BytesIO())
    assert [(one.bytes, one.problem) for one in log.files] == [(0, DEVICE)]


def test_source_code_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f'"""\n{TRACEBACK}\n"""\n')
    (tmp_path / "train.log").write_text("step 1\n")
    assert [one.problem for one in read_logs([str(tmp_path / "train.py")], stdin=io.BytesIO()).files] == [SOURCE]
    assert [Path(one.name).name for one in read_logs([str(tmp_path)], stdin=io.BytesIO()).files] == ["train.log"]
