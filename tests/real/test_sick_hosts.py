"""The real command line where something is broken: each time a clear line, all other checks, and no traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.cli.app import app
from ddpdoctor.engine.snapshots import encode_snapshot
from ddpdoctor.probes.target_python import asking
from tests.real.test_cli import on_pty
from tests.support.command import ROOT, command, plain_environ
from tests.support.fixture_hosts import healthy_facts, to_snapshot
from tests.support.nvml import FakeNvidia
from tests.support.pythons import bare_venv, fake_torch, old_python, real_pythons, stand_in
from tests.support.sick_hosts import Told, check, in_shell, run, with_mounts

OURS = ("--quick", "--python", sys.executable)
"""Ourselves as the target Python, and no import of torch: what most of these are not about."""


# The target Python's interpreter.


def nothing(folder: Path) -> str:
    return str(folder / "python")


def a_folder(folder: Path) -> str:
    return str(folder)


def without_the_right_to_run(folder: Path) -> str:
    path = Path(stand_in(folder, "true"))
    path.chmod(0o444)
    return str(path)


def a_text(folder: Path) -> str:
    path = folder / "notes.txt"
    path.write_text("training runs in the other environment\n")
    path.chmod(0o755)
    return str(path)


def a_real_one(version: str) -> Callable[[Path], str]:
    return lambda folder: real_pythons().get(version) or old_python(folder, f"{version}.18")


def does(script: str) -> Callable[[Path], str]:
    return lambda folder: stand_in(folder, script)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (nothing, "there is no such file"),
        (a_folder, "it is a folder"),
        (without_the_right_to_run, "it is a file that this user may not execute"),
        (a_text, "it can't be started: Exec format error"),
        (a_real_one("2.7"), "it is Python 2.7."),
        (a_real_one("3.7"), "it is Python 3.7."),
        (does(r"printf 'hello \377\033[31mworld\0\n'"), 'it printed "hello'),
        (does("exit 3"), "it printed nothing and ended with exit code 3"),
        (does("kill -SEGV $$"), "it was ended by SIGSEGV"),
    ],
)
def test_interpreter_that_cannot_be_asked(tmp_path: Path, make: Callable[[Path], str], why: str) -> None:
    told = check("--python", make(tmp_path))
    assert told.code == 1
    assert told.failed >= {"python-unusable"}
    assert why in told.found["python-unusable"]
    assert told.not_tested["torch-missing"].startswith("the target Python can't be asked")
    assert {"shm-too-small", "nofile-limit", "setting-misspelt"} <= set(told.passed) | set(told.found), "the host's own"


def test_hangs_wherever_something_can(tmp_path: Path, fake_nvidia: FakeNvidia) -> None:
    """Interpreter, NVML and libcuda hang; their deadlines pass side by side."""
    began = time.monotonic()
    environ = fake_nvidia.environ(init_does="hang", cuda_does="hang", base=plain_environ())
    told = check("--python", stand_in(tmp_path, "exec sleep 600"), environ=environ)
    assert time.monotonic() - began < 25
    assert "no answer within 10 s" in told.found["python-unusable"]
    assert told.not_tested["gpu-ecc-error"] == "NVML did not answer within 10 s"


def test_environment_without_pip(tmp_path: Path) -> None:
    told = check("--quick", "--python", bare_venv(tmp_path / "venv"))
    assert told.failed >= {"torch-missing"}
    assert "pip-missing" in told.found


# torch.


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os\nos._exit(0)", "the process ended itself with exit code 0"),
        ("print('x' * 10_000_000)\nraise RuntimeError('\\x1b[31mred\\udcff')", "RuntimeError: ?[31mred?"),
    ],
)
def test_torch_that_does_not_import(tmp_path: Path, code: str, says: str) -> None:
    environ = plain_environ() | {"PYTHONPATH": f"{fake_torch(tmp_path, code)}:{ROOT}"}
    told = check("--python", sys.executable, environ=environ)
    assert told.code == 1
    assert told.found["torch-import-broken"].startswith("fail: ")
    assert says in json.dumps(told.report["findings"], ensure_ascii=False)
    assert "torch-missing" in told.passed


def test_torch_that_prints_a_flood_and_comes_up(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(400): os.write(1, b'\\xff' * 100_000)"
    environ = plain_environ() | {"PYTHONPATH": f"{fake_torch(tmp_path, code)}:{ROOT}"}
    told = check("--python", sys.executable, environ=environ)
    assert {"torch-missing", "torch-import-broken"} <= set(told.passed)


def test_torch_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its deadline of a minute is too long for a test, so the command runs in this process, with a shorter one."""
    monkeypatch.setitem(asking.SECONDS, "torch", 3.0)
    monkeypatch.setenv("PYTHONPATH", str(fake_torch(tmp_path, "import time\ntime.sleep(600)")))
    code = app(["check", "--python", sys.executable, "--json", "-v"], standalone_mode=False)
    told = Told(*capsys.readouterr(), code)
    assert told.code == 1
    assert "no answer within 3 s" in told.found["torch-import-broken"]


