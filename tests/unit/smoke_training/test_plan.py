"""On which GPUs a smoke training is planned, and what is said of those that it passes over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddpdoctor.api.training import add_imported_torch
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.smoke import ELASTIC, RENDEZVOUS, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.probes import session
from ddpdoctor.smoke_training.analysis.verdict import judge_plan, judge_training, own_findings, verdict_of
from ddpdoctor.smoke_training.plan import plan_training
from ddpdoctor.smoke_training.stages import STAGES
from ddpdoctor.smoke_training.training_order import Launched, SmokeOptions, TrainingOrder
from tests.support.fixture_hosts import healthy_facts, healthy_names, to_snapshot
from tests.support.smokes import smoke_of_ranks

MISMATCH = "there is an NVIDIA GPU on the PCI bus, but NVML failed to start (code 18)"


NO_NCCL = "torch 2.8.0 is built without NCCL"


def host(name: str = "h100x8-bare-metal") -> Snapshot:
    return to_snapshot(healthy_facts(name))


def without(*lost: int) -> Snapshot:
    """Eight GPUs, of which these don't answer."""
    one = host()
    assert isinstance(one.gpus, Gpus)
    devices = tuple(msgspec.structs.replace(gpu, lost=gpu.index in lost) for gpu in one.gpus.devices)
    return msgspec.structs.replace(one, gpus=msgspec.structs.replace(one.gpus, devices=devices))


def broken() -> Snapshot:
    return msgspec.structs.replace(host(), gpus=Unknown(MISMATCH))


def hiding(value: str, lost: tuple[int, ...] = ()) -> Snapshot:
    setting = Setting(name="CUDA_VISIBLE_DEVICES", value=value)
    return msgspec.structs.replace(without(*lost), environment=Environment(settings=(setting,)))


def sliced(value: str | None = None, **settings: str) -> Snapshot:
    """A GPU in two MIG slices. value: of CUDA_VISIBLE_DEVICES."""
    chosen = settings if value is None else settings | {"CUDA_VISIBLE_DEVICES": value}
    found = tuple(Setting(name=name, value=text) for name, text in chosen.items())
    return msgspec.structs.replace(host("a100-mig"), environment=Environment(settings=found))


def beside_a_sliced_one() -> Snapshot:
    """Eight whole GPUs, and one in two slices."""
    one, other = host(), host("a100-mig")
    assert isinstance(one.gpus, Gpus)
    assert isinstance(other.gpus, Gpus)
    ninth = msgspec.structs.replace(other.gpus.devices[0], index=8)
    return msgspec.structs.replace(one, gpus=msgspec.structs.replace(one.gpus, devices=(*one.gpus.devices, ninth)))


