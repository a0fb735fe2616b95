"""What `check` says of real processes that hold the GPUs of a stand-in for NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.facts.gpus import GpuHolder
from tests.support.command import ddpdoctor, plain_environ
from tests.support.free_ports import free_port
from tests.support.nvml import FakeNvidia, holding
from tests.support.running_jobs import RunningJob, by_hand, launched, state, wait_until

pytestmark = pytest.mark.tool("gcc")

GIB = 1 << 30
SLUGS = (
    "zombie-gpu-process", "gpu-memory-held-by-others", "gpu-memory-unowned", "gpu-memory-in-use", "mixed-jobs-on-gpu",
    "missing-set-device", "gpu0-extra-contexts", "duplicate-gpu",
)  # fmt: skip
"""Those that speak of holders of GPUs alone: other tests' jobs hold none."""

LEAVES_A_ZOMBIE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(100_000)
"""


ORPHANS_A_LISTENER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
"""

LISTENER = """
import os, socket, time
listening = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
print(os.getpid(), flush=True)
time.sleep(100_000)
"""


def on_gpus(held: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, dict[str, object]]:
    """GPU to (pid, bytes) of its holders, as the stand-in takes it."""
    return {
        gpu: {
            "holders": holding(*(GpuHolder(pid=pid, memory=memory) for pid, memory in some)),
            "used": sum(memory for _, memory in some),
        }
        for gpu, some in held.items()
    }


def found(fake: FakeNvidia, held: Mapping[int, Sequence[tuple[int, int]]], gpus: int = 4) -> dict[str, dict[str, Any]]:
    """Findings by slug: there is one of each."""
    environ = fake.environ(gpus=gpus, of_gpu=on_gpus(held))
    for name in ("CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environ.pop(name, None)
    done = ddpdoctor("check", "--quick", "--json", "--select", ",".join(SLUGS), environ=environ)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)["findings"]
    assert len({finding["slug"] for finding in told}) == len(told), [finding["summary"] for finding in told]
    return {finding["slug"]: finding for finding in told}


def pids(job: RunningJob, count: int) -> list[int]:
    return [job.pid(rank) for rank in range(count)]


def test_each_rank_on_its_gpu_is_somebody_at_work_and_no_illness(tmp_path: Path, fake_nvidia: FakeNvidia) -> None:
    with launched(tmp_path, 2) as job:
        first, second = pids(job, 2)
        assert found(fake_nvidia, {0: [(first, 3 * GIB)], 1: [(second, 3 * GIB)]}) == {}
        full = found(fake_nvidia, {gpu: [(pid, 75 * GIB)] for gpu, pid in enumerate((first, second))}, gpus=2)
        assert set(full) == {"gpu-memory-held-by-others"}, "and gpu-memory-in-use doesn't say the same again"
        assert full["gpu-memory-held-by-others"]["severity"] == "fail"
        assert str(first) in full["gpu-memory-held-by-others"]["summary"]


