"""Real and sick interpreters: what the probe of the target Python says of each."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.probes import packages
from ddpdoctor.probes import target_python as patient_probe
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
from ddpdoctor.probes.target_python import asking
from ddpdoctor.probes.target_python.asking import INQUIRY, ask
from tests.support.pythons import bare_venv, fake_torch, old_python, real_pythons, stand_in

GROUPS = ("target_python", "torch", "packages", "libraries")
OLD = ("2.7", "3.6", "3.7")


def target_python(python: str, **environ: str) -> TargetPython:
    return patient_probe.probe(Context(python, environ=os.environ | environ))


def snapshot(python: str, **environ: str) -> Snapshot:
    return take_snapshot(Context(python, environ=os.environ | environ), GROUPS)


def assert_silent(found: Snapshot) -> None:
    """The other groups say why they aren't known, and none by a crash of its probe."""
    assert isinstance(found.target_python, TargetPython)
    for group in ("torch", "packages", "libraries"):
        facts = getattr(found, group)
        assert facts == Unknown(f"the target Python can't be asked: {found.target_python.detail}")


def test_this_interpreter_is_what_it_says() -> None:
    found = target_python(sys.executable)
    assert (found.state, found.detail) == ("ok", "")
    assert found.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert found.prefix == sys.prefix
    assert found.implementation == "cpython"
    assert any("site-packages" in folder or "dist-packages" in folder for folder in found.site_packages)
    assert str(INQUIRY.parent) not in found.site_packages
    assert isinstance(found.libstdcxx_path, str)
    assert Path(found.libstdcxx_path).exists()


@pytest.mark.parametrize("python", [path for version, path in real_pythons().items() if version not in OLD])
def test_real_interpreters_answer(python: str) -> None:
    found = snapshot(python)
    assert isinstance(found.target_python, TargetPython)
    assert found.target_python.state == "ok"
    assert isinstance(found.packages, Packages)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Snapshot) == found


@pytest.mark.parametrize("version", OLD)
def test_old_interpreters_are_named(version: str, tmp_path: Path) -> None:
    python = real_pythons().get(version) or old_python(tmp_path, f"{version}.99")
    found = snapshot(python)
    assert isinstance(found.target_python, TargetPython)
    assert found.target_python.state == "too-old"
    assert f"Python {version}." in found.target_python.detail
    assert_silent(found)


def test_stand_in_for_an_old_interpreter_says_what_a_real_one_does(tmp_path: Path) -> None:
    found = target_python(old_python(tmp_path, "2.7.18"))
    assert found.state == "too-old"
    assert found.detail == "it is Python 2.7.18; ddpdoctor asks Python 3.8 or later"


def test_path_that_does_not_exist(tmp_path: Path) -> None:
    found = snapshot(str(tmp_path / "python"))
    assert isinstance(found.target_python, TargetPython)
    assert (found.target_python.state, found.target_python.detail) == ("missing", "there is no such file")
    assert_silent(found)


def test_command_that_does_not_exist() -> None:
    assert target_python("python3.99").detail == "there is no such command on PATH"


