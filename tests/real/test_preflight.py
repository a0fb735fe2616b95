"""Two ranks over gloo call `preflight()`: healthy, and each sick in its own way."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor
from ddpdoctor.api.preflight_callback import PreflightCallback
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.job_preflight.messages import JobVerdict
from tests.support.preflight_jobs import EndedRank, run_ranks

START = """
import json, os, signal, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
import ddpdoctor

RANK = int(os.environ["RANK"])

def told(name, **options):
    began = time.monotonic()
    result = ddpdoctor.preflight(**options)
    print(json.dumps({
        "name": name, "seconds": time.monotonic() - began, "verdict": result.verdict.value,
        "problems": list(result.problems), "missing": list(result.missing_ranks), "calls": list(result.agreed.calls),
        "findings": {finding.slug: finding.summary for finding in result.findings if finding.severity.value != "info"},
        "untested": {check.slug: check.reason for check in result.report().not_tested},
    }), flush=True)
    print(f"== {name}", file=sys.stderr, flush=True)
    return result
"""

# Each is one more preflight of the same job. What differs is undone behind it; hosts are looked at in the first alone.
ROUNDS = (
    START
    + """
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
import random
from msgspec.structs import replace
from ddpdoctor.job_preflight import host_look, own_words

def state():
    return {
        "random": random.getstate(), "torch": torch.get_rng_state().tolist(), "environ": dict(os.environ),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "groups": (dist.distributed_c10d._world.group_count, list(dist.distributed_c10d._world.pg_names.values())),
        "default": (torch.get_default_dtype(), torch.get_default_device()), "folder": os.getcwd(), "cuda": torch.cuda.is_initialized(),
    }

before = state()
told("healthy", timeout=100)
assert state() == before
numbers = torch.ones(1)
dist.all_reduce(numbers)
assert numbers.item() == 2.0
# From a thread of the exchange at most, which is over.
assert not [thread for thread in threading.enumerate() if thread.daemon and thread.is_alive()]

describe = own_words.describe_rank
host_look.look_at_host = lambda *_: host_look.HostAnswer(host="here", passed=1)

def played(name, on_rank_1=lambda rank: rank, on_all=lambda rank: rank, **options):
    own_words.describe_rank = lambda *given, **named: (on_rank_1 if RANK else lambda rank: rank)(on_all(describe(*given, **named)))
    try:
        return told(name, timeout=60, **options)
    finally:
        own_words.describe_rank = describe

def on_gpu(number):
    return lambda rank: replace(rank, device=f"cuda:{number}", device_source="device", gpu=str(number), gpu_scope="here")

played("same gpu", on_all=on_gpu(0))
played("other gpus", on_all=on_gpu(RANK))
os.environ["CUDA_VISIBLE_DEVICES"] = ""
played("no gpu", device="cuda:0")
del os.environ["CUDA_VISIBLE_DEVICES"]
played("other torch", lambda rank: replace(rank, torch="2.1.0"))
played("other python", lambda rank: replace(rank, python_version="3.9.1"))
played("other world", lambda rank: replace(rank, world_size=3))
played("other backend", lambda rank: replace(rank, backend="nccl"))
played("nccl", on_all=lambda rank: replace(rank, backend="nccl"))
if RANK:
    os.environ["NCCL_ALGO"] = "Ring"
played("other setting")
os.environ.pop("NCCL_ALGO", None)
cuda = torch.version.cuda
if RANK:
    del torch.version.cuda
played("damaged")
if RANK == 0:
    del torch.version.cuda
played("damaged everywhere")
torch.version.cuda = cuda
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
played("other default device")
torch.set_default_device(None)
try:
    played("stopped", lambda rank: replace(rank, world_size=3), on_illness="stop")
except ddpdoctor.PreflightError as error:
    print(json.dumps({"name": "error", "text": str(error)}), flush=True)
# A judge that fails is our own fault, and no rank's.
from ddpdoctor.job_preflight import judging
judge, judging.judge = judging.judge, lambda *_: 1 / 0
if RANK == 0:
    told("own fault", timeout=4)
