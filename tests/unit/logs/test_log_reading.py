"""Files, folders, pipes and what is none: what comes of each, and never a traceback."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.parse.folders import NO_LOGS, NOT_FILLED
from ddpdoctor.logs.reading import NO_TEXT, read_logs
from tests.support.command import ROOT, plain_environ

BOOM = "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: No space left on device (28)\n"


def read(*paths: Path | str, stdin: bytes = b"") -> Log:
    return read_logs([str(path) for path in paths], stdin=io.BytesIO(stdin), vocabulary=vocabulary(catalogue()))


def slugs(log: Log) -> set[str]:
    return {sighting.slug for sighting in log.sightings}


def test_a_file_and_standard_input_say_the_same(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("step 1\n" + BOOM)
    assert slugs(read(log)) == slugs(read("-", stdin=log.read_bytes())) >= {"shm-too-small"}
    assert (read(log).files[0].lines, read(log).files[0].bytes) == (2, log.stat().st_size)


def test_a_folder_of_torchrun_gives_each_file_its_rank(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "none_x1" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        (folder / "stderr.log").write_text(f"[rank{rank}]: boom\n" if rank < 2 else BOOM)
    log = read(tmp_path)
    assert len(log.files) == 6
    assert [
        (sighting.line.local_rank, sighting.line.rank) for sighting in log.sightings if sighting.slug == "shm-too-small"
    ] == [(2, 2)]


def test_torchruns_error_file_is_read_as_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "attempt_0" / "1"
    folder.mkdir(parents=True)
    callstack = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n    raise ValueError\nValueError: bad\n'
    message = {"message": "ValueError: bad", "extraInfo": {"py_callstack": callstack, "timestamp": "1795386134"}}
    (folder / "error.json").write_text(json.dumps({"message": message}))
    (raised,) = read(tmp_path).raised
    assert (raised.exception, raised.line.local_rank, raised.line.time) == ("ValueError", 1, 1795386134.0)


@pytest.mark.parametrize("members", [1, 3])
def test_gzip_is_known_by_its_content(tmp_path: Path, members: int) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(gzip.compress(b"step 1\n") * (members - 1) + gzip.compress(BOOM.encode()))
    found = read(log)
    assert "shm-too-small" in slugs(found)
    assert found.files[0].lines == members
    assert found.files[0].bytes == len(BOOM) + len("step 1\n") * (members - 1)


def test_a_gzip_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log = tmp_path / "run.log.gz"
    whole = gzip.compress(BOOM.encode() + os.urandom(100_000).hex().encode())
    log.write_bytes(whole[: len(whole) // 2])
    found = read(log)
    assert "shm-too-small" in slugs(found)
    assert "cut off" in found.files[0].problem
    log.write_bytes(b"\x1f\x8bnonsense")
    assert read(log).files[0].problem


def test_what_can_not_be_read_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(BOOM)
    (tmp_path / "dangling.log").symlink_to(tmp_path / "gone")
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04" + bytes(range(256)) * 100 + BOOM.encode())
    (tmp_path / "empty.log").touch()
    found = {Path(one.name).name: one.problem for one in read(tmp_path, tmp_path / "missing").files}
    assert found["run.log"] == found["empty.log"] == ""
    assert found["dangling.log"] == found["missing"] == "No such file or directory"
    assert "checkpoint.pt" not in found, "who names a folder doesn't mean the checkpoints in it"
    assert read(tmp_path / "checkpoint.pt").files[0].problem == NO_TEXT
    assert len(read(tmp_path).sightings) == len(read(tmp_path / "run.log").sightings)


def test_a_folder_that_is_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path)
    (tmp_path / "run.log").write_text(BOOM)
    assert len(read(tmp_path).files) == 1


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert [one.problem for one in read(tmp_path).files] == [NO_LOGS]


def test_a_pipe_that_is_named_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = [
        sys.executable,
        "-c",
        "import sys; open(sys.argv[1], 'w').write(sys.argv[2])",
        str(tmp_path / "pipe"),
        BOOM,
    ]
    with subprocess.Popen(writing) as writer:
        found = read(tmp_path / "pipe")
        assert writer.wait() == 0
    assert "shm-too-small" in slugs(found)


def test_the_null_device_is_empty() -> None:
    (found,) = read("/dev/null").files
    assert (found.bytes, found.problem) == (0, "")


def test_a_file_that_grows_faster_than_it_is_read_ends(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("step 1\n" * 1000)

    def grow(_name: str, _done: int, _size: int) -> None:
        with log.open("a") as file:
            file.write("step 2\n" * 100_000)

    found = read_logs([str(log)], stdin=io.BytesIO(), progress=grow, vocabulary=vocabulary(catalogue()))
    assert found.files[0].bytes == 7000


LIMITED = """
import io, sys
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs
from tests.support.own_memory import peak
log = read_logs([sys.argv[1]], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()))
print(peak() // 2**20, len(log.sightings), log.files[0].lines)
"""
# getrusage() would tell the peak of the large process, too, that this one was forked from.


def measured(log: Path) -> tuple[int, int, int]:
    """MiB at the peak, sightings, lines: of a process that reads it."""
    line = [sys.executable, "-c", LIMITED, str(log)]
    said = subprocess.run(
        line, capture_output=True, text=True, check=True, env=plain_environ(), cwd=ROOT
    ).stdout.split()
    return int(said[0]), int(said[1]), int(said[2])


def test_a_line_of_100_mb_is_read_in_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with log.open("wb") as file:
        file.write(b"[rank3]: ")
        for _ in range(100):
            file.write(b"0123456789" * 100_000)
        file.write(BOOM.encode())
        file.write(BOOM.encode())
    peak, sightings, lines = measured(log)
    assert peak < 100
    assert sightings == 2, "rank 3's, and one of nobody"
    assert lines == 2


def test_ranks_and_tracebacks_without_number_are_read_in_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with log.open("w") as file:
        for number in range(2500):
            file.write(
                f'[rank{number}]: Traceback (most recent call last):\n[rank{number}]:   File "/a/{number}.py", line {number}, in f\n'
            )
            file.write(f"[rank{number}]:     {'x' * 200}\n[rank{number}]: " + BOOM)
    peak, sightings, _ = measured(log)
    assert peak < 100
    assert sightings >= 2500


def test_the_last_words_of_every_rank_are_known_with_their_numbers(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "".join(f"[rank{rank}]: step {step}\n" for step in range(50) for rank in range(8) if rank != 5 or step < 7)
    )
    found = {one.rank: (one.line.text, one.line.number) for one in read(log).last}
    assert found[5] == ("step 6", 6 * 8 + 6)
    assert found[7] == ("step 49", 7 * 8 + 43 * 7)
    assert sorted(found, key=str) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_who_fell_silent_long_before_the_end_of_a_large_log_is_known(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with log.open("w") as file:
        for step in range(20_000):
            for rank in range(8):
                if rank != 5 or step < 6000:
                    file.write(f"[rank{rank}]: step {step} loss 0.5\n")
    found = {one.rank: one.line.number for one in read(log).last}
    assert found[7] == 6000 * 8 + 14_000 * 7
    assert abs(found[5] - 6000 * 8) < 50_000, "it fell silent within a block of what is said of it"


def of_torchrun(folder: Path, run: str, began: float, ended: float, text: str = "") -> Path:
    """A folder as torchrun makes it for one run on one node, of those times."""
    ranks = folder / run / "attempt_0" / "0"
    ranks.mkdir(parents=True)
    log = ranks / "stderr.log"
    if text:
        log.write_text(text)
        os.utime(log, (ended, ended))
    for one in (ranks, ranks.parent, ranks.parent.parent):
        os.utime(one, (began, began))
    return log


def test_of_two_runs_in_a_folder_the_newest_is_read(tmp_path: Path) -> None:
    of_torchrun(tmp_path, "none_zzzzzzzz", 1000.0, 1060.0, BOOM)
    newest = of_torchrun(tmp_path, "none_aaaaaaaa", 1063.0, 1100.0, "step 1\n")
    again = newest.parents[2] / "attempt_1" / "0"
    again.mkdir(parents=True)
    (again / "stderr.log").write_text("step 1\n")
    log = read(tmp_path)
    assert [one.name for one in log.files] == [str(newest), str(again / "stderr.log")]
    assert log.notes == (f"2 runs lie here; the newest is read: {tmp_path}/none_aaaaaaaa",)


def test_nodes_that_share_a_folder_are_one_run(tmp_path: Path) -> None:
    """Also where one of them ended long before the other, which hung."""
    of_torchrun(tmp_path, "j1_aaaaaaaa", 500.0, 900.0, "an older run\n")
    of_torchrun(tmp_path, "j1_bbbbbbbb", 1000.0, 1060.0, BOOM)
    of_torchrun(tmp_path, "j1_cccccccc", 1002.0, 3000.0, "step 1\n")
    log = read(tmp_path)
    assert [Path(one.name).parts[-4] for one in log.files] == ["j1_bbbbbbbb", "j1_cccccccc"]
    (note,) = log.notes
    assert note.endswith(f"{tmp_path}/j1_bbbbbbbb, {tmp_path}/j1_cccccccc")


def test_a_folder_that_torchrun_left_empty_says_how_it_is_filled(tmp_path: Path) -> None:
    of_torchrun(tmp_path, "none_aaaaaaaa", 1000.0, 1001.0)
    assert [one.problem for one in read(tmp_path).files] == [NOT_FILLED]


def test_a_folder_that_may_not_be_entered_is_no_empty_one() -> None:
    """Of a folder in it, too."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "run.log").write_text("step 1\n")
        (folder / "node1").mkdir(mode=0)
        with as_nobody():
            log = read(folder)
            alone = read(folder / "node1")
        assert [(one.name, one.problem) for one in log.files] == [
            (str(folder / "run.log"), ""),
            (str(folder / "node1"), "Permission denied"),
        ]
        assert [one.problem for one in alone.files] == ["Permission denied"]


def test_a_file_in_a_folder_that_may_not_be_entered_is_told_and_the_others_are_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "run.log").write_text(BOOM)
        (folder / "node1").mkdir(mode=0)
        hidden = folder / "node1" / "run.log"
        with as_nobody():
            log = read(hidden, folder / "run.log", folder / ("x" * 300))
        assert [(one.name, one.problem) for one in log.files] == [
            (str(hidden), "Permission denied"),
            (str(folder / "run.log"), ""),
            (str(folder / ("x" * 300)), "File name too long"),
        ]
        assert "shm-too-small" in slugs(log)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who may enter everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(("pack", "unpack"), [(bz2.compress, "bzip2 -dc"), (lzma.compress, "xz -dc")])
def test_what_is_compressed_otherwise_says_how_to_unpack_it(
    tmp_path: Path, pack: Callable[[bytes], bytes], unpack: str
) -> None:
    log = tmp_path / "run 1.log"
    log.write_bytes(pack(b"".join(b"step %d\n" % step for step in range(2000))))
    (file,) = read(log).files
    assert file.problem.startswith(NO_TEXT)
    assert f"`{unpack} '{log}' | ddpdoctor diagnose-log -`" in file.problem
