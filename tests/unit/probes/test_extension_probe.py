"""The probe of extensions on made-up site-packages full of real shared objects, against the real torch."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.facts.extensions import Extensions
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import sections
from ddpdoctor.probes.extensions import probe
from tests.support.command import ROOT

pytestmark = pytest.mark.tool("g++")

RECORDED = ROOT / "fixtures" / "elf"
TORCH_FOLDER = Path(find_spec("torch").origin).parent
OLD_ERROR = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
REAL_CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
TAG = f"cpython-3{sys.version_info[1]}-x86_64-linux-gnu"


def build(path: Path, *symbols: str, needs: tuple[str, ...] = ("libc10.so",)) -> Path:
    """An extension that uses these symbols and names these libraries as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = "".join(
        f'extern "C" void {one}(); extern "C" void use{number}() {{ {one}(); }}' for number, one in enumerate(symbols)
    )
    stubs = path.parent / "stubs"
    stubs.mkdir()
    for name in needs:
        compile_cxx("", stubs / name, f"-Wl,-soname,{name}")
    compile_cxx(code, path, "-Wl,--no-as-needed", *(str(stubs / name) for name in needs))
    shutil.rmtree(stubs)
    return path


def compile_cxx(code: str, path: Path, *options: str) -> None:
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-o", str(path), *options]
    subprocess.run(command, input=code.encode(), check=True)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Site-packages with the real torch in it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "torch").symlink_to(TORCH_FOLDER)
    return folder


def look(*folders: Path, state: str = "ok", detail: str = "") -> Extensions | Unknown:
    context = Context(sys.executable)
    target_python = TargetPython(
        python=sys.executable,
        chosen_by="--python",
        state=state,
        detail=detail,
        version="3.11.2",
        site_packages=tuple(map(str, folders)),
    )

    def answer(group: str) -> Facts:
        assert group == "target_python", "no other group's facts may be waited for: torch's take as long as its import"
        return target_python

    context.answered_by(answer)
    return probe(context)


def found(*folders: Path) -> Extensions:
    extensions = look(*folders)
    assert isinstance(extensions, Extensions)
    return extensions


def test_what_resolves_fully_is_fine(site: Path) -> None:
    build(site / f"flash_attn_2_cuda.{TAG}.so", REAL_CHECK)
    (package,) = found(site).packages
    (one,) = package.objects
    assert package.package == "flash_attn"
    assert (one.undefined, one.missing, one.error) == ((), (), "")
    assert one.module == "flash_attn_2_cuda"
    assert one.python_tag == f"cpython-3{sys.version_info[1]}"


def test_a_symbol_of_an_older_torch(site: Path) -> None:
    build(site / "torchvision" / "_C.so", REAL_CHECK, OLD_ERROR)
    (site / "torchvision-0.21.0+cu124.dist-info").mkdir()
    (package,) = found(site).packages
    assert (package.package, package.version) == ("torchvision", "0.21.0+cu124")
    assert package.objects[0].undefined == (OLD_ERROR,)
    assert package.objects[0].module == "torchvision._C"


def test_libraries_that_this_torch_lacks(site: Path) -> None:
    other = "hip" if (TORCH_FOLDER / "lib" / "libtorch_cuda.so").exists() else "cuda"
    lacking = (f"libc10_{other}.so", f"libtorch_{other}.so")
    build(site / "torchvision" / "_C.so", needs=("libc10.so", *lacking, "libcudart.so.11.0"))
    (package,) = found(site).packages
    assert package.objects[0].missing == lacking
    assert "libcudart.so.11.0" in package.objects[0].needed


def test_what_the_package_itself_exports_is_not_missing(site: Path) -> None:
    build(site / "torchaudio" / "lib" / "_torchaudio.so", OLD_ERROR)
    compile_cxx(f'extern "C" void {OLD_ERROR}() {{}}', site / "torchaudio" / "lib" / "libtorchaudio.so")
    (package,) = found(site).packages
    assert package.objects[0].undefined == ()


def test_what_does_not_link_to_torch_is_left_out(site: Path) -> None:
    build(site / f"orjson.{TAG}.so", needs=())
    build(site / "deepspeed" / "ops" / "plain.so", needs=())
    assert found(site) == Extensions()


def test_apex_with_its_modules_and_architectures(site: Path) -> None:
    for part in ("amp", "optimizers", "normalization"):
        (site / "apex" / part).mkdir(parents=True)
    (site / "apex" / "__init__.py").touch()
    (site / "apex-0.1.dist-info").mkdir()
    build(site / f"amp_C.{TAG}.so", REAL_CHECK)
    build(site / f"fused_layer_norm_cuda.{TAG}.so", OLD_ERROR, needs=("libc10.so", "libcudart.so.12"))
    build(site / f"flash_attn_2_cuda.{TAG}.so", REAL_CHECK)
    extensions = found(site)
    assert [package.package for package in extensions.packages] == ["flash_attn"]
    (apex,) = extensions.apex
    assert (apex.kind, apex.version) == ("nvidia", "0.1")
    assert [one.module for one in apex.objects] == ["amp_C", "fused_layer_norm_cuda"]
    assert apex.objects[1].undefined == (OLD_ERROR,)