# The NVIDIA driver.


@pytest.mark.parametrize(
    ("library", "slug", "summary"),
    [
        ({}, "torch-cpu-only", "is a build without CUDA, but this host has an NVIDIA GPU"),
        ({"of_gpu": {3: {"lost": 1}}}, "gpu-fell-off-bus", "GPU 3 no longer answers"),
        ({"init": 18}, "nvml-driver-mismatch", "different versions"),
    ],
)
def test_nvml_that_answers(fake_nvidia: FakeNvidia, library: dict[str, Any], slug: str, summary: str) -> None:
    told = check(*OURS, environ=fake_nvidia.environ(gpus=8, base=plain_environ(), **library))
    assert told.code == 1
    assert slug in told.failed
    assert summary in told.found[slug]


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ({"init_does": "crash"}, "NVML crashed with SIGSEGV"),
        (
            {"missing": ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")},
            "the memory in use on the visible GPUs",
        ),
        ({"all_gpus": {"handle": "!4"}}, "this user may open none of the GPUs that NVML counts"),
    ],
)
def test_nvml_that_does_not(fake_nvidia: FakeNvidia, library: dict[str, Any], reason: str) -> None:
    told = check(*OURS, environ=fake_nvidia.environ(gpus=8, base=plain_environ(), **library))
    assert reason in told.reasons
    assert "nofile-limit" in {*told.passed, *told.found}


ONE_GPU_ON_THE_BUS = """
mount -t tmpfs none /sys
mkdir -p /sys/bus/pci/devices/0000:01:00.0
cd /sys/bus/pci/devices/0000:01:00.0
echo 0x10de >vendor; echo 0x2330 >device; echo 0x030200 >class; echo 0xa1 >revision
cd /
"""


@pytest.mark.root
def test_nvidia_gpu_on_the_bus_without_a_driver_and_a_torch_without_cuda() -> None:
    told = check("--python", sys.executable, around=with_mounts(ONE_GPU_ON_THE_BUS))
    assert told.code == 1
    assert told.failed >= {"torch-cpu-only", "no-nvidia-driver"}
    assert "is a build without CUDA, but this host has an NVIDIA GPU" in told.found["torch-cpu-only"]
    assert "1 NVIDIA GPU on the PCI bus" in told.found["no-nvidia-driver"]
    assert "there is no NVML (libnvidia-ml.so.1)" in told.not_tested["gpu-ecc-error"]


# What the system shows.

