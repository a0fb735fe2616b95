"""A checkpoint that was saved anew, harmed or renamed beside its undo file, as the command line sees it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ddpdoctor.checkpoints.writing import in_place, journal
from tests.real.test_fix_checkpoint_command import same, saved, weights
from tests.support.command import command, ddpdoctor, plain_environ


def fix(*arguments: str | Path) -> tuple[int, str]:
    ended = ddpdoctor("fix-checkpoint", *arguments)
    return ended.returncode, " ".join(ended.stdout.split())


def beside(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir() if one.name.startswith(path.name))


def test_a_checkpoint_saved_anew_every_epoch_is_fixed_every_time(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    undo_files = []
    for epoch in range(3):
        saved(path, {"model": weights(), "epoch": epoch, "noise": torch.full((50,), float(epoch))})
        original = path.read_bytes()
        if epoch:
            code, said = fix("--dry-run", path)
            assert (code, path.read_bytes()) == (1, original), said
            assert "it will be renamed" in said
        code, said = fix(path)
        assert code == 0, said
        assert ("It is now last.pt.ddpdoctor-undo.old" in said) is bool(epoch)
        assert torch.load(path, weights_only=True)["epoch"] == epoch
        undo_files.append(journal.undo_file(path).read_bytes())
    names = [f"last.pt.ddpdoctor-undo{end}" for end in ("", ".old", ".old-2")]
    assert beside(path) == ["last.pt", *names]
    assert [path.with_name(name).read_bytes() for name in names] == [undo_files[2], undo_files[0], undo_files[1]]
    assert fix("--undo", path)[0] == 0
    assert path.read_bytes() == original


def test_a_clean_file_is_not_refused_for_an_undo_file_of_former_content(tmp_path: Path) -> None:
    path = saved(tmp_path / "last.pt", weights())
    assert fix(path)[0] == 0
    torch.save(weights() | {"more": torch.rand(100)}, path)
    before = path.read_bytes()
    for arguments in ([path], ["--dry-run", path]):
        code, said = fix(*arguments)
        assert (code, said.split()[0], path.read_bytes()) == (0, "CLEAN", before), said
        assert f"rm{journal.undo_file(path)}`" in said.replace(" ", "")
    assert beside(path) == ["last.pt", "last.pt.ddpdoctor-undo"]


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Killed when half of the pickle had been replaced."""
    path = saved(tmp_path / "last.pt", {f"layer{number}": torch.randn(20, 30) for number in range(20)})
    shutil.copy(path, tmp_path / "original")
    inject = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:signal=KILL:when=3"]
    subprocess.run(
        ["strace", "-f", "-o", tmp_path / "trace", *inject, *command("fix-checkpoint", path)],
        env=plain_environ(),
        capture_output=True,
        check=False,
    )
    assert path.read_bytes() != (tmp_path / "original").read_bytes()
    return path


HARMS = {
    "a byte behind it": lambda content: content + b"x",
    "another byte at the end": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "cut": lambda content: content[: len(content) // 2],
}


@pytest.mark.tool("strace")
@pytest.mark.parametrize("harm", HARMS)
def test_the_undo_file_of_a_half_changed_file_is_never_given_up(torn: Path, harm: str) -> None:
    torn.write_bytes(HARMS[harm](torn.read_bytes()))
    before, undo_file = torn.read_bytes(), journal.undo_file(torn).read_bytes()
    for arguments in ([torn], ["--undo", torn], ["--dry-run", torn], [torn, "-o", torn.with_name("out")]):
        code, said = fix(*arguments)
        assert code == 2, said
        assert "may have left this file half changed" in said
        assert "rm " not in said
        assert f"mv {torn}.ddpdoctor-undo {torn}.ddpdoctor-undo.old" in said
        assert (torn.read_bytes(), journal.undo_file(torn).read_bytes()) == (before, undo_file)
    assert beside(torn) == ["last.pt", "last.pt.ddpdoctor-undo"]


@pytest.mark.tool("strace")
def test_a_new_checkpoint_over_a_half_changed_one_is_fixed(torn: Path) -> None:
    saved(torn, weights())
    code, said = fix(torn)
    assert code == 0, said
    assert beside(torn) == ["last.pt", "last.pt.ddpdoctor-undo", "last.pt.ddpdoctor-undo.old"]
    assert same(torch.load(torn, weights_only=True), weights())


@pytest.mark.tool("strace")
def test_a_half_changed_file_under_another_name_finds_its_undo_file(torn: Path) -> None:
    moved = torn.rename(torn.with_name("moved one.pt"))
    before = moved.read_bytes()
    for arguments in (["fix-checkpoint", moved], ["fix-checkpoint", "--undo", moved], ["check", "--checkpoint", moved]):
        told = ddpdoctor(*arguments)
        said = " ".join(told.stdout.split())
        assert "last.pt.ddpdoctor-undo, which knows its content, has its former name" in said
        assert (told.returncode != 0, moved.read_bytes()) == (True, before)
    with pytest.raises(in_place.Refused, match=r"moved one\.pt has its content") as caught:
        in_place.undo(torn)
    (move,) = caught.value.commands
    subprocess.run(move, shell=True, check=True)
    assert fix("--undo", moved)[0] == 0
    assert moved.read_bytes() == torn.with_name("original").read_bytes()


@pytest.mark.tool("strace")
def test_a_half_changed_file_in_a_folder_is_called_so(torn: Path) -> None:
    before = torn.read_bytes()
    code, said = fix("--dry-run", torn.parent)
    assert (code, torn.read_bytes()) == (2, before)
    assert "half changed" in said


def test_the_undo_file_of_a_deleted_checkpoint_may_be_deleted(tmp_path: Path) -> None:
    path = saved(tmp_path / "last.pt", weights())
    assert fix(path)[0] == 0
    path.unlink()
    code, said = fix("--undo", path)
    assert code == 2
    assert f"rm {journal.undo_file(path)}" in said