def test_venv_whose_base_is_gone(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/usr/bin/python3.99")
    found = target_python(str(tmp_path / "python"))
    assert found.state == "missing"
    assert "/usr/bin/python3.99" in found.detail


@pytest.mark.root
def test_venv_whose_base_lies_where_this_user_may_not_go() -> None:
    """The base is there: nothing may be called gone, nor may the environment be cleared."""
    with tempfile.TemporaryDirectory() as folder:
        base, python = Path(folder) / "closed" / "bin" / "python3", Path(folder) / "venv" / "bin" / "python"
        for path in (base, python):
            path.parent.mkdir(parents=True)
        Path(folder).chmod(0o755)
        base.symlink_to(sys.executable)
        base.parent.parent.chmod(0o700)
        (python.parent / "python3").symlink_to(base)
        python.symlink_to("python3")
        as_nobody = (
            "import os, sys\n"
            "from ddpdoctor.probes.context import Context\n"
            "from ddpdoctor.probes.target_python.asking import ask\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "answer = ask(Context(sys.argv[1], environ={}), 'interpreter')\n"
            "print(answer.state, answer.detail, sep=': ')"
        )
        said = subprocess.run([sys.executable, "-c", as_nobody, python], capture_output=True, text=True, check=True)
    assert said.stdout == f"not-executable: this user may not enter {folder}/closed (it is a link to {base})\n"


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("python")
    found = target_python(str(tmp_path / "python"))
    assert (found.state, found.detail) == ("not-executable", "it can't be looked at: " + os.strerror(errno.ELOOP))


def test_folder(tmp_path: Path) -> None:
    assert target_python(str(tmp_path)).state == "not-executable"


def test_file_without_the_right_to_run(tmp_path: Path) -> None:
    path = Path(stand_in(tmp_path, "true"))
    path.chmod(stat.S_IRUSR)
    found = target_python(str(path))
    assert (found.state, found.detail) == ("not-executable", "it is a file that this user may not execute")


def test_program_in_the_first_line_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text("#!/nonexistent/python\n")
    path.chmod(0o755)
    found = target_python(str(path))
    assert found.state == "not-executable"
    assert "the program that runs it" in found.detail


def test_garbage_with_exit_code_0(tmp_path: Path) -> None:
    python = stand_in(tmp_path, r"printf 'hello \377\376 \033[31mworld\0\n'")
    found = snapshot(python)
    assert isinstance(found.target_python, TargetPython)
    assert found.target_python.state == "not-python"
    assert "hello" in found.target_python.detail
    assert "exit code 0" in found.target_python.detail
    assert found.target_python.detail.isprintable(), "a terminal would obey the rest"
    assert_silent(found)
    msgspec.json.encode(found)


def test_silence_with_exit_code_3(tmp_path: Path) -> None:
    found = target_python(stand_in(tmp_path, "exit 3"))
    assert (found.state, found.detail) == ("not-python", "it printed nothing and ended with exit code 3")


@pytest.mark.parametrize("name", ["SEGV", "ABRT", "KILL"])
def test_death_by_a_signal(tmp_path: Path, name: str) -> None:
    found = target_python(stand_in(tmp_path, f"kill -{name} $$"))
    assert (found.state, found.detail) == ("dies", f"it was ended by SIG{name}")


def test_hang_costs_no_more_than_the_interpreters_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(asking.SECONDS, "interpreter", 1.0)
    python = stand_in(tmp_path, f"echo $$ >> {tmp_path}/pids; exec sleep 600")
    began = time.monotonic()
    found = snapshot(python)
    assert time.monotonic() - began < 10
    assert isinstance(found.target_python, TargetPython)
    assert (found.target_python.state, found.target_python.detail) == ("hangs", "no answer within 1 s")
    assert_silent(found)
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_environment_without_pip(tmp_path: Path) -> None:
    found = target_python(bare_venv(tmp_path / "venv"))
    assert (found.state, found.pip_version, found.environment_kind) == ("ok", None, "venv")
    assert found.python == str(tmp_path / "venv" / "bin" / "python"), "the link must stay, or it is no venv"
    assert found.prefix == str(tmp_path / "venv")


@pytest.mark.parametrize(
    "code",
    [
        "raise RuntimeError('broken sitecustomize')",
        "print('{\"version\": \"9.9\"}'); import sys; sys.stdout.write('x' * 100000)",
        "import os; os.write(1, bytes(range(256)) * 100)",
        "import sys; sys.stdout = None; sys.stderr = None",
        "import sys; sys.stdout.close()",
        "import os; os.environ.clear()",
        "import atexit, os; atexit.register(os.abort)",
        "import threading, time; threading.Thread(target=lambda: time.sleep(100)).start()",
    ],
)
def test_sitecustomize_does_no_harm(tmp_path: Path, code: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(code)
    found = target_python(sys.executable, PYTHONPATH=str(tmp_path))
    assert (found.state, found.detail) == ("ok", "")
    assert found.version == "{}.{}.{}".format(*sys.version_info[:3])


def test_sitecustomize_that_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(0)")
    assert target_python(sys.executable, PYTHONPATH=str(tmp_path)).state == "not-python"


def test_module_of_the_library_that_is_shadowed(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise ImportError('my own json')")
    found = target_python(sys.executable, PYTHONPATH=str(tmp_path))
    assert found.state == "dies"
    assert "ImportError: my own json" in found.detail


def test_pythonhome_of_another_python(tmp_path: Path) -> None:
    found = target_python(sys.executable, PYTHONHOME=str(tmp_path))
    assert found.state == "dies"
    assert "Fatal Python error" in found.detail
    assert "\n" not in found.detail


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9") / "lib" / "site-packages"
    (folder / "torch-2.0.dist-info").mkdir(parents=True)
    found = snapshot(sys.executable, PYTHONPATH=str(folder))
    assert isinstance(found.target_python, TargetPython)
    assert found.target_python.state == "ok"
    assert any("/caf?/" in package for package in found.target_python.site_packages)
    msgspec.json.encode(found)


def test_standard_modules_come_from_the_library_wherever_we_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder comes first for torch, but not for what the inquiry itself needs."""
    (tmp_path / "json.py").write_text("raise ImportError('my own json')")
    monkeypatch.chdir(tmp_path)
    assert target_python(sys.executable).state == "ok"


def test_packages_are_those_that_the_metadata_names(tmp_path: Path) -> None:
    python = bare_venv(tmp_path / "venv")
    (site,) = target_python(python).site_packages
    write_distribution(Path(site), "Torch_Vision", "1.0", "")  # Not one that matters, under any spelling.
    write_distribution(Path(site), "Flash_Attn", "2.8.3", "Requires-Dist: torch>=2\nRequires-Dist: einops\n", "uv\n")
    write_distribution(
        Path(site), "torch", "2.13.0+cu130", 'Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == "Linux"\n'
    )
    write_distribution(Path(site), "apex", "0.1", "", metadata="PKG-INFO", suffix="egg-info")
    egg = Path(site) / "deepspeed-0.18.0-py3.11.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text("Name: deepspeed\nVersion: 0.18.0\n")
    (Path(site) / "easy-install.pth").write_text(f"{egg}\n")
    (Path(site) / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()  # Its METADATA is gone.
    found = packages.probe(Context(python))
    assert isinstance(found, Packages)
    inside = {package.name: package for package in found.installed if package.location.startswith(str(tmp_path))}
    assert {name: one.version for name, one in inside.items()} == {
        "apex": "0.1",
        "deepspeed": "0.18.0",
        "flash-attn": "2.8.3",
        "nvidia-nccl-cu13": "2.28.9",
        "torch": "2.13.0+cu130",
        "torch-vision": "1.0",
    }
    assert inside["flash-attn"].requires == ("torch>=2",)
    assert inside["flash-attn"].installer == "uv"
    assert inside["torch"].requires == ('nvidia-nccl-cu13==2.28.9; platform_system == "Linux"',)


def test_what_torch_pins_exactly_is_looked_for_under_any_name(tmp_path: Path) -> None:
    python = bare_venv(tmp_path / "venv")
    (site,) = target_python(python).site_packages
    required = "Requires-Dist: sympy==1.13.1\nRequires-Dist: jinja2\nRequires-Dist: networkx (>=2)"
    write_distribution(Path(site), "torch", "2.6.0", required)
    write_distribution(Path(site), "sympy", "1.14.0", "", "uv\n")
    write_distribution(Path(site), "networkx", "3.0", "")
    found = packages.probe(Context(python))
    assert isinstance(found, Packages)
    assert [one.requires for one in found.named("torch")] == [("sympy==1.13.1",)]
    assert (found.version("sympy"), found.version("networkx")) == ("1.14.0", None)


def write_distribution(
    site: Path,
    name: str,
    version: str,
    more: str,
    installer: str = "",
    *,
    metadata: str = "METADATA",
    suffix: str = "dist-info",
) -> None:
    folder = site / f"{name}-{version}.{suffix}"
    folder.mkdir()
    (folder / metadata).write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}\nVersion: 0 in the text\n"
    )
    (folder / "INSTALLER").write_text(installer)


def test_packages_agree_with_importlib_metadata() -> None:
    code = "import importlib.metadata as m; print('\\n'.join(f'{d.name}=={d.version}' for d in m.distributions()))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    found = packages.probe(Context(sys.executable))
    assert isinstance(found, Packages)
    ours = {f"{package.name}=={package.version}" for package in found.installed}
    assert ours <= {entry.lower().replace("_", "-") for entry in listed}
    assert any(our.startswith("torch==") for our in ours)


def test_answer_is_asked_once(tmp_path: Path) -> None:
    python = stand_in(tmp_path, f'echo x >> {tmp_path}/count; exec {sys.executable} "$@"')
    context = Context(python, quick=True)
    take_snapshot(context, GROUPS)
    assert ask(context, "interpreter").state == "ok"
    assert (tmp_path / "count").read_text() == "x\n"


def test_inquiry_that_nobody_waits_for_any_more_ends_by_itself(tmp_path: Path) -> None:
    """Its caller may have been killed, and a hung import would stay for ever."""
    fake_torch(tmp_path, "import time; time.sleep(600)")
    command = [sys.executable, str(INQUIRY), "torch", "<", ">", "0", "/"]
    began = time.monotonic()
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGALRM
    assert time.monotonic() - began < 30
