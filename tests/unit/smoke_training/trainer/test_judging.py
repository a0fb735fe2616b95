"""The stages of a smoke training: what they judge, and each of them run with one rank in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from ddpdoctor_smoke.faults import INSTEAD, Faults
from ddpdoctor_smoke.rank import Worker, WrongOutcome, call_of, run_stage
from ddpdoctor_smoke.stages import (
    STAGES,
    collectives,
    comparing,
    precision,
    sampling,
    training,
)

from ddpdoctor.smoke_training import training_order as doctors_orders
from tests.support.smoke_single_rank import PosesAsGpu, doubles, of_world, rank

# --- the two sides agree ----------------------------------------------------------------------------------------------


def test_doctor_and_patient_have_the_same_stages_in_the_same_order() -> None:
    assert tuple(STAGES) == doctors_orders.STAGES


def test_every_stage_runs_alone_in_one_process(one: Worker) -> None:
    outcomes = {}
    for name, stage in STAGES.items():
        if name not in ("import", "device", "rendezvous", "process group", "shutdown"):
            run_stage(one, name, stage)
            outcomes[name] = one.channel.heard[-1]["state"]
    untested = {name for name, state in outcomes.items() if state == "not tested"}
    assert set(outcomes.values()) == {"passed", "not tested"}
    assert untested == {"sampler", "parameters", "sync_batchnorm", "model split", "p2p", "apex"}
    assert all(message["words"] for message in one.channel.heard if message.get("state") == "not tested")


def test_a_heartbeat_comes_before_each_collective(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("all_reduce", "broadcast", "all_gather", "barrier"):
        real = getattr(torch.distributed, op)

        def checked(*arguments: Any, op: str = op, real: Any = real, **more: Any) -> Any:
            assert one.channel.heard[-1]["calls"].split()[0] == op
            return real(*arguments, **more)

        monkeypatch.setattr(torch.distributed, op, checked)
    for name in ("barrier", "all_reduce", "broadcast", "all_gather", "training", "one process", "amp", "checkpoint"):
        run_stage(one, name, STAGES[name])
    assert "all_reduce float32[1048576]" in one.channel.told("calls")
    assert "DistributedDataParallel float64[676]" in one.channel.told("calls")


# --- who is to blame --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        (["a", "a"], []),
        (["a", "b"], [1]),
        (["a", "b", "b"], [0]),
        (["a", "b", "a", "b"], [1, 3]),
        (["b", "a", "b", "b"], [1]),
        (["a", "b", "c"], [1, 2]),
        (["c", "b", "b", "a"], [0, 3]),
    ],
)
def test_odd_ones(values: list[str], odd: list[int]) -> None:
    assert comparing.odd_ones(values) == odd


def test_names_of_ranks() -> None:
    assert comparing.name_ranks([3]) == "rank 3"
    assert comparing.name_ranks([1, 3]) == "ranks 1 and 3"
    assert comparing.name_ranks([]) == "all ranks"
    assert comparing.name_ranks(list(range(12))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"
    assert comparing.not_all([0, 1], 2) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_checksum_sees_every_bit_and_its_place(dtype: torch.dtype) -> None:
    tensor = torch.arange(-3, 9).reshape(3, 4).to(dtype)
    found = comparing.checksum(torch, tensor)
    assert found == comparing.checksum(torch, tensor.clone())
    assert found == comparing.checksum(torch, tensor.t().contiguous().t())
    other = tensor.clone()
    other[2, 3] = other[2, 3] == 0
    assert found != comparing.checksum(torch, other)
    if dtype is not torch.bool:
        assert found != comparing.checksum(torch, tensor.flip(0))
    assert comparing.checksum(torch, torch.zeros(0, dtype=dtype)) == 0


def test_checksum_sees_the_last_bit_of_a_number() -> None:
    tensor = torch.ones(5, dtype=torch.float64)
    other = tensor.clone()
    other[4] = torch.nextafter(other[4], other[4] + 1)
    assert comparing.checksum(torch, tensor) != comparing.checksum(torch, other)


def test_deviation() -> None:
    a, b = torch.tensor([1.0, -4.0]), torch.tensor([1.0, -4.4])
    assert comparing.deviation([a], [a]) == 0.0
    assert comparing.deviation([b], [a]) == pytest.approx(0.1)
    assert comparing.deviation([a * float("nan")], [a]) == float("inf")
    # A tensor of nothing but rounding beside a large one.
    assert comparing.deviation([a, torch.tensor([1e-9])], [a, torch.tensor([0.0])]) < 1e-6
    assert comparing.deviation([torch.tensor([1.0])], [torch.tensor([0.0])]) == float("inf")


def test_what_is_no_number_is_beyond_any_tolerance() -> None:
    assert comparing.beyond([0.0, float("nan"), float("inf"), 1.0], 1.0) == [1, 2]


def rows_of_samplers(*kinds: str) -> list[list[int]]:
    """What each rank would tell, with that fault or ""."""
    rows = []
    for number, kind in enumerate(kinds):
        fault = {"rank": number, "stage": "sampler", "kind": kind} if kind else None
        one: Any = SimpleNamespace(rank=number, stage="sampler", world_size=len(kinds), torch=torch)
        one.faults = Faults(fault, one)
        rows.append(sampling.samples_of(one))
    return rows


@pytest.mark.parametrize(
    ("kinds", "culprits", "words"),
    [
        (("", "seed"), [1], "rank 1 would train on samples of other ranks: its sampler has the seed 1"),
        (("seed", ""), [1], "rank 0 counts as right where two differ"),
        (("seed", "", ""), [0], "most ranks agree"),
        (("", "sampler", ""), [1], "it takes 24 samples an epoch rather than its share of 8"),
        (("sampler", ""), [0], "as without a DistributedSampler"),
        (("", "seed", "", "sampler"), [1, 3], "ranks 1 and 3"),
    ],
)
def test_samplers_that_are_wrong(kinds: tuple[str, ...], culprits: list[int], words: str) -> None:
    with pytest.raises(WrongOutcome, match=words) as wrong:
        sampling.judge(rows_of_samplers(*kinds), len(kinds))
    assert wrong.value.culprits == culprits


@pytest.mark.parametrize("size", [2, 3, 8])
def test_samplers_that_are_right(size: int) -> None:
    rows = rows_of_samplers(*[""] * size)
    sampling.judge(rows, size)
    # The same rank twice: its samples are those of another one.
    with pytest.raises(WrongOutcome, match="aren't the share of its rank") as wrong:
        sampling.judge([*rows[:-1], rows[0]], size)
    assert wrong.value.culprits == [size - 1]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda self: iter(range(self.rank * 0, sampling.SAMPLES_PER_RANK)), "some of them more than once"),
        (
            lambda self: iter(
                range(self.rank * sampling.SAMPLES_PER_RANK, (self.rank + 1) * sampling.SAMPLES_PER_RANK)
            ),
            "the same order again",
        ),
    ],
)
def test_a_distributed_sampler_that_is_broken_in_torch(
    break_it: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.data.DistributedSampler, "__iter__", break_it)
    with pytest.raises(WrongOutcome, match=words) as wrong:
        sampling.judge(rows_of_samplers("", ""), 2)
    assert wrong.value.culprits == []


# --- equality with one process ----------------------------------------------------------------------------------------


LOSSES = torch.rand(training.STEPS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5


def right_rows() -> torch.Tensor:
    """Three ranks with the losses of one process, and its parameters."""
    return torch.cat([LOSSES.t(), torch.zeros(3, 1, dtype=torch.float64)], dim=1)


def test_ranks_that_equal_one_process() -> None:
    rows = right_rows()
    rows[:, :-1] *= 1 + 1e-12
    rows[:, -1] = 1e-12
    training.judge(of_world(3), rows, LOSSES)


@pytest.mark.parametrize("by", [1e-6, float("nan")])
def test_the_first_to_be_different_is_to_blame(by: float) -> None:
    rows = right_rows()
    rows[1, 4] += by
    rows[:, 5:] += 0.1
    with pytest.raises(WrongOutcome, match=r"the loss of rank 1 .* at step 5 of 10") as wrong:
        training.judge(of_world(3), rows, LOSSES)
    assert wrong.value.culprits == [1]


def test_nobody_is_to_blame_for_what_all_do() -> None:
    rows = right_rows()
    rows[:, 4:] += 0.1
    with pytest.raises(WrongOutcome, match="the loss of all ranks") as wrong:
        training.judge(of_world(3), rows, LOSSES)
    assert wrong.value.culprits == []


def test_parameters_that_are_not_those_of_one_process() -> None:
    rows = right_rows()
    rows[2, -1] = 0.01
    with pytest.raises(WrongOutcome, match=r"the parameters of rank 2 .* differ by 0.01") as wrong:
        training.judge(of_world(3), rows, LOSSES)
    assert wrong.value.culprits == [2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [2, 8])
def test_the_tolerance_is_far_above_rounding_and_far_below_a_fault(
    size: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same training with gradients of the ranks' shares, averaged: as DDP does it, in this process."""
    monkeypatch.setattr(training, "number_type", lambda one: dtype)
    one = rank(tmp_path, PosesAsGpu if dtype == torch.float32 else Worker)
    one.world_size = size
    _, expected = training.alone(one)

    def averaged(drop: int) -> list[torch.Tensor]:
        x, y = training.data_of(one, training.STEPS_OF_EPOCH * training.BATCH * size)
        model = training.model_of(one)
        optimizer = training.optimizer_of(one, model)
        for epoch in sampling.shares(size, range(len(x))):
            for number in range(training.STEPS_OF_EPOCH):
                optimizer.zero_grad()
                for share in epoch[: size - drop]:
                    places = torch.tensor(share[number * training.BATCH : (number + 1) * training.BATCH])
                    (torch.nn.functional.mse_loss(model(x[places]), y[places]) / (size - drop)).backward()
                optimizer.step()
        return list(model.parameters())

    assert comparing.deviation(averaged(0), expected) < training.tolerance(one) / 10
    assert comparing.deviation(averaged(1), expected) > training.tolerance(one) * 10


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", training.GPU_TOLERANCE), ("1", training.TF32_TOLERANCE), ("0", training.GPU_TOLERANCE)],
)
def test_tf32_that_is_forced_upon_us_is_allowed_for(
    setting: str, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", setting)
    assert training.tolerance(rank(tmp_path, PosesAsGpu)) == expected
    assert training.tolerance(rank(tmp_path)) == training.CPU_TOLERANCE


@pytest.mark.parametrize("losses", [[1.0] * 5 + [1.0] * 5, [0.5] * 5 + [0.6] * 5, [1.0] * 9 + [float("nan")]])
def test_a_loss_that_does_not_fall(losses: list[float], one: Worker) -> None:
    one.kept["trained"] = training.Trained(None, None, losses)
    with pytest.raises(WrongOutcome, match="doesn't fall" if losses[9] == losses[9] else "isn't a finite number"):
        training.train(one)


def test_gradients_of_two_halves_that_are_wrong(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    training.train_once(one)
    found = iter([1.0, 1.0 + 1e-6])
    real = training.gradients
    monkeypatch.setattr(
        training, "gradients", lambda model: [factor * g for factor in [next(found)] for g in real(model)]
    )
    with pytest.raises(WrongOutcome, match="the first in no_sync, differ"):
        training.accumulation(one)


def test_parameters_that_drifted_apart() -> None:
    module = torch.nn.Linear(2, 2)

    def gather(words: str, row: torch.Tensor) -> torch.Tensor:
        return torch.stack([row, row + torch.tensor([0, 1]), row])

    one = SimpleNamespace(world_size=3, torch=torch, gather=gather)
    with pytest.raises(WrongOutcome, match=r"of rank 1 differ from the other ranks': bias \(most ranks agree") as wrong:
        training.all_the_same(one, module, "the parameters")
    assert wrong.value.culprits == [1]


@pytest.mark.parametrize(
    ("rows", "words", "culprits"),
    [
        ([[0.5, 0.4, 0.5], [0.9, 0.4, 0.5]], "0.9 on rank 1, in full precision 0.5", [1]),
        ([[0.5, 0.6, 0.5], [0.5, 0.6, 0.5]], "doesn't fall", []),
        ([[0.5, float("nan"), 0.5], [0.5, 0.4, 0.5]], "doesn't fall", []),
        ([[float("nan"), 0.4, 0.5], [0.5, 0.4, 0.5]], "nan on rank 0", [0]),
    ],
)
def test_mixed_precision_that_is_wrong(rows: list[list[float]], words: str, culprits: list[int]) -> None:
    with pytest.raises(WrongOutcome, match=words) as wrong:
        precision.judge_amp(of_world(2), doubles(rows), "bfloat16")
    assert wrong.value.culprits == culprits


def test_autocast_that_does_nothing(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(WrongOutcome, match="computed in float32 and not in bfloat16"):
        precision.amp(one)


def test_a_collective_with_a_wrong_result() -> None:
    with pytest.raises(WrongOutcome, match="what rank 3 sent should be 3 and is 2 to 3") as wrong:
        collectives.must_be(torch.tensor([3.0, 2.0]), 3, "what rank 3 sent", [3])
    assert wrong.value.culprits == [3]


# --- words and faults -------------------------------------------------------------------------------------------------


def test_texts_reach_all_ranks(one: Worker) -> None:
    assert comparing.tell_all(one, "words", "naïve") == ["naïve"]
    assert comparing.tell_all(one, "words", "") == [""]
    assert comparing.tell_all(one, "words", "ä" * 400) == ["ä" * 200]


def test_calls_are_told_with_type_and_shape() -> None:
    assert call_of("all_reduce", torch.zeros(2, 3, dtype=torch.int64)) == "all_reduce int64[2, 3]"
    assert call_of("barrier", None) == "barrier"


@pytest.mark.parametrize("op", sorted(INSTEAD))
def test_another_collective_is_really_called(op: str, tmp_path: Path) -> None:
    one = rank(tmp_path, fault={"rank": 0, "stage": "here", "kind": "other-collective"})
    one.stage = "here"
    called: list[str] = []
    names = ("all_reduce", "broadcast", "all_gather", "barrier")
    one.dist = SimpleNamespace(
        is_initialized=lambda: True, **{name: lambda *_, name=name: called.append(name) for name in names}
    )
    for _ in range(2):
        if op == "all_gather":
            one.gather("words", torch.ones(2))
        elif op == "barrier":
            one.collective("words", op)
        else:
            one.collective("words", op, torch.ones(2))
    assert called == [INSTEAD[op], op]
    assert [calls.split()[0] for calls in one.channel.told("calls")] == called


def test_another_shape_is_really_another_one(one: Worker, tmp_path: Path) -> None:
    sick = rank(tmp_path, fault={"rank": 0, "stage": "here", "kind": "shape"})
    sick.stage = "here"
    assert sick.collective("words", "all_reduce", torch.ones(2)).shape == (5,)
    assert sick.collective("words", "all_reduce", torch.ones(2)).shape == (2,)
    assert sick.channel.told("calls") == ["all_reduce float32[5]", "all_reduce float32[2]"]


@pytest.mark.parametrize("when", ["begin", "call"])
def test_a_fault_strikes_its_rank_at_its_stage_alone(when: str, tmp_path: Path) -> None:
    fault = {"rank": 0, "stage": "here", "kind": "raise", "when": when}
    one = rank(tmp_path, fault=fault)
    for name in ("elsewhere", "here"):
        one.stage = name
        moments = [one.faults.begin, lambda: one.step("words")]
        strikes = moments[0 if when == "begin" else 1] if name == "here" else None
        for moment in moments:
            if moment is strikes:
                with pytest.raises(RuntimeError, match="a fault for a test"):
                    moment()
                break
            moment()
    other = rank(tmp_path, fault={**fault, "rank": 1})
    other.stage = "here"
    other.faults.begin()
    other.step("words")
    assert not other.faults.wanted("raise")
