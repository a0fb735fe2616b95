"""`ddpdoctor run` and output: the same bytes, in the same order, where and when they would be without us."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.command import plain_environ
from tests.support.running_jobs import wait_until
from tests.support.watched_runs import children, ended, program, relay_of, run, written

LINES = 100_000
NUMBERED = (
    f"for i in range({LINES}):\n    sys.stdout.write(f'{{i}} of a training that prints\\n')\nsys.stdout.flush()\n"
)


def output(line: list[str], *, cwd: Path | None = None, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line, env=plain_environ(), cwd=cwd, capture_output=True, timeout=timeout, check=False)


@pytest.mark.parametrize("through", ["pipe", "file", "socket"])
def test_every_line_in_order(tmp_path: Path, through: str) -> None:
    line = run(sys.executable, "-c", f"import sys\n{NUMBERED}")
    expected = "".join(f"{i} of a training that prints\n" for i in range(LINES)).encode()
    if through == "pipe":
        shown = output(line).stdout
    elif through == "file":
        with (tmp_path / "log").open("wb") as log:
            subprocess.run(line, env=plain_environ(), stdout=log, check=True)
        shown = (tmp_path / "log").read_bytes()
    else:
        ours, its = socket.socketpair()
        with ours, subprocess.Popen(line, env=plain_environ(), stdout=its.fileno()) as one:
            its.close()
            shown = b"".join(iter(lambda: ours.recv(1 << 16), b""))
            assert one.wait() == 0
    assert hashlib.sha256(shown).digest() == hashlib.sha256(expected).digest()


def test_bytes_pass_unchanged() -> None:
    data = bytes(range(256)) * 5000 + b"\0\r\x1b[31mno newline at the end"
    done = subprocess.run(run("cat"), env=plain_environ(), input=data, capture_output=True, check=True)
    assert done.stdout == data
    assert done.stderr == b""


def test_both_streams_go_their_own_ways_and_keep_their_order(tmp_path: Path) -> None:
    text = "for i in range(300):\n    os.write(1 + i % 2, b'%d\\n' % i)\n"
    apart = output(run(*program(tmp_path, text)))
    assert apart.stdout.split() == [b"%d" % number for number in range(0, 300, 2)]
    assert apart.stderr.split() == [b"%d" % number for number in range(1, 300, 2)]
    for where in ("pipe", "file"):
        line = run(*program(tmp_path, text))
        if where == "pipe":
            shown = subprocess.run(line, env=plain_environ(), stdout=-1, stderr=subprocess.STDOUT, check=True).stdout
        else:
            with (tmp_path / "log").open("wb") as log:
                subprocess.run(line, env=plain_environ(), stdout=log, stderr=log, check=True)
            shown = (tmp_path / "log").read_bytes()
        assert shown.split() == [b"%d" % number for number in range(300)]


def test_output_comes_at_once(tmp_path: Path) -> None:
    """The command waits for the answer to each of its questions."""
    text = "for i in range(200):\n    print('?', end='')\n    assert sys.stdin.read(1) == '!'\n"
    with subprocess.Popen(
        run(*program(tmp_path, text)), env=plain_environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as one:
        assert one.stdin
        assert one.stdout
        for _ in range(200):
            assert one.stdout.read(1) == b"?"
            one.stdin.write(b"!")
        assert one.wait(60) == 0


def test_a_slow_reader_slows_the_command(tmp_path: Path) -> None:
    """What nobody reads is not gathered: the command waits with a few hundred KiB on their way."""
    text = "import pathlib\nfor i in range(4000):\n    os.write(1, b'x' * 1024)\n    pathlib.Path('count').write_text(str(i + 1))\n"
    with subprocess.Popen(
        run(*program(tmp_path, text)), env=plain_environ(), cwd=tmp_path, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout
        count = tmp_path / "count"
        wait_until(lambda: count.exists() and int(count.read_text() or 0) >= 64, "the first pipe to be full")
        before = -1
        while (now := int(count.read_text() or 0)) > before:
            before = now
            time.sleep(0.2)
        assert before < 400
        assert len(one.stdout.read()) == 4000 * 1024
        assert one.wait(60) == 0


def test_a_reader_that_goes_ends_the_command_as_without_us(tmp_path: Path) -> None:
    plain = subprocess.run(["bash", "-c", "yes | head -c 3; echo ${PIPESTATUS[0]}"], capture_output=True, check=True)
    line = 'trap "" EXIT; "$@" | head -c 3; echo ${PIPESTATUS[0]}'
    ours = output(["bash", "-c", line, "bash", *run("yes")])
    assert ours.stdout == plain.stdout
    assert ours.stderr == b""


def test_the_command_hears_of_a_closed_pipe_while_it_is_silent(tmp_path: Path) -> None:
    """Its first write afterwards fails already, as it would without us."""
    text = """
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
print("ready")
open("pid", "w").write(str(os.getpid()))
os.read(0, 1)
try:
    os.write(1, b"x")
    open("found", "w").write("written")
