"""With whose rights root reads the stacks of another user's processes, who does not always want that."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ddpdoctor.facts.processes import Process, RankPlace
from ddpdoctor.hang.permission import Missed, hidden_stacks, powers
from ddpdoctor.hang.stack_sampling import sample
from ddpdoctor.probes import py_spy as spying
from ddpdoctor.probes import run_as
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import MAX_OUTPUT_BYTES, PySpyTrouble, Spied, memory_reader, py_spy, run, spy
from tests.support.other_users import User, python_for_all

pytestmark = pytest.mark.root

ASLEEP = "import time\ndef wait_here():\n    print(flush=True)\n    time.sleep(600)\nwait_here()\n"
CLOSED = f"import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n{ASLEEP}"  # PR_SET_DUMPABLE

Start = Callable[..., int]


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts a Python of that user's, and gives its pid once it sleeps."""
    running: list[subprocess.Popen[bytes]] = []

    def start(user: User, code: str = ASLEEP, before: Sequence[str] = ()) -> int:
        python, _ = python_for_all()
        identity = {} if before else {"user": user.uid, "group": user.gid, "extra_groups": []}
        process = subprocess.Popen([*before, python, "-c", code], stdout=subprocess.PIPE, cwd="/", **identity)  # type: ignore[call-overload]
        running.append(process)
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.2)
        return int(process.pid)

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.fixture
def record(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the py-spy of these tests, which everybody may run, writes down who runs it."""
    real = py_spy()
    assert real is not None
    shutil.copy(real, shared / "real-py-spy")
    (shared / "record").touch()
    (shared / "record").chmod(0o666)
    (shared / "py-spy").write_text(f'#!/bin/sh\nid -u >> {shared}/record\nexec {shared}/real-py-spy "$@"\n')
    for name in ("py-spy", "real-py-spy"):
        (shared / name).chmod(0o755)
    monkeypatch.setattr(spying, "py_spy", lambda: str(shared / "py-spy"))
    monkeypatch.setattr("ddpdoctor.hang.stack_sampling.py_spy", lambda: str(shared / "py-spy"))
    return shared / "record"


def looked_at(pid: int) -> Spied:
    return asyncio.run(spy([pid], seconds=10))[pid]


def unrestricted() -> bool:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return not scope.exists() or scope.read_text().strip() == "0"


def test_another_users_process_is_read_as_that_user(record: Path, started: Start, eve: User) -> None:
    if not unrestricted():
        pytest.skip("needs kernel.yama.ptrace_scope=0")
    pid = started(eve)
    assert looked_at(pid).frames[0].function == "wait_here"
    assert asyncio.run(sample([pid], 1))[pid].samples > 10
    assert set(record.read_text().split()) == {str(eve.uid)}


def test_roots_own_is_read_as_root(record: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.2)
        found = looked_at(process.pid)
        process.kill()
    assert found.frames[0].function == "wait_here"
    assert record.read_text() == "0\n"


def test_who_closes_her_process_to_herself_gets_no_root_to_look(
    record: Path, started: Start, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unrestricted():
        pytest.skip("needs kernel.yama.ptrace_scope=0")
    pid = started(eve, CLOSED)
    found = looked_at(pid)
    assert (found.trouble, found.frames) == (PySpyTrouble.CLOSED, ())
    assert set(record.read_text().split()) == {str(eve.uid)}
    process = Process(pid=pid, start=1, parent=1, uid=eve.uid, place=RankPlace(rank=1, world_size=2, source="RANK"))
    [sentence] = hidden_stacks([Missed(rank=1, process=process, trouble=found.trouble)], powers(Proc()), "4711")
    assert "root looks no deeper" in sentence
    assert sentence.endswith(f"{sys.executable} -I -m ddpdoctor --as-root jobs --hang 4711")
    monkeypatch.setattr(run_as._Trust, "everybody", True)
    assert looked_at(pid).frames[0].function == "wait_here"


@pytest.mark.tool("unshare", "setpriv")
def test_root_reads_itself_where_its_user_could_not(tmp_path: Path, started: Start, eve: User) -> None:
    contained = started(eve, before=("unshare", "--mount", "setpriv", f"--reuid={eve.uid}", "--clear-groups"))
    assert memory_reader(contained, Proc()) is None
    pid = started(eve)
    made_up = tmp_path / "proc"
    (made_up / "sys/kernel/yama").mkdir(parents=True)
    for name in (str(pid), "self"):
        (made_up / name).symlink_to(f"/proc/{name}")
    for scope, reader in (("0\n", eve.uid), ("1\n", None), ("2\n", None)):
        (made_up / "sys/kernel/yama/ptrace_scope").write_text(scope)
        found = memory_reader(pid, Proc(str(made_up)))
        assert (found and found.uid) == reader
    (made_up / "sys/kernel/yama/ptrace_scope").unlink()
    found = memory_reader(pid, Proc(str(made_up)))
    assert found is not None
    assert (found.uid, found.gid) == (eve.uid, eve.gid)


def test_a_py_spy_where_she_can_not_go_is_root_s_to_run(
    tmp_path: Path, record: Path, started: Start, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmp_path is closed to others."""
    shutil.copy(record.parent / "py-spy", tmp_path / "py-spy")
    monkeypatch.setattr(spying, "py_spy", lambda: str(tmp_path / "py-spy"))
    assert looked_at(started(eve)).frames[0].function == "wait_here"
    assert record.read_text() == "0\n"


def test_what_she_makes_py_spy_say_is_cut(shared: Path, eve: User) -> None:
    """Run as her, it is hers to steer."""
    (shared / "py-spy").write_text("#!/bin/sh\nhead -c 80000000 /dev/zero; exit 3\n")
    (shared / "py-spy").chmod(0o755)
    code, output, complaint = asyncio.run(run((str(shared / "py-spy"),), 30, (), run_as.identity_of(eve.uid)))
    assert (code, len(output), complaint) == (3, MAX_OUTPUT_BYTES, b"")


def test_her_py_spy_is_not_for_root(shared: Path, eve: User, monkeypatch: pytest.MonkeyPatch) -> None:
    eve.does(f"mkdir {shared}/hers; printf '#!/bin/sh\\n' > {shared}/hers/py-spy; chmod +x {shared}/hers/py-spy")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setenv("PATH", f"{shared}/hers:/usr/bin:/bin")
    assert py_spy() is None
    assert asyncio.run(spy([os.getpid()]))[os.getpid()].trouble is PySpyTrouble.NO_PROGRAM
