"""What files are recognised as: real ones, written by the programs that write them."""

from __future__ import annotations

import bz2
import errno
import gzip
import importlib
import io
import json
import lzma
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
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch

from ddpdoctor.checkpoints.recognised import Recognised, printable
from ddpdoctor.checkpoints.recognition import recognise


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


STATE = {"w": torch.arange(1000.0), "b": torch.ones(3)}


def save(path: Path, value: object = STATE, *, legacy: bool = False, protocol: int = 2) -> Path:
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return path


def saved_bytes() -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    return buffer.getvalue()


def written(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def well_worded(found: Recognised) -> None:
    """What holds of every answer."""
    for text in (found.problem, found.advice):
        assert "\n" not in text
        assert not text.endswith(".") or text.endswith("..."), text
        assert text[:1] == text[:1].upper()
        assert "safe " not in text
    assert found.called
    assert not found.damaged or found.problem
    assert not found.rewritable or not found.problem


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer of every test is well-worded."""
    import ddpdoctor.checkpoints.recognition as module

    real = module.recognise

    def checked(path: Path) -> Recognised:
        found = real(path)
        well_worded(found)
        return found

    monkeypatch.setitem(globals(), "recognise", checked)


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


def header(content: object, length: int | None = None, data: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


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


def old_tar(path: Path) -> Path:
    """The layout that torch wrote before 0.1.10, empty: torch itself still reads it."""
    storages = pickle.dumps(0, protocol=2) + pickle.dumps([], protocol=2)
    members = {
        "sys_info": pickle.dumps({}, protocol=2),
        "pickle": pickle.dumps({"epoch": 3}, protocol=2),
        "tensors": pickle.dumps(0, protocol=2),
        "storages": storages,
    }
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


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


# Archives, compressed and encrypted files


def test_zips_that_are_no_checkpoints(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", one=numpy.ones(2), two=numpy.ones(3))
    found = recognise(tmp_path / "a.npz")
    assert (found.kind, found.problem) == ("numpy", "2 NumPy arrays (one and two), not a checkpoint of torch")
    for names, kind in (
        (["[Content_Types].xml", "word/document.xml"], "office-document"),
        (["metadata.json", "config.json", "model.weights.h5"], "keras"),
        (["notes/a.txt"], "zip-archive"),
    ):
        with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
        assert recognise(tmp_path / "m.pt").kind == kind


def test_a_zip_with_a_checkpoint_in_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("run/model.pt", saved_bytes())
    found = recognise(tmp_path / "m.zip")
    assert found.kind == "zip-archive"
    assert "run/model.pt" in found.problem
    assert found.commands == (f"unzip {tmp_path}/m.zip",)


@pytest.mark.parametrize("prefix", ["", "a/b/"])
def test_a_checkpoint_zipped_at_the_wrong_depth(tmp_path: Path, prefix: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr(f"{prefix}data.pkl", b"x")
        archive.writestr(f"{prefix}version", b"3")
    found = recognise(tmp_path / "m.pt")
    assert found.kind == "zip-archive"
    assert "data.pkl is not where torch looks" in found.problem


def test_an_empty_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w"):
        pass
    assert recognise(tmp_path / "m.pt").called == "an empty zip archive"


@pytest.mark.tool("zip", "unzip")
def test_an_encrypted_zip(tmp_path: Path) -> None:
    save(tmp_path / "model.pt")
    subprocess.run(["zip", "-q", "-P", "secret", "m.zip", "model.pt"], cwd=tmp_path, check=True)
    assert recognise(tmp_path / "m.zip").kind == "encrypted"


def by_program(*command: str) -> Callable[[bytes], bytes]:
    return lambda data: subprocess.run(command, input=data, capture_output=True, check=True).stdout


COMPRESSED: list[tuple[str, str, Callable[[bytes], bytes]]] = [
    ("gzip", ".gz", gzip.compress),
    ("xz", ".xz", lzma.compress),
    ("bzip2", ".bz2", bz2.compress),
    ("zstd", ".zst", by_program("zstd", "-c")),
    ("lz4", ".lz4", by_program("lz4", "-c")),
]


@pytest.mark.parametrize("name", ["m.pt", "it's.pt"])
@pytest.mark.parametrize(
    ("program", "ending", "compress"),
    [pytest.param(*one, marks=pytest.mark.tool(one[0]), id=one[0]) for one in COMPRESSED],
)
def test_compressed_and_the_command_that_unpacks(
    tmp_path: Path, program: str, ending: str, compress: Callable[[bytes], bytes], name: str
) -> None:
    """With its own ending and with the checkpoint's, which gunzip would not take."""
    for path, unpacked in ((tmp_path / (name + ending), name), (tmp_path / name, name.replace(".pt", ".unpacked.pt"))):
        found = recognise(written(path, compress(saved_bytes())))
        assert found.kind == "compressed"
        (command,) = found.commands
        assert command.startswith(program)
        subprocess.run(command, shell=True, check=True)
        assert recognise(tmp_path / unpacked).kind == "zip"
        (tmp_path / unpacked).unlink()


def test_a_name_that_begins_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = recognise(written(Path("-m.pt"), gzip.compress(saved_bytes()))).commands
    subprocess.run(command, shell=True, check=True)
    assert recognise(Path("-m.unpacked.pt")).kind == "zip"


def test_a_tar_gz_becomes_a_tar(tmp_path: Path) -> None:
    (command,) = recognise(written(tmp_path / "m.tgz", gzip.compress(b"x"))).commands
    assert command.endswith(f"> {tmp_path}/m.tar")


@pytest.mark.parametrize("head", [b"7z\xbc\xaf\x27\x1c\0\4", b"Rar!\x1a\x07\1\0"])
def test_7z_and_rar(tmp_path: Path, head: bytes) -> None:
    found = recognise(written(tmp_path / "m.pt", head + bytes(100)))
    assert found.kind == "compressed"
    assert " x " in found.commands[0]


def test_zlib_as_joblib_writes_it(tmp_path: Path) -> None:
    assert recognise(written(tmp_path / "m.pkl", zlib.compress(pickle.dumps(3), 3))).kind == "pickle"


@pytest.mark.tool("gpg", "gpgconf")
def test_gpg(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    save(tmp_path / "m.pt")
    gpg = ["gpg", "--homedir", str(home), "--batch", "--yes", "--passphrase", "x"]
    try:
        for armor in ([], ["--armor"]):
            subprocess.run(
                [*gpg, *armor, "-o", tmp_path / "m.pt.gpg", "-c", tmp_path / "m.pt"], check=True, capture_output=True
            )
            found = recognise(tmp_path / "m.pt.gpg")
            assert found.kind == "encrypted"
            assert "GnuPG" in found.called
            assert found.commands == (f"gpg --output {tmp_path}/m.pt --decrypt {tmp_path}/m.pt.gpg",)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True)


@pytest.mark.tool("openssl")
def test_openssl(tmp_path: Path) -> None:
    save(tmp_path / "m.pt")
    options = ["-aes-256-cbc", "-pbkdf2", "-pass", "pass:x"]
    subprocess.run(["openssl", "enc", *options, "-in", tmp_path / "m.pt", "-out", tmp_path / "m.pt.enc"], check=True)
    found = recognise(tmp_path / "m.pt.enc")
    assert found.kind == "encrypted"
    command = found.commands[0].replace("m.pt.enc -out", "m.pt.enc -pass pass:x -out")
    subprocess.run(command.replace(f"-out {tmp_path}/m.pt", f"-out {tmp_path}/n.pt"), shell=True, check=True)
    assert recognise(tmp_path / "n.pt").kind == "zip"


@pytest.mark.parametrize(
    "head", ["age-encryption.org/v1\n-> X25519 abc\n", "$ANSIBLE_VAULT;1.1;AES256\n6162", "\0GITCRYPT\0\1\2"]
)
def test_other_encryption(tmp_path: Path, head: str) -> None:
    assert recognise(written(tmp_path / "m.pt", head)).kind == "encrypted"


# Other formats


def onnx() -> bytes:
    """A ModelProto: ir_version 8, producer "pytorch", a graph of 300 bytes, an opset."""
    return b"\x08\x08\x12\x07pytorch\x3a\xac\x02" + b"\x0a" * 300 + b"\x42\x02\x10\x11"


def saved_model() -> bytes:
    return b"\x08\x01\x12\x05\x0a\x03\x12\x01a"


OTHERS = {
    "gguf": b"GGUF\3\0\0\0" + bytes(16),
    "ggml": b"lmgg" + bytes(40),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "onnx": onnx(),
    "tensorflow": saved_model(),
    "flax": b"\x81\xa6params\x82\xa3foo\x01",
    "program": Path(sys.executable).resolve().read_bytes()[:10_000],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats(tmp_path: Path, kind: str) -> None:
    found = recognise(written(tmp_path / "m.pt", OTHERS[kind]))
    assert (found.kind, found.damaged) == (kind, False)
    assert found.problem


def test_other_formats_with_other_signs(tmp_path: Path) -> None:
    leveldb = bytes(60) + bytes.fromhex("57fb808b247547db")
    for data, kind in (
        (b"\x1c\0\0\0TFL3" + bytes(50), "tensorflow"),
        (b"x" + leveldb, "tensorflow"),
        (b'model_checkpoint_path: "model-3"\n', "tensorflow"),
        (b"\x89PNG\r\n\x1a\n" + bytes(9), "other"),
    ):
        assert recognise(written(tmp_path / "m.pt", data)).kind == kind


def test_a_truncated_onnx_model(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.onnx", onnx()[:200]))
    assert (found.kind, found.damaged) == ("onnx", True)


def test_numpy(tmp_path: Path) -> None:
    numpy.save(tmp_path / "m.npy", numpy.ones(3))
    assert recognise(tmp_path / "m.npy").kind == "numpy"


@pytest.mark.parametrize("protocol", range(6))
def test_a_plain_pickle(tmp_path: Path, protocol: int) -> None:
    """torch.load can't read one, whatever is in it."""
    for value in ({"a": 1}, [1, 2], {"w": numpy.ones(3)}):
        path = written(tmp_path / "m.pkl", pickle.dumps(value, protocol))
        with pytest.raises(Exception, match=r"."):
            torch.load(path, weights_only=False)
        found = recognise(path)
        assert found.kind == "pickle"
        assert "pickle.load" in found.advice


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_tensors(tmp_path: Path, protocol: int) -> None:
    path = written(tmp_path / "m.pkl", pickle.dumps(STATE, protocol))
    found = recognise(path)
    assert found.kind == "pickle"
    assert "map_location" in found.problem
    if protocol not in (0, 4):
        return  # The command is the same, and takes two seconds.
    subprocess.run(found.commands[0].replace("python", sys.executable, 1), shell=True, check=True, cwd=tmp_path)
    assert torch.load(tmp_path / "m.resaved.pt").keys() == STATE.keys()


def test_a_python_2_pickle_of_a_tensor(tmp_path: Path) -> None:
    for data in (
        b"ctorch._utils\n_rebuild_tensor\np1\n((S'storage'\n",
        b"(dp0\nS'w'\np1\nctorch._utils\n_rebuild_tensor_v2\n",
        b"\x80\x02ctorch._utils\n_rebuild_tensor\nq\x01(",
    ):
        assert "Tensors" in recognise(written(tmp_path / "m.pkl", data)).problem


# Text


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1288490189\n"
    found = recognise(written(tmp_path / "m.pt", pointer))
    assert found.kind == "git-lfs-pointer"
    assert "1.2 GiB" in found.problem
    assert found.commands == ()
    (tmp_path / "a clone" / ".git").mkdir(parents=True)
    (tmp_path / "a clone" / "sub").mkdir()
    found = recognise(written(tmp_path / "a clone" / "sub" / "m.pt", pointer))
    assert found.commands[1] == f"git -C '{tmp_path}/a clone' lfs pull --include sub/m.pt"


def test_other_pointers(tmp_path: Path) -> None:
    assert recognise(written(tmp_path / "m.pt", "/annex/objects/SHA256E-s3--abc.pt\n")).kind == "git-annex-pointer"
    assert (
        recognise(written(tmp_path / "m.pt.dvc", "outs:\n- md5: abc\n  size: 3\n  path: m.pt\n")).kind == "dvc-pointer"
    )


@pytest.mark.parametrize(
    ("title", "advice"),
    [
        ("Google Drive - Virus scan warning", "gdown"),
        ("model.pt · org/model at main - Hugging Face", "/resolve/"),
        ("model/model.pt at main · org/model · GitHub", "/raw/"),
        ("JupyterHub", "Log in"),
        ("Sign in to your account", "Log in"),
        ("404 Not &amp; Found", "curl -fL"),
    ],
)
@pytest.mark.parametrize(
    "start", ["<!DOCTYPE html>\n<html>", "\ufeff\n <HTML>", '<?xml version="1.0"?>\n<html xmlns="x">']
)
def test_a_web_page(tmp_path: Path, title: str, advice: str, start: str) -> None:
    found = recognise(
        written(tmp_path / "m.pt", f"{start}<head>\n<TITLE lang=en>\n {title}\n</TITLE></head><body>é</body></html>")
    )
    assert found.kind == "html"
    assert title.replace("&amp;", "&") in found.problem
    assert advice in found.advice


def test_a_web_page_without_a_title(tmp_path: Path) -> None:
    assert recognise(written(tmp_path / "m.pt", "<html></html>")).problem.startswith("A web page, saved")


def test_a_storage_servers_error(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code><Message>The key is gone.</Message></Error>'
    found = recognise(written(tmp_path / "m.pt", text))
    assert found.kind == "xml"
    assert '"NoSuchKey: The key is gone."' in found.problem


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('{"message": "Not Found", "documentation_url": "x"}', "json-error", '"Not Found"'),
        ('{"error": {"code": 403}}', "json-error", "403"),
        ('{"nbformat": 4, "cells": []}', "notebook", "Jupyter"),
        ('{"hidden_size": 768}', "json", "hidden_size"),
        ("[1, 2]", "json", "JSON"),
        ("{broken", "text", "{broken"),
        ("[" * 100_000, "text", "[["),
        ("Entry not found", "text", "Entry not found"),
        ("HTTP/1.1 200 OK\r\nContent-Type: x\r\n\r\n", "http-answer", "200 OK"),
        ("é" * 3000, "text", "é"),
    ],
)
def test_text(tmp_path: Path, text: str, kind: str, words: str) -> None:
    found = recognise(written(tmp_path / "m.pt", text))
    assert found.kind == kind
    assert words in found.problem


def test_a_sharded_index(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    found = recognise(written(tmp_path / "m.index.json", json.dumps(index)))
    assert (found.kind, found.problem) == ("sharded-index", "")
    assert "2 shards" in found.called
    found = recognise(written(tmp_path / "m.index.json", '{"weight_map": {"a": "../../etc/passwd"}}'))
    assert "leads out of its folder" in found.problem
    assert recognise(written(tmp_path / "m.index.json", '{"weight_map": {}}')).problem


def test_control_characters_are_not_shown(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", "\x1b[31mred\x1b[0m <title>"))
    assert "\x1b" not in found.problem
    assert printable("a\nb\x07c\u202e") == "a b?c?"


def test_noise(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", b"\xfe\xed\x01\x02" * 100))
    assert found.kind == "unknown"
    assert "fe ed 01 02" in found.problem


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
