"""The probe of nvcc, compilers and ninja in made-up file trees with real little programs."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Compiler, Toolchain
from ddpdoctor.probes import toolchain as module
from ddpdoctor.probes.context import Context
from tests.support.other_users import User

HEADER = "#if defined(__GNUC__)\n#if __GNUC__ > {}\n#error -- unsupported GNU version!\n#endif\n#endif\n"


class Host:
    """A made-up tree with commands in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "site"
        self.site.mkdir()

    def command(self, path: str, prints: str, code: int = 0) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{prints}\nEND\nexit {code}\n")
        file.chmod(0o755)

    def nvcc(self, home: str, version: str, gcc: int | None = None) -> None:
        self.command(f"{home}/bin/nvcc", f"Cuda compilation tools, release {version}, V{version}.88")
        include = self.root / home.lstrip("/") / "include"
        (include / "crt").mkdir(parents=True, exist_ok=True)
        (include / "cuda_runtime.h").touch()
        (self.root / home.lstrip("/") / "lib64").mkdir()
        (self.root / home.lstrip("/") / "lib64" / "libcudart.so").touch()
        if gcc is not None:
            (include / "crt" / "host_config.h").write_text(HEADER.format(gcc))

    def look(self, **environ: str) -> Toolchain:
        context = Context(
            str(self.root / "env/bin/python"),
            environ={"PATH": "/usr/bin", **environ},
            root=self.root,
        )

        def answer(group: str) -> Facts:
            assert group == "target_python"
            return TargetPython(
                python=context.python, chosen_by="--python", version="3.11.2", site_packages=(str(self.site),)
            )

        context.answered_by(answer)
        return module.probe(context)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.chdir(tmp_path)
    return Host(tmp_path)


def test_an_empty_host(host: Host) -> None:
    assert host.look() == Toolchain()


def test_torchs_order_of_homes(host: Host) -> None:
    for number, home in enumerate(("/opt/home", "/opt/path", "/usr", "/usr/local/cuda")):
        host.nvcc(home, f"12.{number}")
    every = {"CUDA_HOME": "/opt/home", "CUDA_PATH": "/opt/path"}
    assert host.look(**every).cuda_home == "/opt/home"
    assert host.look(CUDA_PATH="/opt/path").cuda_home == "/opt/path"
    assert host.look(CUDA_HOME="", CUDA_PATH="/opt/path").cuda_home == "/opt/path"
    assert host.look().cuda_home == "/usr"
    assert host.look(PATH="/bin").cuda_home == "/usr/local/cuda"
    first = [(nvcc.version, nvcc.found_by) for nvcc in host.look(**every).nvccs]
    assert first == [("12.0", "CUDA_HOME"), ("12.2", "PATH"), ("12.3", "/usr/local/cuda")]


