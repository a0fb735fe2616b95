"""Flight recorders' dumps: the recorded ones, those of older torch, and files of all sorts that are none."""

from __future__ import annotations

import json
import os
import pickle
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.hang import Frame, Hang, Recorded, RecordedCollective
from ddpdoctor.hang.flight_recorder import collect_dumps, dump_files
from ddpdoctor.hang.flight_recorder.collect_dumps import Dumps, read_dumps
from ddpdoctor.hang.flight_recorder.dump_format import MAX_ENTRIES, parse_dump
from ddpdoctor.hang.flight_recorder.plain_pickles import MAX_BYTES, NotRead
from ddpdoctor.hang.flight_recorder.wait_graph import LagCause
from ddpdoctor.hang.recorded_hang import record_of
from tests.support.command import ROOT

RECORDED = ROOT / "fixtures" / "flight_recorder"
TRAIN = "/srv/train/train.py"
NOW = 1_790_000_000


def entry(number: int, created: float = NOW, **more: Any) -> dict[str, Any]:
    return {
        "frames": [{"name": "train", "filename": "/srv/t.py", "line": number}],
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": int(created * 1e9),
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "state": "started",
        "is_p2p": False,
        "timeout_ms": 600_000,
        **more,
    }


def dump(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    status = {"last_enqueued_collective": 3, "last_started_collective": 3, "last_completed_collective": 2}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 10]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {"0": status}, "entries": list(entries), **more}


def write(folder: Path, name: str, value: Any) -> Path:
    (folder / name).write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, 2))
    return folder / name


def read(*paths: object) -> Dumps:
    return read_dumps([str(path) for path in paths])


RELEASES = sorted(folder.name for folder in RECORDED.glob("*-2.*"))


@pytest.mark.parametrize("release", RELEASES)
def test_what_each_release_of_torch_has_written_names_who_stayed_behind(release: str) -> None:
    found = read(RECORDED / release)
    assert not found.refused
    record = record_of(Hang(recorded=found.recorded))
    assert record
    group, number, faulty = ("2:tensor", 3, 3) if release.startswith("nccl") else ("0:default_pg", 4, 2)
    assert [(lag.rank, lag.cause, lag.group, lag.number) for lag in record.lags] == [
        (faulty, LagCause.ABSENT, group, number)
    ]
    assert record.ranks == (faulty,)
    # All but the last batch of sends and receives are done, and the last one is not.
    for rank in {0, 1} if release.startswith("nccl") else ():
        pairs = [call.state for group in found.recorded[rank].groups for call in group.entries if call.point_to_point]
        still_open = 4 * rank
        assert pairs == ["completed"] * (12 - still_open) + ["scheduled"] * still_open


def test_releases_from_the_first_that_is_promised_have_their_recording() -> None:
    assert {"nccl-2.5.1", "nccl-2.8.0", "nccl-2.14.1", "gloo-2.8.0"} <= {*RELEASES}


def last_calls(recorded: Sequence[Recorded]) -> list[tuple[int, int, str, tuple[tuple[int, ...], ...]]]:
    """(rank, number, name, shapes) of each rank's last call in the default group."""
    default = [
        (recording.rank, next(group for group in recording.groups if group.group == "0:default_pg"))
        for recording in recorded
    ]
    calls = [(rank, group.entries[-1]) for rank, group in default]
    return [(rank, call.number, call.name.removeprefix("gloo:"), call.shapes) for rank, call in calls]


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("healthy", [(rank, 4, "all_reduce", ((4,),)) for rank in range(3)]),
        ("lagging", [(rank, 4 if rank < 2 else 3, "all_reduce", ((4,),)) for rank in range(3)]),
        ("lagging-json", [(rank, 4 if rank < 2 else 3, "all_reduce", ((4,),)) for rank in range(3)]),
        ("other-collective", [(rank, 3, "broadcast" if rank == 1 else "all_reduce", ((4,),)) for rank in range(3)]),
        ("other-shape", [(rank, 3, "all_reduce", ((5 if rank == 1 else 4,),)) for rank in range(3)]),
    ],
)
def test_dumps_of_real_jobs(case: str, calls: list[Any]) -> None:
    found = read(RECORDED / case)
    assert last_calls(found.recorded) == calls
    assert found.refused == ()
    assert found.note == f"{RECORDED}/{case}: 3 dumps, of ranks 0-2"
    assert {recording.version for recording in found.recorded} == {"2.10"}


def test_what_a_real_dump_says_of_one_call() -> None:
    rank = read(RECORDED / "lagging" / "rank_0").recorded[0]
    default, some = rank.groups
    assert (default.group, default.last_enqueued, default.last_started, default.last_completed) == (
        "0:default_pg",
        4,
        None,
        3,
    )
    assert (some.group, some.last_enqueued, some.last_completed) == ("1:undefined", 1, 1)
    call = default.entries[-1]
    assert msgspec.structs.replace(call, created=0.0, frames=()) == RecordedCollective(
        number=4, name="gloo:all_reduce", state="scheduled", shapes=((4,),), dtypes=("Float",)
    )
    assert [(frame.function, frame.path, frame.line > 0) for frame in call.frames[2:]] == [
        ("average", TRAIN, True),
        ("train", TRAIN, True),
        ("main", TRAIN, True),
        ("<module>", TRAIN, True),
    ]