def test_kernels_that_nvcc_made_are_read_for_apex(site: Path) -> None:
    for part in ("amp", "optimizers"):
        (site / "apex" / part).mkdir(parents=True)
    (site / "apex" / "__init__.py").touch()
    # The recorded file doesn't link to torch; one more needed library makes it look as Apex's do.
    path = site / f"amp_C.{TAG}.so"
    shutil.copy(RECORDED / "kernels-compressed.so", path)
    data = path.read_bytes()
    assert data.count(b"\0libgcc_s.so.1\0") == 1
    path.write_bytes(data.replace(b"\0libgcc_s.so.1\0", b"\0libc10.so\0\0\0\0\0"))
    (apex,) = found(site).apex
    assert apex.objects[0].architectures == ("sm_80", "sm_90a", "sm_100f", "compute_90")


def test_the_apex_of_pypi_is_another_one(site: Path) -> None:
    (site / "apex" / "lib").mkdir(parents=True)
    for name in ("__init__.py", "models.py", "views.py"):
        (site / "apex" / name).touch()
    (site / "apex-0.9.10.dev0.dist-info").mkdir()
    (apex,) = found(site).apex
    assert (apex.kind, apex.version) == ("other", "0.9.10.dev0")


def test_a_folder_called_apex_that_is_no_package(site: Path) -> None:
    (site / "apex").mkdir()
    assert found(site).apex == ()


def test_the_first_on_the_path_counts(site: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "user", site):
        for part in ("amp", "optimizers"):
            (folder / "apex" / part).mkdir(parents=True)
        (folder / "apex" / "__init__.py").touch()
    assert [one.location for one in found(tmp_path / "user", site).apex] == [
        str(tmp_path / "user" / "apex"),
        str(site / "apex"),
    ]


def test_broken_files_are_named_and_the_rest_is_read(site: Path) -> None:
    good = build(site / f"flash_attn_2_cuda.{TAG}.so", REAL_CHECK)
    (site / f"mamba_cuda.{TAG}.so").write_bytes(good.read_bytes()[:3000])
    (site / f"text_cuda.{TAG}.so").write_text("version https://git-lfs.github.com/spec/v1\n")
    (site / f"empty_cuda.{TAG}.so").touch()
    (site / f"loop_cuda.{TAG}.so").symlink_to(f"loop_cuda.{TAG}.so")
    objects = {one.module: one for package in found(site).packages for one in package.objects}
    assert objects["flash_attn_2_cuda"].error == ""
    for name in ("mamba_cuda", "text_cuda", "empty_cuda", "loop_cuda"):
        assert objects[name].error, name


def test_one_whose_tables_lead_out_of_the_file_is_named_and_the_rest_is_read(site: Path) -> None:
    """A table that is read only once all of a folder are open."""
    good = build(site / f"flash_attn_2_cuda.{TAG}.so", REAL_CHECK)
    broken = site / f"mamba_cuda.{TAG}.so"
    broken.write_bytes(good.read_bytes())
    with broken.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        start, _ = sections(data)[".dynamic"]
        assert struct.unpack_from("<Q", data, start) == (1,)
        struct.pack_into("<Q", data, start + 8, 1 << 63)
    objects = {one.module: one for package in found(site).packages for one in package.objects}
    assert objects["flash_attn_2_cuda"].error == ""
    assert objects["flash_attn_2_cuda"].needed[0] == "libc10.so"
    assert "tables are broken" in objects["mamba_cuda"].error


def test_without_torch_no_symbol_is_called_missing(tmp_path: Path) -> None:
    build(tmp_path / "torchvision" / "_C.so", OLD_ERROR)
    (package,) = found(tmp_path).packages
    assert (package.objects[0].undefined, package.objects[0].missing) == ((), ())


def test_no_folders_and_unreadable_ones(tmp_path: Path) -> None:
    assert found() == Extensions()
    assert found(tmp_path / "nowhere") == Extensions()


def test_a_patient_that_cannot_be_asked() -> None:
    answer = look(state="hangs", detail="no answer within 10 s")
    assert isinstance(answer, Unknown)
    assert answer.reason == "the target Python can't be asked: no answer within 10 s"


def test_the_environment_of_these_tests_can_be_read() -> None:
    assert not any(one.error for package in found(TORCH_FOLDER.parent).packages for one in package.objects)


def test_a_broken_library_of_nobodys_is_left_out(site: Path) -> None:
    (site / "libsomething.so").write_text("INPUT(libother.so)\n")
    assert found(site) == Extensions()


def test_torch_of_conda_forge_keeps_its_libraries_in_the_environment(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    for name in ("libc10.so", "libtorch.so", "libtorch_cpu.so"):
        (tmp_path / "lib" / name).symlink_to(TORCH_FOLDER / "lib" / name)
    (folder / "torch" / "lib" / "libtorch_python.so").symlink_to(TORCH_FOLDER / "lib" / "libtorch_python.so")
    build(folder / "torchvision" / "_C.so", REAL_CHECK, OLD_ERROR, needs=("libc10.so", "libtorch_cpu.so"))
    (package,) = found(folder).packages
    assert (package.objects[0].missing, package.objects[0].undefined) == ((), (OLD_ERROR,))


def test_torch_whose_libraries_are_nowhere_to_be_seen(tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    build(tmp_path / "torchvision" / "_C.so", OLD_ERROR)
    (package,) = found(tmp_path).packages
    assert (package.objects[0].missing, package.objects[0].undefined) == ((), ())
