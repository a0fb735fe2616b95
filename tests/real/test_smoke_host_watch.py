"""The watch over a host's GPUs during a burn-in, with a library that stands in for NVML: what changes meanwhile becomes a finding."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping

import msgspec
import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.burn_in import BurnIn, HostWatch, WatchedGpu
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.smoke_training.analysis.verdict import judge_training
from ddpdoctor.smoke_training.local.host_watch import HostWatcher, new_errors
from ddpdoctor.smoke_training.training_order import TrainingOrder
from tests.support.nvml import FakeNvidia
from tests.support.smokes import smoke_of_ranks

ORDER = TrainingOrder(nproc=2, world_size=2, backend="nccl", stages=("burn-in",), duration=60.0)


class CountingWatcher(HostWatcher):
    """looks: those that have seen what there is, though the last may not be taken in yet."""

    looks = 0

    def _look(self, groups: tuple[str, ...]) -> Snapshot:
        seen = super()._look(groups)
        self.looks += 1
        return seen


def watched(before: Mapping[str, str], after: Mapping[str, str], order: TrainingOrder = ORDER) -> HostWatch:
    """What is seen of a host that changes while it is watched."""
    environ = dict(before)

    async def watch() -> HostWatch:
        watcher = CountingWatcher(order, sys.executable, environ)
        started = time.monotonic()
        watcher.start()
        await looked(watcher, 1)
        watcher.begin()
        await looked(watcher, 2)
        environ.update(after)
        await looked(watcher, 4)
        return await watcher.end(started)

    return asyncio.run(watch())


async def looked(watcher: CountingWatcher, times: int) -> None:
    while watcher.looks < times:
        await asyncio.sleep(0.05)


def findings(seen: HostWatch) -> dict[str, Finding]:
    ran = smoke_of_ranks(2, backend="nccl", burn_in=BurnIn(asked=60.0, hosts=(seen,)))
    judged = judge_training(Snapshot(host="node07"), ran, catalogue())
    return {check.slug: finding for check, _, finding in judged.findings}


def gpus(seen: HostWatch) -> tuple[WatchedGpu, ...]:
    assert not isinstance(seen.gpus, Unknown)
    return seen.gpus


def test_heat_and_errors_that_come_meanwhile(fake_nvidia: FakeNvidia) -> None:
    cool = fake_nvidia.environ(gpus=2, all_gpus={"temperature": 41})
    hot = fake_nvidia.environ(
        gpus=2,
        all_gpus={"temperature": 66},
        of_gpu={1: {"temperature": 93, "power": 655_000, "throttle": 0x20, "ecc_volatile": 2}},
    )
    seen = watched(cool, hot)
    assert [gpu.index for gpu in gpus(seen)] == [0, 1]
    degrees = [look.temperature for look in gpus(seen)[1].looks]
    assert (degrees[0], degrees[-1]) == (41, 93)
    assert (gpus(seen)[1].uncorrected_before, gpus(seen)[1].uncorrected_after) == (0, 2)
    found = findings(seen)
    throttled = found["smoke-gpu-throttled"]
    assert throttled.summary == "GPU 1 is slowed down under load: too hot"
    assert [told.text for told in throttled.evidence][1:] == [
        "GPU 1 (NVIDIA H100 80GB HBM3): 41 to 93 degrees, 93 at most, clock 345 to 345 MHz, 345 at the end, 655 W at most"
    ]
    assert (
        found["smoke-ecc-errors"].summary == "Uncorrectable memory errors came during the burn-in: GPU 1: 2 new errors"
    )
    assert "smoke-new-xid" not in found


def test_a_gpu_that_is_lost_meanwhile(fake_nvidia: FakeNvidia) -> None:
    seen = watched(fake_nvidia.environ(gpus=2), fake_nvidia.environ(gpus=2, of_gpu={1: {"lost": 1}}))
    assert [gpu.lost for gpu in gpus(seen)] == [False, True]
    assert findings(seen)["smoke-new-xid"].summary == "GPU 1 no longer answers after the burn-in"


def test_only_the_gpus_that_the_ranks_see_are_watched_in_their_order(fake_nvidia: FakeNvidia) -> None:
    environ = {**fake_nvidia.environ(gpus=4), "CUDA_VISIBLE_DEVICES": "3,1"}
    assert [gpu.index for gpu in gpus(watched(environ, {}))] == [3, 1]


def test_ranks_on_the_cpu_leave_gpus_alone(fake_nvidia: FakeNvidia) -> None:
    seen = watched(fake_nvidia.environ(gpus=2), {}, msgspec.structs.replace(ORDER, backend="gloo"))
    assert seen.gpus == Unknown("the ranks train on the CPU")
    assert seen.memory


XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=4104, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([(XID, 10.0)], 1),
        ([(XID, 90.0)], 0),
        ([("nvidia-nvswitch: loaded", 10.0)], 0),
        ([("nvidia-nvswitch: loaded", -1.0)], 0),
    ],
)
def test_of_the_kernels_log_counts_what_came_meanwhile(lines: list[tuple[str, float]], found: int) -> None:
    log = KernelLog(lines=tuple(KernelLine(text=text, age=age) for text, age in lines))
    new = new_errors(log, 60.0)
    assert not isinstance(new, Unknown)
    assert len(new) == found


def test_without_time_stamps_or_without_the_log_nothing_is_called_new_or_fine() -> None:
    unstamped = KernelLog(lines=(KernelLine(text=XID),))
    assert isinstance(new_errors(unstamped, 60.0), Unknown)
    assert new_errors(Unknown("kernel.dmesg_restrict"), 60.0) == Unknown("kernel.dmesg_restrict")
