"""The real torch, and fake ones that do at import what broken ones do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.libraries import Libraries
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import NOT_IMPORTED, Torch
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
from ddpdoctor.probes.target_python import asking
from tests.support.pythons import bare_venv, fake_torch

GROUPS = ("target_python", "torch", "packages", "libraries")


def look(python: str = sys.executable, quick: bool = False, /, **environ: str) -> Snapshot:
    return take_snapshot(Context(python, quick=quick, environ=os.environ | environ), GROUPS)


def torch_of(found: Snapshot) -> Torch:
    assert isinstance(found.torch, Torch), found.torch
    return found.torch


@pytest.fixture(scope="module")
def real() -> Snapshot:
    return look()


def in_real_torch(expression: str) -> Any:
    code = f"import json, torch, torch.distributed; print('>>' + json.dumps({expression}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return msgspec.json.decode(run.stdout.partition(">>")[2])


def test_real_torch_says_of_itself_what_we_say(real: Snapshot) -> None:
    found = torch_of(real)
    assert (found.installed, found.import_state, found.import_error) == (True, "ok", "")
    expected = in_real_torch(
        "dict(version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip, location=torch.__path__[0],"
        " cuda_available=torch.cuda.is_available(), device_count=torch.cuda.device_count(),"
        " distributed_available=torch.distributed.is_available(), nccl_available=torch.distributed.is_nccl_available(),"
        " gloo_available=torch.distributed.is_gloo_available(), cxx11_abi=torch.compiled_with_cxx11_abi(),"
        " num_threads=torch.get_num_threads(), arch_list=torch.cuda.get_arch_list())"
    )
    said = msgspec.to_builtins(found)
    assert {name: said[name] for name in expected} == {**expected, "arch_list": tuple(expected["arch_list"])}
    assert 0 < found.import_seconds < 60
    assert not found.found_through


def test_real_facts_decode_without_loss(real: Snapshot) -> None:
    assert msgspec.json.decode(msgspec.json.encode(real), type=Snapshot) == real
    for group in GROUPS:
        assert not isinstance(getattr(real, group), Unknown)


def test_real_libraries(real: Snapshot) -> None:
    assert isinstance(real.libraries, Libraries)
    loaded = real.libraries.loaded
    assert not isinstance(loaded, Unknown)
    names = {one.soname for one in loaded}
    assert {"libtorch_cpu.so", "libc10.so", "libstdc++.so.6", "libgomp.so.1"} <= names
    for one in loaded:
        assert Path(one.path).is_file()
    assert {"libtorch_cpu.so", "libc10.so"} <= {one.soname for one in real.libraries.bundled}
    assert real.libraries.missing == ()
    assert str(real.libraries.glibcxx_provided).startswith("3.4.")
    assert real.libraries.glibcxx_path in {one.path for one in loaded}


def test_quick_imports_nothing_but_knows_the_files(real: Snapshot) -> None:
    began = time.monotonic()
    found = look(sys.executable, True)
    assert time.monotonic() - began < 5
    torch, imported = torch_of(found), torch_of(real)
    assert (torch.import_state, torch.import_seconds) == ("not-tried", 0.0)
    assert (torch.version, torch.location, torch.cuda) == (imported.version, imported.location, imported.cuda)
    assert torch.cuda_available == NOT_IMPORTED
    assert isinstance(found.libraries, Libraries)
    assert found.libraries.loaded == Unknown("torch was not imported")
    assert found.libraries.missing == (), "the real torch's libraries are all there"


def test_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = look(bare_venv(tmp_path / "venv"), PYTHONPATH="")
    assert torch_of(found) == Torch(installed=False)
    assert isinstance(found.libraries, Libraries)
    assert found.libraries.loaded == Unknown("torch is not installed")


def fake(tmp_path: Path, code: str, version: str | None = "2.13.0+cpu", **environ: str) -> Torch:
    return torch_of(look(PYTHONPATH=str(fake_torch(tmp_path / "fake", code, version)), **environ))


def test_torch_that_raises(tmp_path: Path) -> None:
    code = "def load():\n    raise OSError('libcudart.so.12: cannot open shared object file\\nand more')\nload()"
    found = fake(tmp_path, code)
    assert found.import_state == "fails"
    assert found.import_error == "OSError: libcudart.so.12: cannot open shared object file"
    assert "in load" in found.import_traceback
    assert found.version == "2.13.0+cpu"
    assert found.cuda_available == NOT_IMPORTED


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGILL", "SIGKILL"])
def test_torch_that_crashes(tmp_path: Path, name: str) -> None:
    found = fake(tmp_path, f"import os, signal\ndef boom(): os.kill(os.getpid(), signal.{name})\nboom()")
    assert (found.import_state, found.import_error) == ("crashes", f"the process was ended by {name}")
    if name != "SIGKILL":
        assert "in boom" in found.import_traceback, "the Python stack at the crash"


def test_torch_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(asking.SECONDS, "torch", 4.0)
    began = time.monotonic()
    found = fake(tmp_path, "import time\ndef stuck(): time.sleep(600)\nstuck()")
    assert time.monotonic() - began < 15
    assert (found.import_state, found.import_error) == ("hangs", "no answer within 4 s")
    assert "in stuck" in found.import_traceback, "the Python stack where it hangs"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os; os._exit(0)", "the process ended itself with exit code 0"),
        ("import os; os._exit(7)", "the process ended itself with exit code 7"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def x(:", "SyntaxError: "),
    ],
)
def test_torch_that_ends_the_process(tmp_path: Path, code: str, error: str) -> None:
    found = fake(tmp_path, code)
    assert found.import_state == "fails"
    assert found.import_error.startswith(error)


REAL_LOOKING = """
import os, sys
class _cuda:
    def __getattr__(self, name): {cuda}
    _getattr = __getattr__
