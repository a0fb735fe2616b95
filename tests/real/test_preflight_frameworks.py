"""The examples of docs/reference/preflight.md, run as two ranks by their frameworks: healthy, and with one rank that has another setting."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest

from tests.support.preflight_jobs import EndedRank, example, run_ranks

pytestmark = pytest.mark.slow

FOUND = r"\S+ \(rank 1\) has TORCH_DISTRIBUTED_DEBUG=DETAIL; on \S+ \(rank 0\) it is not set  \[env-not-propagated\]"
STOPPED = rf"ddpdoctor's preflight stops the job:\n  {FOUND}"
# torch has read the setting already. With one that it is yet to read, rank 1 would wait for ever for the group in which the preflight is called.
FALL_ILL = 'os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"'

# The host has illnesses of its own, or none; a framework that calls at the wrong time is not to be excused by them.
START = f"""
import os, sys
import torch
import ddpdoctor
from ddpdoctor.job_preflight import host_look, own_words

host_look.look_at_host = lambda *_: host_look.HostAnswer(host="here", passed=1)
describe = own_words.describe_rank
asked = []

def describe_rank(rank, world_size, *, backend="", device=None):
    asked.append((rank, world_size, str(device)))
    return describe(rank, world_size, backend=backend, device=device)

own_words.describe_rank = describe_rank
if "ILL" in os.environ:
    {FALL_ILL}
"""

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.layer(x).mean()}

model, data = Model(), [{"x": torch.zeros(4)}] * 16
"""

LIGHTNING_MODEL = """
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
import torch

model, data = BoringModel(), torch.utils.data.DataLoader(RandomDataset(32, 8))
"""

END = """
import torch.distributed
assert torch.distributed.is_initialized()
print("asked:", asked, flush=True)
torch.distributed.destroy_process_group()
"""

ILL_AGAIN = """
print("asked:", asked, flush=True)
if os.environ["RANK"] == "1":
    {fall_ill}
try:
{again}
except ddpdoctor.PreflightError as error:
    print("stopped:", error, flush=True)
torch.distributed.destroy_process_group()  # torch itself aborts now and then without it.
"""


def ill_again(code: str) -> str:
    return ILL_AGAIN.format(fall_ill=FALL_ILL, again=textwrap.indent(code, "    "))


def again(code: str) -> str:
    """The example twice in one process: healthy, and then with another setting on rank 1."""
    return f"{code}\n{ill_again(code)}"


def stopping(code: str) -> str:
    return code.replace("ddpdoctor.preflight(", 'ddpdoctor.preflight(on_illness="stop", ').replace('stop", )', 'stop")')


def healthy_then_stopped(ranks: list[EndedRank], device: str) -> None:
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, ended.err
        assert f"asked: [({rank}, 2, '{device}')]" in ended.out
        assert re.search(f"stopped: {STOPPED}", ended.out), ended.out
        assert "Traceback" not in ended.err
    assert [ended.err.count("ddpdoctor preflight:") for ended in ranks] == [1, 0]


def test_plain_ddp(tmp_path: Path) -> None:
    code = stopping(example("ddp"))
    first, call = code.split("ddpdoctor.preflight", 1)
    script = f"{START}{first}ddpdoctor.preflight{call}{ill_again('ddpdoctor.preflight' + call)}"
    healthy_then_stopped(run_ranks(script, tmp_path), "None")


def test_accelerate(tmp_path: Path) -> None:
    healthy_then_stopped(run_ranks(START + again(stopping(example("accelerate"))), tmp_path), "cpu")


def test_transformers(tmp_path: Path) -> None:
    ranks = run_ranks(START + MODEL + again(example("transformers")), tmp_path)
    healthy_then_stopped(ranks, "cpu")


@pytest.mark.thorough
def test_transformers_with_a_callback_that_is_added_later(tmp_path: Path) -> None:
    code = example("transformers").replace('    callbacks=[ddpdoctor.TransformersPreflight(on_illness="stop")],\n', "")
    code = code.replace(
        "trainer.train()", 'trainer.add_callback(ddpdoctor.TransformersPreflight(on_illness="stop"))\ntrainer.train()'
    )
    assert "add_callback" in code
    ended = run_ranks(START + MODEL + code + END, tmp_path)[1]
    assert "asked: [(1, 2, 'cpu')]" in ended.out, ended.err


@pytest.mark.parametrize("package", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.thorough)])
def test_lightning(tmp_path: Path, package: str) -> None:
    """Lightning starts rank 1 by itself, so a rank is one process of the two that `run_ranks` would start."""
    code = LIGHTNING_MODEL + START + example("lightning") + END
    if package != "lightning":
        code = code.replace("lightning.pytorch", package).replace("import lightning\n", f"import {package}\n")
        code = code.replace("lightning.Trainer", f"{package}.Trainer")
    ranks = run_ranks(code, tmp_path)
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, ended.err
        assert f"asked: [({rank}, 2, 'cpu')]" in ended.out
        assert "ddpdoctor preflight:" not in ended.err
    ranks = run_ranks(code, tmp_path, {1: {"ILL": "1"}})
    for ended in ranks:
        assert ended.code == 1
        # torch writes the rank before each line.
        text = re.sub(r"(?m)^\[rank\d\]: ", "", ended.err)
        assert re.search(f"PreflightError: {STOPPED}", text), text
    assert [ended.err.count("ddpdoctor preflight:") for ended in ranks] == [1, 0]


@pytest.mark.thorough
def test_one_callback_serves_both_of_lightnings_packages(tmp_path: Path) -> None:
    script = """
import lightning.pytorch, pytorch_lightning, pickle, ddpdoctor
callback = ddpdoctor.LightningPreflight(timeout=7)
assert isinstance(callback, lightning.pytorch.Callback) and isinstance(callback, pytorch_lightning.Callback)
assert pickle.loads(pickle.dumps(callback)).timeout == 7
"""
    assert [ended.code for ended in run_ranks(script, tmp_path, count=1)] == [0]


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray isn't installed: with what it needs it is half a gigabyte"
)
def test_ray_train(tmp_path: Path) -> None:
    code = example("ray")
    head, loop = code.split("def train():\n", 1)
    body, end = loop.split("\n\n\n", 1)
    start = textwrap.indent(START, "    ")
    script = f"{head}def train():\n{start}\n{body}\n    print('asked:', asked, flush=True)\n\n{end}"
    (healthy,) = run_ranks(script, tmp_path, count=1)
    assert healthy.code == 0, healthy.err
    for rank in range(2):
        assert f"asked: [({rank}, 2, 'cpu')]" in healthy.out + healthy.err
    assert "ddpdoctor preflight:" not in healthy.out + healthy.err
    fall_ill = f"    if ray.train.get_context().get_world_rank() == 1:\n        {FALL_ILL}\n"
    ill = script.replace(f"{body}\n", f"{fall_ill}{body}\n", 1)
    assert fall_ill in ill
    (stopped,) = run_ranks(ill, tmp_path, count=1)
    assert stopped.code != 0
    assert re.search(FOUND, stopped.out + stopped.err)
