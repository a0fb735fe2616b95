"""Which files a folder or an index means, what folders are, and which files came one from each rank."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint

from ddpdoctor.checkpoints.named_paths import expand, recognise
from ddpdoctor.checkpoints.rank_files import rank_files
from ddpdoctor.checkpoints.writing.journal import undo_file
from ddpdoctor.checkpoints.writing.new_file import hidden_name
from ddpdoctor.facts.checkpoints import RankFiles

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

STATE = {"w": torch.ones(3)}


def save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(STATE, path)
    return path


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def index(folder: Path, *names: str, called: str = "pytorch_model.bin.index.json") -> Path:
    path = folder / called
    path.write_text(
        json.dumps({"metadata": {}, "weight_map": {f"layer{number}": name for number, name in enumerate(names)}})
    )
    return path


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    torch.distributed.checkpoint.save(
        {"model": {"w": torch.ones(500)}, "epoch": 3}, checkpoint_id=tmp_path / "dcp", no_dist=True
    )
    return tmp_path / "dcp"


# Which files are meant


def test_a_file_is_itself_whatever_it_is(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    for path in (save(tmp_path / "m.pt"), tmp_path / "notes.txt", tmp_path / "no such", Path("/dev/null")):
        assert expand([path]) == (path,)


def test_each_once_by_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "sub" / "m.pt")
    (tmp_path / "link.pt").symlink_to("sub/m.pt")
    (tmp_path / "way").symlink_to("sub")
    paths = [Path("sub/m.pt"), Path("./sub/../sub/m.pt"), tmp_path / "sub" / "m.pt", Path("way/m.pt"), Path("sub")]
    assert expand(paths) == (Path("sub/m.pt"),)
    # A link is refused later, for what it is.
    assert expand([Path("link.pt"), Path("sub/m.pt")]) == (Path("link.pt"), Path("sub/m.pt"))


def test_the_checkpoints_in_a_folder_by_their_content(tmp_path: Path) -> None:
    wanted = [
        save(tmp_path / "a" / "rank2.pt"),
        save(tmp_path / "a" / "rank10.pt"),
        save(tmp_path / "b" / "c" / "no ending"),
        save(tmp_path / "b" / "optimizer.bin"),
        save(tmp_path / "z.txt"),
    ]
    torch.save(STATE, tmp_path / "b" / "old", _use_new_zipfile_serialization=False)
    touch(tmp_path, "config.json", "a/notes.txt", "b/tokenizer.bin", "data.pkl", "me.png", "odd.pt.txt")
    numpy.savez(tmp_path / "a.npz", a=numpy.ones(2))
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("a.py", b"")
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    assert expand([tmp_path]) == (*wanted[:3], tmp_path / "b" / "old", *wanted[3:])


def test_what_is_left_out(tmp_path: Path) -> None:
    """What is ours or hidden, links to folders, git's objects and a hub's store of files named by their checksums."""
    save(tmp_path / "m.pt")
    for ours in (undo_file(tmp_path / "m.pt"), hidden_name(tmp_path / "new.pt"), *OURS):
        shutil.copy(tmp_path / "m.pt", tmp_path / ours)
    save(tmp_path / ".hidden.pt")
    save(tmp_path / ".hidden" / "m.pt")
    save(tmp_path / ".git" / "lfs" / "objects" / "m")
    save(tmp_path / "hub" / "blobs" / "0123")
    (tmp_path / "hub" / "snapshots").mkdir()
    (tmp_path / "hub" / "snapshots" / "m.pt").symlink_to("../blobs/0123")
    (tmp_path / "way").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.pt")
    os.mkfifo(tmp_path / "pipe")
    assert expand([tmp_path]) == (tmp_path / "hub" / "snapshots" / "m.pt", tmp_path / "m.pt")
    save(tmp_path / "blobs" / "of-mine.pt")
    assert tmp_path / "blobs" / "of-mine.pt" in expand([tmp_path])


def test_what_was_to_be_a_checkpoint_is_among_them(tmp_path: Path) -> None:
    save(tmp_path / "whole.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "truncated.bin").write_bytes(data[:500])
    (tmp_path / "page.pth").write_text("<html></html>")
    (tmp_path / "pointer.ckpt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "empty.bin").touch()
    (tmp_path / "gone.pt").symlink_to("nothing")
    (tmp_path / "short.safetensors").write_bytes(safetensors.torch.save(STATE)[:-1])
    found = expand([tmp_path])
    assert [path.name for path in found] == [
        *("empty.pt", "gone.pt", "page.pth", "pointer.ckpt", "short.safetensors", "truncated.bin", "whole.pt")
    ]


def test_whatever_has_a_checkpoints_name_is_named(tmp_path: Path) -> None:
    """Nobody wants to hear that all were fixed while one of them is no checkpoint any more."""
    save(tmp_path / "whole.pt")
    (tmp_path / "model_final.pt").write_bytes(bytes(range(7, 256)) * 400)
    (tmp_path / "z.PT").write_bytes(gzip.compress(b"once a checkpoint"))
    (tmp_path / "odd.pth").write_text("404: Not Found")
    (tmp_path / "a.ckpt").write_bytes(b"GGUF" + bytes(range(40)))
    (tmp_path / "other.pt").write_bytes(safetensors.torch.save(STATE))
    for name in ("adapter_model.bin", "diffusion_pytorch_model.fp16.bin", "training_args.bin", "random_states_0.pkl"):
        (tmp_path / name).write_bytes(b"\xfe\xff" * 99)
    touch(tmp_path, "venv/site-packages/editable.pth", "vocabulary.bin", "data.pkl", "pt", "x.json", "x.pt.json")
    assert [path.name for path in expand([tmp_path])] == [
        "a.ckpt",
        "adapter_model.bin",
        "diffusion_pytorch_model.fp16.bin",
        "model_final.pt",
        "odd.pth",
        "other.pt",
        "random_states_0.pkl",
        "training_args.bin",
        "whole.pt",
        "z.PT",
    ]


OURS = ("m.pt.ddpdoctor-undo", "m.pt.ddpdoctor-undo.new", "m.pt.ddpdoctor-lock", ".m.pt.ddpdoctor-new")


def test_what_we_leave_beside_checkpoints_is_called_ours(tmp_path: Path) -> None:
    save(tmp_path / "m.pt")
    undo = undo_file(tmp_path / "m.pt")
    assert {undo.name, hidden_name(tmp_path / "m.pt").name} < {*OURS}
    for name in OURS:
        shutil.copy(tmp_path / "m.pt", tmp_path / name)
        found = recognise(tmp_path / name)
        assert found.kind == "own-file"
        assert "ddpdoctor's own" in found.problem
        assert " m.pt" in found.problem
    found = recognise(undo)
    assert found.commands == (f"ddpdoctor fix-checkpoint --undo {tmp_path / 'm.pt'}",)
    (tmp_path / "m.pt").unlink()
    found = recognise(undo)
    assert "not beside it" in found.problem
    assert found.commands == ()


def test_a_folder_without_checkpoints_is_itself(tmp_path: Path) -> None:
    assert expand([tmp_path]) == (tmp_path,)
    assert recognise(tmp_path).problem == "An empty folder"
    touch(tmp_path, "a.yaml", "b.yaml", ".c.pt", "README", "sub/x")
    assert expand([tmp_path]) == (tmp_path,)
    assert recognise(tmp_path).problem == (
        "A folder without a checkpoint in it: 1 folder, 2 .yaml, 1 hidden and 1 without an ending"
    )


def test_a_plain_folder_says_how_many_there_are(tmp_path: Path) -> None:
    save(tmp_path / "sub" / "m.pt")
    found = recognise(tmp_path)
    assert (found.kind, found.problem, found.called) == ("folder", "", "a folder with 1 checkpoint in it")


def test_folders_that_can_not_be_listed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "m.pt")
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert expand([tmp_path]) == (tmp_path / "closed", tmp_path / "m.pt")
    found = recognise(tmp_path / "closed")
    assert (found.kind, found.called) == ("no-permission", "a folder that may not be read")


# Sharded models


def test_an_index_is_its_shards_missing_ones_included(tmp_path: Path) -> None:
    save(tmp_path / "pytorch_model-00001-of-00002.bin")
    names = ("pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    path = index(tmp_path, *names)
    shards = (tmp_path / names[1], tmp_path / names[0])
    assert expand([path]) == shards
    assert expand([tmp_path]) == shards
    assert "names it" in recognise(shards[1]).problem


@pytest.mark.parametrize("name", ["../m.bin", "/etc/passwd", "a/../../m.bin", "..", "", "a\0b"])
def test_an_index_that_leads_out_of_its_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    save(tmp_path / "m.bin")
    path = index(save(tmp_path / "sub" / "n.bin").parent, "n.bin", name)
    assert expand([path]) == (path,)
    assert "leads out" in recognise(path).problem
    assert expand([tmp_path / "sub"]) == (tmp_path / "sub" / "n.bin",)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[" * 10_000])
def test_a_broken_index_is_itself(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.index.json").write_text(text)
    assert expand([tmp_path / "m.index.json"]) == (tmp_path / "m.index.json",)


# Distributed checkpoints


def test_a_distributed_checkpoint(dcp: Path, tmp_path: Path) -> None:
    found = recognise(dcp)
    assert (found.kind, found.problem) == ("dcp-folder", "")
    assert "1 rank" in found.called
    (command,) = found.commands
    subprocess.run(
        command.replace("python", sys.executable, 1), shell=True, check=True, cwd=tmp_path, capture_output=True
    )
    assert torch.load(tmp_path / "dcp.pt")["epoch"] == 3
    for name in ("__0_0.distcp", "by another name"):
        assert recognise((dcp / "__0_0.distcp").rename(dcp / name)).kind == "dcp-shard"
        (dcp / name).rename(dcp / "__0_0.distcp")


def test_a_distributed_checkpoint_within_a_folder_is_named_as_a_whole(dcp: Path, tmp_path: Path) -> None:
    """What lies beside its shards is looked at: meta.pt, common.pt are checkpoints of their own."""
    save(dcp / "common.pt")
    save(tmp_path / "m.pt")
    assert expand([tmp_path]) == (dcp, dcp / "common.pt", tmp_path / "m.pt")


def test_a_distributed_checkpoint_without_its_metadata(dcp: Path) -> None:
    (dcp / ".metadata").rename(dcp / ".metadata.tmp")
    found = recognise(dcp)
    assert (found.kind, found.damaged) == ("dcp-folder", True)
    assert ".metadata" in found.problem
    assert "only a .tmp" in found.problem


def test_a_distributed_checkpoint_without_a_shard(dcp: Path) -> None:
    (dcp / "__0_0.distcp").unlink()
    found = recognise(dcp)
    assert found.damaged
    assert found.problem == "Of 1 file that .metadata names, 1 is missing: __0_0.distcp"


def test_a_distributed_checkpoint_with_a_truncated_shard(dcp: Path) -> None:
    os.truncate(dcp / "__0_0.distcp", 100)
    assert "__0_0.distcp has 100 B of" in recognise(dcp).problem


def test_a_distributed_checkpoint_with_damaged_metadata(dcp: Path) -> None:
    os.truncate(dcp / ".metadata", 100)
    assert ".metadata is damaged" in recognise(dcp).problem


def test_each_ranks_own_metadata(dcp: Path) -> None:
    (dcp / ".metadata").rename(dcp / "__0.metadata")
    assert recognise(dcp).problem == ""


def test_lightnings_distributed_checkpoint(dcp: Path) -> None:
    torch.save({"pytorch-lightning_version": "2.5.0", "epoch": 3}, dcp / "meta.pt")
    assert recognise(dcp).commands == (f"python -m lightning.pytorch.utilities.consolidate_checkpoint {dcp}",)
    torch.save({"epoch": 3}, dcp / "meta.pt")
    assert recognise(dcp).commands == (f"python -m lightning.fabric.utilities.consolidate_checkpoint {dcp}",)


# Others


def test_deepspeed(tmp_path: Path) -> None:
    """As transformers' Trainer saves it: DeepSpeed's folder is named, the Trainer's own files are meant."""
    states = [f"global_step500/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)]
    for name in (
        *states,
        "global_step500/mp_rank_00_model_states.pt",
        "rng_state_0.pth",
        "rng_state_1.pth",
        "scheduler.pt",
    ):
        save(tmp_path / name)
    touch(tmp_path, "latest", "zero_to_fp32.py", "trainer_state.json")
    step = tmp_path / "global_step500"
    assert expand([tmp_path]) == (
        step,
        *(tmp_path / name for name in ("rng_state_0.pth", "rng_state_1.pth", "scheduler.pt")),
    )
    found = recognise(step)
    assert (found.kind, found.problem, found.called) == ("deepspeed-states", "", "a DeepSpeed checkpoint of 3 files")
    assert found.commands == (f"cd {tmp_path} && python zero_to_fp32.py . consolidated --tag global_step500",)
    assert recognise(tmp_path).kind == "deepspeed-folder"


@pytest.mark.tool("zip", "unzip")
def test_an_unpacked_checkpoint_and_the_command_that_packs_it(tmp_path: Path) -> None:
    save(tmp_path / "my model.pt")
    subprocess.run(["unzip", "-q", "my model.pt"], cwd=tmp_path, check=True)
    (tmp_path / "my model.pt").unlink()
    found = recognise(tmp_path / "my model")
    assert found.kind == "unpacked-zip"
    assert expand([tmp_path]) == (tmp_path / "my model",)
    subprocess.run(found.commands[0], shell=True, check=True, capture_output=True)
    for mmap in (False, True):
        assert torch.load(tmp_path / "my model.pt", mmap=mmap)["w"].equal(STATE["w"])


def test_other_layouts(tmp_path: Path) -> None:
    assert recognise(touch(tmp_path / "a", "saved_model.pb", "variables/x")).kind == "tensorflow"
    assert recognise(touch(tmp_path / "b", "manifest.ocdbt", "d/x")).kind == "jax"
    save(tmp_path / "c" / "pytorch_model.bin")
    found = recognise(touch(tmp_path / "c", "config.json"))
    assert (found.kind, found.called) == ("hf-folder", "a Hugging Face model with 1 checkpoint in it")
    save(tmp_path / "d" / "iter_0000500" / "mp_rank_00" / "model_optim_rng.pt")
    assert recognise(touch(tmp_path / "d", "latest_checkpointed_iteration.txt")).kind == "megatron-folder"


def test_a_hugging_face_folder_of_safetensors_has_nothing_to_fix(tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    touch(tmp_path, "config.json")
    found = recognise(tmp_path)
    assert (found.kind, found.problem) == ("hf-folder", "")
    assert "safetensors" in found.called


# Files of ranks


def test_random_states_of_a_trainer(tmp_path: Path) -> None:
    touch(tmp_path, *(f"rng_state_{rank}.pth" for rank in (0, 1, 2, 4, 7)), "scheduler.pt", "rng_state.pth")
    expected = (RankFiles(pattern="rng_state_*.pth", world_size=8, missing=(3, 5, 6)),)
    assert rank_files(tmp_path) == expected
    assert rank_files(tmp_path / "rng_state_2.pth") == expected
    assert rank_files(tmp_path / "scheduler.pt") == ()
    assert rank_files(tmp_path / "no such folder" / "rng_state_2.pth") == ()


def test_deepspeeds_optimizer_states(tmp_path: Path) -> None:
    """Two parts of the model, three data-parallel ranks: six ranks in all."""
    names = [f"bf16_zero_pp_rank_{rank}_mp_rank_{part:02}_optim_states.pt" for rank in range(3) for part in range(2)]
    touch(tmp_path, *names, "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt")
    pattern = "bf16_zero_pp_rank_*_mp_rank_*_optim_states.pt"
    assert rank_files(tmp_path) == (RankFiles(pattern=pattern, world_size=6),)
    one_part = touch(tmp_path / "b", *(f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1, 3)))
    assert rank_files(one_part / "zero_pp_rank_1_mp_rank_00_optim_states.pt") == (
        RankFiles(pattern="zero_pp_rank_*_mp_rank_00_optim_states.pt", world_size=4, missing=(2,)),
    )
    (tmp_path / names[3]).unlink()
    assert rank_files(tmp_path) == (RankFiles(pattern=pattern, world_size=6, missing=(3,)),)


def test_ranks_in_names_of_ones_own(tmp_path: Path) -> None:
    touch(tmp_path, *(f"model_world_size_4_rank_{rank}.pt" for rank in range(3)))
    assert rank_files(tmp_path) == (RankFiles(pattern="model_world_size_4_rank_*.pt", world_size=4, missing=(3,)),)
    touch(tmp_path / "b", "optim-rank0.pt", "optim-rank1.pt", "random_states_0.pkl")
    assert [file.world_size for file in rank_files(tmp_path / "b")] == [2, 1]


@pytest.mark.parametrize(
    "names",
    [
        ("lora_rank_16.pt",),
        ("lora_rank_8.pt", "lora_rank_16.pt", "lora_rank_32.pt"),
        ("rank_0.pt",),
        ("rank_0.pt", "rank_64.pt"),
        ("frank1.pt", "frank0.pt"),
        ("rank_00000000000000001.pt", "rank_0.txt"),
        ("mp_rank_00_model_states.pt",),
        ("zero_pp_rank_99999_mp_rank_9999_optim_states.pt",),
        ("model-00001-of-00002.safetensors",),
        ("__0_0.distcp", "__1_0.distcp"),
    ],
)
def test_what_is_of_no_rank(tmp_path: Path, names: tuple[str, ...]) -> None:
    touch(tmp_path, *names)
    assert rank_files(tmp_path) == ()
    assert rank_files(tmp_path / names[0]) == ()


def test_links_that_lead_in_a_circle_close_no_folder(tmp_path: Path) -> None:
    save(tmp_path / "m.pt")
    (tmp_path / "circle").symlink_to("circle")
    assert expand([tmp_path]) == (tmp_path / "m.pt",)
    assert recognise(tmp_path).kind == "folder"


def test_a_data_set_with_a_data_pkl_is_no_unpacked_checkpoint(tmp_path: Path) -> None:
    touch(tmp_path, "data.pkl", "data/1.png")
    save(tmp_path / "run" / "m.pt")
    assert expand([tmp_path]) == (tmp_path / "run" / "m.pt",)


def test_what_is_no_checkpoint_is_hardly_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set's files are looked at, not searched for what else they may be."""
    touch(tmp_path, *(f"{number}.png" for number in range(50)))
    save(tmp_path / "m.pt")
    read: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: read.append(1) or real(*arguments))
    assert expand([tmp_path]) == (tmp_path / "m.pt",)
    assert len(read) < 10