def test_a_prefix_a_pattern_and_a_file_mean_dumps_too() -> None:
    folder = RECORDED / "lagging"
    assert len(read(folder / "rank_").recorded) == len(read(folder / "rank_*").recorded) == 3
    assert [recording.rank for recording in read(folder / "rank_2", folder / "rank_[01]").recorded] == [0, 1, 2]


def test_nccls_status_and_members(tmp_path: Path) -> None:
    found = read(write(tmp_path, "nccl_trace_rank_10", dump(entry(2, state="completed"), entry(3))))
    (rank,) = found.recorded
    (group,) = rank.groups
    assert (rank.rank, group.ranks) == (10, (0, 1, 10))
    assert (group.last_enqueued, group.last_started, group.last_completed) == (3, 3, 2)
    assert [entry.state for entry in group.entries] == ["completed", "started"]
    assert group.entries[1] == RecordedCollective(
        number=3,
        name="nccl:all_reduce",
        state="started",
        shapes=((2, 3),),
        dtypes=("Float",),
        created=float(NOW),
        frames=(Frame("train", "/srv/t.py", 3),),
    )


def test_a_dump_of_an_old_torch_is_a_bare_list(tmp_path: Path) -> None:
    old = {"pg_id": 0, "seq_id": 7, "profiling_name": "nccl:all_reduce", "time_created_us": NOW * 1_000_000}
    (rank,) = read(
        write(tmp_path, "nccl_trace_rank_3", [{**old, "input_sizes": ((4,),), "state": "scheduled"}])
    ).recorded
    assert rank.version == "1"
    (group,) = rank.groups
    assert (group.group, group.ranks, group.last_enqueued) == ("0", (), None)
    (call,) = group.entries
    assert (call.number, call.shapes, call.created, call.frames) == (7, ((4,),), float(NOW), ())


def test_point_to_point_calls_have_numbers_of_their_own_and_tell_the_rank(tmp_path: Path) -> None:
    to = entry(5, is_p2p=True, p2p_seq_id=2, profiling_name="nccl:send 4->1")
    (rank,) = read(write(tmp_path, "dump", dump(entry(5), to))).recorded
    assert rank.rank == 4
    assert [(entry.number, entry.point_to_point) for entry in rank.groups[0].entries] == [(5, False), (2, True)]
    in_a_group = {**to, "process_group": ("3", "tp")}
    assert "tells the rank" in read(write(tmp_path, "dump", dump(in_a_group))).refused[0]


def test_only_the_last_calls_are_kept() -> None:
    data = pickle.dumps(dump(*(entry(number) for number in range(1, 501))), 2)
    (group,) = parse_dump(data).groups
    assert [entry.number for entry in group.entries] == list(range(501 - MAX_ENTRIES, 501))


def test_the_newer_dump_of_a_rank_counts_and_the_other_is_named(tmp_path: Path) -> None:
    for folder, created in (("a", NOW + 60), ("b", NOW)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "rank_0", dump(entry(1, created)))
    found = read(tmp_path)
    assert [recording.file for recording in found.recorded] == [f"{tmp_path}/a/rank_0"]
    assert found.refused == (f"{tmp_path}/b/rank_0: of rank 0, too, and {tmp_path}/a/rank_0 is newer",)
    assert read(tmp_path / "a", tmp_path / "a" / "rank_0").refused == ()


def test_what_an_earlier_run_of_more_ranks_left_is_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, f"rank_{rank}", dump(entry(1, NOW - 500), entry(2, NOW)))
    write(tmp_path, "rank_2", dump(entry(1, NOW - 90 * 60)))
    found = read(tmp_path)
    assert [recording.rank for recording in found.recorded] == [0, 1]
    words = "an earlier run's: its last call is 1.4 h older than the first that the newest tells of"
    assert found.refused == (f"{tmp_path}/rank_2: {words}",)


def test_a_rank_that_stopped_an_hour_before_the_others_may_be_of_the_same_run(tmp_path: Path) -> None:
    write(tmp_path, "rank_0", dump(entry(9, NOW, timeout_ms=3_600_000)))
    write(tmp_path, "rank_1", dump(entry(1, NOW - 3600, timeout_ms=3_600_000)))
    assert [recording.rank for recording in read(tmp_path).recorded] == [0, 1]


@pytest.mark.parametrize(("age", "told"), [(610, True), (7200, False), (-60, False)])
def test_a_copys_time_isnt_that_of_the_writing(tmp_path: Path, age: int, told: bool) -> None:
    path = write(tmp_path, "rank_0", dump(entry(1)))
    os.utime(path, (NOW + age, NOW + age))
    assert read(path).recorded[0].written == (NOW + age if told else 0.0)