except BrokenPipeError:
    open("found", "w").write("EPIPE")
"""
    with subprocess.Popen(
        run(*program(tmp_path, text)), env=plain_environ(), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdin
        assert one.stdout
        one.stdout.readline()
        source = os.readlink(f"/proc/{written(tmp_path / 'pid')}/fd/1")  # noqa: PTH115
        one.stdout.close()
        wait_until(lambda: source not in _files(one.pid), "the reader's end to be told")
        one.stdin.write(b"\n")
        one.stdin.close()
        assert one.wait(60) == 0
    assert (tmp_path / "found").read_text() == "EPIPE"


def _files(pid: int) -> set[str]:
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.add(os.readlink(path))  # noqa: PTH115
    return found


def test_who_stays_and_holds_the_output_does_not_hold_us(tmp_path: Path) -> None:
    """A process that the command leaves behind: we end with the command, and its words arrive nevertheless."""
    text = """
if os.fork() == 0:
    open("pid", "w").write(str(os.getpid()))
    while not os.path.exists("go"):
        time.sleep(0.02)
    print("late words")
    os._exit(0)
while not os.path.exists("pid"):
    time.sleep(0.01)
print("done")
"""
    with subprocess.Popen(
        run(*program(tmp_path, text)), env=plain_environ(), cwd=tmp_path, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout
        assert one.stdout.readline() == b"done\n"
        wait_until(lambda: len(children(one.pid)) == 2 or one.poll() is not None, "the relay")
        assert one.wait(60) == 0
        (tmp_path / "go").touch()
        assert one.stdout.read() == b"late words\n"
    wait_until(lambda: ended(int((tmp_path / "pid").read_text())), "its end")


def test_nothing_is_left_of_a_healthy_run(tmp_path: Path) -> None:
    text = "open('ppid', 'w').write(str(os.getppid()))\nprint(os.environ['TORCH_FR_DUMP_TEMP_FILE'])\ninput()\n"
    folder = tmp_path / "tmp"
    folder.mkdir()
    with subprocess.Popen(
        run(*program(tmp_path, text)),
        env=plain_environ() | {"TMPDIR": str(folder)},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as one:
        supervisor = int(written(tmp_path / "ppid"))
        pids = [supervisor, *children(supervisor)]
        out, err = one.communicate(b"\n", timeout=60)
    assert out.startswith(os.fsencode(folder))
    assert (one.returncode, err) == (0, b"")
    assert all(ended(pid) for pid in pids)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("victim", ["relay", "supervisor", pytest.param("relays", marks=pytest.mark.thorough)])
def test_the_output_goes_on_when_one_of_us_is_killed(tmp_path: Path, victim: str) -> None:
    """kill -9, with a reader so slow that bytes are under way: no line is lost, none comes twice."""
    text = f"open('pid', 'w').write(str(os.getpid()))\n{NUMBERED}open('fine', 'w').write('1')\nsys.exit(0)\n"
    expected = "".join(f"{i} of a training that prints\n" for i in range(LINES)).encode()
    with subprocess.Popen(
        run(*program(tmp_path, text)),
        env=plain_environ() | {"TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    ) as one:
        assert one.stdout
        command = int(written(tmp_path / "pid"))
        shown = one.stdout.read(100_000)
        for part in range(10 if victim == "relays" else 1):
            wait_until(lambda: len(children(one.pid)) == 2, "both children")
            relay = relay_of(one.pid, command)
            _wait_for_the_jam(relay, command)
            os.kill(one.pid if victim == "supervisor" else relay, signal.SIGKILL)
            shown += one.stdout.read(150_000 + part)
        shown += one.stdout.read()
        code = one.wait(60)
    assert (tmp_path / "fine").exists()
    assert shown == expected
    assert code == (-9 if victim == "supervisor" else 0)


def _wait_for_the_jam(relay: int, command: int) -> None:
    """Until both wait for the reader, and not for each other."""
    wait_until(lambda: all("poll" in _waits(relay) and "write" in _waits(command) for _ in range(50)), "the jam")


def _waits(pid: int) -> str:
    """The kernel's function in which it does."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""


