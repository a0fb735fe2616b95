"""Where libraries are found: made-up trees, real ELF files built here, this host's own loader cache."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.libraries import Libraries
from ddpdoctor.probes import libraries
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.libraries import library, nccl_version, soname_of, stem
from ddpdoctor.probes.library_search import (
    CACHE_ENTRY,
    CACHE_FLAGS,
    CACHE_MAGIC,
    library_path,
    loader_cache,
    preloaded,
    targets_libstdcxx,
)
from tests.support.pythons import bare_venv, fake_torch


def context(root: Path = Path("/"), **environ: str) -> Context:
    return Context(sys.executable, environ=environ, root=root)


def build(path: Path, code: str, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(command, input=code.encode(), check=True)
    return path


@pytest.mark.parametrize(
    ("name", "soname"),
    [
        ("libnccl.so.2", "libnccl.so.2"),
        ("libnccl.so.2.28.9", "libnccl.so.2"),
        ("libcudart.so.12.4.127", "libcudart.so.12"),
        ("libcudart.so.11.8.89", "libcudart.so.11.0"),
        ("libcudart-e409450e.so.11.0", "libcudart.so.11.0"),
        ("libgomp-a34b3233.so.1", "libgomp.so.1"),
        ("libcudnn_ops.so.9.1.0", "libcudnn_ops.so.9"),
        ("libcuda.so.580.95.05", "libcuda.so.1"),
        ("libstdc++.so.6.0.30", "libstdc++.so.6"),
        ("libtorch_cpu.so", "libtorch_cpu.so"),
    ],
)
def test_soname(name: str, soname: str) -> None:
    assert soname_of(name) == soname


def test_stem_tells_the_wheel() -> None:
    assert [stem(one) for one in ("libcublasLt.so.13", "libcudnn_ops.so.9", "libnvJitLink.so.12")] == [
        "cublasLt",
        "cudnn",
        "nvJitLink",
    ]


def test_version_from_the_name_behind_the_links(tmp_path: Path) -> None:
    (tmp_path / "libcublas.so.12.1.3.1").touch()
    (tmp_path / "libcublas.so.12").symlink_to("libcublas.so.12.1.3.1")
    found = library(str(tmp_path / "libcublas.so.12"))
    assert (found.soname, found.version) == ("libcublas.so.12", "12.1.3.1")
    assert found.real_path == str(tmp_path / "libcublas.so.12.1.3.1")


@pytest.mark.tool("gcc")
def test_nccl_says_its_version_itself(tmp_path: Path) -> None:
    code = 'const char *said(void) { return "NCCL version 2.28.9+cuda13.0"; }'
    path = build(tmp_path / "libnccl.so.2", code)
    assert nccl_version(path) == "2.28.9"
    assert library(str(path)).version == "2.28.9"


def test_nccl_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"NCCL version 2.28.9+cuda13.0")
    assert library(str(tmp_path / "libnccl.so.2")).version == ""
    assert library(str(tmp_path / "gone" / "libnccl.so.2")).version == ""


def test_library_path_and_preload() -> None:
    settings = context(LD_LIBRARY_PATH="/a::/b;/c", LD_PRELOAD="/x.so:/y.so /z.so")
    assert library_path(settings) == ("/a", ".", "/b", "/c")
    assert preloaded(settings) == ("/x.so", "/y.so", "/z.so")
    assert library_path(context(LD_LIBRARY_PATH="")) == ()


def cache_file(root: Path, entries: list[tuple[str, str, int]], before: bytes = b"") -> None:
    """A loader cache in glibc's format; (soname, path, flags) each."""
    strings = b""
    table = b""
    start = 48 + CACHE_ENTRY.size * len(entries)
    for name, path, flags in entries:
        offsets = []
        for text in (name, path):
            offsets.append(start + len(strings))
            strings += text.encode() + b"\0"
        table += CACHE_ENTRY.pack(flags, *offsets, 0, 0)
    header = CACHE_MAGIC + struct.pack("<II", len(entries), len(strings)) + bytes(20)
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "ld.so.cache").write_bytes(before + header + table + strings)


def test_loader_cache_of_a_made_up_tree(tmp_path: Path) -> None:
    machine = CACHE_FLAGS[os.uname().machine] | 3
    entries = [
        ("libstdc++.so.6", "/usr/lib32/libstdc++.so.6", 0x0003),
        ("libstdc++.so.6", "/opt/gcc/lib64/libstdc++.so.6", machine),
        ("libstdc++.so.6", "/usr/lib/libstdc++.so.6", machine),
    ]
    cache_file(tmp_path, entries, before=b"ld.so-1.7.0\0".ljust(64, b"\0"))
    assert loader_cache(context(tmp_path)) == {"libstdc++.so.6": "/opt/gcc/lib64/libstdc++.so.6"}


def test_loader_cache_of_this_host_agrees_with_ldconfig() -> None:
    found = loader_cache(context())
    assert not isinstance(found, Unknown)
    printed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines()[1:]:
        name, arrow, path = line.partition(" => ")
        if arrow and "libc6,x86-64" in name:
            assert name.split()[0] in found, path
    assert found["libc.so.6"] in printed


