"""The stages of a smoke training: what they judge, and each of them run with one rank in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from ddpdoctor.smoke import orders as doctors_orders
from ddpdoctor.smoke.running import PATIENT

sys.path.append(os.fspath(PATIENT.parent))

from ddpdoctor_smoke.faults import INSTEAD, Faults
from ddpdoctor_smoke.orders import Order
from ddpdoctor_smoke.rank import NotHere, Rank, Wrong, call_of, run_stage
from ddpdoctor_smoke.stages import (
    STAGES,
    beginning,
    checkpointing,
    collectives,
    comparing,
    fused,
    gpus,
    precision,
    sampling,
    scaling,
    training,
)

CPU = torch.device("cpu")


class Listener:
    """Stands for the doctor."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def say(self, **message: Any) -> None:
        self.heard.append(message)

    def told(self, name: str) -> list[Any]:
        return [message[name] for message in self.heard if message.get(name)]


class PosesAsGpu(Rank):  # type: ignore[misc]
    """A rank on the CPU whose stages think that they are on a GPU."""

    on_gpu = True


def rank(tmp_path: Path, kind: type[Rank] = Rank, fault: dict[str, object] | None = None) -> Rank:
    order = Order(
        backend="gloo",
        folder=os.fspath(tmp_path),
        world_size=1,
        launched={"rank": 0, "local_rank": 0},
        fault=fault,
        seconds=30.0,
    )
    one = kind(order, Listener())
    one.torch, one.dist, one.device = torch, torch.distributed, CPU
    return one


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A process group of one rank. What is left of DDP must be gone before it."""
    import gc

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.fixture
def one(tmp_path: Path, group: None) -> Rank:
    return rank(tmp_path)


def of_world(size: int) -> Any:
    """As much of a rank as the judging functions need."""
    return SimpleNamespace(world_size=size, on_gpu=False, torch=torch)


def doubles(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- the two sides agree ----------------------------------------------------------------------------------------------


def test_doctor_and_patient_have_the_same_stages_in_the_same_order() -> None:
    assert tuple(STAGES) == doctors_orders.STAGES


def test_every_stage_runs_alone_in_one_process(one: Rank) -> None:
    outcomes = {}
    for name, stage in STAGES.items():
        if name not in ("import", "device", "rendezvous", "process group", "shutdown"):
            run_stage(one, name, stage)
            outcomes[name] = one.doctor.heard[-1]["state"]
    untested = {name for name, state in outcomes.items() if state == "not tested"}
    assert set(outcomes.values()) == {"passed", "not tested"}
    assert untested == {"sampler", "parameters", "sync_batchnorm", "model split", "p2p", "apex"}
    assert all(message["words"] for message in one.doctor.heard if message.get("state") == "not tested")


def test_a_heartbeat_comes_before_each_collective(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("all_reduce", "broadcast", "all_gather", "barrier"):
        real = getattr(torch.distributed, op)

        def checked(*arguments: Any, op: str = op, real: Any = real, **more: Any) -> Any:
            assert one.doctor.heard[-1]["calls"].split()[0] == op
            return real(*arguments, **more)

        monkeypatch.setattr(torch.distributed, op, checked)
    for name in ("barrier", "all_reduce", "broadcast", "all_gather", "training", "one process", "amp", "checkpoint"):
        run_stage(one, name, STAGES[name])
    assert "all_reduce float32[1048576]" in one.doctor.told("calls")
    assert "DistributedDataParallel float64[676]" in one.doctor.told("calls")


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
    assert comparing.named([3]) == "rank 3"
    assert comparing.named([1, 3]) == "ranks 1 and 3"
    assert comparing.named([]) == "all ranks"
    assert comparing.named(list(range(12))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"
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
    with pytest.raises(Wrong, match=words) as wrong:
        sampling.judge(rows_of_samplers(*kinds), len(kinds))
    assert wrong.value.culprits == culprits


@pytest.mark.parametrize("size", [2, 3, 8])
def test_samplers_that_are_right(size: int) -> None:
    rows = rows_of_samplers(*[""] * size)
    sampling.judge(rows, size)
    # The same rank twice: its samples are those of another one.
    with pytest.raises(Wrong, match="aren't the share of its rank") as wrong:
        sampling.judge([*rows[:-1], rows[0]], size)
    assert wrong.value.culprits == [size - 1]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda self: iter(range(self.rank * 0, sampling.EACH)), "some of them more than once"),
        (lambda self: iter(range(self.rank * sampling.EACH, (self.rank + 1) * sampling.EACH)), "the same order again"),
    ],
)
def test_a_distributed_sampler_that_is_broken_in_torch(
    break_it: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.data.DistributedSampler, "__iter__", break_it)
    with pytest.raises(Wrong, match=words) as wrong:
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
    with pytest.raises(Wrong, match=r"the loss of rank 1 .* at step 5 of 10") as wrong:
        training.judge(of_world(3), rows, LOSSES)
    assert wrong.value.culprits == [1]


def test_nobody_is_to_blame_for_what_all_do() -> None:
    rows = right_rows()
    rows[:, 4:] += 0.1
    with pytest.raises(Wrong, match="the loss of all ranks") as wrong:
        training.judge(of_world(3), rows, LOSSES)
    assert wrong.value.culprits == []


def test_parameters_that_are_not_those_of_one_process() -> None:
    rows = right_rows()
    rows[2, -1] = 0.01
    with pytest.raises(Wrong, match=r"the parameters of rank 2 .* differ by 0.01") as wrong:
        training.judge(of_world(3), rows, LOSSES)
    assert wrong.value.culprits == [2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [2, 8])
def test_the_tolerance_is_far_above_rounding_and_far_below_a_fault(
    size: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same training with gradients of the ranks' shares, averaged: as DDP does it, in this process."""
    monkeypatch.setattr(training, "number_type", lambda one: dtype)
    one = rank(tmp_path, PosesAsGpu if dtype == torch.float32 else Rank)
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
def test_a_loss_that_does_not_fall(losses: list[float], one: Rank) -> None:
    one.kept["trained"] = training.Trained(None, None, losses)
    with pytest.raises(Wrong, match="doesn't fall" if losses[9] == losses[9] else "isn't a finite number"):
        training.train(one)


