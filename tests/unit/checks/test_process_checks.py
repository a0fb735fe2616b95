"""Fine points of the checks on running jobs: severities, who gives way to whom, and what can't be seen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, SkipReason, diagnose
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole, RankPlace
from ddpdoctor.processes.gpu_holders import holdings, main_gpu, process_of, unowned
from ddpdoctor.processes.job_settings import comparable, differences
from tests.support.fixture_hosts import HostCase, healthy_facts, host_case, host_cases, lay_over, to_snapshot
from tests.support.registered_checks import find_check

OURS = [
    check
    for check in all_checks()
    if check.family == "processes"
    or check.slug in ("gpu0-extra-contexts", "duplicate-gpu", "omp-threads", "port-in-use", "gpu-memory-in-use")
]
OF_RUNNING = [
    case
    for our in OURS
    for case in host_cases(our.slug, "sick-")
    if our.family == "processes" or "running" in case.name
]
UNKNOWN = {"type": "unknown", "reason": "could not be read"}
GIB = 1 << 30

TWO_CAUSES = {
    "zombie-gpu-process/sick-ended-but-holds": {"rank-not-running"},
    "zombie-gpu-process/sick-one-rank": {"rank-not-running"},
}
"""Hosts that rightly have a second finding: the run that has left something also lacks ranks."""


def results_of(case: HostCase, checks: Any = OURS) -> tuple[Result, ...]:
    snapshot = case.snapshot()
    return diagnose(snapshot, plan_for(snapshot, case.nproc), checks)


def sick(slug: str, name: str) -> Result:
    return results_of(host_case(f"{slug}/sick-{name}"), [find_check(slug)])[0]


@pytest.mark.parametrize("case", OF_RUNNING, ids=lambda case: case.id)
def test_one_cause_gives_one_finding(case: HostCase) -> None:
    """But that a new job finds these GPUs taken, which is so whatever else is wrong with the one that has them."""
    found = {result.check.slug for result in results_of(case) if result.findings} - {"gpu-memory-held-by-others"}
    assert found - {case.slug} == TWO_CAUSES.get(case.id, set())


@pytest.mark.parametrize("case", OF_RUNNING, ids=lambda case: case.id)
def test_what_can_t_be_seen_is_never_called_fine(case: HostCase) -> None:
    check = find_check(case.slug)
    facts = msgspec.json.decode(msgspec.json.encode(case.snapshot()))
    changes: list[dict[str, Any]] = [{"processes": UNKNOWN}]
    if check.slug not in ("orphaned-rank", "job-settings-differ", "omp-threads", "rank-not-running"):
        changes += [{"gpus": UNKNOWN}, {"gpus": {"devices": {"*": {"holders": UNKNOWN}}}}]
    for change in changes:
        snapshot = to_snapshot(lay_over(facts, change))
        (result,) = diagnose(snapshot, plan_for(snapshot, case.nproc), [check])
        assert not result.passed, change
        assert result.not_tested is None or result.not_tested.why is not SkipReason.CRASHED, result.not_tested


@pytest.mark.parametrize(
    ("slug", "name", "severity"),
    [
        ("zombie-gpu-process", "orphaned-ranks", FAIL),
        ("zombie-gpu-process", "ended-but-holds", FAIL),
        ("zombie-gpu-process", "one-rank", WARN),
        ("zombie-gpu-process", "of-another-user", WARN),
        ("orphaned-rank", "launcher-killed", FAIL),
        ("orphaned-rank", "still-works", WARN),
        ("orphaned-rank", "other-hosts", WARN),
        ("orphaned-rank", "by-hand", INFO),
        ("rank-not-running", "dead", WARN),
        ("rank-not-running", "uncollected", INFO),
        ("gpu-memory-held-by-others", "another-users-job", WARN),
        ("gpu-memory-held-by-others", "notebook", INFO),
        ("gpu-memory-held-by-others", "hidden-from-the-container", INFO),
        ("gpu-memory-held-by-others", "eight-ranks-on-seven", FAIL),
        ("gpu-memory-unowned", "another-container", FAIL),
        ("gpu-memory-unowned", "killed-process", WARN),
        ("job-settings-differ", "nccl-algo", FAIL),
        ("job-settings-differ", "threads", WARN),
        ("duplicate-gpu", "running-wrapped", FAIL),
        ("duplicate-gpu", "running-hard-coded", WARN),
        ("gpu0-extra-contexts", "running-bare-contexts", WARN),
        ("gpu0-extra-contexts", "running-leaked-rank", FAIL),
    ],
)
def test_severity(slug: str, name: str, severity: Severity) -> None:
    result = sick(slug, name)
    assert [finding.severity or result.check.severity for finding in result.findings] == [severity]


@pytest.mark.parametrize(
    ("slug", "name", "text"),
    [
        ("gpu0-extra-contexts", "running-bare-contexts", "before torch.cuda.set_device"),
        ("gpu0-extra-contexts", "running-tensors", "torch.load() without map_location"),
        ("gpu0-extra-contexts", "running-leaked-rank", "Torchrun, which started it, is gone"),
        ("gpu0-extra-contexts", "running-workers", "A DataLoader worker that touches CUDA"),
        ("gpu-memory-unowned", "another-container", "only this container's processes"),
    ],
)
def test_causes_are_told_apart(slug: str, name: str, text: str) -> None:
    (finding,) = sick(slug, name).findings
    assert text in finding.cause


@pytest.mark.parametrize(
    ("slug", "name", "command"),
    [
        (
            "zombie-gpu-process",
            "orphaned-ranks",
            "ddpdoctor zombies --kill 18110 18111 18112 18113 18114 18115 18116 18117",
        ),
        ("orphaned-rank", "launcher-killed", "ddpdoctor zombies --kill 18110 18111"),
        ("port-in-use", "dead-runs-rank", "ddpdoctor zombies --kill 30411"),
    ],
)
def test_what_is_proven_to_be_left_over_can_be_ended(slug: str, name: str, command: str) -> None:
    (finding,) = sick(slug, name).findings
    assert (finding.fixes[0].commands, finding.fixes[0].appliable) == ((command,), True)


@pytest.mark.parametrize(
    "name",
    [
        "zombie-gpu-process/sick-one-rank",
        "zombie-gpu-process/sick-of-another-user",
        "orphaned-rank/sick-still-works",
        "orphaned-rank/sick-other-hosts",
        "port-in-use/sick-perhaps-a-dead-runs",
        "gpu-memory-held-by-others/sick-another-users-job",
    ],
)
def test_nothing_that_is_in_doubt_is_ended_by_a_command(name: str) -> None:
    case = host_case(name)
    (result,) = results_of(case, [find_check(case.slug)])
    for finding in result.findings:
        for fix in finding.fixes:
            assert not any("kill" in command for command in fix.commands)


@pytest.mark.parametrize("host", ["h100x8-training", "h100x8-bare-metal", "h100x8-slurm", "rtx4090x2-workstation"])
def test_a_healthy_host_passes(host: str) -> None:
    snapshot = to_snapshot(healthy_facts(host))
    results = {result.check.slug: result for result in diagnose(snapshot, plan_for(snapshot), OURS)}
    for slug in ("zombie-gpu-process", "gpu-memory-held-by-others", "gpu-memory-unowned", "mixed-jobs-on-gpu"):
        assert results[slug].passed, results[slug]
    if host == "h100x8-training":
        assert [slug for slug, one in results.items() if not one.passed] == ["omp-threads"], (
            "which torchrun sets itself in the job that would be started"
        )


def holder_of(process: Process, **facts: Any) -> Process | None:
    seen = Processes(listed=(process,), pid_namespace="pid:[1]", **facts)
    return process_of(GpuHolder(pid=process.pid), seen)


def test_a_pid_of_the_host_is_no_process_of_the_container() -> None:
    container = {"unseen": "only this container's processes can be seen from here"}
    stranger = Process(pid=7, start=1, parent=1, name="cron", devices=())
    assert holder_of(stranger) is stranger, "outside of a container a pid is a pid"
    assert holder_of(stranger, **container) is None
    for facts in (
        {"devices": (0,)},
        {"devices": Unknown("no")},
        {"marks": ("cuda-EvtHandlr",)},
        {"role": ProcessRole.RANK},
    ):
        same = msgspec.structs.replace(stranger, **facts)
        assert holder_of(same, **container) is same
    assert process_of(GpuHolder(pid=0), Processes(listed=(stranger,))) is None


def a_rank(pid: int, rank: int, settings: dict[str, str] | None = None) -> Process:
    return Process(
        pid=pid,
        start=pid,
        parent=2,
        role=ProcessRole.RANK,
        place=RankPlace(rank=rank, local_rank=rank, source="RANK"),
        settings=tuple(Setting(name, value) for name, value in (settings or {}).items()),
    )


def test_the_main_gpu_is_where_a_rank_holds_most() -> None:
    rank = a_rank(7, 1)

    def main(*holders: tuple[int, Any]) -> int | None:
        gpus = Gpus(
            devices=tuple(
                Gpu(index=index, holders=tuple(GpuHolder(pid=7, memory=size) for at, size in holders if at == index))
                for index in range(3)
            ),
            vendor="nvidia",
        )
        return main_gpu(rank, holdings(gpus, Processes(listed=(rank,))), gpus)

    untold = Unknown("not told")
    assert main() is None
    assert main((2, untold)) == 2
    assert main((0, GIB), (2, 3 * GIB)) == 2
    assert main((0, untold), (1, untold)) == 1, "its own, by the local rank"
    assert main((0, untold), (2, untold)) is None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, 0),
        ({"memory_used": 20 * GIB}, 20 * GIB),
        ({"memory_used": 20 * GIB, "holders": (GpuHolder(pid=7, memory=19 * GIB + GIB // 2),)}, 0),
        ({"memory_used": 2 * GIB, "memory_total": 192 * GIB}, 0),
    ],
    ids=str,
)
def test_memory_that_nobody_owns(facts: dict[str, Any], expected: int) -> None:
    gpu = Gpu(**{"index": 0, "memory_used": GIB // 2, "memory_total": 80 * GIB, "holders": (), **facts})
    assert unowned(gpu) == expected


@pytest.mark.parametrize(
    "facts",
    [
        {"lost": True},
        {"integrated": True},
        {"mig_enabled": True},
        {"virtualization": "host-vgpu"},
        {"memory_used": Unknown("no")},
        {"memory_total": Unknown("no")},
        {"holders": Unknown("no")},
        {"holders": (GpuHolder(pid=7),)},
    ],
    ids=str,
)
def test_whose_memory_it_is_can_t_always_be_told(facts: dict[str, Any]) -> None:
    gpu = Gpu(**{"index": 0, "memory_used": 40 * GIB, "memory_total": 80 * GIB, "holders": (), **facts})
    assert isinstance(unowned(gpu), Unknown)


@pytest.mark.parametrize(
    ("name", "values", "differs"),
    [
        ("NCCL_ALGO", ("Ring", "ring"), False),
        ("NCCL_ALGO", ("Ring", "Tree"), True),
        ("NCCL_IB_DISABLE", ("0", None), False),
        ("NCCL_SOCKET_IFNAME", ("eth0", "eth1"), False),
        ("NCCL_DEBUG", ("INFO", None), False),
        ("WORLD_SIZE", ("2", "3"), True),
        ("OMP_NUM_THREADS", ("1", "8"), True),
        ("RANK", ("0", "1"), False),
        ("CUDA_VISIBLE_DEVICES", ("0", "1"), False),
        ("CUDA_VISIBLE_DEVICES", ("0,1", "1,0"), False),
        ("CUDA_VISIBLE_DEVICES", ("0,1", "0"), True),
        ("CUDA_VISIBLE_DEVICES", ("0", None), True),
    ],
)
def test_settings_in_which_ranks_may_not_differ(name: str, values: tuple[str | None, ...], differs: bool) -> None:
    ranks = [a_rank(10 + at, at, {name: value} if value else {}) for at, value in enumerate(values)]
    assert [difference.name for difference in differences(ranks)] == ([name] if differs else [])


def test_what_a_rank_set_for_itself_is_unknown_and_not_different() -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "3"}
    first, *others = [a_rank(10 + at, at, meeting if at else {"NCCL_ALGO": "Ring"}) for at in range(3)]
    assert [difference.name for difference in differences([first, *others])] == ["NCCL_ALGO"], (
        "no meeting point of its own"
    )
    started = [msgspec.structs.replace(one, parent=first.pid) for one in others]
    assert comparable([first, *started]) == started
    retitled = msgspec.structs.replace(first, settings=())
    assert comparable([retitled, *others]) == others


def test_ranks_that_differ_are_told_with_their_values() -> None:
    ranks = [a_rank(10 + at, at, {"MASTER_PORT": "29500" if at != 2 else "29501"}) for at in range(4)]
    (one,) = differences(ranks)
    assert (one.usual, one.value, one.ranks, one.fatal) == ("29500", "29501", (2,), True)
    assert one.values == {"29500": (0, 1, 3), "29501": (2,)}
