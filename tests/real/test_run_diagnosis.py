"""`ddpdoctor run` where something goes wrong: with the training, and with ddpdoctor itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT, command, plain_environ
from tests.support.free_ports import free_port
from tests.support.running_jobs import state, torchrun, wait_until
from tests.support.script_mistakes import LONG_WAITS, MISTAKES
from tests.support.watched_runs import ended, program, run, started, terminal, written

WORDS = "sys.stderr.write('a line without end')\nsys.exit(3)\n"


@pytest.mark.thorough
def test_a_failing_torchrun_is_diagnosed(tmp_path: Path) -> None:
    """Its output is in a file, into which the ranks write themselves."""
    keep = tmp_path / "kept"
    with torchrun(tmp_path, does={1: ("raise", 1)}, prefix=command("run", "--keep", keep, "--")) as job:
        assert job.process.wait(90) == 1
        said = job.output()
    before, ours, report = said.partition("ddpdoctor: python")
    assert "ChildFailedError" in before
    assert "ended with exit code 1 after " in report.splitlines()[0]
    assert "[user-code-error]" in report
    assert "raised RuntimeError: told to" in report
    assert "Rank 1" in report
    assert keep.read_text() == before
    assert ours


@pytest.mark.thorough
def test_words_that_torchrun_keeps_in_files_are_read(tmp_path: Path) -> None:
    """Those of this run: what an earlier one has left in the same folder is no part of it."""
    old = tmp_path / "logs" / "earlier" / "attempt_0" / "0" / "stderr.log"
    old.parent.mkdir(parents=True)
    old.write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: an old one\n'
    )
    os.utime(old, (1_700_000_000, 1_700_000_000))
    flags = ("--log-dir", str(tmp_path / "logs"), "-r", "3")
    with torchrun(tmp_path, does={1: ("raise", 1)}, flags=flags, prefix=command("run", "--")) as job:
        assert job.process.wait(90) == 1
        report = job.output().partition("ended with exit code 1 after ")[2]
    assert "raised RuntimeError: told to" in report
    assert "Rank 1" in report
    assert "an old one" not in report


def test_a_hang_is_told_and_then_the_failure(tmp_path: Path) -> None:
    """The job is left alone: here it fails since somebody kills a rank."""
    with torchrun(tmp_path, does={1: ("sleep", 2)}, prefix=command("run", "--hang-after", "6", "--")) as job:
        job.wait_for("rank-1.there")
        wait_until(lambda: "More on the first" in job.output(), lambda: f"the verdict: {job.output()}")
        said = job.output()
        assert all(state(job.pid(rank)) not in ("", "Z") for rank in (0, 1))
        os.kill(job.pid(1), signal.SIGKILL)
        assert job.process.wait(90) == 1
        report = job.output().partition("ended with exit code 1 after ")[2]
    assert re.search(r"^ddpdoctor: no output of python\S* for \d+ s\.$", said, re.MULTILINE)
    assert "rank 1 sleeps in sleep_for_good" in said
    assert "rank 1" in report.lower()
    assert "SIGKILL" in report
    # What we have said ourselves is none of the command's words.
    assert "sleep_for_good" not in report


@pytest.mark.thorough
def test_the_line_of_the_script_by_which_it_hangs_is_named(tmp_path: Path) -> None:
    mistake = next(mistake for mistake in MISTAKES if mistake.slug == "collective-on-some-ranks")
    script = mistake.head + mistake.script
    (tmp_path / "train.py").write_text(script)
    line = script[: script.index("dist.all_reduce")].count("\n") + 1
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    shown = tmp_path / "shown"
    with shown.open("w") as file, started(
        ["env", *(f"{name}={value}" for name, value in LONG_WAITS.items()), *run(*command, options=("--hang-after", "4"))],
        tmp_path,
        stdout=file,
        stderr=subprocess.STDOUT,
    ) as job:  # fmt: skip
        wait_until(lambda: "ddpdoctor explain" in shown.read_text(), "the verdict", 90)
        job.terminate()
        job.wait(60)
    text = shown.read_text()
    assert f"\nAnd train.py:{line} is why\nFAIL  train.py:{line}:9: all_reduce() waits for all ranks" in text
    assert text.index("[collective-desync]") < text.index("[collective-on-some-ranks]")


def test_silence_is_told_again_only_after_new_words(tmp_path: Path) -> None:
    text = "for one in first second; do echo $one; while ! test -e $one; do sleep 0.05; done; done"
    line = run("sh", "-c", text, options=("--hang-after", "0.5"))
    with started(line, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as one:
        assert one.stdout
        shown = [one.stdout.readline()]
        for name in ("first", "second"):
            shown += [one.stdout.readline()]
            (tmp_path / name).touch()
            if name == "first":
                shown += [one.stdout.readline()]
        shown += one.stdout.readlines()
        assert one.wait(60) == 0
    assert [shown[0], shown[2]] == ["first\n", "second\n"]
    silence = r"ddpdoctor: no output of sh for \d+ s\. None of its processes here is a Python .*\n"
    assert re.fullmatch(silence, shown[1])
    assert re.fullmatch(silence, shown[3])
    assert len(shown) == 4


MEETS = """
import os, subprocess, sys, tempfile
import torch.distributed
torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/met", rank=0, world_size=1)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""