EMPTY_DEV = """
kept=$PWD/kept
mkdir "$kept"
mount -t tmpfs none "$kept"
for name in null zero random urandom; do : >"$kept/$name"; mount --bind /dev/$name "$kept/$name"; done
mount --rbind "$kept" /dev
"""
EMPTY_FILES = """
for file in meminfo cpuinfo modules self/cgroup self/mountinfo self/status self/limits net/tcp net/tcp6 net/dev net/route
do if test -f /proc/$file; then mount --bind /dev/null /proc/$file; fi; done
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("mounts", "slug", "says"),
    [
        ("mount -t tmpfs none /proc", "memory-low", "/proc/meminfo: No such file or directory"),
        ("mount -t tmpfs none /sys", "no-nvidia-driver", "/sys is not mounted here"),
        ("mount -t tmpfs none /etc", "cuda-lib-not-found", "/etc/ld.so.cache: No such file or directory"),
        (EMPTY_DEV, "shm-too-small", "/dev/shm"),
        (EMPTY_FILES, "memory-low", "/proc/meminfo has no MemAvailable"),
        ("for one in proc sys etc dev; do mount -t tmpfs none /$one; done", "python-unusable", "(/dev/null)"),
    ],
    ids=["proc", "sys", "etc", "dev", "empty-files", "all-four"],
)
def test_system_that_shows_little(mounts: str, slug: str, says: str, tmp_path: Path) -> None:
    told = check(*OURS, around=with_mounts(mounts), cwd=tmp_path)
    assert says in told.found.get(slug, "") + told.not_tested.get(slug, "")
    assert "setting-misspelt" in told.passed


NOBODY = ["unshare", "--user"]
"""User 65534, no capabilities, though the files of the one who runs the tests can still be read."""
SOMEBODY = [
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
]  # fmt: skip
"""A foreign user who may read all files, since the interpreter may lie in root's home, and write none."""


@pytest.mark.root
@pytest.mark.parametrize("who", [NOBODY, SOMEBODY], ids=["nobody", "somebody"])
def test_user_without_rights(who: list[str], tmp_path: Path) -> None:
    told = check(*OURS, around=who, cwd=tmp_path)
    facts = next(iter(told.report["facts"].values()))
    assert facts["environment"]["type"] == "environment"
    # Where firewalld is installed, that it couldn't be asked stands before it.
    assert told.not_tested["local-firewall"].endswith("reading the packet filter needs root")
    assert {"shm-too-small", "nofile-limit"} <= {*told.passed, *told.found}
    if who is NOBODY:
        assert "torch-missing" in told.passed


READ_ONLY = """
for one in / /tmp /var /run /dev/shm "$HOME" "$PWD"
do test ! -d "$one" || { mount --bind "$one" "$one" && mount -o remount,bind,ro "$one"; }; done
cd "$PWD"
if touch written /tmp/written "$HOME/written" 2>/dev/null; then exit 99; fi
"""


@pytest.mark.root
def test_file_system_that_is_read_only(tmp_path: Path) -> None:
    told = check("--python", sys.executable, around=with_mounts(READ_ONLY), cwd=tmp_path)
    assert told.code == 1
    assert f"This user can't write to {tmp_path} (working folder)" in str(told.report["findings"])
    assert "may not write to /dev/shm" in told.found["shm-too-small"]
    assert {"torch-missing", "torch-import-broken"} <= set(told.passed)


