"""Whatever the bytes are, and however they come in pieces: the same facts, and never a traceback."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.match import scanning
from ddpdoctor.logs.match.gathering import GatheredLog
from ddpdoctor.logs.match.scanning import FileScan
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.parse.compressed import GZIP
from ddpdoctor.logs.parse.encodings import encoding_of, without_holes
from ddpdoctor.logs.reading import read_logs

PARTS = [
    b"\n", b"\r", b"\r\n", b"\0", b"\xff\xfe", b"\x1b[31m", b"\x1b[0m", b" ", b"  ", b"[rank3]: ", b"[default1]:", b"3: ",
    b"2026-11-22T02:13:07Z ", b"[E1122 02:13:07.123456 a.cpp:1] ", b"Traceback (most recent call last):\n",
    b'  File "/home/ada/train.py", line 3, in f\n', b"    f(x)\n", b"ValueError: bad\n", b"| ", b"+ ",
    b"During handling of the above exception, another exception occurred:\n", b"Failures:\n", b"[0]:\n",
    b"  rank      : 5 (local_rank: 1)\n", b"  exitcode  : 1 (pid: 4711)\n", b"Root Cause (first observed failure):\n", b"=" * 60 + b"\n",
    b"srun: error: node[1-2]: tasks 0-1: Killed\n", b"srun: error: node[1-: tasks 9-1: Killed\n", b"ERROR x", b"Error: ",
    b"unable to open shared memory object", b"`", b'"', b"# ", b"Process name: [[1,1],3]\n", b"Exit code: 3\n",
    "🏖️é".encode(), b"x" * 3000, b"node0:1:2 [0] NCCL INFO comm 0x1 rank 3 nranks 8 ",
]  # fmt: skip
logs = st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=40)), max_size=60).map(b"".join)


def scanned(pieces: list[bytes]) -> Log:
    gathered = GatheredLog()
    scan = FileScan(vocabulary(catalogue()), gathered, 0)
    for piece in pieces:
        scan.feed(piece)
    scan.end()
    return gathered.log()


@given(logs, st.lists(st.integers(0, 4000), max_size=8))
@settings(max_examples=60, deadline=None)
def test_pieces_of_any_size_give_the_same_facts(data: bytes, cuts: list[int]) -> None:
    at = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    assert scanned([data[begin:end] for begin, end in itertools.pairwise(at)]) == scanned([data])


@given(logs)
@settings(max_examples=60, deadline=None)
def test_lines_are_counted_as_they_are_and_every_fact_points_at_one(data: bytes) -> None:
    log = read_logs(["-"], stdin=io.BytesIO(data), vocabulary=vocabulary(catalogue()))
    file = log.files[0]
    if data.startswith(GZIP) or file.problem:
        return
    assert file.bytes == len(data)
    if encoding_of(data):
        return
    text = b"".join(without_holes(iter([data])))
    assert file.lines == text.count(b"\n") + (bool(text) and not text.endswith(b"\n"))
    spots = [one.line for one in (*log.sightings, *log.raised, *log.exited, *log.last)] + [*log.errors]
    assert all(1 <= spot.number <= file.lines for spot in spots)
    assert all("\n" not in spot.text for spot in spots)


@pytest.mark.parametrize("size", [40, 300])
@given(logs)
@settings(max_examples=30, deadline=None)
def test_no_sign_is_lost_between_blocks(size: int, data: bytes) -> None:
    """Blocks of a few bytes cut lines, labels and literal texts anywhere."""
    whole = {(sighting.slug, sighting.line.number) for sighting in scanned([data]).sightings}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scanning, "BLOCK_BYTES", size)
        in_blocks = scanned([data])
    # The end of a line that blocks this small cut in two may look like a line of its own, to a pattern that asks for its beginning.
    lines = {
        one.slug
        for sought in vocabulary(catalogue()).texts
        for one in sought.signs
        if one.pattern and "^" in one.pattern.pattern
    }
    expected, found = {slug for slug, _ in whole}, {sighting.slug for sighting in in_blocks.sightings}
    assert expected <= found <= expected | lines


def test_random_bytes_are_read(tmp_path: Path) -> None:
    import random

    (tmp_path / "noise").write_bytes(random.Random(7).randbytes(3 << 20))
    assert read_logs([str(tmp_path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue())).sightings == ()