@pytest.mark.parametrize("within", [(), (sys.executable, "-c", MEETS)], ids=["", "what is in a process group itself"])
def test_where_a_silent_python_stands(tmp_path: Path, within: tuple[str, ...]) -> None:
    """No launcher, no rank: behind a shell, and a script that starts another."""
    (tmp_path / "experiments.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]])\n"
    )
    text = "def fetch():\n    while not os.path.exists('told'): time.sleep(0.02)\nfetch()\n"
    starts = [sys.executable, "experiments.py", *program(tmp_path, text)[1:]]
    line = run("sh", "-c", '"$@"; exit', "sh", *starts, options=("--hang-after", "2"))
    with started([*within, *line], tmp_path, stderr=subprocess.PIPE) as one:
        assert one.stderr
        said = [one.stderr.readline()]
        while said[-1] and not said[-1].startswith("rank 0 "):
            said.append(one.stderr.readline())
        (tmp_path / "told").touch()
        assert one.wait(60) == 0
    assert re.match(r"rank 0 (stays in|moves on, within) fetch \(program\.py", said[-1]), said


@pytest.mark.thorough
def test_a_data_loader_that_is_stuck_without_ranks(tmp_path: Path) -> None:
    text = """
from torch.utils.data import DataLoader
class Set:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        while not os.path.exists("told"):
            time.sleep(0.05)
        return index
next(iter(DataLoader(Set(), num_workers=2)))
"""
    line = run(*program(tmp_path, text), options=("--hang-after", "4"))
    with started(line, tmp_path, stderr=subprocess.PIPE) as one:
        assert one.stderr
        said = ""
        while "More on the first" not in said:
            said += one.stderr.readline()
        (tmp_path / "told").touch()
        assert one.wait(60) == 0
    assert "[dataloader-stuck]" in said
    assert "__getitem__ (program.py" in said


def test_settings_that_stop_any_training_are_told_where_the_words_tell_nothing(tmp_path: Path) -> None:
    environ = plain_environ() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "99999", "RANK": "0", "WORLD_SIZE": "1"}
    line = run(*program(tmp_path, "print('no port')\nsys.exit(4)\n"))
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "Nothing in that tells why.\nHere `ddpdoctor check` fails on launcher-env-inconsistent: " in done.stderr


def test_advice_names_the_launcher_that_was_started(tmp_path: Path) -> None:
    """Also where its words don't tell which it was."""
    launcher = tmp_path / "accelerate"
    launcher.write_text(
        "#!/bin/sh\necho 'The server socket has failed to listen on any local network address. port: 29501, useIpv6: false,"
        " code: -98, name: EADDRINUSE, message: address already in use'\nexit 1\n"
    )
    launcher.chmod(0o755)
    line = run("nice", str(launcher), "launch", "train.py")
    done = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "accelerate launch --main_process_port 29502 ..." in done.stderr
    assert "torchrun --master-port" not in done.stderr