judging.judge = judge
dist.barrier()
dist.destroy_process_group()
"""
)


def outcomes(rank: EndedRank) -> dict[str, dict[str, Any]]:
    return {told["name"]: told for told in map(json.loads, rank.out.splitlines())}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[EndedRank]:
    return run_ranks(ROUNDS, tmp_path_factory.mktemp("rounds"))


def said(rank: EndedRank, name: str) -> str:
    """What it wrote to standard error in that round."""
    rounds = rank.err.split("== ")
    return next(before.partition("\n")[2] for before, after in pairwise(rounds) if after.startswith(f"{name}\n"))


def test_healthy_ranks_say_nothing_and_are_as_before(rounds: list[EndedRank]) -> None:
    assert [rank.code for rank in rounds] == [0, 0], rounds
    for rank in rounds:
        told = outcomes(rank)["healthy"]
        assert "barrier, all_reduce and all_gather of 2 ranks over gloo" in told["calls"][0]
        assert (told["missing"], told["problems"]) == ([], [])
        assert not [slug for slug in told["findings"] if slug.startswith("preflight") or "mismatch" in slug]
        if told["verdict"] == "ok":  # This host may have an illness of its own.
            assert "ddpdoctor" not in rank.err.split("== healthy")[0]


@pytest.mark.parametrize(
    ("name", "verdict", "slug", "words"),
    [
        ("same gpu", "fail", "duplicate-gpu", "are on the same GPU (cuda:0)"),
        ("other torch", "fail", "torch-version-mismatch", "(rank 1) has torch 2.1.0"),
        ("other python", "warn", "torch-version-mismatch", "(rank 1) trains with Python 3.9.1"),
        ("other world", "fail", "world-size-mismatch", "2 on rank 0 and 3 on rank 1"),
        ("other backend", "fail", "backend-mismatch", "gloo on rank 0 and nccl on rank 1"),
        ("other setting", "warn", "env-not-propagated", "(rank 1) has NCCL_ALGO=Ring"),
        ("no gpu", "fail", "preflight-device-missing", "are to use cuda:0, and there is no such GPU: "),
        ("damaged everywhere", "warn", "preflight-rank-failed", "could not say what they are: AttributeError"),
        ("damaged", "warn", "preflight-rank-failed", "AttributeError: module 'torch.version' has no attribute 'cuda'"),
        ("other gpus", "ok", "", ""),
        ("other default device", "ok", "", ""),
        ("nccl", "ok", "", ""),
    ],
)
def test_all_ranks_have_the_same_answer_and_one_reports(
    rounds: list[EndedRank], name: str, verdict: str, slug: str, words: str
) -> None:
    first, second = (outcomes(rank)[name] for rank in rounds)
    assert (first["verdict"], first["findings"]) == (second["verdict"], second["findings"])
    assert (first["verdict"], list(first["findings"])) == (verdict, [slug] if slug else [])
    assert words in first["findings"].get(slug, "")
    reports = [said(rank, name).count("ddpdoctor preflight:") for rank in rounds]
    assert reports == ([1, 0] if slug else [0, 0])


def test_nccl_is_not_called_fine(rounds: list[EndedRank]) -> None:
    assert "NCCL was not tried" in outcomes(rounds[1])["nccl"]["untested"]["preflight-collective-failed"]


def test_an_illness_ends_the_job_with_the_finding_if_asked(rounds: list[EndedRank]) -> None:
    for rank in rounds:
        assert outcomes(rank)["error"]["text"] == (
            "ddpdoctor's preflight stops the job:\n"
            "  The ranks differ in the number of ranks: 2 on rank 0 and 3 on rank 1  [world-size-mismatch]"
        )
    assert "Traceback" not in "".join(rank.err for rank in rounds)


def test_a_fault_of_our_own_is_no_verdict(rounds: list[EndedRank]) -> None:
    told = outcomes(rounds[0])["own fault"]
    assert (told["verdict"], told["problems"]) == (
        "unknown",
        ["ddpdoctor itself failed: ZeroDivisionError: division by zero"],
    )


AWAY = (
    START
    + """
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
away = int(os.environ["AWAY"])
folder = os.getcwd()
if RANK == away:
    while not os.path.exists(f"{folder}/over"):
        time.sleep(0.05)
told("away", timeout=6)
open(f"{folder}/over", "w").close()
# Whoever came late has the same answer, and the job is as it was.
numbers = torch.ones(1)
dist.all_reduce(numbers)
assert numbers.item() == 2.0
dist.destroy_process_group()  # torch itself aborts now and then without it.
"""
)


@pytest.mark.parametrize("away", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_rank_that_does_not_come_is_named_within_the_time(tmp_path: Path, away: int) -> None:
    ranks = run_ranks(AWAY, tmp_path, {rank: {"AWAY": str(away)} for rank in range(2)})
    assert [rank.code for rank in ranks] == [0, 0], ranks
    here, late = outcomes(ranks[1 - away])["away"], outcomes(ranks[away])["away"]
    assert here["findings"]["preflight-rank-missing"].startswith(
        f"Rank {away} did not come to the preflight within 3 s"
    )
    assert here["missing"] == late["missing"] == [away]
    assert (here["verdict"], here["findings"]) == (late["verdict"], late["findings"])
    assert here["seconds"] < 8
    assert [rank.err.count("ddpdoctor preflight:") for rank in ranks].count(1) == 1


SUSPENDED = (
    START
    + """
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
from ddpdoctor.job_preflight import side_group

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)

