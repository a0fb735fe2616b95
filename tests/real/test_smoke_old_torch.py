"""`ddpdoctor smoke` with the oldest torch that it promises to work with: its wheels take gigabytes, so this is not for every
run."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.command import ddpdoctor
from tests.support.pythons import real_pythons

TORCH = "1.13.1"
NOT_HERE = {"sync_batchnorm", "model split", "p2p", "apex"}

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that has it."""
    base = next(real_pythons()[version] for version in ("3.10", "3.9", "3.8", "3.11") if version in real_pythons())
    folder = tmp_path_factory.mktemp("old")
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    found = str(folder / "bin" / "python")
    subprocess.run([found, "-m", "pip", "install", "-q", "--no-cache-dir", f"torch=={TORCH}", "numpy<2"], check=True)
    return found


def smoke(python: str, fault: dict[str, object] | None = None) -> dict[str, object]:
    environ = {"DDPDOCTOR_SMOKE_FAULT": json.dumps(fault)} if fault else {}
    done = ddpdoctor("smoke", "--nproc", "2", "--timeout", "5", "--json", "--python", python, environ=environ)
    assert done.returncode == bool(fault), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["smoke"]["torch"].startswith(TORCH)
    return report  # type: ignore[no-any-return]


def states(report: dict[str, object]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rank in report["smoke"]["ranks"]:  # type: ignore[index]
        for stage in rank["stages"]:
            found.setdefault(stage["state"], set()).add(stage["name"])
    return found


def slugs(report: dict[str, object]) -> set[str]:
    return {finding["slug"] for finding in report["findings"]}  # type: ignore[attr-defined]


def test_all_stages_that_need_no_gpu_pass(python: str) -> None:
    found = states(smoke(python))
    assert set(found) == {"passed", "not tested"}
    assert found["not tested"] == NOT_HERE


def test_who_raises_and_who_hangs_is_named(python: str) -> None:
    raised = smoke(python, {"rank": 1, "stage": "training", "kind": "raise"})
    assert "smoke-rank-failed" in slugs(raised)
    hung = smoke(python, {"rank": 1, "stage": "all_reduce", "kind": "sleep"})
    assert "smoke-hang" in slugs(hung)
