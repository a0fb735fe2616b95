"""The command line killed at each of its writes: the next run says what it did about that, and torch loads the result."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, ddpdoctor, plain_environ

pytestmark = pytest.mark.tool("strace")


@pytest.fixture(scope="module")
def pinned() -> bytes:
    """A checkpoint of GPU 3."""
    import torch

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: "".join(["cuda", ":3"]))
        file = io.BytesIO()
        torch.save({"model": {f"layer{number}": torch.randn(20, 30) for number in range(20)}, "epoch": 7}, file)
    return file.getvalue()


def zipped_again(checkpoint: bytes) -> bytes:
    """As a file manager would write it: without the room that lets the pickle be rewritten where it stands."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(checkpoint)) as source, zipfile.ZipFile(file, "w") as target:
        for record in source.infolist():
            target.writestr(
                record.filename, source.read(record), zipfile.ZIP_DEFLATED if "pkl" in record.filename else 0
            )
    return file.getvalue()


def same(one: Any, other: Any) -> bool:
    import torch

    return one["epoch"] == other["epoch"] and all(
        torch.equal(one["model"][key], other["model"][key]) for key in one["model"]
    )


@pytest.mark.parametrize("layout", ["as torch wrote it", "zipped again"])
def test_after_a_kill_the_next_run_says_what_became_of_it(layout: str, pinned: bytes, tmp_path: Path) -> None:
    import torch

    original = pinned if layout == "as torch wrote it" else zipped_again(pinned)
    wanted = torch.load(io.BytesIO(original), map_location="cpu", weights_only=True)
    path = tmp_path / "last.pt"
    said = set()
    for name in ("fsync", "pwrite64"):
        for number in range(1, 30):
            path.write_bytes(original)
            inject = ["-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}"]
            killed = subprocess.run(
                ["strace", "-f", "-o", tmp_path / "trace", *inject, *command("fix-checkpoint", path)],
                env=plain_environ(),
                capture_output=True,
                check=False,
            )
            whole = path.read_bytes()
            if killed.returncode == 0:
                break
            again = ddpdoctor("fix-checkpoint", path)
            assert again.returncode == 0, again.stdout + again.stderr
            text = " ".join(again.stdout.split())
            for words in ("before it changed anything", "is taken back", "is complete, and stays"):
                if words in text:
                    said.add(words)
            if whole != original:
                assert "was cut short" in text
            assert same(torch.load(path, weights_only=True), wanted)
            undone = ddpdoctor("fix-checkpoint", "--undo", path)
            assert undone.returncode == 0, undone.stdout + undone.stderr
            assert path.read_bytes() == original
            assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "trace"]
        assert number > 2
        assert ddpdoctor("fix-checkpoint", "--undo", path).returncode == 0
    assert said == {"before it changed anything", "is taken back", "is complete, and stays"}


def test_a_half_changed_file_is_called_so_by_everybody(pinned: bytes, tmp_path: Path) -> None:
    path, out = tmp_path / "last.pt", tmp_path / "out.pt"
    path.write_bytes(pinned)
    # The third write: the undo file is the first, and the pickle has been half replaced by then.
    inject = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:signal=KILL:when=3"]
    subprocess.run(
        ["strace", "-f", "-o", tmp_path / "trace", *inject, *command("fix-checkpoint", path)],
        env=plain_environ(),
        capture_output=True,
        check=False,
    )
    torn = path.read_bytes()
    assert torn != pinned
    for arguments in (
        ["fix-checkpoint", "--dry-run", path],
        ["fix-checkpoint", path, "-o", out],
        ["check", "--select", "checkpoint", "--checkpoint", path],
    ):
        told = ddpdoctor(*arguments)
        text = " ".join(told.stdout.split())
        assert "the file is half changed, and the next run takes that back" in text
        assert f"ddpdoctor fix-checkpoint {path}" in text
        assert (told.returncode != 0, path.read_bytes(), out.exists()) == (True, torn, False)
    again = ddpdoctor("fix-checkpoint", path)
    assert again.returncode == 0
    assert "is taken back" in " ".join(again.stdout.split())
