"""Reading shared objects: real ones that gcc makes here, recorded ones from nvcc, and broken ones."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.probes.elf import FATBIN_MAGIC, NotElf, fatbin_architectures, mapped, opened, sections
from tests.support.command import ROOT

pytestmark = pytest.mark.tool("g++")

RECORDED = ROOT / "fixtures" / "elf"
TORCH = Path(find_spec("torch").origin).parent / "lib"
OLD_ERROR = "_ZN3c105ErrorC2ENS_14SourceLocationESs"


def build(path: Path, code: str, *options: str) -> Path:
    """A shared object made by gcc from C++ code."""
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-o", path, *options],
        input=code.encode(),
        check=True,
    )
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = f'extern "C" void {OLD_ERROR}(); extern "C" void use() {{ {OLD_ERROR}(); }} void mine() {{}}'
    return build(tmp_path_factory.mktemp("elf") / "small.so", code)


def test_undefined_and_defined_symbols(small: Path) -> None:
    with opened(small) as library:
        assert library.undefined() == (OLD_ERROR,)
        assert library.exports("_Z4minev") is True
        assert library.exports("_Z5yoursv") is False
        assert library.exports(OLD_ERROR) is False
        assert library.architectures == ()


def test_weak_symbols_need_not_be_there(tmp_path: Path) -> None:
    code = f'extern "C" __attribute__((weak)) void {OLD_ERROR}(); extern "C" void use() {{ if ({OLD_ERROR}) {OLD_ERROR}(); }}'
    with opened(build(tmp_path / "weak.so", code)) as library:
        assert library.undefined() == ()


def test_torch_types_in_the_signature_of_a_foreign_function_are_not_torchs(tmp_path: Path) -> None:
    code = "namespace at { struct Tensor; } namespace mine { void f(at::Tensor&); } void use(at::Tensor& t) { mine::f(t); }"
    with opened(build(tmp_path / "foreign.so", code)) as library:
        assert library.undefined() == ()


def test_needed_in_order(tmp_path: Path) -> None:
    names = ("libcudart.so.11.0", "libc10.so", "libtorch.so")
    stubs = [str(build(tmp_path / name, "", f"-Wl,-soname,{name}")) for name in names]
    with opened(build(tmp_path / "user.so", "", "-Wl,--no-as-needed", *stubs)) as library:
        assert library.needed[:3] == names


def test_newest_glibcxx(tmp_path: Path) -> None:
    code = "#include <string>\n#include <stdexcept>\nvoid f(std::string& s) { s += 'a'; throw std::runtime_error(s); }"
    with opened(build(tmp_path / "strings.so", code)) as library:
        assert library.glibcxx.startswith("GLIBCXX_3.4.2")


def test_without_a_gnu_hash_table_nothing_is_said_about_exports(tmp_path: Path) -> None:
    with opened(build(tmp_path / "sysv.so", "void mine() {}", "-Wl,--hash-style=sysv")) as library:
        assert library.exports("_Z4minev") is None


def test_every_symbol_of_libtorch_python_is_found_in_the_real_torch() -> None:
    with ExitStack() as stack:
        wanted = stack.enter_context(opened(TORCH / "libtorch_python.so")).undefined()
        assert len(wanted) > 3000
        # Of a CPU build libtorch_cpu.so and libc10.so; a CUDA build has more.
        libraries = [stack.enter_context(opened(path)) for path in TORCH.glob("lib*.so") if "python" not in path.name]
        assert [one for one in wanted if not any(library.exports(one) for library in libraries)] == []


def test_agrees_with_pyelftools_on_the_sections_of_real_files(small: Path) -> None:
    from elftools.elf.elffile import ELFFile

    for path in (small, Path(sys.executable).resolve(), *TORCH.glob("lib*.so"), *RECORDED.glob("*.so")):
        with path.open("rb") as file, mapped(path) as data:
            elf = ELFFile(file)
            headers = {section.name: section.header for section in elf.iter_sections()}
            assert sections(data) == {
                name: (0, 0)
                if one["sh_type"] == "SHT_NOBITS"
                else (one["sh_offset"], one["sh_offset"] + one["sh_size"])
                for name, one in headers.items()
            }, path


def test_a_shared_object_without_sections_has_no_dynamic_symbols_to_be_found(small: Path, tmp_path: Path) -> None:
    header = bytearray(small.read_bytes()[:64])
    header[40:48], header[58:64] = bytes(8), bytes(6)  # Where the table lies; size, number and names of its entries.
    path = tmp_path / "without.so"
    path.write_bytes(header)
    with pytest.raises(NotElf, match="no dynamic symbols"), opened(path):
        pass


def test_agrees_with_the_whole_symbol_table_of_libc10() -> None:
    from elftools.elf.elffile import ELFFile

    with (TORCH / "libc10.so").open("rb") as file, opened(TORCH / "libc10.so") as library:
        table = ELFFile(file).get_section_by_name(".dynsym")
        symbols = [(symbol.name, symbol["st_shndx"] != "SHN_UNDEF") for symbol in table.iter_symbols() if symbol.name]
    defined = {name for name, here in symbols if here}
    with opened(TORCH / "libc10.so") as library:
        assert len(defined) > 500
        assert all(library.exports(name) for name in defined)
        assert not any(library.exports(name) for name, _ in symbols if name not in defined)


def test_nothing_that_is_not_there_is_found_in_torchs_largest_library() -> None:
    with opened(TORCH / "libtorch_cpu.so") as library:
        assert not any(library.exports(f"_ZN2at4_ops{number}nothing4callEv") for number in range(100))


def test_recorded_kernels_of_nvcc() -> None:
    with opened(RECORDED / "kernels.so") as library:
        assert library.architectures == ("sm_80", "sm_90")
        assert "libcudart.so.13" in library.needed


def test_recorded_compressed_kernels_with_specific_architectures_and_ptx() -> None:
    with opened(RECORDED / "kernels-compressed.so") as library:
        assert library.architectures == ("sm_80", "sm_90a", "sm_100f", "compute_90")


def test_fat_binaries_after_garbage_and_cut_off_ones() -> None:
    data = (RECORDED / "kernels.so").read_bytes()
    start = data.index(FATBIN_MAGIC)
    assert fatbin_architectures(b"\0" * 1000 + data[start:], 0, len(data) + 1000 - start) == ("sm_80", "sm_90")
    assert fatbin_architectures(data, start, start + 100) == ("sm_80",)
    assert fatbin_architectures(data, start, start + 20) == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"INPUT(libfoo.so)\n", b"version https://git-lfs.github.com/spec/v1\n", b"\0" * 4096, b"\x7fELF\x02\x01\x01" + b"\xff" * 500],
)  # fmt: skip
def test_what_is_no_elf_file_is_said_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(content)
    with pytest.raises(NotElf) as caught, opened(path):
        pass
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_links_pipes_and_folders(tmp_path: Path) -> None:
    (tmp_path / "loop.so").symlink_to(tmp_path / "loop.so")
    (tmp_path / "gone.so").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.so")
    (tmp_path / "folder.so").mkdir()
    for name in ("loop", "gone", "pipe", "folder", "missing"):
        with pytest.raises(NotElf), opened(tmp_path / f"{name}.so"):
            pass


def everything(path: Path) -> None:
    with opened(path) as library:
        _ = library.needed, library.undefined(), library.glibcxx
        library.exports("_Z4minev")
        _ = library.architectures


def test_cut_off_at_every_length(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    path = tmp_path / "cut.so"
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(NotElf):
            everything(path)


def test_a_sparse_file_of_a_terabyte_is_no_reason_to_read_it(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "huge.so"
    path.write_bytes(small.read_bytes())
    os.truncate(path, 2**40)
    everything(path)  # Reading all of it would outlast the time that a test has.


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_flipped_bytes_end_in_words_or_in_facts(tmp_path: Path, seed: int, count: int) -> None:
    chance = random.Random(seed)
    data = bytearray((RECORDED / "kernels-compressed.so").read_bytes())
    for _ in range(count):
        # Headers at both ends and the tables between matter more than the code.
        where = chance.choice([range(64), range(len(data) - 2500, len(data)), range(len(data))])
        data[chance.choice(where)] = chance.randrange(256)
    path = tmp_path / "flipped.so"
    path.write_bytes(data)
    with suppress(NotElf):
        everything(path)


def test_python_itself_has_no_torch_symbols() -> None:
    with pytest.raises(NotElf), opened(Path(__file__)):
        pass
    with opened(Path(sys.executable).resolve()) as library:
        assert library.undefined() == ()
