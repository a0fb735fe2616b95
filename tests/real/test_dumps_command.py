"""`ddpdoctor jobs --dumps`, as it is typed after a job has died."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ddpdoctor

RECORDED = Path(__file__).parents[2] / "fixtures" / "flight_recorder"


def judged(*arguments: str | Path) -> dict[str, Any]:
    ended = ddpdoctor("jobs", "--json", *arguments)
    assert ended.stderr == ""
    told = json.loads(ended.stdout)
    assert ended.returncode == {"ok": 0, "warn": 0, "fail": 1, "unknown": 2}[told["verdict"]]
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize(
    ("case", "slug", "words"),
    [
        ("lagging", "rank-fell-behind", ["rank 2", "all_reduce number 4", "train.py:"]),
        (
            "other-collective",
            "collective-desync",
            ["number 3", "ranks 0 and 2 called all_reduce", "rank 1 called broadcast"],
        ),
        pytest.param(
            *("other-shape", "collective-desync", ["rank 1 called all_reduce Float[5]"]), marks=pytest.mark.thorough
        ),
        pytest.param(*("lagging-json", "rank-fell-behind", ["rank 2"]), marks=pytest.mark.thorough),
    ],
)
def test_dumps_alone_name_the_rank(case: str, slug: str, words: list[str]) -> None:
    told = judged("--dumps", RECORDED / case)
    assert [finding["slug"] for finding in told["findings"]] == [slug]
    assert all(word in told["findings"][0]["summary"] for word in words)


def test_dumps_of_a_healthy_job_accuse_nobody() -> None:
    assert judged("--dumps", RECORDED / "healthy")["findings"] == []


@pytest.mark.parametrize("torn", [False, True])
def test_a_rank_without_a_dump_is_named(tmp_path: Path, torn: bool) -> None:
    for rank in (0, 1):
        dump = pickle.loads((RECORDED / "healthy" / f"rank_{rank}").read_bytes())
        dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump, 2))
    if torn:
        (tmp_path / "rank_2").write_bytes((RECORDED / "healthy" / "rank_2").read_bytes()[:500])
    ended = ddpdoctor("jobs", "--dumps", tmp_path)
    assert ended.returncode == 2
    assert "No dump of rank 2, of 3 ranks: gather it" in " ".join(ended.stdout.split())
    assert "all ranks" not in ended.stdout


def test_dumps_of_two_hosts_are_one_jobs(tmp_path: Path) -> None:
    for rank, host in enumerate(("n1", "n1", "n2")):
        (tmp_path / host).mkdir(exist_ok=True)
        shutil.copy(RECORDED / "lagging" / f"rank_{rank}", tmp_path / host)
    told = judged("--dumps", tmp_path / "n1", "--dumps", f"{tmp_path}/n2/rank_")
    assert [finding["slug"] for finding in told["findings"]] == ["rank-fell-behind"]


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_a_hostile_dump_does_nothing_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": [Evil(tmp_path / "pwned")]}, 4))
    (tmp_path / "rank_1").write_bytes(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    os.mkfifo(tmp_path / "rank_2")
    ended = ddpdoctor("jobs", "--dumps", tmp_path)
    assert ended.returncode == 2
    assert not (tmp_path / "pwned").exists()
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "names posix.system" in " ".join(ended.stdout.split())
    assert "it is a named pipe" in " ".join(ended.stdout.split())