FOURTH_TASK = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "3", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("shell", "why"),
    [("exit 3", "it printed nothing"), ("echo hi >&2; exit 3", "nothing in its output tells why")],
)
def test_one_of_many_that_says_nothing_of_its_end_is_not_called_well(shell: str, why: str) -> None:
    done = subprocess.run(
        run("sh", "-c", shell), env=plain_environ() | FOURTH_TASK, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    words = f"sh ended with exit code 3, and {why}"
    assert re.fullmatch(rf"(hi\n)?ddpdoctor, task 3 on \S+: {words}\n", done.stderr), done.stderr


@pytest.mark.thorough
def test_each_of_many_says_a_line(tmp_path: Path) -> None:
    environ = plain_environ() | FOURTH_TASK
    text = "def main():\n    raise ValueError('no such split')\nmain()\n"
    line = run(*program(tmp_path, text))
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    ours = done.stderr.partition("ValueError: no such split\n")[2]
    assert re.fullmatch(r"ddpdoctor, task 3 on \S+: FAIL  user-code-error: .*ValueError: no such split.*\n", ours)


def test_the_recorders_dumps_are_read(tmp_path: Path) -> None:
    text = f"""
for rank in range(3):
    data = open({str(ROOT / "fixtures/flight_recorder/lagging/rank_")!r} + str(rank), "rb").read()
    open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb").write(data)
print("given up")
sys.exit(1)
"""
    environ = plain_environ() | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(run(*program(tmp_path, text)), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"flight recorders have left {tmp_path}/ddpdoctor-run-" in done.stderr
    assert "[rank-fell-behind]" in done.stderr.partition("flight recorders")[2]
    assert len(list(tmp_path.glob("ddpdoctor-run-*/rank_[012]"))) == 3


def test_dumps_of_a_run_that_ended_well_are_removed(tmp_path: Path) -> None:
    text = "open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + '0', 'wb').write(b'x')\n"
    environ = plain_environ() | {"TMPDIR": str(tmp_path)}
    subprocess.run(run(*program(tmp_path, text)), env=environ, check=True)
    assert list(tmp_path.glob("ddpdoctor-run-*")) == []


def test_the_copy_is_head_and_tail(tmp_path: Path) -> None:
    text = "for i in range(300_000):\n    sys.stdout.write(f'{i:08} ' + 'x' * 71 + '\\n')\n"
    line = run(sys.executable, "-c", f"import sys\n{text}", options=("--keep", str(tmp_path / "kept")))
    done = subprocess.run(line, env=plain_environ(), stdout=subprocess.PIPE, check=True)
    kept = (tmp_path / "kept").read_bytes()
    head, mark, tail = re.split(rb"(\[ddpdoctor run: \d+ bytes left out here\]\n)", kept)
    assert done.stdout.startswith(head)
    assert done.stdout.endswith(tail)
    assert len(head) > 2_000_000
    assert len(tail) > 14_000_000
    assert len(head) + len(tail) + int(re.findall(rb"\d+", mark)[0]) == len(done.stdout)


@pytest.mark.parametrize("keep", ["no-folder/kept", "."])
def test_where_nothing_can_be_kept_the_command_is_not_started(tmp_path: Path, keep: str) -> None:
    line = run("sh", "-c", "echo out", options=("--keep", str(tmp_path / keep)))
    done = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "folder" in done.stderr


def test_whose_words_the_line_numbers_are_of(tmp_path: Path) -> None:
    """Of a file that can be opened, or the next run is told how to have one."""
    text = "raise SystemExit('RuntimeError: CUDA error: out of memory')\n"
    kept = tmp_path / "kept"
    unsaved, saved = (
        subprocess.run(
            run(*program(tmp_path, text), options=options),
            env=plain_environ(),
            capture_output=True,
            text=True,
            check=False,
        ).stderr
        for options in ((), ("--keep", str(kept)))
    )
    assert "in no file; output:N above is its line N. To keep it: ddpdoctor run --keep FILE" in unsaved
    assert "in no file" not in saved
    assert f"{kept}:1" in "".join(line.strip() for line in saved.splitlines())


def test_a_full_disk_costs_the_copy_alone() -> None:
    line = run("sh", "-c", "echo out; exit 4", options=("--keep", "/dev/full"))
    done = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "out\n")
    assert "could not be kept in /dev/full: No space left on device\n" in done.stderr


# --- ddpdoctor itself breaks ------------------------------------------------------------------------------------------------


def sabotaged(folder: Path, text: str) -> dict[str, str]:
    """Settings with which that is done in every Python as it starts, ours among them."""
    place = folder / "sabotage"
    place.mkdir()
    guarded = "".join(f"    {line}\n" for line in text.splitlines())
    (place / "sitecustomize.py").write_text(f"import sys\nif 'ddpdoctor' in sys.orig_argv:\n{guarded}")
    return plain_environ() | {"PYTHONPATH": f"{place}:{ROOT}"}


def test_a_diagnosis_that_crashes_is_a_sentence(tmp_path: Path) -> None:
    environ = sabotaged(tmp_path, "sys.modules['ddpdoctor.logs.reading'] = None")
    done = subprocess.run(run(*program(tmp_path, WORDS)), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.endswith("ddpdoctor: there is no diagnosis: it failed, which is a bug in it\n")
    assert "Traceback" not in done.stderr


def test_a_diagnosis_that_hangs_is_a_sentence(tmp_path: Path) -> None:
    environ = sabotaged(
        tmp_path,
        "import time, types\n"
        "import ddpdoctor.run.supervisor\n"
        "ddpdoctor.run.supervisor.DIAGNOSIS_SECONDS = 0.3\n"
        "import ddpdoctor.logs.reading\n"
        "def read_stream(*_): time.sleep(1000)\n"
        "ddpdoctor.logs.reading.read_stream = read_stream",
    )
    done = subprocess.run(run(*program(tmp_path, WORDS)), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.endswith("ddpdoctor: the diagnosis took too long, and was given up\n")


def test_a_doctor_that_is_killed_is_a_sentence(tmp_path: Path) -> None:
    environ = sabotaged(
        tmp_path,
        "import os, time\n"
        "import ddpdoctor.logs.reading\n"
        "def read_stream(*_):\n"
        f"    open({str(tmp_path / 'doctor')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
        "ddpdoctor.logs.reading.read_stream = read_stream",
    )
    with subprocess.Popen(run(*program(tmp_path, WORDS)), env=environ, stderr=subprocess.PIPE, text=True) as one:
        assert one.stderr
        os.kill(int(written(tmp_path / "doctor")), signal.SIGKILL)
        assert one.stderr.read().endswith("ddpdoctor: there is no diagnosis: it was ended by SIGKILL\n")
        assert one.wait(60) == 3


def test_copying_that_fails_loses_no_output(tmp_path: Path) -> None:
    environ = sabotaged(
        tmp_path,
        "import ddpdoctor.run.shared_output\n"
        "keep = ddpdoctor.run.shared_output.SharedOutput.keep\n"
        "def fails(self, data):\n"
        "    if b'777' in bytes(data): raise ValueError\n"
        "    keep(self, data)\n"
        "ddpdoctor.run.shared_output.SharedOutput.keep = fails",
    )
    line = run(sys.executable, "-c", "for i in range(20000): print(i)")
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(number) for number in range(20000)]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("place", ["pipe", pytest.param("terminal", marks=pytest.mark.thorough)])
def test_a_place_that_is_not_ours_to_open(tmp_path: Path, place: str) -> None:
    """As the terminal is after su: it can't be had twice, and is written to as it is."""
    environ = sabotaged(
        tmp_path,
        "import os\n"
        "really = os.open\n"
        "def refuses(path, flags, *more, **named):\n"
        "    if str(path).startswith('/proc/self/fd/') and flags & os.O_WRONLY: raise PermissionError(13, 'no')\n"
        "    return really(path, flags, *more, **named)\n"
        "os.open = refuses",
    )
    line = run(sys.executable, "-c", "for i in range(30000): print(i)")
    if place == "pipe":
        shown = subprocess.run(line, env=environ, stdout=subprocess.PIPE, check=True).stdout
    else:
        with terminal(line, tmp_path, PYTHONPATH=environ["PYTHONPATH"]) as one:
            shown = one.to_its_end()
            assert one.wait() == 0
    assert shown.split() == [b"%d" % number for number in range(30000)]


def test_without_descriptors_the_command_runs_without_us(tmp_path: Path) -> None:
    environ = sabotaged(
        tmp_path,
        "import ddpdoctor.run.supervisor\n"
        "def open_streams(): raise OSError(24, 'Too many open files')\n"
        "ddpdoctor.run.supervisor.open_streams = open_streams",
    )
    done = subprocess.run(run("sh", "-c", "echo out; exit 5"), env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "out\n")
    assert done.stderr == "ddpdoctor can't watch the command (Too many open files): it runs without\n"


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), pytest.param(signal.SIGTERM, 2, marks=pytest.mark.thorough)]
)
def test_a_diagnosis_is_stopped_when_somebody_insists(tmp_path: Path, number: int, times: int) -> None:
    """By the first Ctrl-C, and the second SIGTERM: the first may be a launcher's, which waits for us."""
    environ = sabotaged(
        tmp_path,
        "import os, time\nimport ddpdoctor.logs.reading\n"
        "def read_stream(*_):\n"
        f"    open({str(tmp_path / 'doctor')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
        "ddpdoctor.logs.reading.read_stream = read_stream",
    )
    with subprocess.Popen(
        run(*program(tmp_path, WORDS)), env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as one:
        assert one.stderr
        doctor = int(written(tmp_path / "doctor"))
        for _ in range(times):
            os.kill(one.pid, number)
            wait_until(lambda: not _pending(one.pid, number), "it to be taken")
        assert one.stderr.read().endswith("ddpdoctor: the diagnosis was stopped\n")
        assert one.wait(60) == 3
    wait_until(lambda: ended(doctor), "the doctor's end")


def _pending(pid: int, number: int) -> bool:
    found = re.findall(r"^S[hi][dg]Pnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(one, 16) >> (number - 1) & 1 for one in found)


def test_ranks_under_a_launcher_finish_their_diagnosis(tmp_path: Path) -> None:
    """The launcher ends the others once one has failed; the first rank says the whole nevertheless."""
    (tmp_path / "rank.py").write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "Path(os.environ['RANK']).touch()\n"
        "while not (Path('0').exists() and Path('1').exists()): time.sleep(0.01)\n"
        "raise ValueError('no such split')\n"
    )
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = subprocess.run(
        [*line, "--no-python", *run(sys.executable, "rank.py")],
        env=plain_environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(re.findall(r"^ddpdoctor, rank 1 on \S+: FAIL  user-code-error", done.stderr, re.MULTILINE)) == 1
    assert done.stderr.count("[user-code-error]") == 1


def test_signs_of_the_users_own_folder_count(tmp_path: Path) -> None:
    signs = tmp_path / "config" / "ddpdoctor" / "signs"
    signs.mkdir(parents=True)
    (signs / "storage.toml").write_text(
        "[pages.scratch-quota]\ntitle = 'The quota is used up'\n[[scratch-quota]]\ntext = 'scratchfs: write refused'\n"
    )
    environ = plain_environ() | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    line = run("sh", "-c", "echo scratchfs: write refused; exit 1")
    done = subprocess.run(line, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "The quota is used up  [scratch-quota]" in done.stderr
