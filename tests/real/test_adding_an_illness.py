"""The page for newcomers, docs/contributing/adding-an-illness.md, done word for word in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import ROOT, plain_environ

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PAGE = ROOT / "docs" / "contributing" / "adding-an-illness.md"
BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


def steps() -> Iterator[tuple[str, str]]:
    """Each block in its order: the path of a file and its text, or "" and a command."""
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        assert block["file"] or block["language"] == "sh", block[0]
        yield block["file"] or "", block["text"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that git knows of, as it is now."""
    folder = tmp_path_factory.mktemp("newcomer") / "tree"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def run(line: str, tree: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environ = {**plain_environ(), "PATH": path, "PYTHONPATH": str(tree)}
    return subprocess.run(["bash", "-ec", line], cwd=tree, env=environ, capture_output=True, text=True, check=False)


def test_whoever_follows_the_page_ends_with_a_new_illness_and_passing_tests(tree: Path) -> None:
    (_, begin), *others, (_, testing) = steps()
    assert run(begin, tree).returncode == 0
    unfilled = run(f"{testing.strip()} --maxfail=1", tree)
    assert unfilled.returncode == 1, unfilled.stdout[-3000:]
    for file, text in others:
        if file:
            assert (tree / file).is_file(), f"{file} was not begun"
            (tree / file).write_text(text, encoding="utf-8")
        else:
            ended = run(text, tree)
            assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    tested = run(testing, tree)
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert "skipped" not in tested.stdout
    linted = run("ruff check . && ruff format --check . && python -m tests.regenerate --check", tree)
    assert linted.returncode == 0, linted.stdout[-3000:] + linted.stderr[-3000:]
    explained = run("python -m ddpdoctor explain kernel-too-old", tree)
    assert "Linux is older than 5.5" in explained.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("nix kernel-too-old", "there is no family nix: apex, "),
        ("host Kernel", "Kernel is no slug"),
        ("host ../evil", "../evil is no slug"),
        ("host shm-too-small", "fixtures/hosts/shm-too-small.json"),
    ],
)
def test_what_can_not_be_begun_leaves_all_as_it_is(arguments: str, why: str) -> None:
    before = subprocess.run(["git", "status", "--short"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ended = subprocess.run(
        [sys.executable, "-m", "tests.new_illness", *arguments.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("Nothing was written: ")
    assert why in ended.stderr
    after = subprocess.run(["git", "status", "--short"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert after == before