@pytest.mark.parametrize(
    "environ", [{"CUDA_HOME": "/h"}, {"CUDA_PATH": "/p"}, {"CUDA_HOME": "", "CUDA_PATH": "/p"}, {}]
)
def test_agrees_with_the_real_torch(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own function, taken out of its source: on a build without CUDA it isn't called at all."""
    import ast
    import glob
    import os
    import shutil

    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    source = (Path(find_spec("torch").origin).parent / "utils" / "cpp_extension.py").read_text()
    function = next(
        one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == "_find_cuda_home"
    )
    function.body = [one for one in function.body if "is_available" not in ast.unparse(one)]
    scope = {"os": os, "shutil": shutil, "glob": glob, "IS_WINDOWS": False}
    exec(compile(ast.Module([function], []), "cpp_extension", "exec"), scope)
    assert module._cuda_home(Context(sys.executable))[0] == scope["_find_cuda_home"]()


def test_a_home_without_nvcc_is_still_torchs_choice(host: Host) -> None:
    host.nvcc("/usr/local/cuda-12.8", "12.8", gcc=14)
    found = host.look(CUDA_HOME="/usr/local/cuda-12.1")
    assert found.cuda_home == "/usr/local/cuda-12.1"
    assert found.nvcc is None
    assert [(nvcc.path, nvcc.gcc_max) for nvcc in found.nvccs] == [("/usr/local/cuda-12.8/bin/nvcc", 14)]


def test_links_to_one_toolkit_count_once(host: Host) -> None:
    host.nvcc("/usr/local/cuda-13.0", "13.0", gcc=15)
    (host.root / "usr/local/cuda").symlink_to("cuda-13.0")
    found = host.look()
    assert [(nvcc.path, nvcc.gcc_max) for nvcc in found.nvccs] == [("/usr/local/cuda/bin/nvcc", 15)]
    assert found.nvcc == found.nvccs[0]
    assert found.nvcc.whole


def test_a_script_that_calls_the_toolkit(host: Host) -> None:
    host.nvcc("/usr/local/cuda-13.0", "13.0", gcc=15)
    host.command("/usr/local/bin/nvcc", "release 13.0, V13.0.88")
    found = host.look(PATH="/usr/local/bin")
    assert found.cuda_home == "/usr/local"
    assert found.nvcc is not None
    assert found.nvcc.gcc_max == 15
    assert found.nvcc.lacks == "CUDA's headers"
    assert found.nvccs[1].whole


def test_pips_nvcc_has_nothing_to_link_with(host: Host) -> None:
    host.nvcc(f"{host.site}/nvidia/cu13", "13.0", gcc=15)
    library = host.root / str(host.site).lstrip("/") / "nvidia/cu13/lib64/libcudart.so"
    library.rename(f"{library}.13")
    (one,) = host.look(CUDA_HOME=f"{host.site}/nvidia/cu13").nvccs
    assert one.has_headers
    assert one.lacks == "a libcudart.so to link with"
    (host.root / "opt").mkdir()
    (host.root / "opt/libcudart.so").touch()
    assert host.look(CUDA_HOME=f"{host.site}/nvidia/cu13", LIBRARY_PATH="/usr/lib:/opt").nvccs[0].whole


@pytest.mark.parametrize("folder", ["lib", "lib/x86_64-linux-gnu", "targets/x86_64-linux/lib"])
def test_where_distributions_and_conda_keep_the_library(host: Host, folder: str) -> None:
    host.nvcc("/usr", "12.4")
    (host.root / "usr/lib64/libcudart.so").unlink()
    assert not host.look().nvccs[0].whole
    (host.root / "usr" / folder).mkdir(parents=True)
    (host.root / "usr" / folder / "libcudart.so").touch()
    assert host.look().nvccs[0].whole


def test_an_nvcc_that_fails(host: Host) -> None:
    host.command("/usr/local/cuda/bin/nvcc", "nvcc fatal: Failed to preprocess", code=1)
    (one,) = host.look().nvccs
    assert one.version == ""
    assert one.error == "nvcc fatal: Failed to preprocess"


def test_an_nvcc_that_hangs(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.2)
    path = host.root / "usr/local/cuda/bin/nvcc"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    path.chmod(0o755)
    (one,) = host.look().nvccs
    assert "no answer" in one.error


def compilers(host: Host) -> None:
    host.command("/usr/bin/c++", "13.3.0")
    host.command("/usr/bin/gcc", "13.3.0")
    host.command("/usr/bin/g++-12", "12.4.0")
    host.command("/usr/bin/clang++", "Ubuntu clang version 18.1.3 (1ubuntu1)")


def test_compilers(host: Host) -> None:
    compilers(host)
    assert host.look().compiler == Compiler(path="/usr/bin/c++", kind="gcc", version="13.3.0", found_by="PATH")
    assert host.look(CXX="g++-12").compiler == Compiler(
        path="/usr/bin/g++-12", kind="gcc", version="12.4.0", found_by="CXX"
    )
    assert host.look(CXX="clang++").compiler == Compiler(
        path="/usr/bin/clang++", kind="clang", version="18.1.3", found_by="CXX"
    )
    assert host.look(CXX="ccache g++-12").compiler == host.look(CXX="g++-12").compiler
    assert host.look(CC="g++-12").nvcc_compiler == Compiler(
        path="/usr/bin/g++-12", kind="gcc", version="12.4.0", found_by="CC"
    )
    assert host.look(CXX="g++-99").compiler is None
    assert host.look(CXX="'broken").compiler is None
    assert host.look(CXX="-O2").compiler is None


def test_a_compiler_that_says_nothing(host: Host) -> None:
    host.command("/usr/bin/c++", "hello", code=3)
    assert isinstance(host.look().compiler, Unknown)


def test_debians_own_nvcc_brings_its_compiler(host: Host) -> None:
    compilers(host)
    host.nvcc("/usr", "11.5", gcc=11)
    host.command("/usr/lib/nvidia-cuda-toolkit/bin/g++", "10.5.0")
    found = host.look().nvcc_compiler
    assert isinstance(found, Compiler)
    assert found.version == "10.5.0"


def test_ninja(host: Host) -> None:
    assert host.look().ninja is None
    host.command("/usr/bin/ninja", "ninja: broken", code=1)
    assert host.look().ninja is None
    host.command("/usr/bin/ninja", "1.11.1.git.kitware.jobserver-1")
    assert host.look().ninja == "1.11.1.git.kitware.jobserver-1"


def test_what_compiles(host: Host) -> None:
    (host.site / "deepspeed").mkdir()
    (host.site / "deepspeed-0.19.8.dist-info").mkdir()
    (host.root / "apex").mkdir()
    (host.root / "apex" / "setup.py").write_text('"APEX_CUDA_EXT": "--cuda_ext"; CUDAExtension(name="amp_C")')
    cache = host.root / "home/ada/.cache/torch_extensions/py311_cu130/cpu_adam"
    cache.mkdir(parents=True)
    found = host.look(HOME="/home/ada")
    assert [one.name for one in found.compiles] == ["apex", "deepspeed", "torch"]
    assert "0.19.8" in found.compiles[1].reason
    assert found.apex_source == str(host.root / "apex")
    assert found.apex_source_style == "environment"


def test_what_was_built_for_another_python_or_without_cuda_is_past(host: Host) -> None:
    for name in ("py38_cu117", "py311_cpu"):
        (host.root / "home/ada/.cache/torch_extensions" / name / "cpu_adam").mkdir(parents=True)
    (host.root / "home/ada/.cache/torch_extensions/py311_cu130").mkdir()
    assert host.look(HOME="/home/ada").compiles == ()


def test_a_working_folder_that_is_gone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = host.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert host.look().compiles == ()


def test_an_older_apex_and_a_setup_of_ones_own(host: Host) -> None:
    (host.root / "setup.py").write_text('if "--cuda_ext" in sys.argv: CUDAExtension(name="amp_C")')
    found = host.look()
    assert found.apex_source == str(host.root)
    assert found.apex_source_style == "options"
    (host.root / "setup.py").write_text("from torch.utils.cpp_extension import CUDAExtension")
    assert [one.name for one in host.look().compiles] == ["torch"]
    assert host.look().apex_source is None


def test_settings(host: Host) -> None:
    found = host.look(
        MAX_JOBS="4",
        TORCH_CUDA_ARCH_LIST="9.0",
        DS_SKIP_CUDA_CHECK="1",
        NVCC_APPEND_FLAGS="-allow-unsupported-compiler",
    )
    assert (found.max_jobs, found.arch_list, found.skips_cuda_check, found.unsupported_allowed) == (
        "4",
        "9.0",
        True,
        True,
    )


def test_this_host_has_a_compiler() -> None:
    context = Context(sys.executable)
    context.answered_by(lambda group: Unknown("not asked"))
    found = module.probe(context)
    assert isinstance(found.compiler, Compiler)
    assert found.compiler.kind in ("gcc", "clang")


def test_many_that_hang_share_one_deadline(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.5)
    for name in ("usr/local/cuda-12.1/bin/nvcc", "usr/local/cuda-12.2/bin/nvcc", "usr/bin/c++", "usr/bin/ninja"):
        path = host.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
        path.chmod(0o755)
    start = time.monotonic()
    found = host.look()
    assert time.monotonic() - start < 2
    assert len(found.nvccs) == 2
    assert isinstance(found.compiler, Unknown)
    assert isinstance(found.ninja, Unknown)


# --- beside another user ----------------------------------------------------------------------------------------------------

WHO = "#!/bin/sh\nid -u >> {record}\necho 'Cuda compilation tools, release 12.4'\n"


def toolchain(**environ: str) -> Toolchain:
    """Of this very host."""
    context = Context(sys.executable, environ={"PATH": "/usr/bin:/bin", **environ})
    context.answered_by(lambda group: Unknown("not asked"))
    return module.probe(context)


def programs(user: User, folder: Path) -> Path:
    """That user's nvcc, g++ and ninja, which write down who runs them."""
    record = folder.parent / f"record-{user.name}"
    record.touch()
    record.chmod(0o666)
    user.does(f"umask 022; mkdir -p {folder}/bin")
    for name in ("nvcc", "g++", "c++", "gcc", "ninja"):
        user.does(f"cat > {folder}/bin/{name} <<'END'\n{WHO.format(record=record)}END\nchmod 755 {folder}/bin/{name}")
    return record


@pytest.mark.root
@pytest.mark.parametrize("setting", ["CUDA_HOME", "CXX", "CC", "NVCC_CCBIN", "PATH", "CONDA_PREFIX"])
def test_another_users_compiler_runs_as_that_user_and_counts(shared: Path, ada: User, setting: str) -> None:
    record = programs(ada, shared / "adas")
    values = {
        "PATH": f"{shared}/adas/bin:/usr/bin:/bin",
        "CUDA_HOME": f"{shared}/adas",
        "CONDA_PREFIX": f"{shared}/adas",
    }
    found = toolchain(**{setting: values.get(setting, f"ccache {shared}/adas/bin/g++")})
    assert set(record.read_text().split()) == {str(ada.uid)}
    if setting in ("CUDA_HOME", "CONDA_PREFIX", "PATH"):
        assert any(nvcc.version == "12.4" and nvcc.path.startswith(str(shared)) for nvcc in found.nvccs)
    if setting == "CXX":
        assert found.compiler == Compiler(path=f"{shared}/adas/bin/g++", kind="gcc", version="12.4", found_by="CXX")


@pytest.mark.root
def test_what_two_users_could_replace_is_told_and_not_taken_for_missing(shared: Path, ada: User, eve: User) -> None:
    record = programs(ada, shared / "adas")
    eve.does(f"mkdir -p {shared}/hers/bin; ln -s {shared}/adas/bin/* {shared}/hers/bin/")
    hers = f"{shared}/hers"
    found = toolchain(PATH=f"{hers}/bin:/usr/bin:/bin", CUDA_HOME=hers, CXX=f"{hers}/bin/g++", CC=f"{hers}/bin/gcc")
    assert record.read_text() == ""
    assert found.nvcc is not None
    for why in (
        found.nvcc.error,
        *(one.reason for one in (found.compiler, found.nvcc_compiler, found.ninja) if isinstance(one, Unknown)),
    ):
        assert "root does not run" in why
        assert "sudo -u USER" in why
    assert isinstance(found.compiler, Unknown)
    assert isinstance(found.nvcc_compiler, Unknown)
    assert isinstance(found.ninja, Unknown)


@pytest.mark.root
def test_her_folder_is_not_searched_where_root_happens_to_be(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = programs(eve, shared / "hers")
    monkeypatch.chdir(shared / "hers" / "bin")
    found = toolchain(PATH=":.:../bin:/usr/bin:/bin")
    assert record.read_text() == ""
    assert isinstance(found.compiler, Compiler)
    assert found.compiler.path == "/usr/bin/c++"


@pytest.mark.root
def test_what_a_relative_setting_names_is_hers_where_root_is(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = programs(eve, shared / "hers")
    monkeypatch.chdir(shared / "hers")
    found = toolchain(CXX="bin/g++", CUDA_HOME="../hers")
    assert set(record.read_text().split()) == {str(eve.uid)}
    assert found.compiler == Compiler(path="bin/g++", kind="gcc", version="12.4", found_by="CXX")
    assert found.nvcc is not None
    assert (found.nvcc.path, found.nvcc.version) == ("../hers/bin/nvcc", "12.4")


@pytest.mark.root
@pytest.mark.parametrize(
    "put", ["mkfifo {}", "ln -s /dev/zero {}", "truncate -s 10G {}", "ln -s /etc/shadow {}"], ids=lambda put: put[:12]
)
def test_her_traps_in_the_working_folder_and_the_toolkit_hold_nobody_up(
    shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch, put: str
) -> None:
    programs(eve, shared / "hers")
    include = shared / "hers/include/crt"
    eve.does(f"mkdir -p {include} {shared}/hers/apex")
    for trap in (include / "host_config.h", shared / "hers/setup.py", shared / "hers/apex/setup.py"):
        eve.does(put.format(trap))
    monkeypatch.chdir(shared / "hers")
    began = time.monotonic()
    found = toolchain(CUDA_HOME=f"{shared}/hers")
    assert time.monotonic() - began < 5
    assert found.nvcc is not None
    assert found.nvcc.gcc_max is None
    assert found.apex_source is None
    assert "root:" not in repr(found)