where = os.environ["WHERE"]
if where == "store" and RANK == 0:
    dist.barrier()
    stop()
elif where == "store":
    dist.barrier()
    time.sleep(1)
if where == "calls" and RANK == 1:
    side_group.SideGroup.try_calls = lambda group: stop()
told("suspended", timeout=10)
# What ends a group waits for the other rank.
sys.stdout.flush()
os._exit(0)
"""
)


@pytest.mark.parametrize(
    ("where", "stopped", "slug", "words"),
    [
        (
            "calls",
            1,
            "preflight-collective-failed",
            "Rank 1 began the collectives over gloo, and said nothing any more",
        ),
        ("store", 0, "job-store-unreachable", "Rank 1 can't use the job's store"),
    ],
)
def test_a_rank_that_is_stopped_holds_nobody(tmp_path: Path, where: str, stopped: int, slug: str, words: str) -> None:
    ranks = run_ranks(SUSPENDED, tmp_path, {rank: {"WHERE": where} for rank in range(2)}, wait_for=1 - stopped)
    told = outcomes(ranks[1 - stopped])["suspended"]
    assert told["verdict"] == "fail"
    assert words in told["findings"][slug]
    assert told["seconds"] < 14
    assert ranks[1 - stopped].err.count("ddpdoctor preflight:") == 1


BEFORE = (
    START
    + """
told("before", timeout=100, backend="gloo")
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
numbers = torch.ones(1)
dist.all_reduce(numbers)
assert numbers.item() == 2.0
told("after", timeout=100)
dist.destroy_process_group()
"""
)


def test_it_meets_where_the_group_will_be_made(tmp_path: Path) -> None:
    ranks = run_ranks(BEFORE, tmp_path)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    for rank in ranks:
        for told in outcomes(rank).values():
            assert told["calls"]
            assert told["missing"] == []


def test_without_a_launcher_the_host_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        assert name not in os.environ
    began = time.monotonic()
    result = ddpdoctor.preflight(timeout=60)
    assert time.monotonic() - began < 60
    assert result.agreed.world_size == 1
    assert [host.problem for host in result.agreed.hosts] == [""]
    assert json.loads(result.to_json())["command"] == "preflight"
    assert ("ddpdoctor preflight:" in capsys.readouterr().err) == (result.verdict is not Verdict.OK)


@pytest.mark.parametrize("call", [ddpdoctor.preflight, PreflightCallback])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"on_illness": "ignore"}, "on_illness is 'warn' or 'stop', not 'ignore'"),
        ({"on_illness": None}, "on_illness is 'warn' or 'stop', not None"),
        ({"timeout": 0}, "timeout is from 4 to 86400 seconds, not 0"),
        ({"timeout": float("nan")}, "timeout is from 4 to 86400 seconds, not nan"),
        ({"timeout": "60"}, "timeout is a number of seconds, not '60'"),
        ({"timeout": None}, "timeout is a number of seconds, not None"),
    ],
)
def test_what_can_not_be_meant_is_refused(call: Callable[..., object], arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ddpdoctor.UsageError, match=words):
        call(**arguments)


@pytest.mark.parametrize("device", ["nonsense", -1, True, object(), 1.5])
def test_a_device_that_is_none_is_refused(device: object) -> None:
    with pytest.raises(ddpdoctor.UsageError, match=r"device is what torch\.device\(\) takes, such as .*, not "):
        ddpdoctor.preflight(device=device)


def test_a_device_of_whose_number_torch_makes_another_is_refused() -> None:
    with pytest.raises(
        ddpdoctor.UsageError,
        match=r'device is one of torch\'s, such as "cuda:0", not .*, of which torch makes cuda:-12',
    ):
        ddpdoctor.preflight(device="cuda:500")


@pytest.mark.parametrize("backend", ["bogus", 3, "cpu:gloo,cuda:bogus"])
def test_a_backend_that_is_none_is_refused(backend: Any) -> None:
    with pytest.raises(ddpdoctor.UsageError, match=r"backend is one that torch knows here .*gloo, nccl.*, not "):
        ddpdoctor.preflight(backend=backend)


def test_its_exception_travels_between_processes() -> None:
    agreed = JobVerdict(
        verdict=Verdict.FAIL, judge=0, world_size=2, answered=1, hosts=(), checks=(), tokens={}, absent=(1,)
    )
    error = ddpdoctor.PreflightError(ddpdoctor.PreflightResult(agreed))
    assert pickle.loads(pickle.dumps(error)).result.missing_ranks == (1,)
