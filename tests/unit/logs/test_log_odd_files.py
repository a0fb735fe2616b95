"""Files that are damaged, that are there by several names, or that came in pieces: what can be read of each is read, once."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import threading
import time
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.parse import folders
from ddpdoctor.logs.parse.compressed import CHANGED, CUT_OFF, DAMAGED, MORE
from ddpdoctor.logs.reading import read_logs

NOISE = random.Random(7)
TEXT = "".join(f"step {step} loss {NOISE.random()}\n" for step in range(100_000))
TRACEBACK = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    f()\nKeyError: 'x'\n"
WHOLE = gzip.compress((TEXT + TRACEBACK).encode(), 1)


def read(*paths: Path | str, stdin: bytes = b"") -> Log:
    return read_logs([str(path) for path in paths], stdin=io.BytesIO(stdin), vocabulary=vocabulary(catalogue()))


def raised(log: Log) -> list[str]:
    return [one.exception for one in log.raised]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WHOLE[:-8] + b"abcd" + WHOLE[-4:], CHANGED),
        (WHOLE[:-4] + b"abcd", CHANGED),
        (WHOLE[:-3], CUT_OFF),
        (WHOLE + b"[1]+ Done", MORE),
        (WHOLE + bytes(1000), ""),
        (WHOLE + WHOLE[:2], CUT_OFF),
    ],
)
def test_of_a_damaged_gzip_all_that_can_be_unpacked_is_read(tmp_path: Path, content: bytes, problem: str) -> None:
    log = tmp_path / "run.log.gz"
    log.write_bytes(content)
    found = read(log)
    assert (found.files[0].problem, raised(found)) == (problem, ["KeyError"])
    assert found.files[0].lines == 100_004


def test_what_stands_right_before_the_damage_is_read(tmp_path: Path) -> None:
    log = tmp_path / "run.log.gz"
    behind = gzip.compress((TRACEBACK + "".join(f"{NOISE.random()}\n" for _ in range(200_000))).encode(), 1)
    for at in (len(behind) // 20, len(behind) // 2):
        log.write_bytes(behind[:at] + b"\xff" * 64 + behind[at + 64 :])
        found = read(log)
        assert (found.files[0].problem in (DAMAGED, CHANGED), raised(found)) == (True, ["KeyError"])


def test_one_file_by_several_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    run = tmp_path / "logs" / "run.log"
    run.write_text(TRACEBACK)
    (tmp_path / "logs" / "other.log").write_text(TRACEBACK)
    (tmp_path / "latest.log").symlink_to(run)
    (tmp_path / "logs" / "hard.log").hardlink_to(run)
    assert [one.name for one in read("logs/run.log", "./logs/run.log", run, "logs/../logs/run.log").files] == [
        "logs/run.log"
    ]
    assert [one.name for one in read("latest.log", "logs", "logs/", tmp_path / "logs").files] == [
        "logs/hard.log",
        "logs/other.log",
    ]
    assert [one.name for one in read("latest.log", "-", stdin=b"step 1\n").files] == ["latest.log", "-"]
    assert [one.problem for one in read("gone.log", "./gone.log").files] == ["No such file or directory"]


def test_that_a_folder_has_too_many_files_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.log").write_text("step 1\n")
    log = read(tmp_path)
    assert [Path(one.name).name for one in log.files] == ["0.log", "1.log", "2.log"]
    assert log.notes == (f"there are more than 3 files in {tmp_path}; only the first ones are read",)


def test_a_pipe_is_judged_by_more_than_its_first_line() -> None:
    lines = [
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-11-22T10:00:00Z"})
        for line in TRACEBACK.splitlines()
    ]
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for one in ["a launcher's own line", *lines]:
                time.sleep(0.02)
                pipe.write(f"{one}\n".encode())

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(reading, "rb", buffering=0) as stdin:
        log = read_logs(["-"], stdin=stdin, vocabulary=vocabulary(catalogue()))
    writer.join()
    assert (raised(log), log.files[0].lines) == (["KeyError"], 5)
