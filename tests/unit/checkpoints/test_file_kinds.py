"""What files are recognised as: real ones, written by the programs that write them."""

from __future__ import annotations

import errno
import importlib
import json
import os
import pickle
import shlex
import socket
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.support.file_samples import OTHERS, STATE, header, old_tar, onnx, recognise, save, saved_bytes, written


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


# What we rewrite


@pytest.mark.parametrize("name", ["m.pt", "m.txt", "m.safetensors", "m", "m.part"])
def test_a_checkpoint_by_any_name(tmp_path: Path, name: str) -> None:
    found = recognise(save(tmp_path / name))
    assert (found.kind, found.rewritable) == ("zip", True)


@pytest.mark.parametrize("protocol", range(6))
def test_the_old_format_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    found = recognise(save(tmp_path / "m.pt", legacy=True, protocol=protocol))
    assert (found.kind, found.rewritable) == ("legacy", True)


@pytest.mark.filterwarnings("ignore")
def test_torchscript(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Net()), tmp_path / "m.pt")
    assert recognise(tmp_path / "m.pt").kind == "torchscript"


def test_a_rezipped_checkpoint_is_one(tmp_path: Path) -> None:
    """unzip and zip, as people do, with compression and with folders as entries of their own."""
    save(tmp_path / "m.pt")
    with (
        zipfile.ZipFile(tmp_path / "m.pt") as old,
        zipfile.ZipFile(tmp_path / "n.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        new.writestr("m/", b"")
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert recognise(tmp_path / "n.pt").kind == "zip"
    torch.load(tmp_path / "n.pt")


def test_a_checkpoint_through_a_symlink(tmp_path: Path) -> None:
    save(tmp_path / "m.pt")
    (tmp_path / "link.pt").symlink_to("m.pt")
    assert recognise(tmp_path / "link.pt").kind == "zip"


def test_many_records_are_found_fast(tmp_path: Path) -> None:
    """The directory is searched, not read entry by entry, and data.pkl may be last in it."""
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for number in range(10_000):
            archive.writestr(zipfile.ZipInfo(f"m/data/{number}"), b"")
        archive.writestr("m/data.pkl", b"")
    assert recognise(tmp_path / "m.pt").kind == "zip"


# Damaged


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_checkpoint(tmp_path: Path, share: float) -> None:
    value = {"w": torch.ones(500_000), "v": torch.ones(250_000)}
    data = save(tmp_path / "m.pt", value).read_bytes()
    found = recognise(written(tmp_path / "m.pt", data[: int(len(data) * share)]))
    assert (found.kind, found.damaged, found.rewritable) == ("zip", True, False)
    assert "Truncated" in found.problem
    assert "of about 2.9 MiB are there" in found.problem


def test_truncated_within_its_pickle(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", saved_bytes()[:100]))
    assert found.damaged
    assert "about" not in found.problem


def test_a_checkpoint_filled_up_with_zeros(tmp_path: Path) -> None:
    data = save(tmp_path / "m.pt", {"w": torch.ones(100_000)}).read_bytes()
    found = recognise(written(tmp_path / "m.pt", data[:200_000] + bytes(len(data) - 200_000)))
    assert found.damaged
    assert "zero bytes" in found.problem


def test_empty(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", b""))
    assert (found.kind, found.damaged) == ("empty", True)


@pytest.mark.parametrize("size", [1, 4096, 5_000_000, 40 << 30])
def test_nothing_but_zeros(tmp_path: Path, size: int) -> None:
    with (tmp_path / "m.pt").open("wb") as file:
        file.truncate(size)
    found = recognise(tmp_path / "m.pt")
    assert (found.kind, found.damaged) == ("zeros", True)
    assert found.problem.startswith("Nothing but zero bytes")


def test_written_zeros_and_then_data(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", bytes(3 << 20) + b"x"))
    assert found.problem == "Its first 3 MiB are nothing but zero bytes"


@pytest.mark.parametrize("ending", [".incomplete", ".part", ".crdownload"])
def test_a_download_that_has_not_ended_by_its_name(tmp_path: Path, ending: str) -> None:
    found = recognise(written(tmp_path / f"m.pt{ending}", saved_bytes()[:2000]))
    assert found.damaged
    assert "download" in found.problem
    assert ending in found.problem


def test_a_download_that_has_not_ended_by_the_file_beside_it(tmp_path: Path) -> None:
    written(tmp_path / "m.pt.aria2", b"\0\1")
    found = recognise(written(tmp_path / "m.pt", saved_bytes()[:2000]))
    assert "m.pt.aria2 lies beside it" in found.problem
    assert "download" in found.advice


# safetensors


def test_safetensors_holds_no_device(tmp_path: Path) -> None:
    safetensors.torch.save_file(STATE, tmp_path / "m.pt", metadata={"format": "pt"})
    found = recognise(tmp_path / "m.pt")
    assert (found.kind, found.problem, found.damaged) == ("safetensors", "", False)
    assert "device" in found.advice


def test_safetensors_without_tensors(tmp_path: Path) -> None:
    safetensors.torch.save_file({}, tmp_path / "m.safetensors")
    assert recognise(tmp_path / "m.safetensors").problem == ""


@pytest.mark.parametrize("cut", [1, 1000, 4000])
def test_truncated_safetensors(tmp_path: Path, cut: int) -> None:
    """safetensors' own library is the judge of what is whole."""
    data = safetensors.torch.save(STATE)
    path = written(tmp_path / "m.safetensors", data[:-cut])
    with pytest.raises(Exception, match=r"."):
        safetensors.torch.load_file(path)
    found = recognise(path)
    assert found.damaged
    assert "Truncated" in found.problem
    assert f"{len(data):,}" in found.problem


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, data=b"12345"),
            "follow its last tensor",
        ),
        (header({"w": {"dtype": "F32", "shape": [1]}}), "where the tensor w is"),
        (header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}), "where the tensor w is"),
        (header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}), "where the tensor w is"),
        (header({"w": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}), "where the tensor w is"),
        (header({"w": 3}), "where the tensor w is"),
        (header({}, length=5000), "within its header"),
        (struct.pack("<Q", 5) + b"{nope", "not JSON"),
        (struct.pack("<Q", 7) + b'{"\xff":1}', "not JSON"),
        (struct.pack("<Q", 100_000) + b'{"a":' * 20_000, "not JSON"),
    ],
)
def test_corrupt_safetensors(tmp_path: Path, data: bytes, words: str) -> None:
    path = written(tmp_path / "m.safetensors", data)
    with pytest.raises(Exception, match=r"."):
        safetensors.torch.load_file(path)
    found = recognise(path)
    assert (found.kind, found.damaged) == ("safetensors", True)
    assert words in found.problem


