"""`ddpdoctor run` and signals: each reaches the command once, whoever sends it to whom; and how we end is how the command ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import plain_environ
from tests.support.running_jobs import state, wait_until
from tests.support.watched_runs import children, ended, program, relay_of, run, written

COUNTS = """
got = {}
def handler(number, frame):
    got[number] = got.get(number, 0) + 1
for number in (1, 2, 3, 10, 12, 15, 18):
    signal.signal(number, handler)
open("pid", "w").write(str(os.getpid()))
until = time.monotonic() + 60
while not got and time.monotonic() < until:
    time.sleep(0.01)
# Long enough for a second one to arrive, too.
time.sleep(0.4)
print(sorted(got.items()), flush=True)
sys.exit(7)
"""


class Counting:
    """A command that counts the signals it gets, and ends after the first. group: its process group, and ours."""

    def __init__(self, folder: Path, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, *run(*program(folder, COUNTS))],
            cwd=folder,
            env=plain_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.command = int(written(folder / "pid"))
        self.group = self.process.pid
        self.supervisor = int(Path(f"/proc/{self.command}/stat").read_text().rpartition(")")[2].split()[1])

    def end(self) -> tuple[str, str, int]:
        """What it has counted, what was said to standard error, the exit code."""
        out, err = self.process.communicate(timeout=60)
        return out.strip(), err, self.process.returncode


@contextmanager
def counting(folder: Path, prefix: tuple[str, ...] = ()) -> Iterator[Counting]:
    one = Counting(folder, prefix)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            os.killpg(one.group, signal.SIGKILL)
            one.process.wait()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.thorough) for one in (1, 2, 3, 10, 12))]
)
def test_one_that_only_we_get_is_passed_on(tmp_path: Path, number: int) -> None:
    with counting(tmp_path) as one:
        os.kill(one.supervisor, number)
        out, _, code = one.end()
    assert out == f"[({number}, 1)]"
    assert code == 7


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_one_that_the_whole_group_gets_is_not(tmp_path: Path, number: int) -> None:
    """As by Ctrl-C, or `kill %1`."""
    with counting(tmp_path) as one:
        os.killpg(one.group, number)
        out, _, code = one.end()
    assert out == f"[({number}, 1)]"
    assert code == 7


def test_one_that_is_sent_to_each_process_of_the_job_is_not(tmp_path: Path) -> None:
    """As Slurm does for the processes of a step, one after the other."""
    with counting(tmp_path) as one:
        for pid in (one.supervisor, *children(one.supervisor)):
            os.kill(pid, signal.SIGUSR1)
        out, _, _ = one.end()
    assert out == f"[({int(signal.SIGUSR1)}, 1)]"


def test_a_batch_script_passes_on_what_slurm_sends_it(tmp_path: Path) -> None:
    """`#SBATCH --signal=B:USR1@60` and a trap, as the manual has it."""
    script = tmp_path / "job.sh"
    script.write_text('"$@" &\npid=$!\ntrap \'kill -USR1 $pid\' USR1\nwait $pid\nwait $pid\necho "code $?"\n')
    with counting(tmp_path, ("bash", str(script))) as one:
        os.kill(one.process.pid, signal.SIGUSR1)
        out, _, _ = one.end()
    assert out.splitlines() == [f"[({int(signal.SIGUSR1)}, 1)]", "code 7"]


def test_what_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """By nohup, and by a shell for what it starts in the background; and Python's own ignoring is undone."""
    text = (
        "print([signal.getsignal(one) for one in (1, 2, 17)], [x for x in open('/proc/self/status') if 'SigBlk' in x])"
    )
    line = [sys.executable, "-S", "-c", f"import signal; {text}"]
    ignored = ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh"]
    plain = subprocess.run([*ignored, *line], env=plain_environ(), capture_output=True, text=True, check=True)
    ours = subprocess.run([*ignored, *run(*line)], env=plain_environ(), capture_output=True, text=True, check=True)
    assert ours.stdout == plain.stdout
    masks = ["sh", "-c", "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status"]
    plain = subprocess.run(masks, env=plain_environ(), capture_output=True, text=True, check=True)
    ours = subprocess.run(run(*masks), env=plain_environ(), capture_output=True, text=True, check=True)
    assert ours.stdout == plain.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_death_by_a_signal_is_ours_too(number: signal.Signals) -> None:
    line = run(sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    done = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == -number
    assert f"was ended by {number.name} after 0 s" in done.stderr


def test_an_end_that_was_asked_for_is_not_diagnosed(tmp_path: Path) -> None:
    with counting(tmp_path) as one:
        os.kill(one.supervisor, signal.SIGTERM)
        _, err, code = one.end()
    assert code == 7
    assert err == f"ddpdoctor: not diagnosed, since {Path(sys.executable).name} ended after a SIGTERM from outside\n"


def test_a_stopped_relay_goes_on_at_once(tmp_path: Path) -> None:
    with counting(tmp_path) as one:
        relay = relay_of(one.supervisor, one.command)
        os.kill(relay, signal.SIGSTOP)
        wait_until(lambda: state(relay) == "S", "the relay to be woken")
        os.kill(one.supervisor, signal.SIGUSR2)
        out, _, code = one.end()
        assert ended(relay)
    assert out == f"[({int(signal.SIGUSR2)}, 1)]"
    assert code == 7


def test_a_stopped_supervisor_holds_nothing_up(tmp_path: Path) -> None:
    """SIGSTOP can't be caught: the output goes on, and the exit code comes once the supervisor does."""
    text = "import sys\nfor i in range(20000):\n    print(i, 'x' * 50)\nopen('done', 'w').write('1')\nsys.exit(5)\n"
    (tmp_path / "program.py").write_text(f"input()\n{text}")
    with subprocess.Popen(
        run(sys.executable, "program.py"),
        cwd=tmp_path,
        env=plain_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as one:
        assert one.stdin
        assert one.stdout
        wait_until(lambda: len(children(one.pid)) == 2, "the start")
        os.kill(one.pid, signal.SIGSTOP)
        wait_until(lambda: state(one.pid) == "T", "the stop")
        one.stdin.write(b"\n")
        one.stdin.close()
        lines = [one.stdout.readline() for _ in range(20000)]
        assert lines[-1].startswith(b"19999 ")
        written(tmp_path / "done")
        assert state(one.pid) == "T"
        os.kill(one.pid, signal.SIGCONT)
        assert one.wait(60) == 5
