"""Which other formats are recognised, by real files of theirs: archives, encrypted files, other frameworks', text."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from ddpdoctor.checkpoints.kinds.file_head import printable
from ddpdoctor.checkpoints.named_paths import expand
from tests.support.file_samples import OTHERS, STATE, onnx, recognise, save, saved_bytes, written

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


def test_json_that_is_not_unicode(tmp_path: Path) -> None:
    path = written(tmp_path / "m.index.json", b'{"a": "' + b"x" * 5000 + b'\xff"}')
    assert recognise(path).kind == "text"
    assert expand([path]) == (path,)


def test_control_characters_are_not_shown(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", "\x1b[31mred\x1b[0m <title>"))
    assert "\x1b" not in found.problem
    assert printable("a\nb\x07c\u202e") == "a b?c?"


def test_noise(tmp_path: Path) -> None:
    found = recognise(written(tmp_path / "m.pt", b"\xfe\xed\x01\x02" * 100))
    assert found.kind == "unknown"
    assert "fe ed 01 02" in found.problem