SLICES = ",".join(instance.uuid for instance in host("a100-mig").gpus.devices[0].mig_instances)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("snapshot", "nproc", "backend", "chosen", "passed_over"),
    [
        (host(), None, "auto", "8 ranks on GPU over nccl (8 GPUs)", ""),
        (host(), 1, "auto", "1 rank on GPU over nccl (--nproc)", ""),
        (host("a100-mig"), None, "auto", "1 rank on GPU over nccl (1 GPU)", ""),
        (sliced(), None, "auto", "1 rank on GPU over nccl (2 MIG slices, of which a process sees one)", ""),
        (sliced(SLICES), None, "auto", "1 rank on GPU over nccl (2 MIG slices, of which a process sees one)", ""),
        (beside_a_sliced_one(), None, "auto", "8 ranks on GPU over nccl (8 GPUs)", ""),
        (host("jetson-orin"), None, "auto", "2 ranks on CPU over gloo ({})", NO_NCCL),
        (host("jetson-orin"), None, "gloo", "2 ranks on CPU over gloo (--backend gloo)", ""),
        (host("mi300x8-rocm"), None, "auto", "8 ranks on GPU over nccl (8 GPUs)", ""),
        (host("cloud-cpu"), None, "auto", "2 ranks on CPU over gloo (no GPU)", ""),
        (host("cloud-cpu"), 3, "gloo", "3 ranks on CPU over gloo (--nproc)", ""),
        (host("cloud-cpu"), None, "gloo", "2 ranks on CPU over gloo (no GPU)", ""),
        (host(), None, "gloo", "2 ranks on CPU over gloo (--backend gloo)", ""),
        (broken(), None, "gloo", "2 ranks on CPU over gloo (--backend gloo)", ""),
        (broken(), None, "auto", "2 ranks on CPU over gloo ({})", f"the GPUs could not be asked: {MISMATCH}"),
        (broken(), 4, "auto", "4 ranks on CPU over gloo (--nproc; {})", f"the GPUs could not be asked: {MISMATCH}"),
        (without(3), None, "auto", "7 ranks on GPU over nccl ({})", "7 of 8 GPUs answer"),
        (without(3), None, "gloo", "2 ranks on CPU over gloo (--backend gloo)", ""),
        (without(*range(7)), None, "auto", "1 rank on GPU over nccl ({})", "1 of 8 GPUs answers"),
        (without(*range(8)), None, "auto", "2 ranks on CPU over gloo ({})", "none of 8 GPUs answers"),
        (hiding(""), None, "auto", "2 ranks on CPU over gloo ({})", "CUDA_VISIBLE_DEVICES hides all 8 GPUs"),
        (hiding("0,1"), None, "auto", "2 ranks on GPU over nccl (2 GPUs)", ""),
        (
            hiding("", lost=(3,)),
            None,
            "auto",
            "2 ranks on CPU over gloo ({})",
            "CUDA_VISIBLE_DEVICES hides all 8 GPUs, and 7 of 8 GPUs answer",
        ),
    ],
)
def test_a_plan_says_on_which_gpus_and_why_not_on_all(
    snapshot: Snapshot, nproc: int | None, backend: str, chosen: str, passed_over: str
) -> None:
    plan = plan_training(snapshot, nproc, backend)
    assert (plan.chosen, plan.gpus_passed_over) == (chosen.format(passed_over), passed_over)


def test_gpus_on_the_bus_that_nvml_doesnt_list_are_not_no_gpu() -> None:
    one = msgspec.structs.replace(host(), gpus=Gpus(devices=(), vendor="nvidia"))
    assert plan_training(one, None, "auto").gpus_passed_over.startswith("the GPUs could not be asked")


def trained(snapshot: Snapshot, backend: str = "auto") -> tuple[Verdict, list[str]]:
    """The verdict of a training that passed, and what is said of it."""
    plan = plan_training(snapshot, None, backend)
    facts = smoke_of_ranks(plan.nproc, backend=plan.backend, chosen=plan.chosen, gpus_passed_over=plan.gpus_passed_over)
    one = judge_training(snapshot, facts, catalogue())
    return verdict_of(one), [check.slug for check, _, _ in own_findings(one)]


def test_a_training_that_passed_beside_the_gpus_is_no_plain_ok() -> None:
    for snapshot in (broken(), without(3), without(*range(8)), hiding(""), host("jetson-orin")):
        assert trained(snapshot) == (Verdict.WARN, ["smoke-not-on-gpus"])
    for snapshot in (host(), host("cloud-cpu")):
        assert trained(snapshot) == (Verdict.OK, [])
    assert trained(broken(), "gloo") == (Verdict.OK, [])


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (host("cloud-cpu"), "this host has no GPU"),
        (hiding(""), "CUDA_VISIBLE_DEVICES hides all 8 GPUs"),
        (without(*range(8)), "none of 8 GPUs answers"),
    ],
)
def test_nccl_without_gpus_is_explained_before_the_start(snapshot: Snapshot, why: str) -> None:
    hindered = judge_plan(snapshot, plan_training(snapshot, None, "nccl"), catalogue())
    assert hindered is not None
    assert verdict_of(hindered).exit_code(strict=False) == 1
    ((check, _, finding),) = own_findings(hindered)
    assert (check.slug, finding.summary) == ("smoke-not-on-gpus", f"2 ranks are to run over NCCL, but {why}")
    assert any("--backend gloo" in command for fix in finding.fixes for command in fix.commands)