def test_gradients_of_two_halves_that_are_wrong(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    training.trained(one)
    found = iter([1.0, 1.0 + 1e-6])
    real = training.gradients
    monkeypatch.setattr(
        training, "gradients", lambda model: [factor * g for factor in [next(found)] for g in real(model)]
    )
    with pytest.raises(Wrong, match="the first in no_sync, differ"):
        training.accumulation(one)


def test_parameters_that_drifted_apart() -> None:
    module = torch.nn.Linear(2, 2)

    def gather(words: str, row: torch.Tensor) -> torch.Tensor:
        return torch.stack([row, row + torch.tensor([0, 1]), row])

    one = SimpleNamespace(world_size=3, torch=torch, gather=gather)
    with pytest.raises(Wrong, match=r"of rank 1 differ from the other ranks': bias \(most ranks agree") as wrong:
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
    with pytest.raises(Wrong, match=words) as wrong:
        precision.judge_amp(of_world(2), doubles(rows), "bfloat16")
    assert wrong.value.culprits == culprits


def test_autocast_that_does_nothing(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(Wrong, match="computed in float32 and not in bfloat16"):
        precision.amp(one)


def test_a_collective_with_a_wrong_result() -> None:
    with pytest.raises(Wrong, match="what rank 3 sent should be 3 and is 2 to 3") as wrong:
        collectives.must_be(torch.tensor([3.0, 2.0]), 3, "what rank 3 sent", [3])
    assert wrong.value.culprits == [3]


# --- checkpoint -------------------------------------------------------------------------------------------------------


def test_a_rank_that_loaded_something_else() -> None:
    right, other = [1, 2], [1, 3]
    checkpointing.judge(of_world(2), [[right, right], [other, right]])
    with pytest.raises(Wrong, match="what rank 1 loaded isn't what rank 0 saved") as wrong:
        checkpointing.judge(of_world(2), [[right, right], [right, other]])
    assert wrong.value.culprits == [1]
    with pytest.raises(Wrong, match="what all ranks loaded") as wrong:
        checkpointing.judge(of_world(2), [[right, other], [right, other]])
    assert wrong.value.culprits == []


def test_the_file_goes_to_ranks_that_do_not_see_it(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing.os.path, "isfile", lambda path: False)
    words = checkpointing.checkpoint(one)
    assert "rank 0 loaded a copy, since rank 0's folder is not theirs" in words
    assert sorted(path.name for path in Path(one.folder).iterdir()) == ["checkpoint.pt", "rank0-checkpoint.pt"]
    assert Path(one.folder, "checkpoint.pt").read_bytes() == Path(one.folder, "rank0-checkpoint.pt").read_bytes()


def test_tensors_that_are_elsewhere() -> None:
    content = {"a": torch.ones(1), "b": [{"c": torch.ones(1, device="meta"), "step": torch.tensor(3.0)}], "d": 1}
    assert len(checkpointing.tensors_of(content)) == 3
    assert checkpointing.misplaced(content, CPU) == ["loaded tensors are on meta and not on cpu"]
    assert checkpointing.misplaced({"a": torch.ones(1)}, CPU) == []


def test_optimizers_and_their_moments_are_in_the_checkpoint(one: Rank) -> None:
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
        f"import sys; sys.path.append({os.fspath(PATIENT.parent)!r})\n"
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
    assert one.doctor.heard == [{"contexts": after}]


def test_two_faults_of_loading_are_two_sentences(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "misplaced", lambda content, device: ["all are elsewhere"])
    monkeypatch.setattr(checkpointing, "extra_contexts", lambda one, before: ["a context"])
    with pytest.raises(Wrong, match=r"^rank 0: all are elsewhere; all are elsewhere; a context$"):
        checkpointing.checkpoint(one)


def test_contexts_that_could_not_be_asked_are_no_good_contexts(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "contexts", lambda torch: None)
    one = rank(tmp_path)
    training.trained(one)
    monkeypatch.setattr(Rank, "on_gpu", True)
    monkeypatch.setattr(one, "collective", lambda words, op: None)
    monkeypatch.setattr(checkpointing, "broadcast_bytes", lambda one, words, data: data)
    assert checkpointing.checkpoint(one).endswith("; contexts could not be asked")
    assert not one.doctor.told("contexts")


# --- stages for GPUs, as far as they go without one -------------------------------------------------------------------


def test_a_model_over_two_devices(one: Rank) -> None:
    assert "cpu and cpu on rank 0" in gpus.split_over(one, [CPU, CPU])


def test_a_model_over_two_devices_that_is_wrong(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1.0, 1.1])
    monkeypatch.setattr(gpus, "gradients", lambda model: [next(sizes) * torch.ones(2)])
    with pytest.raises(Wrong, match="over two GPUs differ"):
        gpus.split_over(one, [CPU, CPU])


@pytest.mark.parametrize(
    ("places", "own", "reason"),
    [
        ([(1, 4), (1, 4)], 0, ""),
        ([(1, 3), (1, 3)], 0, "rank 0 sees 3, as do 1 others of its host"),
        ([(1, 2), (2, 1)], 0, "rank 1 sees 1$"),
        ([(1, 2), (2, 2)], 1, ""),
    ],
)
def test_there_must_be_two_gpus_a_rank(
    places: list[tuple[int, int]], own: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank(tmp_path, PosesAsGpu)
    one.rank, one.device = own, torch.device("cuda", 0)
    monkeypatch.setattr(gpus, "seen", lambda one: places)
    monkeypatch.setattr(gpus, "all_can_use", lambda one, devices: None)
    monkeypatch.setattr(gpus, "split_over", lambda one, devices: " and ".join(map(str, devices)))
    if reason:
        with pytest.raises(NotHere, match=reason):
            gpus.model_split(one)
    else:
        ranks = sum(host == places[own][0] for host, _ in places)
        assert gpus.model_split(one) == f"cuda:0 and cuda:{ranks}"


@pytest.mark.parametrize(
    ("launched", "tells", "same"), [(True, True, False), (True, False, None), (False, False, True)]
)
def test_ranks_of_one_host_may_each_see_their_own_gpus(
    launched: bool, tells: bool, same: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun --gpus-per-task=2"""
    one = rank(tmp_path, PosesAsGpu)
    one.world_size = 2
    if not launched:
        del one.order["launched"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    rows: list[list[int]] = []

    def gather(words: str, row: torch.Tensor) -> torch.Tensor:
        rows.append(row.tolist())
        return torch.tensor([rows[0], rows[-1]])

    monkeypatch.setattr(one, "gather", gather)
    for task in (0, 1):
        facts = [SimpleNamespace(uuid=f"{task}-{number}") if tells else SimpleNamespace() for number in (0, 1)]
        monkeypatch.setattr(torch.cuda, "get_device_properties", facts.__getitem__)
        if same is None:
            with pytest.raises(NotHere, match="can't be told which ranks share GPUs"):
                gpus.seen(one)
        else:
            (first, _), (second, count) = gpus.seen(one)
    if same is not None:
        assert ((first == second), count) == (same, 2)


def test_copies_between_devices(one: Rank) -> None:
    assert gpus.copies(one, [CPU, CPU, CPU]) == "6 copies of 4 MiB, 0 pairs can use P2P"
    assert len(one.doctor.told("step")) == 6


def test_copies_that_arrive_otherwise(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other: None)
    found = gpus.copies(one, [CPU, CPU, CPU])
    assert found.startswith("!cpu to cpu: 1048576 of 1048576 numbers differ")
    assert found.endswith("and 3 more pairs")


@pytest.mark.parametrize("wrong", [False, True])
def test_p2p_is_for_one_rank_of_a_host(
    wrong: bool, tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank(tmp_path, PosesAsGpu)
    monkeypatch.setattr(gpus, "seen", lambda one: [(7, 2)])
    monkeypatch.setattr(gpus, "all_can_use", lambda one, devices: None)
    monkeypatch.setattr(gpus, "copies", lambda one, devices: "!cuda:0 to cuda:1 differ" if wrong else "2 copies")
    if wrong:
        with pytest.raises(Wrong, match="GPUs that rank 0 sees: cuda:0 to cuda:1 differ") as found:
            gpus.p2p(one)
        assert found.value.culprits == []
    else:
        assert gpus.p2p(one) == "2 copies (rank 0)"


def test_gpus_of_others_are_left_alone(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.all_can_use(one, [CPU])
    real = torch.zeros

    def zeros(*size: int, device: torch.device = CPU, **more: Any) -> torch.Tensor:
        if device.type == "cuda":
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nand more")
        return real(*size, device=device, **more)

    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(NotHere, match=r"cuda:1 can't be used by rank 0, too: CUDA error: .* or unavailable$"):
        gpus.all_can_use(one, [CPU, torch.device("cuda", 1)])


def test_with_one_gpu_there_is_nothing_to_copy(tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid="7"))
    with pytest.raises(NotHere, match="two GPUs that one rank sees"):
        gpus.p2p(rank(tmp_path, PosesAsGpu))


def stand_in_for_apex(monkeypatch: pytest.MonkeyPatch, *, wrong: float = 1.0, without: str = "") -> None:
    """What the stage uses of Apex, made of torch."""

    class FusedLayerNorm(torch.nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * wrong

    def multi_tensor_applier(kernel: Any, overflow: torch.Tensor, lists: list[list[torch.Tensor]], per: bool) -> Any:
        assert overflow.dtype == torch.int32
        return kernel(lists[0]), torch.empty(0)

    parts: dict[str, dict[str, Any]] = {
        "apex": {},
        "apex.normalization": {"FusedLayerNorm": FusedLayerNorm},
        "apex.optimizers": {"FusedAdam": torch.optim.AdamW},
        "apex.multi_tensor_apply": {"multi_tensor_applier": multi_tensor_applier},
        "amp_C": {"multi_tensor_l2norm": lambda tensors: sum(t.pow(2).sum() for t in tensors).sqrt()},
        "fused_layer_norm_cuda": {},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content, __path__=[])
        monkeypatch.setitem(sys.modules, name, None if name == without else module)  # type: ignore[arg-type]


def test_apex_equals_torch(tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_apex(monkeypatch)
    words = fused.apex(rank(tmp_path, PosesAsGpu))
    assert words == "FusedLayerNorm, FusedAdam, multi_tensor_l2norm equal torch's within 0.0001"


def test_a_kernel_of_apex_that_is_wrong(tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_apex(monkeypatch, wrong=1.01)
    with pytest.raises(Wrong, match="FusedLayerNorm of Apex differs from torch's on all ranks"):
        fused.apex(rank(tmp_path, PosesAsGpu))


def test_kernels_that_apex_was_built_without(tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_apex(monkeypatch, without="amp_C")
    words = fused.apex(rank(tmp_path, PosesAsGpu))
    assert words == "FusedLayerNorm equal torch's within 0.0001; not built: FusedAdam, multi_tensor_l2norm"


def test_without_apex(tmp_path: Path, group: None) -> None:
    with pytest.raises(NotHere, match="no fused kernels of Apex on rank 0: Apex is not installed"):
        fused.apex(rank(tmp_path, PosesAsGpu))


# --- words and faults -------------------------------------------------------------------------------------------------


def test_texts_reach_all_ranks(one: Rank) -> None:
    assert comparing.tell_all(one, "words", "naïve") == ["naïve"]
    assert comparing.tell_all(one, "words", "") == [""]
    assert comparing.tell_all(one, "words", "ä" * 400) == ["ä" * 200]
    assert comparing.broadcast_bytes(one, "bytes", b"\0\xff" * 5) == b"\0\xff" * 5


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
    assert [calls.split()[0] for calls in one.doctor.told("calls")] == called


def test_another_shape_is_really_another_one(one: Rank, tmp_path: Path) -> None:
    sick = rank(tmp_path, fault={"rank": 0, "stage": "here", "kind": "shape"})
    sick.stage = "here"
    assert sick.collective("words", "all_reduce", torch.ones(2)).shape == (5,)
    assert sick.collective("words", "all_reduce", torch.ones(2)).shape == (2,)
    assert sick.doctor.told("calls") == ["all_reduce float32[5]", "all_reduce float32[2]"]


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


# --- the device, and how ranks are started ----------------------------------------------------------------------------


class OnCuda(SimpleNamespace):
    """torch, as far as the stage `device` needs it."""

    def __init__(self, count: int = 8, bad_fork: bool = False) -> None:
        cuda = SimpleNamespace(
            device_count=lambda: count,
            set_device=lambda number: None,
            synchronize=lambda: None,
            get_device_name=lambda device: "H100",
            _is_in_bad_fork=lambda: bad_fork,
        )
        self.matmul = SimpleNamespace(allow_tf32=True)
        backends = SimpleNamespace(cuda=SimpleNamespace(matmul=self.matmul))
        super().__init__(cuda=cuda, backends=backends, device=torch.device, zeros=lambda size, device: None)


@pytest.mark.parametrize(
    ("launched", "count", "local_rank", "number"),
    [(True, 1, 3, 0), (True, 2, 3, 1), (True, 8, 3, 3), (False, 8, 3, 3), (False, 2, 3, 3), (True, 0, 3, 3)],
)
def test_each_rank_has_its_gpu_also_where_a_launcher_shows_it_few(
    launched: bool, count: int, local_rank: int, number: int, tmp_path: Path
) -> None:
    one = rank(tmp_path)
    one.backend, one.local_rank, one.torch = "nccl", local_rank, OnCuda(count)
    if not launched:
        del one.order["launched"]
    assert beginning.set_device(one) == f"cuda:{number}, H100"
    assert one.torch.matmul.allow_tf32 is False


def test_cuda_in_a_fork_is_refused_in_plain_words(tmp_path: Path) -> None:
    one = rank(tmp_path)
    one.backend, one.torch = "nccl", OnCuda(bad_fork=True)
    one.order["nproc"] = 8
    with pytest.raises(RuntimeError, match=r"torchrun --nproc-per-node 8 --no-python ddpdoctor smoke$"):
        beginning.set_device(one)


@pytest.mark.parametrize(
    ("error", "loaded", "method"), [(0, True, "spawn"), (3, True, "forkserver"), (0, False, "forkserver")]
)
def test_ranks_are_not_forked_from_a_process_that_uses_cuda(
    error: int, loaded: bool, method: str, tmp_path: Path
) -> None:
    """Also where it wasn't torch that has initialised it."""
    driver = tmp_path / "driver.c"
    driver.write_text(f"int cuDeviceGetCount(int *count) {{ *count = 1; return {error}; }}\n")
    library = tmp_path / "libcuda.so.1"
    build = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, driver]
    subprocess.run(build, check=True)
    ask = (
        f"import sys; sys.path.append({os.fspath(PATIENT.parent)!r})\n"
        f"import ctypes; {loaded} and ctypes.CDLL({os.fspath(library)!r})\n"
        "from ddpdoctor_smoke.engine import start_method\n"
        "print(start_method())"
    )
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == method


def test_what_ddp_imports_is_imported_in_the_stage_import() -> None:
    """Where nothing was forked: its time would be training's."""
    ask = (
        f"import sys; sys.path.append({os.fspath(PATIENT.parent)!r})\n"
        "from types import SimpleNamespace as N\n"
        "from ddpdoctor_smoke.engine import FOR_RANKS\n"
        "from ddpdoctor_smoke.stages.beginning import import_torch\n"
        "import_torch(N(order={}, say=lambda **facts: None))\n"
        "print(set(FOR_RANKS) - set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "set()"


def test_the_barrier_before_a_measurement_names_the_gpu() -> None:
    calls: list[dict[str, object]] = []
    one = SimpleNamespace(
        device=torch.device("cuda", 3),
        dist=SimpleNamespace(barrier=lambda **more: calls.append(more)),
        torch=SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda device: None)),
        order={},
    )
    scaling.timed(one, lambda: None, 1)
    one.device = CPU
    scaling.timed(one, lambda: None, 1)
    assert calls == [{"device_ids": [3]}, {}]
