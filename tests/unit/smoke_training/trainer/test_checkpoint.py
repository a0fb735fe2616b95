"""The stage checkpoint of a smoke training: what it loads, where to, and what it leaves on others' GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed  # noqa: F401
from ddpdoctor_smoke.rank import Worker, WrongOutcome
from ddpdoctor_smoke.stages import (
    checkpointing,
    training,
)

from ddpdoctor.smoke_training.local.rank_runner import TRAINER
from tests.support.smoke_single_rank import CPU, PosesAsGpu, of_world, rank


def test_a_rank_that_loaded_something_else() -> None:
    right, other = [1, 2], [1, 3]
    checkpointing.judge(of_world(2), [[right, right], [other, right]])
    with pytest.raises(WrongOutcome, match="what rank 1 loaded isn't what rank 0 saved") as wrong:
        checkpointing.judge(of_world(2), [[right, right], [right, other]])
    assert wrong.value.culprits == [1]
    with pytest.raises(WrongOutcome, match="what all ranks loaded") as wrong:
        checkpointing.judge(of_world(2), [[right, other], [right, other]])
    assert wrong.value.culprits == []


def test_tensors_that_are_elsewhere() -> None:
    content = {"a": torch.ones(1), "b": [{"c": torch.ones(1, device="meta"), "step": torch.tensor(3.0)}], "d": 1}
    assert len(checkpointing.tensors_of(content)) == 3
    assert checkpointing.misplaced(content, CPU) == ["loaded tensors are on meta and not on cpu"]
    assert checkpointing.misplaced({"a": torch.ones(1)}, CPU) == []


def test_optimizers_and_their_moments_are_in_the_checkpoint(one: Worker) -> None:
    checkpointing.checkpoint(one)
    content = torch.load(Path(one.folder) / "checkpoint.pt", weights_only=True)
    assert len(checkpointing.tensors_of(content["optimizer"])) == 4
    assert len(checkpointing.tensors_of(content["model"])) == 5


DRIVER = """
int cuDeviceGet(int *device, int number) { *device = 40 + number; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0; *active = device != 41; return device == 43 ? 101 : 0;
}
"""


def test_contexts_are_those_that_the_driver_knows(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    ask = (
        f"import sys; sys.path.append({os.fspath(TRAINER.parent)!r})\n"
        "from types import SimpleNamespace as N\n"
        "from ddpdoctor_smoke.stages.checkpointing import contexts\n"
        "print(contexts(N(cuda=N(device_count=lambda: 4))))"
    )
    told = subprocess.run(
        [sys.executable, "-c", ask],
        env=dict(os.environ, LD_LIBRARY_PATH=os.fspath(tmp_path)),
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.strip() == "[0, 2]"


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [([1], [1], []), ([1], [0, 1], [0]), ([0, 1], [0, 1], []), ([0], [0, 1], [])],
)
def test_loading_that_makes_a_context_elsewhere(
    before: list[int], after: list[int], more: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank(tmp_path, PosesAsGpu)
    one.device = torch.device("cuda", 1)
    monkeypatch.setattr(checkpointing, "contexts", lambda torch: after)
    found = checkpointing.extra_contexts(one, before)
    assert [words.partition(",")[0] for words in found] == [f"loading made a context on GPU {gpu}" for gpu in more]
    assert one.channel.heard == [{"contexts": after}]


def test_two_faults_of_loading_are_two_sentences(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "misplaced", lambda content, device: ["all are elsewhere"])
    monkeypatch.setattr(checkpointing, "extra_contexts", lambda one, before: ["a context"])
    with pytest.raises(WrongOutcome, match=r"^rank 0: all are elsewhere; all are elsewhere; a context$"):
        checkpointing.checkpoint(one)


def test_contexts_that_could_not_be_asked_are_no_good_contexts(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "contexts", lambda torch: None)
    one = rank(tmp_path)
    training.train_once(one)
    monkeypatch.setattr(Worker, "on_gpu", True)
    monkeypatch.setattr(one, "collective", lambda words, op: None)
    assert checkpointing.checkpoint(one).endswith("; contexts could not be asked")
    assert not one.channel.told("contexts")
