"""Many snapshots in a row are read and judged as each is by itself."""

from __future__ import annotations

import json

import msgspec
import pytest

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.engine.registry import Result
from ddpdoctor.engine.snapshot_series import SnapshotSeries
from ddpdoctor.engine.snapshots import SnapshotError, decode_snapshot, encode_snapshot
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.fixture_hosts import HEALTHY, healthy_names, host_cases
from tests.unit.engine.test_snapshots import WRONG

FILES = {name: (HEALTHY / f"{name}.json").read_bytes() for name in healthy_names()}


def sick_files() -> dict[str, bytes]:
    """One sick host of every illness."""
    cases = {case.slug: case for case in host_cases(kind="sick-")}
    return {case.id: encode_snapshot(case.snapshot()) for case in cases.values()}


def untimed(examination: Examination) -> list[Result]:
    """Its results, without how long judging took."""
    return [msgspec.structs.replace(result, seconds=0.0) for result in examination.results]


def test_each_host_is_judged_as_it_is_alone() -> None:
    series = SnapshotSeries(all_checks())
    # Twice, so that what is remembered is used.
    for name, content in [*FILES.items(), *sick_files().items(), *FILES.items()]:
        host = series.read(content, name)
        alone = decode_snapshot(content, name)
        assert msgspec.to_builtins(host.snapshot) == msgspec.to_builtins(alone), name
        assert untimed(series.examine(host)) == untimed(examine(alone, None, all_checks())), name


def test_another_number_of_ranks_is_another_judgement() -> None:
    (name, content), *_ = FILES.items()
    for nproc in (1, 8):
        series = SnapshotSeries(all_checks(), nproc)
        host = series.read(content, name)
        assert untimed(series.examine(host)) == untimed(examine(host.snapshot, nproc, all_checks()))


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_snapshot_is_refused_in_the_same_words(kind: str) -> None:
    content, words = WRONG[kind]
    with pytest.raises(SnapshotError, match=words):
        SnapshotSeries(()).read(content, "host.json")


def test_facts_that_cannot_be_are_not_taken() -> None:
    content = json.loads(FILES["h100x8-slurm"])
    content["driver"]["libcuda_path"] = "-rf /; reboot"
    content["host"] = "\x1b[31mnode"
    host = SnapshotSeries(()).read(json.dumps(content).encode(), "host.json")
    assert "not taken" in str(host.snapshot.driver)
    assert host.snapshot.host == ""


def test_hosts_of_which_nothing_is_alike_are_forgotten_again() -> None:
    series = SnapshotSeries(())
    for number in range(500):
        series.read(encode_snapshot(Snapshot(host=f"n{number}")), "x")
    assert series.read(encode_snapshot(Snapshot(host="n1")), "x").snapshot.host == "n1"
