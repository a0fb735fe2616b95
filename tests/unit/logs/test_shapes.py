"""What stays of a line from run to run, and how the kinds of lines of a whole run are counted."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.match import shape_tally
from ddpdoctor.logs.match.shape_tally import ShapeTally, mark_of, shape_of
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs


def counted(path: Path) -> tuple[Log, ShapeTally]:
    tally = ShapeTally()
    log = read_logs([str(path)], stdin=io.BytesIO(), vocabulary=vocabulary(catalogue()), shapes=tally)
    return log, tally


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 5 loss 0.123", "step 1207 loss 1.2e-05"),
        ("saved /data/ada/run1/ckpt.pt in 3.1s", "saved ~/bob/last.safetensors in 12s"),
        ("object 0x7f3c10 of 3f2a9c1e4b77", "object 0xdeadbeef of deadbeefcafe"),
        ("[W1122 02:13:07.12 socket.cpp:767] no IPv6", "[W0101 11:00:00.99 socket.cpp:801] no IPv6"),
        ("peer 10.0.0.7:2200 on node-17 (pid 4711)", "peer 192.168.1.2:40112 on node-3 (pid 9)"),
        ("读取 3 个文件", "读取 17 个文件"),
    ],
)
def test_lines_that_differ_in_figures_have_one_shape(one: str, other: str) -> None:
    assert shape_of(one) == shape_of(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [("loss 0.5", "loss nan"), ("connection refused (111)", "connection reset (104)"), ("读取 3", "写入 3")],
)
def test_words_are_never_dropped(one: str, other: str) -> None:
    assert shape_of(one) != shape_of(other)


def test_a_whole_run_is_counted_whatever_its_labels_and_blocks(tmp_path: Path) -> None:
    """More than a block of 1 MiB, of two ranks, with progress bars and colours."""
    chance = random.Random(5)
    lines = []
    for step in range(30_000):
        lines.append(
            f"[rank{step % 2}]: \x1b[32mstep {step}\x1b[0m loss {chance.random()} of hash {chance.getrandbits(64):016x}"
        )
        if step % 1000 == 0:
            lines.append(f"\rEpoch:  10%|#   | {step}/9\rEpoch:  90%|### | {step}/9\rWARNING: bar is slow")
    (tmp_path / "run.log").write_text("\n".join(["begins here", *lines, "is done"]))
    _, tally = counted(tmp_path / "run.log")
    found = {shape_of(shape.first.text): shape for shape in tally.shapes.values()}
    assert {shape: count.times for shape, count in found.items()} == {
        "begins here": 1, "step loss of hash": 30_000, "Epoch": 30, "WARNING bar is slow": 30, "is done": 1,
    }  # fmt: skip
    assert [shape for shape, count in found.items() if tally.is_even(count)] == [
        "step loss of hash",
        "Epoch",
        "WARNING bar is slow",
    ]
    assert found["is done"].closes
    assert not found["begins here"].closes
    assert (found["is done"].first.number, found["begins here"].first.number) == (30_032, 1)
    assert tally.kind_of("step 7 loss 0.5 of hash ab12") is found["step loss of hash"]


def test_what_comes_in_a_heap_is_not_even(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("step 1 of it\n" * 50 + "waits 3 s\n" * 50 + "step 2 of it\n" * 900)
    _, tally = counted(tmp_path / "run.log")
    assert [shape_of(shape.first.text) for shape in tally.shapes.values() if tally.is_even(shape)] == ["step of it"]


def test_millions_of_kinds_are_bounded_and_the_end_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_tally, "MAX_SHAPES", 100)
    monkeypatch.setattr(shape_tally, "MAX_KEYS", 200)
    chance = random.Random(2)
    words = ["".join(chance.choices("ghijklmnopqrstuvwxyz", k=30)) for _ in range(100_000)]
    (tmp_path / "run.log").write_text("\n".join([*words, *(["the last words"] * 3)]))
    _, tally = counted(tmp_path / "run.log")
    assert len(tally.shapes) <= 125
    assert tally.left_out > 99_000
    (tmp_path / "short.log").write_text("\n".join(words[:110]) + "\nthe last words\n")
    assert counted(tmp_path / "short.log")[1].kind_of("the last words")


def test_a_mark_is_the_same_in_every_process() -> None:
    """A profile on disk goes by it."""
    assert mark_of("step loss") == 8797948625613281822
