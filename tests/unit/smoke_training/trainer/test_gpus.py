"""The stages of a smoke training that need GPUs, as far as they go without one, and the device of a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed  # noqa: F401
from ddpdoctor_smoke.rank import NotHere, Worker, WrongOutcome
from ddpdoctor_smoke.stages import (
    fused,
    gpus,
    scaling,
    start_and_end,
)

from ddpdoctor.smoke_training.local.rank_runner import TRAINER
from tests.support.smoke_single_rank import CPU, PosesAsGpu, rank

# --- stages for GPUs, as far as they go without one -------------------------------------------------------------------


def test_a_model_over_two_devices(one: Worker) -> None:
    assert "cpu and cpu on rank 0" in gpus.split_over(one, [CPU, CPU])


def test_a_model_over_two_devices_that_is_wrong(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1.0, 1.1])
    monkeypatch.setattr(gpus, "gradients", lambda model: [next(sizes) * torch.ones(2)])
    with pytest.raises(WrongOutcome, match="over two GPUs differ"):
        gpus.split_over(one, [CPU, CPU])


@pytest.mark.parametrize(
    ("places", "own", "reason"),
    [
        ([(1, 4), (1, 4)], 0, ""),
        ([(1, 3), (1, 3)], 0, "rank 0 sees 3, as do 1 others of its host; to test it: ddpdoctor smoke --nproc 1$"),
        ([(1, 8)] * 8, 5, "rank 0 sees 8, as do 7 others of its host; to test it: ddpdoctor smoke --nproc 4$"),
        ([(1, 2), (2, 1)], 0, "rank 1 sees 1$"),
        ([(1, 2), (2, 2)], 1, ""),
    ],
)
def test_there_must_be_two_gpus_a_rank(
    places: list[tuple[int, int]], own: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank(tmp_path, PosesAsGpu)
    one.rank, one.device = own, torch.device("cuda", 0)
    monkeypatch.setattr(gpus, "gpus_by_rank", lambda one: places)
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
                gpus.gpus_by_rank(one)
        else:
            (first, _), (second, count) = gpus.gpus_by_rank(one)
    if same is not None:
        assert ((first == second), count) == (same, 2)


def test_copies_between_devices(one: Worker) -> None:
    assert gpus.copies(one, [CPU, CPU, CPU]) == "6 copies of 4 MiB, 0 pairs can use P2P"
    assert len(one.channel.told("step")) == 6


def test_copies_that_arrive_otherwise(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other: None)
    found = gpus.copies(one, [CPU, CPU, CPU])
    assert found.startswith("!cpu to cpu: 1048576 of 1048576 numbers differ")
    assert found.endswith("and 3 more pairs")


@pytest.mark.parametrize("wrong", [False, True])
def test_p2p_is_for_one_rank_of_a_host(
    wrong: bool, tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank(tmp_path, PosesAsGpu)
    monkeypatch.setattr(gpus, "gpus_by_rank", lambda one: [(7, 2)])
    monkeypatch.setattr(gpus, "all_can_use", lambda one, devices: None)
    monkeypatch.setattr(gpus, "copies", lambda one, devices: "!cuda:0 to cuda:1 differ" if wrong else "2 copies")
    if wrong:
        with pytest.raises(WrongOutcome, match="GPUs that rank 0 sees: cuda:0 to cuda:1 differ") as found:
            gpus.p2p(one)
        assert found.value.culprits == []
    else:
        assert gpus.p2p(one) == "2 copies (rank 0)"


def test_gpus_of_others_are_left_alone(one: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(WrongOutcome, match="FusedLayerNorm of Apex differs from torch's on all ranks"):
        fused.apex(rank(tmp_path, PosesAsGpu))


def test_kernels_that_apex_was_built_without(tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_apex(monkeypatch, without="amp_C")
    words = fused.apex(rank(tmp_path, PosesAsGpu))
    assert words == "FusedLayerNorm equal torch's within 0.0001; not built: FusedAdam, multi_tensor_l2norm"


def test_without_apex(tmp_path: Path, group: None) -> None:
    with pytest.raises(NotHere, match="no fused kernels of Apex on rank 0: Apex is not installed"):
        fused.apex(rank(tmp_path, PosesAsGpu))


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
    assert start_and_end.set_device(one) == f"cuda:{number}, H100"
    assert one.torch.matmul.allow_tf32 is False


def test_cuda_in_a_fork_is_refused_in_plain_words(tmp_path: Path) -> None:
    one = rank(tmp_path)
    one.backend, one.torch = "nccl", OnCuda(bad_fork=True)
    one.order["nproc"] = 8
    with pytest.raises(RuntimeError, match=r"torchrun --nproc-per-node 8 --no-python ddpdoctor smoke$"):
        start_and_end.set_device(one)


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
        f"import sys; sys.path.append({os.fspath(TRAINER.parent)!r})\n"
        f"import ctypes; {loaded} and ctypes.CDLL({os.fspath(library)!r})\n"
        "from ddpdoctor_smoke.engine import start_method\n"
        "print(start_method())"
    )
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == method


def test_what_ddp_imports_is_imported_in_the_stage_import() -> None:
    """Where nothing was forked: its time would be training's."""
    ask = (
        f"import sys; sys.path.append({os.fspath(TRAINER.parent)!r})\n"
        "from types import SimpleNamespace as N\n"
        "from ddpdoctor_smoke.engine import FOR_RANKS\n"
        "from ddpdoctor_smoke.stages.start_and_end import import_torch\n"
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
    scaling.seconds_a_time(one, lambda: None, 1)
    one.device = CPU
    scaling.seconds_a_time(one, lambda: None, 1)
    assert calls == [{"device_ids": [3]}, {}]