def test_files_that_are_none(tmp_path: Path) -> None:
    good = RECORDED / "lagging" / "rank_0"
    files = {
        "rank_1": b"",
        "rank_2": good.read_bytes()[:700],
        "rank_3": b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
        "rank_4": pickle.dumps({"epoch": 3}, 2),
        "rank_5": b'{"entries": [',
        "rank_6": b'{"epoch": 3}',
        "rank_7": b"[" * 100_000,
        "rank_8": json.dumps([1, 2]).encode(),
        "rank_9": pickle.dumps([3], 2),
    }
    for name, content in files.items():
        write(tmp_path, name, content)
    os.mkfifo(tmp_path / "rank_10")
    (tmp_path / "rank_11").symlink_to("rank_11")
    (tmp_path / "rank_12").symlink_to("/dev/zero")
    with (tmp_path / "rank_13").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    found = read(tmp_path)
    assert found.recorded == ()
    assert found.note == f"no flight recorder's dump could be read in {tmp_path}"
    why = {line.split(": ")[0].removeprefix(f"{tmp_path}/rank_"): line.partition(": ")[2] for line in found.refused}
    words = ["empty", "breaks off", "names os.system", "no flight recorder's", "breaks off", "no flight recorder's"]
    words += ["isn't, or it", "no flight recorder's", "no flight recorder's", "named pipe", "symbolic links", "device"]
    assert {str(number): word in why[str(number)] for number, word in enumerate([*words, "larger than"], 1)} == {
        str(number): True for number in range(1, 14)
    }


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/nowhere/at/all", "a\0b", "x" * 5000, "/proc/self/mem", ""])
def test_paths_that_lead_to_no_dump(path: str) -> None:
    found = read(path)
    assert found.recorded == ()
    assert found.refused
    assert all(one.isprintable() for one in (*found.refused, found.note))


def test_an_empty_folder_is_told_as_that(tmp_path: Path) -> None:
    assert read(tmp_path).refused == (f"{tmp_path}: no dumps in this folder",)


def test_what_else_is_in_the_folder_is_passed_over(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"model_{number}").write_bytes(b"weights")
        (tmp_path / f"notes-{number}.md").write_bytes(b"x")
    write(tmp_path, "rank_0", dump(entry(1)))
    found = read(tmp_path)
    assert [recording.rank for recording in found.recorded] == [0]
    assert found.refused == ()


def test_of_ten_thousand_broken_dumps_some_are_named(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"rank_{number}").touch()
    found = read(tmp_path)
    assert len(found.refused) == collect_dumps.MAX_REFUSALS
    assert found.refused[-1] == "9951 more files: not read either"


def test_reading_ends_when_it_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_dumps, "MAX_SECONDS", -1.0)
    found = read(write(tmp_path, "rank_0", dump(entry(1))))
    assert "1 file from here on not read" in found.refused[0]


def test_a_fifo_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "rank_0")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(dump_files.NotRead, match="named pipe"):
        dump_files.read_dump_file(str(tmp_path / "rank_0"))


def test_a_folder_that_may_not_be_entered_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    assert read(tmp_path).refused == (f"{tmp_path}: Permission denied",)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([{}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(entry(1))), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(entry(1))), ODD), ODD, ODD, st.sampled_from(("pickle", "json")))
def test_whatever_stands_under_the_keys_is_read_or_refused(
    odd: dict[str, Any], status: Any, config: Any, how: str
) -> None:
    value = dump({**entry(1), **odd}, pg_status=status, pg_config=config)
    data = pickle.dumps(value, 2) if how == "pickle" else json.dumps(value).encode()
    try:
        said = parse_dump(data)
    except NotRead:
        return
    recorded = said.recorded(0, "rank_0", "", time.time())
    assert msgspec.json.decode(msgspec.json.encode(recorded), type=Recorded) == recorded


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_real_dump_that_was_damaged_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray((RECORDED / "lagging" / "rank_1").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        said = parse_dump(bytes(content))
    except NotRead as error:
        text = str(error)
        assert text.isprintable()
        return
    msgspec.json.encode(said.recorded(0, "rank_0", "", 0.0))


def test_names_that_would_steer_a_terminal_dont(tmp_path: Path) -> None:
    nasty = entry(1, profiling_name="nccl:\x1b[2Jall_reduce", process_group=("0", "\x1b]0;pwned\x07"))
    nasty["frames"] = [{"name": "\x1b[31m", "filename": "/srv/\ud800\n.py", "line": 1 << 80}]
    (rank,) = read(write(tmp_path, "rank_0", dump(nasty))).recorded
    call = rank.groups[0].entries[0]
    assert "\x1b" not in msgspec.json.encode(rank).decode() + call.name
    assert call.frames[0].line == 0


def test_the_recorded_fixtures_are_plain_files() -> None:
    assert all(stat.S_ISREG(path.stat().st_mode) for path in RECORDED.glob("*/*"))