@pytest.mark.parametrize("text", [b"", b"nonsense", CACHE_MAGIC + b"\xff\xff"])
def test_loader_cache_that_is_broken(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ld.so.cache").write_bytes(text)
    assert isinstance(loader_cache(context(tmp_path)), Unknown)


def test_loader_cache_that_is_not_there(tmp_path: Path) -> None:
    assert loader_cache(context(tmp_path)) == Unknown("/etc/ld.so.cache: No such file or directory")


def test_libstdcxx_in_the_loaders_order(tmp_path: Path) -> None:
    name = "libstdc++.so.6"
    conda, offered = tmp_path / "conda", tmp_path / "offered"
    for folder in (conda / "conda-meta", conda / "lib", offered):
        folder.mkdir(parents=True)
    cache_file(tmp_path / "root", [(name, "/usr/lib/libstdc++.so.6", CACHE_FLAGS[os.uname().machine] | 3)])
    root = tmp_path / "root"
    assert targets_libstdcxx(context(root), "/usr") == "/usr/lib/libstdc++.so.6"
    (root / "cuda").mkdir()
    (root / "cuda" / name).touch()
    assert targets_libstdcxx(context(root, LD_LIBRARY_PATH="/cuda"), "/usr") == "/cuda/libstdc++.so.6"
    assert targets_libstdcxx(context(root, LD_LIBRARY_PATH="/cuda"), str(conda)) == "/cuda/libstdc++.so.6"
    (conda / "lib" / name).touch()
    assert targets_libstdcxx(context(root, LD_LIBRARY_PATH="/cuda"), str(conda)) == str(conda / "lib" / name)
    assert targets_libstdcxx(context(root, LD_PRELOAD=f"/x/{name}"), str(conda)) == f"/x/{name}"


@pytest.fixture
def cuda_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A virtual environment with a made-up CUDA torch, whose import fails, and wheels of NVIDIA's libraries."""
    python = bare_venv(tmp_path / "venv")
    (site,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    fake_torch(site, "raise OSError('libcusparse.so.12: cannot open shared object file')", "2.6.0+cu124")
    stubs = tmp_path / "stubs"
    for name in ("libnccl.so.2", "libcusparse.so.12", "libcuda.so.1", "libnowhere.so.7", "libspack.so.1"):
        build(stubs / name, "", f"-Wl,-soname,{name}")
    needs = [f"-L{stubs}", "-Wl,--no-as-needed", *(f"-l:{path.name}" for path in sorted(stubs.iterdir()))]
    build(site / "torch" / "lib" / "libtorch_cuda.so", "", *needs, "-lstdc++", "-Wl,-rpath,$ORIGIN/../../spack")
    build(
        site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", 'const char *v(void){return "NCCL version 2.21.5+cuda12.4";}'
    )
    for name, version in (("nvidia_nccl_cu12", "2.27.3"), ("nvidia_cublas_cu12", "12.4.5.8")):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    build(site / "nvidia" / "cublas" / "lib" / "libcublas.so.12", "")
    (site / "spack").mkdir()
    (stubs / "libspack.so.1").rename(site / "spack" / "libspack.so.1")
    monkeypatch.chdir(tmp_path)
    return python, site


def probed(python: str, **environ: str) -> Libraries:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = libraries.probe(Context(python, environ=kept | environ))
    assert isinstance(found, Libraries)
    return found


@pytest.mark.tool("gcc")
def test_what_torch_needs_and_nobody_has(cuda_venv: tuple[str, Path]) -> None:
    """Not those of the driver, nor what a wheel, an RPATH or the loader has."""
    found = probed(cuda_venv[0])
    assert found.missing == ("libcusparse.so.12", "libnowhere.so.7")
    assert found.loaded == Unknown("torch was not imported")


@pytest.mark.tool("gcc")
def test_search_path_has_what_torch_needs(cuda_venv: tuple[str, Path], tmp_path: Path) -> None:
    folders = f"{tmp_path}/nowhere:{tmp_path}/stubs"
    found = probed(cuda_venv[0], LD_LIBRARY_PATH=folders)
    assert found.missing == ()
    assert found.search_path == (f"{tmp_path}/nowhere", f"{tmp_path}/stubs")
    offered = [one.path for one in found.offered]
    assert offered == [f"{tmp_path}/stubs/{name}" for name in ("libcuda.so.1", "libcusparse.so.12", "libnccl.so.2")]


@pytest.mark.tool("gcc")
def test_relative_search_path_is_meant_from_the_working_folder(cuda_venv: tuple[str, Path]) -> None:
    assert probed(cuda_venv[0], LD_LIBRARY_PATH="stubs").missing == ()


@pytest.mark.tool("gcc")
def test_bundled_libraries_have_versions(cuda_venv: tuple[str, Path]) -> None:
    """NCCL's from the file, since wheels overwrite each other's; the others' from the wheel."""
    versions = {one.soname: one.version for one in probed(cuda_venv[0]).bundled}
    assert versions == {"libnccl.so.2": "2.21.5", "libcublas.so.12": "12.4.5.8", "libtorch_cuda.so": ""}


@pytest.mark.tool("gcc")
def test_libstdcxx_of_this_host(cuda_venv: tuple[str, Path]) -> None:
    found = probed(cuda_venv[0])
    listed = subprocess.run(
        ["grep", "-aoE", "GLIBCXX_3\\.4\\.[0-9]+", found.glibcxx_path], capture_output=True, text=True, check=True
    )
    newest = max(int(part.rpartition(".")[2]) for part in listed.stdout.split())
    assert found.glibcxx_provided == f"3.4.{newest}"