# Other things of torch's


@pytest.mark.filterwarnings("ignore")
def test_a_torch_export_program(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Net(), (torch.ones(1, 3),)), tmp_path / "m.pt2")
    assert recognise(tmp_path / "m.pt2").kind == "torch-export"
    assert callable(importlib.import_module("torch.export.passes").move_to_device_pass)


def test_an_old_torch_export_program(tmp_path: Path) -> None:
    """As torch 2.1 to 2.6 laid it out."""
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        for name in ("serialized_exported_program.json", "serialized_state_dict.pt", "version"):
            archive.writestr(name, b"5.1")
    assert recognise(tmp_path / "m.pt2").kind == "torch-export"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("resource", ["model.pkl", "data.pkl"])
def test_a_torch_package(tmp_path: Path, resource: str) -> None:
    with torch.package.PackageExporter(tmp_path / "m.pt") as exporter:
        exporter.extern("**")
        exporter.save_pickle("model", resource, STATE)
    assert recognise(tmp_path / "m.pt").kind == "torch-package"


@pytest.mark.filterwarnings("ignore")
def test_the_tar_format(tmp_path: Path) -> None:
    path = old_tar(tmp_path / "it's old.pth")
    found = recognise(path)
    assert found.kind == "torch-tar"
    subprocess.run(found.commands[0].replace("python", shlex.quote(sys.executable), 1), shell=True, check=True)
    assert torch.load(tmp_path / "it's old.resaved.pth") == {"epoch": 3}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_archive(tmp_path: Path, form: int) -> None:
    save(tmp_path / "model.pt")
    with tarfile.open(tmp_path / "m.pth.tar", "w", format=form) as archive:
        archive.add(tmp_path / "model.pt", "folder/model.pt")
    found = recognise(tmp_path / "m.pth.tar")
    assert found.kind == "tar"
    assert "folder/model.pt" in found.problem
    subprocess.run(found.commands[0], shell=True, check=True, cwd=tmp_path)
    assert recognise(tmp_path / "folder" / "model.pt").kind == "zip"


# What is no readable file


