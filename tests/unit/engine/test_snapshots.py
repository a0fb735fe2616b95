"""Snapshot files: ours, and everything else that may be handed over as one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.snapshots import (
    MAX_SNAPSHOT_BYTES,
    SnapshotError,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)
from ddpdoctor.facts.snapshot import SCHEMA, Snapshot
from tests.support.fixture_hosts import healthy_facts, healthy_names, to_snapshot


@pytest.mark.parametrize("name", healthy_names())
def test_round_trip_keeps_every_fact(name: str, tmp_path: Path) -> None:
    snapshot = to_snapshot(healthy_facts(name))
    write_snapshot(snapshot, tmp_path / "host.json")
    # A fleet is compared by identity, so what they are made of is compared.
    assert msgspec.to_builtins(read_snapshot(tmp_path / "host.json")) == msgspec.to_builtins(snapshot)


WHOLE = encode_snapshot(Snapshot(host="node01", machine=Unknown("no")))

WRONG = {
    "empty": (b"", "nothing in it"),
    "white space": (b" \n", "nothing in it"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "copied whole"),
    "another JSON": (b'{"name": "x"}', "not a snapshot"),
    "a JSON list": (b"[1, 2]", "not a snapshot"),
    "not JSON": (b"\x7fELF\x02\x01\x01", "not valid JSON"),
    "HTML": (b"<!DOCTYPE html><html></html>", "not valid JSON"),
    "newer": (WHOLE.replace(b'"ddpdoctor_snapshot": 1', b'"ddpdoctor_snapshot": 99'), "newer ddpdoctor"),
    "schema as text": (b'{"ddpdoctor_snapshot": "one"}', "not a snapshot"),
    "wrong type": (b'{"ddpdoctor_snapshot": 1, "host": 5}', "host"),
    "wrong group": (b'{"ddpdoctor_snapshot": 1, "machine": {"type": "gpus", "devices": []}}', "machine"),
    "deeply nested": (b'{"ddpdoctor_snapshot": 1, "extra": ' + b"[" * 100_000, "not valid JSON"),
    "huge number": (b'{"ddpdoctor_snapshot": ' + b"9" * 5000 + b"}", "not a snapshot"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_snapshot_gets_a_clear_line(kind: str, tmp_path: Path) -> None:
    content, words = WRONG[kind]
    path = tmp_path / "host.json"
    path.write_bytes(content)
    with pytest.raises(SnapshotError) as raised:
        read_snapshot(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_gigabyte_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(SnapshotError, match=f"larger than {MAX_SNAPSHOT_BYTES >> 20} MiB"):
        read_snapshot(path)


def test_unreadable_places(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        read_snapshot(tmp_path / "missing.json")
    with pytest.raises(SnapshotError, match="Is a directory"):
        read_snapshot(tmp_path)
    with pytest.raises(SnapshotError, match="larger than"):
        read_snapshot(Path("/dev/zero"))


def test_facts_of_a_later_release_are_passed_over() -> None:
    content = json.loads(WHOLE)
    content["a_group_of_the_future"] = {"type": "future"}
    content["machine"] = {**content["machine"], "later": 1}
    assert decode_snapshot(json.dumps(content).encode(), "x").machine == Unknown("no")


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_bytes_never_crash_the_reader(content: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(content, "x")


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4))
@settings(max_examples=300)
def test_mutated_snapshots_are_read_or_refused(place: int, bytes_: bytes) -> None:
    mutated = WHOLE[:place] + bytes_ + WHOLE[place + len(bytes_) :]
    try:
        decode_snapshot(mutated, "x")
    except SnapshotError:
        return


def test_writing_replaces_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text("old")
    write_snapshot(Snapshot(host="new"), path)
    assert read_snapshot(path).host == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["host.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "host.json"
    path.write_text("old")

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(SnapshotError, match="No space left"):
        write_snapshot(Snapshot(host="new"), path)
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["host.json"]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        write_snapshot(Snapshot(), tmp_path / "no" / "host.json")
    with pytest.raises(SnapshotError, match="Is a directory"):
        write_snapshot(Snapshot(), tmp_path)


def test_schema_version_stands_in_every_snapshot() -> None:
    assert msgspec.json.decode(WHOLE)["ddpdoctor_snapshot"] == SCHEMA