@pytest.mark.root
def test_folders_that_may_not_be_entered(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    settings = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TMPDIR", "NCCL_CONF_FILE", "XDG_CACHE_HOME")
    environ = plain_environ() | dict.fromkeys((*settings, "TORCH_EXTENSIONS_DIR", "CONDA_PREFIX"), f"{closed}/inside")
    environ |= {"PATH": f"{closed}/bin:{environ['PATH']}", "PYTHONPATH": f"{closed}/site-packages:{ROOT}"}
    environ |= {"INIT_METHOD": f"file://{closed}/rendezvous"}
    told = check(*OURS, environ=environ, around=NOBODY)
    assert "Permission denied" in told.found["nccl-conf-unreadable"]
    assert "torch-missing" in told.passed


@pytest.mark.root
@pytest.mark.parametrize("quick", [OURS, OURS[1:]], ids=["quick", "with-torch"])
def test_user_who_may_start_no_more_processes(quick: tuple[str, ...], tmp_path: Path) -> None:
    ended = run("check", *quick, around=[*SOMEBODY, "prlimit", "--nproc=1"], cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("ddpdoctor could not go on: it may start no more threads. The limit of processes")
    assert ended.stderr.count("\n") == 1


# What the shell hands on.


@pytest.mark.parametrize(
    "left_out",
    [("HOME",), ("PATH",), ("HOME", "PATH", "PYTHONPATH", "USER", "LANG")],
    ids=lambda names: "-".join(names),
)
def test_environment_that_lacks_the_usual(left_out: tuple[str, ...]) -> None:
    environ = {name: value for name, value in plain_environ().items() if name not in left_out}
    told = check(*OURS, environ=environ, cwd=ROOT)
    assert "torch-missing" in told.passed


def test_empty_environment() -> None:
    told = check("--quick", environ={}, cwd=ROOT)
    assert "torch-missing" in told.passed


def test_working_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    told = check(*OURS, around=in_shell(f"cd '{folder}'; rmdir '{folder}'"))
    assert "torch-missing" in told.passed
    assert told.found["working-folder-gone"] == f"fail: The working folder was deleted: {folder}"
    ended = run(
        "snapshot", "-o", "x.json", *OURS, around=in_shell(f"mkdir '{folder}'; cd '{folder}'; rmdir '{folder}'")
    )
    assert ended.returncode == 2
    assert ended.stderr == "x.json: the snapshot was not written: No such file or directory\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", [("check", *OURS), ("snapshot", *OURS), ("list",), ("check", "--nonsense")])
def test_streams_that_are_closed(closed: str, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, around=in_shell(f'exec "$@" {closed}'))
    wrong = "--nonsense" in arguments
    assert ended.returncode in ((2,) if wrong else (0, 1))
    assert (ended.stdout == "") == (wrong or ">&-" in closed.replace("2>&-", ""))
    assert (ended.stderr == "") == (not wrong or "2>&-" in closed)
    assert "Traceback" not in ended.stderr


def test_settings_that_are_not_utf8() -> None:
    names = [b"NCCL_DEBUG", b"MASTER_ADDR", b"MASTER_PORT", b"RANK", b"WORLD_SIZE", b"CUDA_VISIBLE_DEVICES", b"TMPDIR"]
    names += [b"NCCL_SOCKET_IFNAME", b"LD_LIBRARY_PATH", b"NCCL_CONF_FILE", b"CUDA_HOME", b"HOME", b"VIRTUAL_ENV"]
    names += [b"INIT_METHOD", b"XDG_CACHE_HOME", b"TORCH_EXTENSIONS_DIR", b"CC", b"OMP_NUM_THREADS"]
    environ = {os.fsencode(name): os.fsencode(value) for name, value in plain_environ().items()}
    environ |= dict.fromkeys(names, b"/tmp/caf\xe9\xff") | {b"NCCL_\xe9": b"1", b"INIT_METHOD": b"file:///tmp/\xff"}
    told = check(*OURS, environ=environ)
    assert "NCCL_\ufffd holds bytes that aren't UTF-8" in json.dumps(told.report["findings"], ensure_ascii=False)
    assert "setting-undecodable" in told.found
    ended = run("snapshot", *OURS, environ=environ)
    assert ended.returncode == 0, ended.stderr
    assert (
        "/tmp/caf\ufffd\ufffd" in json.loads(ended.stdout)["environment"]["settings"][-1]["value"]
        or "caf" in ended.stdout
    )


LONGEST = 100_000
"""The kernel takes no longer variable than 128 KiB."""


def test_settings_that_are_long_and_many() -> None:
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS", "SLURM_NTASKS")
    texts = ("NCCL_DEBUG", "MASTER_ADDR", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME")
    environ = plain_environ()
    environ |= dict.fromkeys(numbers, "9" * 5000) | {"SLURM_CPUS_ON_NODE": "9" * 5000, "MAX_JOBS": "9" * 5000}
    environ |= {"PET_RDZV_ENDPOINT": "node:" + "9" * 5000, "SLURM_TASKS_PER_NODE": "9" * 5000 + "(x" + "9" * 5000 + ")"}
    environ |= dict.fromkeys(texts, "0" * LONGEST) | {"NCCL_CONF_FILE": "/" + "x" * 10_000}
    environ |= {f"SOMETHING_{index}": "x" * 100 for index in range(3000)}
    told = check(*OURS, environ=environ)
    assert "launcher-env-inconsistent" in told.failed
    assert max(map(len, told.found.values())) < 500
    assert run("snapshot", *OURS, environ=environ).returncode == 0


def test_counts_of_a_job_that_nobody_runs() -> None:
    counts = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NNODES"), "999999999")
    check(*OURS, environ=plain_environ() | counts | {"RANK": "0", "LOCAL_RANK": "0"})


# Snapshots of strangers.

ESCAPES = "\x1b]0;evil\x07\x1b[2J\u202e\u2066\x9b31m"


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Every text or number changed, but for the tags that say what a struct is."""
    if isinstance(value, dict):
        return {
            key: one if key in ("type", "ddpdoctor_snapshot") else changed(one, change) for key, one in value.items()
        }
    return [changed(one, change) for one in value] if isinstance(value, list) else change(value)


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    return json.loads(encode_snapshot(to_snapshot(healthy_facts("h100x8-slurm"))))


def cut_off(snapshot: dict[str, Any]) -> bytes:
    return json.dumps(snapshot).encode()[:5000]


def nested(snapshot: dict[str, Any]) -> bytes:
    return json.dumps(snapshot).encode()[:-1] + b', "more": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (cut_off, "ends too early"),
        (nested, "not valid JSON"),
        (lambda snapshot: b"", "there is nothing in it"),
        (lambda snapshot: b'{"findings": []}', "not a snapshot of ddpdoctor"),
        (lambda snapshot: b"\xff\xfe\0\0", "not valid JSON"),
        (lambda snapshot: json.dumps(snapshot | {"ddpdoctor_snapshot": 99}).encode(), "taken by a newer ddpdoctor"),
        (lambda snapshot: json.dumps(snapshot | {"machine": {"type": "gpus"}}).encode(), "not a whole snapshot"),
    ],
    ids=["cut-off", "nested", "empty", "not-ours", "binary", "newer", "wrong-struct"],
)
def test_snapshot_that_cannot_be_judged(
    snapshot: dict[str, Any], tmp_path: Path, content: Callable[[dict[str, Any]], bytes], says: str
) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(content(snapshot))
    assert_not_judged(path, says)


def test_snapshot_of_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    began = time.monotonic()
    assert_not_judged(path, "larger than 64 MiB")
    assert time.monotonic() - began < 20


def assert_not_judged(path: Path, says: str) -> None:
    ended = run("check", "--snapshot", path)
    assert ended.returncode == 2
    assert says in " ".join(ended.stdout.split())
    assert "No verdict: nothing could be judged." in ended.stdout
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda value: ESCAPES + value if isinstance(value, str) else value,
        lambda value: "" if isinstance(value, str) else value,
        lambda value: value * 300 if isinstance(value, str) else value,
        lambda value: 2**62 if type(value) in (int, float) else value,
        lambda value: -(2**62) if type(value) in (int, float) else value,
        lambda value: 0 if type(value) in (int, float) else value,
        lambda value: 1.7e308 if type(value) is float else value,
    ],
    ids=["escapes", "empty-texts", "long-texts", "huge", "negative", "zero", "largest-float"],
)
def test_snapshot_that_lies(
    snapshot: dict[str, Any], tmp_path: Path, change: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(changed(snapshot, change)))
    check("--snapshot", path)
    for how in ([], ["-v"], ["-q"], ["--markdown"]):
        app(["check", "--snapshot", str(path), *how], standalone_mode=False)
        shown = capsys.readouterr()
        assert shown.err == ""
        assert all(one.isprintable() or one == "\n" for one in shown.out)


@pytest.mark.parametrize(
    ("target", "says"), [(".", "Is a directory"), ("/dev/full", "No space left on device"), ("/proc/x", "No such file")]
)
def test_snapshot_that_cannot_be_written(target: str, says: str, tmp_path: Path) -> None:
    ended = run("snapshot", *OURS, "-o", target, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"{target}: the snapshot was not written: {says}")


@pytest.mark.root
@pytest.mark.parametrize(
    ("mounts", "says"),
    [
        ("mount -t tmpfs -o size=8k none '{}'", "No space left on device"),
        ("mount --bind '{0}' '{0}'; mount -o remount,bind,ro '{0}'", "Read-only file system"),
    ],
)
def test_snapshot_into_a_folder_that_takes_none(tmp_path: Path, mounts: str, says: str) -> None:
    script = (
        mounts.format(tmp_path)
        + f"""
"$@" -o '{tmp_path}/host.json' || code=$?
ls -A '{tmp_path}'
exit $code
"""
    )
    ended = run("snapshot", *OURS, around=with_mounts(script))
    assert ended.returncode == 2
    assert ended.stderr == f"{tmp_path}/host.json: the snapshot was not written: {says}\n"
    assert ended.stdout == "", "no half file stays"


# Being told to stop.


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGINT, 0), (signal.SIGINT, 0.1), (signal.SIGINT, 0.3), (signal.SIGINT, 1), (signal.SIGTERM, 0.3), (signal.SIGTERM, 1)],
)  # fmt: skip
def test_signal_ends_it_with_a_line_and_leaves_nothing_behind(
    number: signal.Signals, seconds: float, tmp_path: Path, fake_nvidia: FakeNvidia
) -> None:
    environ = fake_nvidia.environ(init_does="hang", base=plain_environ())
    environ |= {"PYTHONPATH": f"{fake_torch(tmp_path, 'import time; time.sleep(60)')}:{ROOT}", "MARK": str(tmp_path)}
    started = subprocess.Popen(
        command("check", "--python", sys.executable),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until_it_catches(signal.SIGTERM, started.pid)
    time.sleep(seconds)
    began = time.monotonic()
    started.send_signal(number)
    stdout, stderr = started.communicate(timeout=10)
    assert time.monotonic() - began < 3
    assert (started.returncode, stdout, stderr) == (128 + number, "", "Stopped. Nothing was changed.\n")
    assert not marked(str(tmp_path))


def wait_until_it_catches(number: int, pid: int) -> None:
    """Before that, the signal meets Python's own start, in which no program has a say."""
    for _ in range(1000):
        caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        if int(caught, 16) >> (number - 1) & 1:
            return
        time.sleep(0.005)
    raise AssertionError("it never got to handle signals")


def marked(mark: str) -> list[str]:
    """Processes that carry the mark in their environment; what was killed may take a moment to go."""
    found: list[str] = []
    for _ in range(20):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text())
            except OSError:
                continue
        if not found:
            break
        time.sleep(0.05)
    return found


# Terminals.


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=str)
def test_terminals_without_colours_or_room(columns: int, environ: dict[str, str], tmp_path: Path) -> None:
    shown = on_pty("check", *OURS[:1], "--python", tmp_path / "python", columns=columns, environ=environ)
    # A line of progress ends in "\r" and is wiped by what follows.
    lines = re.split(r"\r?\n|\r", re.sub(r"\x1b\[[0-9;]*[mK]", "", shown))
    assert "python-unusable" in shown
    assert "Traceback" not in shown
    assert "\x1b[3" not in shown
    too_long = [
        line for line in lines if len(line) > columns and str(tmp_path) not in line and not line.startswith(" " * 14)
    ]
    assert not too_long