def test_nccl_that_torch_lacks_is_explained_before_the_start() -> None:
    hindered = judge_plan(host("jetson-orin"), plan_training(host("jetson-orin"), None, "nccl"), catalogue())
    assert hindered is not None
    assert verdict_of(hindered).exit_code(strict=False) == 1
    ((check, _, finding),) = own_findings(hindered)
    assert (check.slug, finding.summary) == ("smoke-not-on-gpus", f"1 rank is to run over NCCL, but {NO_NCCL}")
    commands = [command for fix in finding.fixes for command in fix.commands]
    assert [command.partition(" --python")[0] for command in commands] == [
        "ddpdoctor explain nccl-not-built",
        "ddpdoctor smoke --nproc 1 --backend gloo",
    ]


def test_torch_is_imported_for_the_plan_only_where_it_may_lack_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs seconds on each other host."""
    asked: list[object] = []

    def look(context: object, groups: object) -> Snapshot:
        asked.append((context, groups))
        return host("jetson-orin")

    monkeypatch.setattr(session, "start_probes", lambda python, patience: (python, patience))
    monkeypatch.setattr(session, "collect_facts", look)
    quick = {name: msgspec.structs.replace(host(name), torch=Unknown("not looked at")) for name in healthy_names()}
    jetson = quick.pop("jetson-orin")
    wishes = SmokeOptions(python="/opt/env/bin/python", timeout=50)
    assert [add_imported_torch(one, wishes, None) for one in quick.values()] == [*quick.values()]
    assert add_imported_torch(jetson, msgspec.structs.replace(wishes, backend="gloo"), None) == jetson
    assert not asked
    told = add_imported_torch(jetson, wishes, "python")
    assert asked == [(("python", 50), {"torch"})]
    assert plan_training(told, None, "auto").chosen == f"2 ranks on CPU over gloo ({NO_NCCL})"


def test_nccl_is_tried_where_nobody_knows_of_gpus() -> None:
    """NVML may fail where CUDA doesn't."""
    assert judge_plan(broken(), plan_training(broken(), None, "nccl"), catalogue()) is None
    assert judge_plan(without(3), plan_training(without(3), None, "nccl"), catalogue()) is None


def test_several_ranks_on_mig_slices_are_explained_before_the_start() -> None:
    for snapshot in (sliced(), sliced(SLICES), host("a100-mig")):
        assert judge_plan(snapshot, plan_training(snapshot, None, "auto"), catalogue()) is None
        assert judge_plan(snapshot, plan_training(snapshot, 2, "gloo"), catalogue()) is None
        hindered = judge_plan(snapshot, plan_training(snapshot, 2, "auto"), catalogue())
        assert hindered is not None
        assert verdict_of(hindered).exit_code(strict=False) == 1
        ((check, _, finding),) = own_findings(hindered)
        assert check.slug == "mig-multi-instance"
        assert finding.summary.startswith("2 ranks on MIG slices")
    # Who allows NCCL to try is let try.
    allowed = sliced(SLICES, NCCL_MULTI_RANK_GPU_ENABLE="1")
    assert judge_plan(allowed, plan_training(allowed, 2, "auto"), catalogue()) is None


def test_only_the_first_stage_may_take_as_long_as_an_import() -> None:
    facts = Smoke(deadline=30.0, import_seconds=90.0)
    assert (facts.seconds_for("import"), facts.seconds_for("barrier")) == (90.0, 30.0)
    assert Smoke(deadline=30.0).seconds_for("import") == 30.0


@pytest.mark.parametrize(
    ("order", "run"),
    [
        ({}, {"engine": ELASTIC}),
        ({"nnodes": 2}, {"engine": ELASTIC, "nnodes": 2}),
        ({"launched": Launched(rank=1, local_rank=1), "nnodes": 2}, {"engine": "srun"}),
    ],
)
def test_what_is_told_of_a_stage_s_time_is_what_it_had(order: dict[str, Any], run: dict[str, Any]) -> None:
    given = TrainingOrder(nproc=2, world_size=4, seconds=30.0, import_seconds=90.0, **order)
    facts = Smoke(deadline=30.0, import_seconds=90.0, **run)
    assert {stage: facts.seconds_for(stage) for stage in STAGES} == {
        stage: given.seconds_for(stage) for stage in STAGES
    }
    assert facts.seconds_for(RENDEZVOUS) == (90.0 if order else 30.0)
