"""`run --debug-server`: what the command's Pythons are given, and what that does in those that are no rank, or lack something."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddpdoctor.run.debug_server import HOOK, debug_server_settings
from tests.support.command import ddpdoctor, plain_environ

C10D = """
def is_initialized(): return True
def get_rank(): return 0
def get_world_size(): return 1
def init_process_group(backend="gloo"):
    "torch's own words"
    print("begun", backend)
"""
"""A stand-in for torch's module: which other release is at hand?"""


def hooked(
    folder: Path, script: str, environ: Mapping[str, str] | None = None, *, bare: bool = False
) -> subprocess.CompletedProcess[str]:
    """A Python with the hook, and with what lies in the folder. bare: it has no packages of its own."""
    paths = os.pathsep.join((str(HOOK), str(folder)))
    settings = {
        **plain_environ(),
        "DDPDOCTOR_DEBUG_SERVER": "1",
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        **(environ or {}),
    }
    line = [sys.executable, *(["-S", "-c", f"import sitecustomize\n{script}"] if bare else ["-c", script])]
    return subprocess.run(line, env=settings, capture_output=True, text=True, timeout=60, check=False)


def with_torch(folder: Path, *more: str) -> Path:
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (package / "distributed_c10d.py").write_text(C10D)
    (folder / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from torch.distributed.distributed_c10d import *\n")
    for name in more:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


BEGIN = "import torch.distributed as dist; dist.init_process_group('nccl'); print(dist.init_process_group.__doc__)"


def test_a_python_without_torch_is_as_it_would_be(tmp_path: Path) -> None:
    script = "import sys; print([place for place in sys.path], [name for name in sys.modules if 'torch' in name])"
    plain = {"PYTHONPATH": str(tmp_path)}
    assert hooked(tmp_path, script).stdout == hooked(tmp_path, script, plain).stdout


@pytest.mark.parametrize(
    "text", ["import sys; sys.path.append('/own')", "raise ValueError('mine')", "import nowhere", "raise SystemExit(3)"]
)
def test_the_sitecustomize_that_it_hides_runs_as_it_would(tmp_path: Path, text: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    script = "import sys; print(sys.path, sys.modules.get('sitecustomize') and sys.modules['sitecustomize'].__file__)"
    ours, plain = hooked(tmp_path, script), hooked(tmp_path, script, {"PYTHONPATH": str(tmp_path)})
    assert (ours.returncode, ours.stderr.splitlines()[-1:]) == (plain.returncode, plain.stderr.splitlines()[-1:])
    if "raise" not in text and "nowhere" not in text:
        assert ours.stdout == plain.stdout


@pytest.mark.parametrize(
    ("environ", "files", "words"),
    [
        ({}, ("torch/distributed/debug.py",), "MASTER_ADDR and MASTER_PORT is not set"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}, (), "no store listens at MASTER_ADDR:MASTER_PORT, 127.0.0.1:9"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, (), "invalid literal"),
        ({"MASTER_ADDR": "127.0.0.1"}, (), "this torch has none; it came with torch 2.10"),
        ({"MASTER_ADDR": "127.0.0.1"}, ("torch/distributed/debug.py", "aiohttp.py"), "-m pip install jinja2 tabulate"),
        ({"MASTER_ADDR": "127.0.0.1"}, ("torch/distributed/debug.py", "requests.py", "jinja2.py", "tabulate.py"), "port 1 can't be listened on"),
    ],
)  # fmt: skip
def test_whatever_is_missing_the_command_goes_on_and_the_reason_is_told(
    tmp_path: Path, environ: dict[str, str], files: tuple[str, ...], words: str
) -> None:
    if "port 1 " in words and os.geteuid() == 0:
        environ = {**environ, "DDPDOCTOR_DEBUG_SERVER": "70000"}
        words = "no debug server: "
    with socket.create_server(("127.0.0.1", 0)) as store:
        if environ.get("MASTER_ADDR"):
            environ = {"MASTER_PORT": str(store.getsockname()[1]), **environ}
        done = hooked(with_torch(tmp_path, *files), BEGIN, environ, bare=True)
    assert done.stdout == "begun nccl\ntorch's own words\n"
    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert line.startswith("ddpdoctor: no debug server: ")
    assert words in line


def test_a_rank_that_fails_to_begin_fails_as_it_would(tmp_path: Path) -> None:
    folder = with_torch(tmp_path)
    (folder / "torch" / "distributed" / "distributed_c10d.py").write_text(C10D + "    raise KeyError('x')\n")
    done = hooked(folder, BEGIN, bare=True)
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'x'\n")
    assert "no debug server" not in done.stderr


def test_settings(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(f"#!{sys.executable}\n")
    (tmp_path / "torchrun").chmod(0o755)
    environ = {"PATH": str(tmp_path), "PYTHONPATH": "/mine:/yours"}
    settings, note = debug_server_settings(25999, ["nohup", "torchrun", "train.py"], environ)
    assert settings == {"DDPDOCTOR_DEBUG_SERVER": "25999", "PYTHONPATH": f"{HOOK}:/mine:/yours"}
    assert "jobs --hang --debug-server localhost:25999" in note
    assert "no password" in note
    assert sorted(path.name for path in HOOK.iterdir() if path.suffix == ".py") == ["sitecustomize.py"]


@pytest.mark.parametrize(
    "command", [["docker", "run", "x"], ["sudo", "-u", "ada", "python", "x"], ["ssh", "node1", "torchrun"]]
)
def test_commands_through_which_settings_do_not_get(command: list[str]) -> None:
    settings, note = debug_server_settings(25999, command, {})
    assert settings == {}
    assert f"settings don't get through {command[0]} by themselves" in note


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("mpirun -H node0,node1 python train.py", "mpirun"),
        ("nohup mpiexec --hostfile=hosts python train.py", "mpiexec"),
        ("/opt/bin/deepspeed --hostfile hosts train.py", "deepspeed"),
        ("mpirun -np 4 python train.py", ""),
        ("deepspeed train.py", ""),
        ("mpirun -np 4 python train.py -f x", ""),
        ("srun --host x python train.py", ""),
        ("torchrun --host x", ""),
    ],
)
def test_launchers_that_hand_their_settings_to_this_host_alone(line: str, told: str) -> None:
    settings, note = debug_server_settings(25999, line.split(), {})
    assert settings
    lines = [text for text in note.splitlines() if "to other hosts" in text]
    assert len(lines) == bool(told)
    if told == "deepspeed":
        assert lines[0].endswith("write DDPDOCTOR_DEBUG_SERVER=25999 into the file .deepspeed_env")
    elif told:
        assert lines[0].startswith(
            f"ddpdoctor: {told} may not hand DDPDOCTOR_DEBUG_SERVER and PYTHONPATH to other hosts"
        )
        assert lines[0].endswith(f"{told} ... ddpdoctor run --debug-server 25999 -- python train.py")


def test_a_torch_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    version = tmp_path / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
    version.parent.mkdir(parents=True)
    version.write_text("__version__ = '2.9.1'\n")
    settings, note = debug_server_settings(25999, ["python", "train.py"], {"PATH": str(tmp_path / "bin")})
    assert settings == {}
    assert note == "ddpdoctor: no debug server: torch 2.9 has none; it came with torch 2.10"


def test_the_command_runs_as_it_would() -> None:
    """One in which there is nothing to serve."""
    done = ddpdoctor(
        "run", "--debug-server", "25999", "--no-remember", "--", "sh", "-c", "echo out; echo err >&2; exit 7"
    )
    assert done.returncode == 7
    assert done.stdout == "out\n"
    assert "\nerr\n" in done.stderr


@pytest.mark.parametrize("port", ["0", "65536", "x", ""])
def test_ports_that_are_none(port: str) -> None:
    done = ddpdoctor("run", "--debug-server", port, "--", "true")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