def test_ranks_that_are_not_where_they_belong(tmp_path: Path, fake_nvidia: FakeNvidia) -> None:
    with launched(tmp_path, 3) as job:
        ranks = pids(job, 3)
        all_on_one = found(fake_nvidia, {0: [(pid, 2 * GIB) for pid in ranks]})
        assert set(all_on_one) == {"missing-set-device"}
        assert f"Job {job.process.pid}: ranks 0-2 all work on GPU 0" in all_on_one["missing-set-device"]["summary"]
        own = {rank: [(pid, 5 * GIB)] for rank, pid in enumerate(ranks)}
        bare = found(fake_nvidia, {**own, 0: [*own[0], *((pid, GIB // 2) for pid in ranks[1:])]})
        assert set(bare) == {"gpu0-extra-contexts"}
        assert "before torch.cuda.set_device" in bare["gpu0-extra-contexts"]["cause"]
        tensors = found(fake_nvidia, {**own, 0: [own[0][0], (ranks[1], 2 * GIB)]})
        assert "map_location" in tensors["gpu0-extra-contexts"]["cause"]
        assert tensors["gpu0-extra-contexts"]["rank"] == 1


def test_two_jobs_on_one_gpu_then_a_leaked_rank_beside_a_running_job(tmp_path: Path, fake_nvidia: FakeNvidia) -> None:
    with launched(tmp_path, 2) as old, launched(tmp_path, 2) as new:
        (leaked, other), (first, second) = pids(old, 2), pids(new, 2)
        both: dict[int, list[tuple[int, int]]] = {0: [(leaked, GIB), (first, GIB)], 1: [(second, GIB)]}
        assert set(found(fake_nvidia, both)) == {"mixed-jobs-on-gpu"}
        os.kill(old.process.pid, signal.SIGKILL)
        old.process.wait()
        os.kill(other, signal.SIGKILL)
        told = found(fake_nvidia, both)
        assert set(told) == {"gpu0-extra-contexts"}
        summary = told["gpu0-extra-contexts"]["summary"]
        assert f"id {leaked} (rank 0) may be left over, and holds" in summary
        assert summary.endswith("on GPU 0 beside a running job")
        alone = found(fake_nvidia, {0: [(leaked, GIB)]})
        assert set(alone) == {"zombie-gpu-process"}
        assert alone["zombie-gpu-process"]["severity"] == "warn", "nothing proves that it ever was a rank"
        commands = [command for fix in alone["zombie-gpu-process"]["fixes"] for command in fix["commands"]]
        assert not any("kill" in command for command in commands)


def test_a_zombie_holds_a_gpu(fake_nvidia: FakeNvidia) -> None:
    command = [sys.executable, "-c", LEAVES_A_ZOMBIE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            wait_until(lambda: state(pid) == "Z")
            told = found(fake_nvidia, {2: [(pid, 9 * GIB)]})
        finally:
            parent.kill()
    assert set(told) == {"zombie-gpu-process"}
    assert told["zombie-gpu-process"]["severity"] == "fail"
    assert f"id {pid} " in told["zombie-gpu-process"]["summary"]
    assert "9 GiB on GPU 2" in told["zombie-gpu-process"]["summary"]


def test_memory_that_nobody_owns_and_a_holder_that_is_gone(fake_nvidia: FakeNvidia) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    environ = on_gpus({1: [(gone.pid, 9 * GIB)], 3: []})
    environ[3]["used"] = 38 * GIB
    done = ddpdoctor(
        "check", "--quick", "--json", "--select", ",".join(SLUGS), environ=fake_nvidia.environ(gpus=4, of_gpu=environ)
    )
    told = [(finding["slug"], finding["summary"]) for finding in json.loads(done.stdout)["findings"]]
    assert [slug for slug, _ in told] == ["gpu-memory-unowned"] * 2
    assert "38 GiB (48%) of GPU 3" in told[0][1]
    assert f"id {gone.pid} holds 9 GiB on GPU 1" in told[1][1]


def test_a_rank_of_a_job_with_a_setting_of_its_own(tmp_path: Path) -> None:
    with by_hand(tmp_path, 2, real=False, world_size=3) as job:
        settings = _environ(job.pid(0))
        job.start([sys.executable, "train.py"], {**settings, "RANK": "2", "LOCAL_RANK": "2", "NCCL_ALGO": "Ring"})
        ranks = pids(job, 3)
        done = ddpdoctor("check", "--quick", "--json", "--select", "job-settings-differ")
    told = [
        finding
        for finding in json.loads(done.stdout)["findings"]
        if any(f"Job {pid}:" in finding["summary"] for pid in ranks)
    ]
    assert [(finding["summary"].partition(": ")[2], finding["severity"]) for finding in told] == [
        ("NCCL_ALGO=Ring on rank 2, not set on the others", "fail")
    ]


def test_the_port_is_held_by_a_rank_of_a_run_that_is_gone() -> None:
    port = str(free_port())
    meeting = {**plain_environ(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    command = [sys.executable, "-c", ORPHANS_A_LISTENER, LISTENER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**meeting, **rank}
    ) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        try:
            launcher.wait()
            done = ddpdoctor("check", "--quick", "--json", "--select", "port-in-use", environ=meeting)
        finally:
            os.kill(pid, signal.SIGKILL)
    (told,) = json.loads(done.stdout)["findings"]
    assert f"Port {port} (MASTER_PORT) is taken by" in told["summary"]
    assert told["summary"].endswith(", perhaps a leftover of a run that is gone")
    assert "Torchrun, which started it, is gone" in told["cause"]
    assert told["fixes"][0]["commands"][0] == f"ddpdoctor zombies {pid}"


def _environ(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)
