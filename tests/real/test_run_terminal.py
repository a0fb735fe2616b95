"""`ddpdoctor run` at a terminal: the command has the terminal that it would have without us."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.running_jobs import state, wait_until
from tests.support.watched_runs import program, run, shell, terminal, written

ASKS = """
sizes = [os.get_terminal_size(one) for one in (1, 2)]
print("terminal", os.isatty(0), os.isatty(1), os.isatty(2), *[f"{one.columns}x{one.lines}" for one in sizes])
print("same", os.getpgrp() == os.tcgetpgrp(0), os.open("/dev/tty", os.O_RDWR) > 2)
sys.stderr.write("a bar\\rand again")
"""


def test_the_command_sees_the_terminal_and_its_size(tmp_path: Path) -> None:
    with terminal(run(*program(tmp_path, "input()\n" + ASKS)), tmp_path) as one:
        one.resize(33, 111)
        one.type("go\n")
        shown = one.to_its_end()
    assert b"terminal True True True 111x33 111x33\r\n" in shown
    assert b"same True True\r\n" in shown
    assert shown.endswith(b"a bar\rand again")
    assert one.wait() == 0


def test_a_new_size_reaches_the_command(tmp_path: Path) -> None:
    text = """
def changed(*_):
    print("now", os.get_terminal_size(1).columns, os.get_terminal_size(2).columns)
signal.signal(signal.SIGWINCH, changed)
print("ready")
sys.stdin.readline()
"""
    with terminal(run(*program(tmp_path, text)), tmp_path) as one:
        one.wait_for("ready")
        one.resize(20, 77)
        one.wait_for("now 77 77")
        one.type("\n")
        one.to_its_end()
    assert one.wait() == 0


def test_ctrl_c_reaches_the_command_once_and_nothing_is_diagnosed(tmp_path: Path) -> None:
    text = """
count = 0
def interrupted(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
print("ready")
until = time.monotonic() + 30
while not count and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)
print("interrupts:", count)
sys.exit(130)
"""
    with terminal(run(*program(tmp_path, text)), tmp_path) as one:
        one.wait_for("ready")
        one.type("\x03")
        shown = one.to_its_end()
    assert b"interrupts: 1\r\n" in shown
    assert b"ddpdoctor" not in shown
    assert one.wait() == 130 << 8


def test_the_keyboard_is_the_command_s_own(tmp_path: Path) -> None:
    """Raw input as a debugger's, and the terminal's settings afterwards."""
    text = """
import tty, termios
before = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"press")
key = os.read(0, 1)
termios.tcsetattr(0, termios.TCSADRAIN, before)
print("key", key)
import pdb; pdb.set_trace()
print("after")
"""
    with terminal(run(*program(tmp_path, text)), tmp_path) as one:
        before = one.settings()
        one.wait_for("press")
        one.type("\x03")
        one.wait_for("key b'\\x03'")
        one.wait_for("(Pdb)")
        one.type("p 6 * 7\n")
        one.wait_for("42")
        one.type("c\n")
        one.wait_for("after")
        one.to_its_end()
        assert one.wait() == 0
        assert before[:4] == one.settings()[:4]


def test_ctrl_z_and_fg(tmp_path: Path) -> None:
    """As an interactive shell has it: it sees the job stop, and gets the terminal back."""
    text = """
print("ready")
for line in sys.stdin:
    print("got", line.strip())
"""
    line = shlex.join(run(*program(tmp_path, text)))
    with shell(tmp_path) as one:
        one.type(f"{line}\n")
        one.wait_for("ready\r\n")
        one.type("\x1a")
        one.wait_for("Stopped")
        one.wait_for("$ ")
        one.type("echo $((40 + 2))\n")
        one.wait_for("42")
        one.type("fg\n")
        one.wait_for("python")
        one.type("hello\n")
        one.wait_for("got hello")
        one.type("\x04")
        one.wait_for("$ ")
        one.type("echo code $?\n")
        one.wait_for("code 0")


@pytest.mark.thorough
def test_in_the_background_it_stops_when_it_reads(tmp_path: Path) -> None:
    text = "open('ppid', 'w').write(str(os.getppid()))\nprint('got', input())"
    line = shlex.join(run(*program(tmp_path, text)))
    with shell(tmp_path) as one:
        one.type(f"{line} &\n")
        supervisor = int(written(tmp_path / "ppid"))
        wait_until(lambda: state(supervisor) == "T", "it to stop as the command did")
        one.type("jobs\n")
        one.wait_for("Stopped")
        one.type("fg\n")
        one.wait_for("python")
        one.type("text\n")
        one.wait_for("got text")


def test_one_stream_at_the_terminal_and_one_in_a_file(tmp_path: Path) -> None:
    line = shlex.join(run(*program(tmp_path, "print(os.isatty(1), os.isatty(2))\nsys.stderr.write('to the file')")))
    with terminal(["sh", "-c", f"{line} 2>errors"], tmp_path) as one:
        assert b"True False" in one.to_its_end()
    assert (tmp_path / "errors").read_text() == "to the file"