def test_missing_with_what_was_perhaps_meant(tmp_path: Path) -> None:
    save(tmp_path / "model_best.pt")
    found = recognise(tmp_path / "model-best.pt")
    assert found.kind == "missing"
    assert f"{tmp_path}/model_best.pt" in found.advice


def test_missing_with_its_folder(tmp_path: Path) -> None:
    assert str(tmp_path) in recognise(tmp_path / "no" / "such" / "m.pt").problem
    save(tmp_path / "m.pt")
    assert recognise(tmp_path / "m.pt" / "x.pt").kind in ("missing", "unreadable")
    assert recognise(tmp_path / ("x" * 300)).kind == "missing"


def test_a_shard_that_its_index_misses(tmp_path: Path) -> None:
    written(tmp_path / "pytorch_model.bin.index.json", json.dumps({"weight_map": {"a": "pytorch_model-1-of-2.bin"}}))
    found = recognise(tmp_path / "pytorch_model-1-of-2.bin")
    assert (found.kind, found.damaged) == ("missing", True)
    assert "pytorch_model.bin.index.json names it" in found.problem


@pytest.mark.parametrize("text", ["https://huggingface.co/m.pt", "s3://bucket/m.pt", "hf://org/m"])
def test_an_address(text: str) -> None:
    assert recognise(Path(text)).kind == "address"


def test_links_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("../../blobs/0123")
    found = recognise(tmp_path / "a")
    assert (found.kind, "../../blobs/0123" in found.problem, "cache" in found.advice) == ("broken-link", True, True)
    (tmp_path / "b").symlink_to("b")
    assert "circle" in recognise(tmp_path / "b").problem
    (tmp_path / "c").symlink_to("../.git/annex/objects/x/y.pt")
    assert recognise(tmp_path / "c").kind == "git-annex-pointer"


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.pt")
    assert recognise(tmp_path / "m.pt").called == "a named pipe"


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "m.pt")
    status = (tmp_path / "m.pt").stat()
    (tmp_path / "m.pt").unlink()
    os.mkfifo(tmp_path / "m.pt")
    monkeypatch.setattr(Path, "stat", lambda _: status)
    assert recognise(tmp_path / "m.pt").called == "a named pipe"


def test_devices_and_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recognise(Path("/dev/null")).called == "a device"
    monkeypatch.chdir(tmp_path)  # A socket's path may not be long.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("m.pt")
        assert recognise(Path("m.pt")).called == "a socket"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, "no-permission"), (errno.EIO, "unreadable"), (errno.ESTALE, "unreadable")]
)
def test_what_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str) -> None:
    save(tmp_path / "m.pt")

    def fail(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", fail)
    found = recognise(tmp_path / "m.pt")
    assert found.kind == kind
    assert found.damaged is (number == errno.EIO)


# The light look stays light


def test_little_memory(tmp_path: Path) -> None:
    """Whatever numbers a file claims."""
    for data in (
        header({}, length=90_000_000) + bytes(1000),
        b"PK\3\4" + b"\xff" * 60,
        b"PK\5\6" + b"\xff" * 40,
        b"PK\3\4" + bytes(60) + b"PK\5\6" + b"\xff" * 16 + b"\0\0",
        b"PK\3\4" + bytes(60) + b"PK\6\7" + b"\xff" * 16 + b"PK\5\6" + b"\xff" * 16 + b"\0\0",
        onnx()[:12] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        old_tar(tmp_path / "t").read_bytes()[:124] + b"77777777777\0" + bytes(600),
    ):
        path = written(tmp_path / "m.pt", data)
        tracemalloc.start()
        try:
            recognise(path)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_fuzzed_samples_raise_nothing(tmp_path: Path) -> None:
    """Every sample cut and overwritten in many places, all with one seed."""
    import random

    chance = random.Random(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = [saved_bytes(), safetensors.torch.save(STATE), old_tar(tmp_path / "t").read_bytes(), *OTHERS.values()]
        samples += [
            save(tmp_path / "l", legacy=True).read_bytes(),
            pickle.dumps(STATE),
            b"<html><title>x</title>",
            b'{"weight_map": {"a": "b"}}',
        ]
    for sample in samples:
        for _ in range(60):
            data = bytearray(sample[:6000])
            for _ in range(chance.randrange(6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            recognise(written(tmp_path / "m.pt", bytes(data[: chance.randrange(len(data)) + 1])))
            tail = bytearray(sample[-400:])
            tail[chance.randrange(len(tail))] = chance.randrange(256)
            recognise(written(tmp_path / "m.pt", sample[:-400] + bytes(tail)))
