"""`check --prometheus`: a file that promtool takes, whole or not at all, where somebody else owns the folder, too."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddpdoctor.checks.catalogue import all_checks
from tests.support.command import ddpdoctor
from tests.support.other_users import User


def write(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ddpdoctor("check", "--python", sys.executable, "--quick", "-q", "--prometheus", path, *arguments)


@pytest.mark.tool("promtool")
def test_it_is_what_prometheus_wants(tmp_path: Path) -> None:
    path = tmp_path / "ddpdoctor.prom"
    path.write_text("of the run before")
    began = time.time()
    ended = write(path)
    assert ended.returncode in (0, 1), ended.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["ddpdoctor.prom"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    text = path.read_text()
    linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stderr) == (0, "")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    states = families["ddpdoctor_check_status"].samples
    assert {sample.labels["check"] for sample in states if sample.value} == {check.slug for check in all_checks()}
    assert sum(sample.value for sample in states) == len(all_checks())
    (when,) = families["ddpdoctor_last_run_timestamp_seconds"].samples
    assert began <= when.value <= time.time()
    (took,) = families["ddpdoctor_last_run_duration_seconds"].samples
    assert 0 < took.value <= time.time() - began


@pytest.mark.parametrize(
    ("file", "more", "reason"),
    [
        ("metrics.txt", (), "names end in .prom"),
        ("x.prom", ("--fix", "--yes"), "--fix"),
        ("nowhere/x.prom", ("--select", "shm-too-small"), "the metrics were not written: there is no folder"),
    ],
)
def test_what_it_refuses(file: str, more: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    ended = write(tmp_path / file, *more)
    assert ended.returncode == 2
    assert reason in " ".join(ended.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []
    # The look itself was made, and is told.
    assert ("Nothing" in ended.stdout or "shm-too-small" in ended.stdout) is bool(more and more[0] == "--select")


@pytest.mark.root
def test_another_users_folder_gets_it_and_their_links_lead_nowhere(shared: Path, tmp_path: Path, eve: User) -> None:
    kept = tmp_path / "kept.prom"
    kept.write_text("root's")
    eve.does(
        f"mkdir {shared}/hers; ln -s {kept} {shared}/hers/a.prom; mkfifo {shared}/hers/b.prom; ln -s {tmp_path} {shared}/way"
    )
    for name in ("a", "b", "c"):
        ended = write(shared / "hers" / f"{name}.prom", "--select", "shm-too-small")
        assert ended.returncode in (0, 1), ended.stderr
        path = shared / "hers" / f"{name}.prom"
        assert stat.S_ISREG(path.lstat().st_mode)
        assert "ddpdoctor_build_info" in path.read_text()
    assert kept.read_text() == "root's"
    ended = write(shared / "way" / "d.prom", "--select", "shm-too-small")
    assert ended.returncode == 2
    assert "a link leads to" in ended.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["kept.prom"]
