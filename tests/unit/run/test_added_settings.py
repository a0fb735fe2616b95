"""What `ddpdoctor run` sets for the command: what its torch knows, and the user has not set."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.known_settings import known_settings
from ddpdoctor.logs.analyze.kernel_kills import of_this_run
from ddpdoctor.run.added_settings import settings_for, torch_release
from ddpdoctor.run.diagnosis import EndedCommand, folder_of_redirects, log_dir, looks_at_jobs, one_of_many, show_dumps
from tests.support.command import ROOT

DUMPS = "/tmp/ddpdoctor-run-1-rank_"


def environment(folder: Path, release: str) -> dict[str, str]:
    """A virtual environment with that torch, and a torchrun in it; its PATH."""
    place = folder / "lib/python3.11/site-packages/torch"
    place.mkdir(parents=True)
    (place / "version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{release}'\ncuda = '12.8'\n")
    (folder / "bin").mkdir()
    for name, text in (("python", "#!/bin/sh\n"), ("torchrun", f"#!{folder}/bin/python\nimport torch\n")):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return {"PATH": f"{folder}/bin:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("release", "size", "file", "when"),
    [
        ("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", None),
        ("2.9.1", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        (
            "2.6.0+cu124",
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
        ),
        ("2.4.1", None, None, None),
        ("1.13.1", None, None, None),
    ],
)
def test_each_release_gets_the_names_it_knows(
    tmp_path: Path, release: str, size: str | None, file: str | None, when: str | None
) -> None:
    environ = environment(tmp_path, release)
    expected = {"PYTHONFAULTHANDLER": "1", size: "2000", file: DUMPS, when: "1"}
    expected.pop(None, None)
    assert settings_for(["torchrun", "train.py"], environ, DUMPS) == expected
    number = tuple(int(part) for part in release.split(".")[:2])
    for name in set(expected) - {"PYTHONFAULTHANDLER"}:
        known = known_settings()[str(name)]
        assert tuple(int(part) for part in known.since.split(".")[:2]) <= number
        newer = known_settings().get(known.replaced_by)
        # It would warn of a name that is older than itself.
        assert newer is None or tuple(int(part) for part in newer.since.split(".")[:2]) > number


def test_what_the_user_has_set_counts_under_any_name(tmp_path: Path) -> None:
    environ = environment(tmp_path, "2.13.0")
    own = {
        "PYTHONFAULTHANDLER": "",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/shared/dump_",
    }
    assert settings_for(["torchrun"], environ | own, DUMPS) == {}
    assert settings_for(["torchrun"], environ | {"TORCH_FR_BUFFER_SIZE": "9"}, DUMPS) == {
        "PYTHONFAULTHANDLER": "1",
        "TORCH_FR_DUMP_TEMP_FILE": DUMPS,
    }


def test_ranks_elsewhere_keep_torch_s_own_place_for_dumps(tmp_path: Path) -> None:
    found = settings_for(["srun", "torchrun", "train.py"], environment(tmp_path, "2.13.0"), DUMPS)
    assert set(found) == {"PYTHONFAULTHANDLER", "TORCH_FR_BUFFER_SIZE"}


def test_the_release_is_that_of_the_command_s_python(tmp_path: Path) -> None:
    environ = environment(tmp_path / "one", "2.6.0")
    environment(tmp_path / "two", "2.9.1")
    assert torch_release(["torchrun"], environ) == (2, 6)
    assert torch_release(["python", "train.py"], environ) == (2, 6)
    assert torch_release([str(tmp_path / "two/bin/torchrun")], environ) == (2, 9)
    assert torch_release([str(tmp_path / "two/bin/python"), "-m", "x"], environ) == (2, 9)
    # A script that calls torchrun, most likely by that PATH.
    (tmp_path / "job.sh").write_text("#!/bin/bash\ntorchrun train.py\n")
    (tmp_path / "job.sh").chmod(0o755)
    assert torch_release([str(tmp_path / "job.sh")], environ) == (2, 6)
    assert torch_release(["no-such-command"], {"PATH": str(tmp_path)}) is None
    (tmp_path / "one/lib/python3.11/site-packages/torch/version.py").write_bytes(b"\xff__version__")
    assert torch_release(["torchrun"], environ) is None


def test_the_real_one_here() -> None:
    torch = pytest.importorskip("torch")
    expected = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert torch_release([sys.executable], dict(os.environ)) == expected


@pytest.mark.parametrize(
    ("environ", "many", "looks"),
    [
        ({}, "", True),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}, "", True),
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "3"}, "task 3", False),
        ({"SLURM_PROCID": "8", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}, "task 8", True),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "rank 5", False),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "rank 2", True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}, "node 1", True),
    ],
)
def test_who_tells_the_whole(environ: dict[str, str], many: str, looks: bool) -> None:
    assert one_of_many(environ) == many
    assert looks_at_jobs(environ) == looks


def test_who_was_killed_before_the_run_confirms_nothing() -> None:
    """What the kernel says of hardware counts, however old it is."""
    killed = "Out of memory: Killed process 12003 (python) total-vm:1334636kB"
    lines = [(killed, 2880.0), (killed, 15.0), (killed, -1.0), ("NVRM: Xid (PCI:0000:3b:00): 79", 9000.0)]
    kernel = KernelLog(lines=tuple(KernelLine(text=text, age=age) for text, age in lines))
    found = of_this_run(
        Snapshot(host="node0", kernel_log=kernel, cgroup=Cgroup(version=2, oom_kills=7)), 19.0, killed=5
    )
    assert isinstance(found.kernel_log, KernelLog)
    assert [line.age for line in found.kernel_log.lines] == [15.0, -1.0, 9000.0]
    assert isinstance(found.cgroup, Cgroup)
    assert found.cgroup.oom_kills == 2


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("torchrun --nproc-per-node 2 --log-dir logs -r 3 train.py", "logs"),
        ("torchrun --log_dir=/data/logs --redirects=0:3 train.py --log-dir other", "/data/logs"),
        ("python -m torch.distributed.run --log-dir logs -r3 train.py", "logs"),
        ("torchrun --log-dir logs -r 3 --tee 3 train.py", ""),
        ("torchrun --log-dir logs train.py -r 3", ""),
        ("torchrun -r 3 train.py --log-dir logs", ""),
        ("python train.py", ""),
    ],
)
def test_where_torchrun_puts_the_words_of_its_ranks(command: str, folder: str) -> None:
    assert (log_dir(command.split()) or "") == folder


def test_the_folder_that_torchrun_makes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it is surely that of this run: an earlier one's isn't, and of two nobody knows which."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = ["torchrun", "--nproc-per-node=2", "--redirects", "3", "train.py"]
    earlier, ours, others = (tmp_path / f"torchelastic_{name}" for name in ("a", "b", "c"))
    earlier.mkdir()
    os.utime(earlier, (1_700_000_000, 1_700_000_000))
    assert folder_of_redirects(command, 1_700_000_010) == ""
    ours.mkdir()
    assert folder_of_redirects(command, 1_700_000_010) == str(ours)
    assert folder_of_redirects(["torchrun", "train.py"], 1_700_000_010) == "", "its output has them"
    others.mkdir()
    assert folder_of_redirects(command, 1_700_000_010) == ""


def test_dumps_of_a_short_run_are_read_however_late_the_diagnosis_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ran for a second, a minute ago: the diagnosis waited for a busy host. What is older than the run is another's."""
    began = time.time() - 60
    for rank, written in ((0, began + 0.5), (1, began + 0.5), (2, began - 100)):
        shutil.copy(ROOT / "fixtures" / "flight_recorder" / "lagging" / f"rank_{rank}", tmp_path)
        os.utime(tmp_path / f"rank_{rank}", (written, written))
    ended = EndedCommand(command=("torchrun", "train.py"), status=1, seconds=1.0, output=(), began=began)
    show_dumps(ended, {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")})
    told = capsys.readouterr().out
    assert f"flight recorders have left {tmp_path}/rank_0 and others" in told
    assert "rank_2" not in told