cuda = _cuda()
class version: cuda = '13.0'
class _C:
    _GLIBCXX_USE_CXX11_ABI = True
    _cuda_getArchFlags = staticmethod(lambda: 'sm_80 sm_90 compute_90')
    _nccl_version = staticmethod(lambda: (2 << 32) + (28 << 16) + 9)
    class _cudnn:
        getRuntimeVersion = staticmethod(lambda: (9, 15, 1))
        getCompileVersion = staticmethod(lambda: (9, 10, 2))
def get_num_threads(): return 12
__version__ = '2.13.0+cu130'
"""


def cuda_torch(cuda: str) -> str:
    return REAL_LOOKING.format(cuda=cuda)


def test_versions_of_a_cuda_build(tmp_path: Path) -> None:
    found = fake(tmp_path, cuda_torch("return lambda: 2"), "2.13.0+cu130")
    assert found.import_state == "ok"
    assert (found.version, found.cuda) == ("2.13.0+cu130", "13.0")
    assert found.nccl_version == (2, 28, 9)
    assert (found.cudnn_version, found.cudnn_built) == ((9, 15, 1), (9, 10, 2))
    assert found.arch_list == ("sm_80", "sm_90", "compute_90")
    assert (found.cuda_available, found.device_count, found.cuda_error) == (True, 2, "")
    assert isinstance(found.distributed_available, Unknown), "this one has no torch.distributed"


def test_warning_of_cuda_is_kept(tmp_path: Path) -> None:
    text = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). (Triggered internally at x.cpp:1.)"
    code = cuda_torch(f"import warnings; warnings.warn({text!r}); return lambda: 0")
    found = fake(tmp_path, code, "2.13.0+cu130")
    assert (found.cuda_available, found.device_count) == (False, 0)
    assert found.cuda_error == "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."


def test_cuda_that_hangs_costs_only_what_the_driver_would_have_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(asking.SECONDS, "torch", 4.0)
    found = fake(tmp_path, cuda_torch("import time; time.sleep(600)"), "2.13.0+cu130")
    assert found.import_state == "ok"
    assert found.nccl_version == (2, 28, 9)
    assert found.cuda_error == "CUDA initialisation: no answer within 4 s"
    assert found.cuda_available == Unknown(found.cuda_error)
    assert found.device_count == Unknown(found.cuda_error)


def test_cuda_that_crashes(tmp_path: Path) -> None:
    found = fake(tmp_path, cuda_torch("os.abort()"), "2.13.0+cu130")
    assert found.import_state == "ok"
    assert found.cuda_error == "CUDA initialisation: the process was ended by SIGABRT"


@pytest.mark.parametrize(
    "noise",
    [
        "import os; os.write(1, bytes(range(256)) * 1000)",
        "print('x' * 1000000)",
        "import sys; sys.stdout = open('/dev/null', 'w'); os = __import__('os'); os.close(1); os.close(2)",
        "import sys; sys.stdout = sys.stderr = None",
        "import threading, time; threading.Thread(target=lambda: time.sleep(600)).start()",
        "import atexit, time; atexit.register(lambda: time.sleep(600))",
    ],
)
def test_torch_that_is_noisy(tmp_path: Path, noise: str) -> None:
    began = time.monotonic()
    found = fake(tmp_path, noise + "\n" + cuda_torch("return lambda: 2"), "2.13.0+cu130")
    assert (found.import_state, found.device_count) == ("ok", 2)
    assert time.monotonic() - began < 20


def test_file_in_the_working_folder_shadows_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Snapshot
) -> None:
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    found = torch_of(look())
    assert found.installed
    assert found.location == str(tmp_path / "torch.py")
    assert found.found_through == "the working folder"
    assert found.hidden == torch_of(real).location
    assert (found.version, found.cpu_only) == (None, False)
    assert found.import_state == "fails"
    assert found.import_error == f"not tried: import torch would run {tmp_path / 'torch.py'}"
    assert not (tmp_path / "ran").exists(), "it may be a training script"


def test_file_in_the_working_folder_where_there_is_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = bare_venv(tmp_path / "venv")
    (tmp_path / "torch.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = torch_of(look(python, PYTHONPATH=""))
    assert (found.installed, found.location) == (False, str(tmp_path / "torch.py"))


def test_torch_on_pythonpath(tmp_path: Path, real: Snapshot) -> None:
    found = fake(tmp_path, "", "2.6.0+cu124")
    assert found.location == str(tmp_path / "fake" / "torch")
    assert (found.found_through, found.hidden) == ("PYTHONPATH", torch_of(real).location)
    assert found.version == "2.6.0+cu124"


def test_safe_path_leaves_the_working_folder_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Snapshot
) -> None:
    (tmp_path / "torch.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = torch_of(look(sys.executable, True, PYTHONSAFEPATH="1"))
    if sys.version_info >= (3, 11):
        assert found.location == torch_of(real).location
    else:
        assert found.location == str(tmp_path / "torch.py"), "the setting came with 3.11"


def test_half_installed_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = bare_venv(tmp_path / "venv")
    site = look(python, True).target_python
    assert isinstance(site, TargetPython)
    fake_torch(Path(site.site_packages[0]), "from torch import _C\nfrom .version import __version__\n", None)
    monkeypatch.chdir(tmp_path)
    found = torch_of(look(python, PYTHONPATH=""))
    assert (found.installed, found.version, found.cpu_only) == (True, None, False)
    assert found.import_state == "fails"
    assert "ImportError: cannot import name '_C'" in found.import_error


def test_nothing_is_written_beside_another_users_torch(tmp_path: Path) -> None:
    """Bytecode goes where the interpreter's owner is us, as it would in training."""
    fake(tmp_path, "")
    assert (tmp_path / "fake" / "torch" / "__pycache__").is_dir() == (
        Path(sys.prefix).stat().st_uid == os.geteuid() and not os.environ.get("PYTHONDONTWRITEBYTECODE")
    )


def test_our_own_folder_is_not_on_the_patients_path(tmp_path: Path) -> None:
    found = fake(tmp_path, "import inquiry")
    assert found.import_error == "ModuleNotFoundError: No module named 'inquiry'"


def test_same_torch_by_another_way_hides_nothing(tmp_path: Path, real: Snapshot) -> None:
    """PyTorch built in the working folder and installed in editable mode, or site-packages named twice through links."""
    (tmp_path / "torch").symlink_to(torch_of(real).location)
    found = torch_of(look(sys.executable, True, PYTHONPATH=str(tmp_path)))
    assert (found.location, found.found_through) == (str(tmp_path / "torch"), "PYTHONPATH")
    assert found.hidden == ""
