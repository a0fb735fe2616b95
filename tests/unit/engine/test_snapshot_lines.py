"""Snapshots as short lines: put together again however a launcher mixes and labels them, and bounded whoever wrote them."""

from __future__ import annotations

import base64
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.engine.snapshot_lines import MARK, SnapshotLines, joined, to_lines
from ddpdoctor.engine.snapshots import decode_snapshot
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.fixture_hosts import healthy_facts, healthy_names, to_snapshot

WHY = "was the command ended, or its output cut?"
HOSTS = [to_snapshot(healthy_facts(name)) for name in healthy_names()]


@pytest.mark.parametrize("place", range(len(HOSTS)))
def test_lines_are_short_and_read_as_the_file_is(place: int) -> None:
    text = to_lines(HOSTS[place])
    # With its line feed and a launcher's label it is handed on at once.
    assert max(map(len, text.splitlines())) < 1000
    assert msgspec.to_builtins(decode_snapshot(text.encode(), "x")) == msgspec.to_builtins(HOSTS[place])


LABELS = st.sampled_from(["", "3: ", "node07: ", "[1,3]<stdout>:", "[pod/job-0-x/main] "])


@settings(max_examples=30)
@given(st.lists(st.sampled_from(HOSTS), min_size=1, max_size=4, unique_by=id), LABELS, st.randoms())
def test_mixed_and_labelled_lines_come_together(hosts: list[Snapshot], label: str, random: object) -> None:
    lines = [f"{label}{line}".encode() for host in hosts for line in to_lines(host).splitlines()]
    random.shuffle(lines)  # type: ignore[attr-defined]
    collected = SnapshotLines()
    whole = [content for line in lines if (content := collected.add(line))]
    assert sorted(whole) == sorted(map(msgspec.json.encode, hosts))
    assert list(collected.lacking()) == []


def test_a_lost_line_is_told_with_its_label() -> None:
    collected = SnapshotLines()
    lines = to_lines(HOSTS[0]).splitlines()
    for line in lines[:-1]:
        assert collected.add(f"node07: {line}".encode()) == b""
    (lack,) = collected.lacking()
    assert lack.text == f"node07: 1 of its {len(lines)} lines didn't arrive; {WHY}"
    assert lack.labels == ("node07",)
    assert f'"host":"{HOSTS[0].host}"'.encode() in lack.beginning


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        MARK,
        MARK + b" 0123456789abcdef 2/1 AAAA",
        MARK + b" xyz 1/1 AAAA",
        MARK + b" 0123456789abcdef 0/1 AAAA",
    ],
)
def test_other_lines_are_none(line: bytes) -> None:
    assert SnapshotLines().add(line) is None


def test_what_was_altered_is_no_snapshot() -> None:
    first, *rest = to_lines(HOSTS[0]).splitlines()
    altered = first[:-3] + ("AAA" if not first.endswith("AAA") else "BBB")
    assert joined("\n".join([altered, *rest]).encode()) == MARK


def test_a_few_lines_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.engine.snapshot_lines.MAX_CONTENT_BYTES", 1 << 20)
    data = base64.b64encode(zlib.compress(b"[" * (1 << 26))).decode()
    parts = [data[start : start + 900] for start in range(0, len(data), 900)]
    collected = SnapshotLines()
    ends = [
        collected.add(b"%s 0123456789abcdef %d/%d %s" % (MARK, number, len(parts), part.encode()))
        for number, part in enumerate(parts, 1)
    ]
    assert ends[-1] == MARK


@pytest.mark.parametrize(("characters", "kept"), [(900, 7), (4, 19)])
def test_what_never_arrives_whole_fills_no_memory_and_is_told(
    monkeypatch: pytest.MonkeyPatch, characters: int, kept: int
) -> None:
    monkeypatch.setattr("ddpdoctor.engine.snapshot_lines.MAX_PENDING_CHARACTERS", 10_000)
    collected = SnapshotLines()
    for number in range(100):
        collected.add(b"n%d: %s %016x 1/2 %s" % (number, MARK, number, b"A" * characters))
    given_up, *rest = collected.lacking()
    assert given_up.labels == tuple(f"n{number}" for number in range(100 - kept))
    assert given_up.text.startswith(f"{100 - kept} snapshots (n0, n1, n2 and others) had not arrived whole")
    told = [lack.text for lack in rest]
    assert told == [f"n{number}: 1 of its 2 lines didn't arrive; {WHY}" for number in range(100 - kept, 100)]
