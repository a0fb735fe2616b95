"""Commands that hang, crash, flood, or leave children behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from ddpdoctor.probes.subprocesses import MAX_OUTPUT_BYTES, StartedProgram, run, start


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_how_it_ended() -> None:
    ended = run(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), 20)
    assert (ended.stdout, ended.stderr, ended.returncode, ended.ok) == (b"out\n", b"err\n", 3, False)


def test_a_signal_is_named() -> None:
    assert run(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), 20).signal_name == "SIGSEGV"


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    assert run([str(tmp_path / "none")], 5).failed_to_start == "No such file or directory"
    assert run([str(tmp_path)], 5).failed_to_start == "Permission denied"


def test_a_hang_is_ended_with_its_children_and_its_output_kept(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys, time; print('before', flush=True);"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); open({str(note)!r}, 'w').write(str(child.pid));"
        "time.sleep(60)"
    )
    started = start(python(code))
    wait_for(note)
    ended = started.wait(0.1)
    assert ended.timed_out
    assert ended.stdout == b"before\n"
    assert gone(int(note.read_text()))


def test_a_child_that_keeps_the_pipe_open_does_not_hold_us() -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print('done')"
    )
    ended = run(python(code), 30)
    assert ended.ok
    assert not ended.timed_out


def test_a_flood_is_bounded() -> None:
    ended = run(python(f"import sys; sys.stdout.write('x' * {3 * MAX_OUTPUT_BYTES})"), 60)
    assert ended.ok
    assert len(ended.stdout) <= MAX_OUTPUT_BYTES


def test_nothing_is_lost_where_our_own_threads_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy host, where the program has ended before they run at all."""
    read = StartedProgram._read

    def read_late(started: StartedProgram, name: str) -> None:
        time.sleep(2.0)
        read(started, name)

    monkeypatch.setattr(StartedProgram, "_read", read_late)
    assert run(["echo", "x" * 1000], 20).stdout == b"x" * 1000 + b"\n"


def test_input_that_nobody_reads() -> None:
    assert run(python("pass"), 20, stdin=b"x" * 10_000_000).ok
    assert run(python("import sys; print(len(sys.stdin.read()))"), 20, stdin=b"x" * 100_000).stdout == b"100000\n"


ENDS = """
import os, sys, threading, time
from pathlib import Path
from ddpdoctor.probes import subprocesses
SLEEP = [sys.executable, "-c", "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(60)", {note!r}]
started = subprocesses.start(SLEEP)
while not (Path({note!r}).exists() and Path({note!r}).read_text()): time.sleep(0.02)
popen = subprocesses.subprocess.Popen
def slow(*arguments, **options):
    one = popen(*arguments, **options)
    Path({note!r}).with_name("begun").touch()
    time.sleep(0.5)  # The other side of its exec: it runs, and nobody has noted it yet.
    return one
subprocesses.subprocess.Popen = slow
threading.Thread(target=subprocesses.start, args=(SLEEP,), daemon=True).start()
while not Path({note!r}).with_name("begun").exists(): time.sleep(0.01)
subprocesses.end_all()
print(subprocesses.start(SLEEP).wait(5).failed_to_start, flush=True)
os._exit(0)
"""


def test_nothing_of_ours_outlives_us(tmp_path: Path) -> None:
    """Neither what runs, nor what another thread is just starting; and nothing more is started."""
    note = tmp_path / "pids"
    ended = run(python(ENDS.format(note=str(note))), 60)
    assert (ended.stdout, ended.stderr) == (b"ddpdoctor is ending\n", b"")
    assert all(gone(int(pid)) for pid in note.read_text().split())


def wait_for(note: Path) -> None:
    while not (note.exists() and note.read_text()):
        time.sleep(0.02)


def gone(pid: int) -> bool:
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_no_group_is_killed_whose_number_another_could_have_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, and what it left behind, in a session of its own, holds the pipes."""
    collected = []

    def killpg(pid: int, number: int) -> None:
        collected.append(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None)

    monkeypatch.setattr(os, "killpg", killpg)
    assert run(["/bin/sh", "-c", "setsid sleep 3 & exit 3"], 10).returncode == 3
    assert collected == [False]


def test_whoever_ends_is_waited_for_without_looking_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes the GIL from those who work."""
    looks, waitid = list[int](), os.waitid

    def look(kind: int, pid: int, options: int) -> object:
        looks.append(pid)
        return waitid(kind, pid, options)

    monkeypatch.setattr(os, "waitid", look)
    assert run(["sleep", "0.3"], 20).ok
    assert len(looks) <= 2
    assert run(["sleep", "20"], 0.3).timed_out


def test_where_the_kernel_tells_nobody_who_ends_it_is_noticed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert run(["sleep", "0.3"], 20).ok
    assert run(["sleep", "20"], 0.3).timed_out
    monkeypatch.delattr(os, "pidfd_open")
    assert run(["sleep", "0.3"], 20).ok