def test_the_command_hears_of_a_full_device() -> None:
    with Path("/dev/full").open("wb") as full:
        command = run("sh", "-c", "echo x 2>/dev/null || exit 9")
        ended = subprocess.run(command, stdout=full, stderr=subprocess.DEVNULL, env=plain_environ(), check=False)
    assert ended.returncode == 9


CLOSED = """
for number in (0, 1, 2):
    try:
        os.fstat(number)
        (os.read if number == 0 else os.write)(number, 1 if number == 0 else b"word\\n")
    except OSError as error:
        open("closed", "a").write(f"{number}: {error.strerror}; ")
sys.exit(3)
"""


@pytest.mark.parametrize(
    "closed", ["0", "01", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("1", "2", "012"))]
)
def test_what_was_closed_is_closed_for_the_command(tmp_path: Path, closed: str) -> None:
    """As cron jobs and daemons start things; the other words arrive, and the diagnosis where there is a place for it."""
    command = program(tmp_path, CLOSED)
    shut = " ".join(f"{one}{'<' if one == '0' else '>'}&-" for one in closed)
    found = []
    for line in (command, run(*command)):
        done = subprocess.run(
            ["sh", "-c", f'"$@" {shut}', "sh", *line],
            env=plain_environ(),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        words, _, report = done.stderr.partition("ddpdoctor: ")
        assert ("Nothing in that tells why." in report) is (line != command and "2" not in closed)
        found.append((done.returncode, done.stdout, words, (tmp_path / "closed").read_text()))
        (tmp_path / "closed").unlink()
    assert found[0] == found[1]
    assert found[0][3].count("Bad file descriptor") == len(closed)


def test_no_command_and_none_that_can_be_run(tmp_path: Path) -> None:
    missing = output(run("no-such-command", "--flag"))
    assert (missing.returncode, missing.stderr) == (127, b"no-such-command: no such command\n")
    assert b"no such command. A whole command in quotes" in output(run("torchrun --nproc-per-node=2 train.py")).stderr
    assert b"no such command. A setting goes before" in output(run("CUDA_VISIBLE_DEVICES=0", "torchrun")).stderr
    (tmp_path / "data").write_text("1")
    refused = output(run("./data"), cwd=tmp_path)
    assert refused.returncode == 126
    assert b"./data is not executable" in refused.stderr
    (tmp_path / "script").write_text("exit 4\n")
    (tmp_path / "script").chmod(0o755)
    assert output(run("./script"), cwd=tmp_path).returncode == 4


def test_standard_input_is_the_command_s_alone(tmp_path: Path) -> None:
    """Who writes to it learns that the command has closed it."""
    text = "while not os.path.exists('go'): time.sleep(0.01)\nos.close(0)\nwhile not os.path.exists('stop'): time.sleep(0.01)\n"
    with subprocess.Popen(
        ["bash", "-c", 'yes | "$@"', "bash", *run(*program(tmp_path, text))],
        env=plain_environ(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as one:
        wait_until(lambda: len(_called("yes", one.pid)) == 1, "yes to begin")
        (tmp_path / "go").touch()
        wait_until(lambda: not _called("yes", one.pid), "yes to end")
        (tmp_path / "stop").touch()
        assert one.wait(60) == 0


def _called(name: str, session: int) -> list[int]:
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        try:
            if os.getsid(pid) == session and Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
        except OSError:
            continue
    return found
