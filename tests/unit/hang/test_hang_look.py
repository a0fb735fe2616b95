"""What py-spy prints and the kernel tells, as it is understood; and the words for what this user may not see."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.facts.hang import Frame, RankLook, Watched
from ddpdoctor.facts.processes import Process, ProcessIdentity
from ddpdoctor.hang import stack_sampling
from ddpdoctor.hang.fixes import full_stacks
from ddpdoctor.hang.permission import Missed, Powers, hidden_stacks, powers
from ddpdoctor.hang.rank_states import states_of
from ddpdoctor.hang.watching import glance
from ddpdoctor.probes import py_spy as spying
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import PySpyTrouble, refused, spy
from tests.support.hangs import collective, hang, own, rank

# --- py-spy's dump ----------------------------------------------------------------------------------------------------------


def frame(name: str, filename: str, line: int | None) -> dict[str, object]:
    return {
        "name": name, "filename": filename, "module": None, "short_filename": "x.py", "line": line, "locals": None,
        "is_entry": False, "is_shim_entry": False,
    }  # fmt: skip


def thread(name: str | None, number: int | None, *frames: dict[str, object]) -> dict[str, object]:
    return {
        "pid": 7, "thread_id": 140682411398848, "thread_name": name, "os_thread_id": number, "active": False,
        "owns_gil": False, "frames": list(frames), "process_info": None,
    }  # fmt: skip


def printed(*threads: dict[str, object]) -> bytes:
    return json.dumps(threads).encode()


FEEDER = thread("QueueFeederThread", 9, frame("Condition.wait", "/opt/lib/python3.11/threading.py", 327))


def test_the_thread_with_the_process_s_number_is_the_main_one() -> None:
    own = thread("renamed", 7, frame("load", "/home/ada/train.py", 31))
    spied = spying.understood(7, printed(FEEDER, own))
    assert spied.frames == (Frame("load", "/home/ada/train.py", 31),)
    assert [name for name, _ in spied.others] == ["QueueFeederThread"]


def test_from_outside_of_its_container_the_main_thread_is_known_by_name() -> None:
    own = thread("MainThread", None, frame("load", "/home/ada/train.py", 31))
    assert spying.understood(4711, printed(FEEDER, own)).frames == (Frame("load", "/home/ada/train.py", 31),)


def test_a_forked_process_has_no_part_in_its_parent_s_frames() -> None:
    own = thread(
        "MainThread",
        7,
        frame("Images.__getitem__", "/home/ada/data.py", 7),
        frame("_worker_loop", "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 374),
        frame("Popen._launch", "/opt/lib/python3.11/multiprocessing/popen_fork.py", 71),
        frame("<module>", "/home/ada/train.py", 12),
    )
    names = [frame.function for frame in spying.understood(7, printed(own)).frames]
    assert names == ["Images.__getitem__", "_worker_loop"]


@pytest.mark.parametrize(
    "output",
    [b"", b"[]", b"{", printed(thread("MainThread", 7)), printed(FEEDER, thread(None, None)), b'[{"frames": 1}]'],
)
def test_what_makes_no_sense_was_torn(output: bytes) -> None:
    assert spying.understood(7, output).trouble is PySpyTrouble.TORN


def test_a_name_can_t_steer_the_terminal() -> None:
    own = thread("MainThread", 7, frame("\x1b[2Jload" + "x" * 999, "/home/\x07ada.py", -3))
    [seen] = spying.understood(7, printed(own)).frames
    assert "\x1b" not in seen.function
    assert "\x07" not in seen.path
    assert len(seen.function) == 200
    assert seen.line == 0


def test_why_py_spy_refuses() -> None:
    me = os.getpid()
    assert (
        refused(me, b"Permission Denied: Try running again with elevated permissions\n").trouble is PySpyTrouble.DENIED
    )
    assert refused(me, b"Error: Failed to find python version from target process\n").trouble is PySpyTrouble.NO_PYTHON
    assert refused(me, b"Error: Failed to copy PyThreadState\n").trouble is PySpyTrouble.TORN
    assert refused(2**22 + 1, b"Error: Failed to get process executable name\n").trouble is PySpyTrouble.GONE


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[int]:
    """A Python in wait_here(), which has said that it is there."""
    script = tmp_path / "asleep.py"
    script.write_text("import time\ndef wait_here():\n    print(flush=True)\n    time.sleep(600)\nwait_here()\n")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_real_process_and_one_that_is_gone(asleep: int) -> None:
    found = asyncio.run(spy([asleep, 2**22 + 1]))
    assert [frame.function for frame in found[asleep].frames] == ["wait_here", "<module>"]
    assert found[2**22 + 1].trouble is PySpyTrouble.GONE


def test_a_torn_stack_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(
        [
            (1, b"", b"Error: Failed to copy"),
            (0, printed(thread("MainThread", os.getpid(), frame("f", "f.py", 1))), b""),
        ]
    )

    async def run(command: tuple[str, ...], seconds: float, pass_fds: tuple[int, ...]) -> tuple[int, bytes, bytes]:
        assert "--nonblocking" in command
        return next(answers)

    monkeypatch.setattr(spying, "run", run)
    assert asyncio.run(spy([os.getpid()]))[os.getpid()].frames == (Frame("f", "f.py", 1),)


def test_one_that_gives_no_answer_in_time_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(spying, "py_spy", lambda: os.fspath(slow))
    assert asyncio.run(spy([os.getpid()], seconds=1.0))[os.getpid()].trouble is PySpyTrouble.SLOW
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spying, "py_spy", lambda: None)
    assert asyncio.run(spy([1]))[1].trouble is PySpyTrouble.NO_PROGRAM


# --- its samples ------------------------------------------------------------------------------------------------------------

ROOT = "<module> (/home/ada/train.py:90);main (/home/ada/train.py:{})"


def sampled(*stacks: tuple[str, int], thread: str = "thread (7): MainThread") -> Watched:
    text = "".join(f"{thread};{stack} {count}\n" for stack, count in stacks)
    other = "thread (9): pin;run (/opt/lib/python3.11/threading.py:982) 300\n"
    return stack_sampling.parse_samples(7, (other + text).encode())


def test_one_stack_all_the_while() -> None:
    found = sampled((f"{ROOT.format(40)};all_reduce (/opt/c10d.py:3252)", 300))
    assert (found.samples, found.elsewhere) == (300, 0)
    assert found.within[0] == Frame("all_reduce", "/opt/c10d.py", 3252)
    assert found.within[-1].function == "<module>"


def test_a_loop_that_mostly_waits_is_seen_elsewhere() -> None:
    """Two looks would see the same stack with nine chances in ten."""
    found = sampled(
        (ROOT.format(41), 285), (f"{ROOT.format(40)};step (/home/ada/train.py:7)", 10), (ROOT.format(42), 5)
    )
    assert (found.samples, found.elsewhere) == (300, 10)
    assert [one.function for one in found.within] == ["main", "<module>"]


def test_a_busy_loop_in_one_function_is_one_place() -> None:
    found = sampled((ROOT.format(41), 150), (ROOT.format(42), 150))
    assert (found.samples, found.elsewhere) == (300, 0)
    assert [one.function for one in found.within] == ["main", "<module>"]


def test_a_torn_sample_hides_nothing() -> None:
    found = sampled((f"{ROOT.format(40)};load (/home/ada/data.py:7)", 299), ("load (/home/ada/data.py:7)", 1))
    assert found.elsewhere == 1
    assert [one.function for one in found.within] == ["load", "main", "<module>"]


LOOP = "<module> (/home/ada/train.py:90);main (/home/ada/train.py:{});{}"
C10D = "{} (/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)"
WAITS, POLLS = (
    f"{name} (/opt/lib/python3.11/{file}:9)" for name, file in (("wait", "threading.py"), ("get", "queue.py"))
)


@pytest.mark.parametrize(
    ("mostly", "once", "moved"),
    [
        # A step amid long waits is seen once, however long one looks.
        (LOOP.format(40, C10D.format("all_reduce")), LOOP.format(41, "step (/home/ada/train.py:7)"), 1),
        (LOOP.format(40, C10D.format("all_reduce")), LOOP.format(41, C10D.format("all_reduce")), 1),
        (LOOP.format(40, C10D.format("all_reduce")), LOOP.format(40, C10D.format("broadcast")), 1),
        (LOOP.format(40, "load (/home/ada/data.py:7)"), ROOT.format(41), 1),
        # Within one wait, and what was torn.
        (LOOP.format(40, f"{POLLS};{WAITS}"), LOOP.format(40, POLLS), 0),
        (LOOP.format(40, C10D.format("all_reduce")), f"{C10D.format('all_reduce')};step (/home/ada/train.py:7)", 0),
        (ROOT.format(40), ROOT.format(41), 0),
    ],
)
def test_a_single_sample_of_a_step_shows_that_it_moves(mostly: str, once: str, moved: int) -> None:
    found = sampled((mostly, 1499), (once, 1))
    assert found.moved == moved
    looks = (RankLook(frames=(Frame("f", "f.py", 1),)), RankLook(seconds=15.0, frames=(Frame("f", "f.py", 1),)))
    seen = msgspec.structs.replace(found, looks=looks)
    assert seen.still is not bool(moved)


def test_samples_from_outside_of_a_container() -> None:
    assert stack_sampling.parse_samples(7, f"thread (1);{ROOT.format(40)} 30\n".encode()).samples == 30
    assert sampled((ROOT.format(40), 30), thread="thread (0x7F12AB): MainThread").samples == 30


@pytest.mark.parametrize(
    "output", [b"", b"garbage\n", b"thread (7): MainThread 5\n", b"thread (7): MainThread;f (f.py:1) x\n"]
)
def test_samples_of_nothing(output: bytes) -> None:
    assert stack_sampling.parse_samples(7, output) == Watched(pid=7)


def watched(samples: int, elsewhere: int) -> Watched:
    looks = (RankLook(frames=(Frame("f", "f.py", 1),)), RankLook(frames=(Frame("g", "f.py", 9),)))
    return Watched(pid=1, looks=looks, samples=samples, elsewhere=elsewhere)


def test_who_is_still() -> None:
    """A poll wakes up now and then; a loop is elsewhere more often than that."""
    assert watched(300, 1).still
    assert not watched(300, 2).still
    assert not watched(0, 0).still


def test_a_real_loop_that_sleeps_most_of_the_time_moves(tmp_path: Path, asleep: int) -> None:
    script = tmp_path / "loop.py"
    lines = (
        "import time",
        "def work():",
        "    sum(range(300_000))",
        "print(flush=True)",
        "while True:",
        "    work()",
        "    time.sleep(0.03)",
    )
    script.write_text("\n".join(lines))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as loop:
        assert loop.stdout
        loop.stdout.readline()
        found = asyncio.run(stack_sampling.sample([loop.pid, asleep], 1))
        loop.kill()
    assert found[loop.pid].elsewhere > 1
    assert found[loop.pid].moved > 1
    assert (found[asleep].elsewhere, found[asleep].moved) == (0, 0)
    assert found[asleep].within[0].function == "wait_here"


# --- what the kernel says -----------------------------------------------------------------------------------------------------


def made_up_proc(folder: Path, pid: int, *, start: int = 500, state: str = "S", tracer: int = 0) -> Proc:
    own = folder / str(pid)
    (own / "task" / str(pid)).mkdir(parents=True)
    fields = [
        state,
        "1",
        "1",
        "1",
        "0",
        "-1",
        "0",
        *["0"] * 4,
        "150",
        "50",
        *["0"] * 4,
        "3",
        "0",
        str(start),
        "0",
        "9",
        "0",
    ]
    (own / "stat").write_text(f"{pid} (py (x) y) {' '.join(fields)}\n")
    (own / "wchan").write_text("futex_do_wait")
    (own / "io").write_text("rchar: 1000\nwchar: 24\nsyscr: 1\n")
    (own / "status").write_text(f"Name:\tpython\nTracerPid:\t{tracer}\n")
    (own / "task" / str(pid) / "schedstat").write_text("2500000000 77 31\n")
    return Proc(os.fspath(folder))


def test_a_glance(tmp_path: Path) -> None:
    found = glance(ProcessIdentity(42, 500), made_up_proc(tmp_path, 42, tracer=99))
    assert found is not None
    look = found.look
    assert (look.state, look.waits_in, look.cpu_seconds, look.switches) == ("S", "futex_do_wait", 2.5, 31)
    assert (look.transferred, found.tracer) == (1024, 99)


def test_another_process_with_the_same_pid_is_not_looked_at(tmp_path: Path) -> None:
    assert glance(ProcessIdentity(42, 499), made_up_proc(tmp_path, 42)) is None
    assert glance(ProcessIdentity(43, 500), Proc(os.fspath(tmp_path))) is None


def test_a_dead_process_has_ended(tmp_path: Path) -> None:
    found = glance(ProcessIdentity(42, 500), made_up_proc(tmp_path, 42, state="Z"))
    assert found is not None
    assert found.look.state == "Z"


# --- what can't be seen -------------------------------------------------------------------------------------------------------


def allowed(
    folder: Path,
    *,
    uid: int = 1000,
    capabilities: str = "0",
    scope: int | None = None,
    pid_namespace: str = "pid:[4026531836]",
) -> Powers:
    own = folder / "77"
    (own / "ns").mkdir(parents=True)
    (own / "ns" / "pid").symlink_to(pid_namespace)
    (own / "status").write_text(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities}\n")
    if scope is not None:
        (folder / "sys/kernel/yama").mkdir(parents=True)
        (folder / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    return powers(Proc(os.fspath(folder)), 77)


def denied(rank: int, *, uid: int = 1000, worker: bool = False, trouble: PySpyTrouble = PySpyTrouble.DENIED) -> Missed:
    process = Process(pid=4000 + rank, start=1, parent=1, uid=uid, user={0: "root", 1000: "ada"}.get(uid, ""))
    return Missed(rank=rank, process=process, trouble=trouble, worker=worker)


@pytest.mark.parametrize(
    ("scope", "words", "ends"),
    [
        (None, "though the process belongs to this user", "jobs --hang 3990"),
        (0, "though the process belongs to this user", "jobs --hang 3990"),
        (1, "lets only its parents read a process (kernel.yama.ptrace_scope is 1)", "jobs --hang 3990"),
        (2, "lets only root read another process (kernel.yama.ptrace_scope is 2)", "jobs --hang 3990"),
        (3, "lets nobody read another process, not even root (kernel.yama.ptrace_scope is 3)", "kill -USR1 PID"),
    ],
)  # fmt: skip
def test_ptrace_scope(tmp_path: Path, scope: int | None, words: str, ends: str) -> None:
    [sentence] = hidden_stacks([denied(0), denied(1)], allowed(tmp_path, scope=scope), "3990")
    assert sentence.startswith("The stacks of ranks 0 and 1 could not be read: ")
    assert words in sentence
    assert sentence.endswith(ends)
    assert ("sudo" in sentence) == (scope != 3)


def test_another_user_s_job(tmp_path: Path) -> None:
    [sentence] = hidden_stacks([denied(2, uid=0), denied(2, uid=0, worker=True)], allowed(tmp_path), "3990")
    assert sentence.startswith(
        "The stacks of rank 2 and of 1 DataLoader worker could not be read: they belong to root. Root can: sudo /"
    )


def test_root_in_a_container(tmp_path: Path) -> None:
    mine = allowed(tmp_path, uid=0, scope=1, pid_namespace="pid:[4026532999]")
    [sentence] = hidden_stacks([denied(0, uid=0)], mine, "3990")
    assert "--cap-add SYS_PTRACE" in sentence
    assert "docker exec --privileged CONTAINER" in sentence
    assert "sudo" not in sentence


def test_another_user_s_job_in_a_container(tmp_path: Path) -> None:
    mine = allowed(tmp_path, pid_namespace="pid:[4026532999]")
    [sentence] = hidden_stacks([denied(0, uid=0)], mine, "3990")
    assert "--cap-add" not in sentence
    assert "As root, or as that user" in sentence
    assert ": docker exec -u 0 --privileged CONTAINER /" in sentence
    assert sentence.endswith("jobs --hang 3990")


def test_who_has_the_capability_is_not_told_of_the_setting(tmp_path: Path) -> None:
    mine = allowed(tmp_path, uid=0, capabilities="000001ffffffffff", scope=2)
    assert mine.sys_ptrace
    [sentence] = hidden_stacks([denied(0, uid=0)], mine, "3990")
    assert "ptrace_scope" not in sentence


def test_no_py_spy(tmp_path: Path) -> None:
    missed = [denied(rank, trouble=PySpyTrouble.NO_PROGRAM) for rank in range(3)]
    [sentence] = hidden_stacks(missed, allowed(tmp_path), "3990")
    assert sentence.endswith(f"{sys.executable} -m pip install py-spy")


def test_the_command_that_shows_the_whole_stacks_works_under_pipx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There py-spy is in ddpdoctor's own environment, and not on PATH."""
    programs = tmp_path / "pipx/venvs/ddpdoctor/bin"
    programs.mkdir(parents=True)
    (programs / "py-spy").touch()
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    look = hang(rank(0, collective()), rank(1, own("load", 31)), py_spy=spying.py_spy())
    (fix,) = full_stacks(look, states_of(look)[1:])
    assert fix.commands == (f"{programs}/py-spy dump --native --pid 4001",)


def test_each_reason_is_a_sentence_and_who_has_ended_is_none(tmp_path: Path) -> None:
    missed = [
        denied(0),
        denied(1, trouble=PySpyTrouble.GONE),
        denied(2, trouble=PySpyTrouble.SLOW),
        denied(3, trouble=PySpyTrouble.TORN),
    ]
    first, second, third = hidden_stacks(missed, allowed(tmp_path), "3990")
    assert "rank 0" in first
    assert second.startswith("The stack of rank 2 could not be read: py-spy gave no answer in time")
    assert third.startswith("The stack of rank 3 could not be read: ")
