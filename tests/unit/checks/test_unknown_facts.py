"""A fact that could not be learned hides nothing that the other facts tell: no sick host is called healthy for want of it, and
none is left untested where that fact decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, INFO, Finding, Fix, Severity
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Verdict, examine
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, Result, SkipReason, diagnose, judge, judged_apart, requires
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.pci import Pci
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.nvidia import is_compat, own_gpus
from tests.support.fixture_hosts import (
    HostCase,
    healthy_facts,
    healthy_names,
    host_case,
    host_cases,
    lay_over,
    slugs_with_hosts,
    to_snapshot,
)
from tests.support.registered_checks import find_check
from tests.support.unknown_facts import COULD_NOT_BE_READ, Place, at, put, with_each_unknown, written

UNKNOWN = msgspec.to_builtins(COULD_NOT_BE_READ)

OTHER_VALUES: dict[str, tuple[Any, ...]] = {
    "machine.usable_cores": (1024,),
    "network.ephemeral_range": ((1024, 65535),),
}
"""Values that hosts have, and none of the fixtures."""

WITHOUT_ITS_SIZE = (
    "whether that is much of the GPU's memory its size tells, and real sizes differ by a factor of a hundred"
)
WITHOUT_INTERFACES = "whether the name is one of this host's its interfaces tell, and no fixture has one of that name"
OWN_SETTINGS = "this node's list of settings comes from its environment: without that, an empty list says nothing"
HOLDERS = "that nobody holds the memory is known by who holds some"
ON_GPUS_NOT_HERE = (
    "what is wrong, that the GPU isn't there or that all ranks load onto it, is known by how many GPUs there are"
)

NEEDED: dict[tuple[str, str], str] = {
    ("accelerate-config-main-process", "network"): "whether an address is this host's its interfaces tell",
    ("ckpt-device-pin", "environment"): ON_GPUS_NOT_HERE,
    ("ckpt-device-pin", "gpus"): ON_GPUS_NOT_HERE,
    ("ckpt-world-size-mismatch", "environment"): "how many ranks are to run on all nodes the launcher's settings tell",
    ("env-not-propagated", "environment"): OWN_SETTINGS,
    ("gloo-ifname-not-found", "network"): WITHOUT_INTERFACES,
    ("gpu-memory-held-by-others", "gpus.devices.*.memory_total"): WITHOUT_ITS_SIZE,
    ("gpu-memory-in-use", "gpus.devices.*.memory_total"): WITHOUT_ITS_SIZE,
    ("gpu-memory-unowned", "gpus.devices.*.memory_total"): WITHOUT_ITS_SIZE,
    ("gpu-memory-unowned", "gpus.devices.*.holders"): HOLDERS,
    ("nccl-ifname-not-found", "network"): WITHOUT_INTERFACES,
    ("tp-ifname-not-found", "network"): WITHOUT_INTERFACES,
}
"""Check and fact to why the check must be left untested without it, though no other value of it in any fixture makes the
finding go away. Every other fact that leaves a check untested decides: with what other hosts have in its place, the finding goes."""


@cache
def all_hosts() -> tuple[tuple[str, Snapshot], ...]:
    """The name and the facts of each host of the fixtures."""
    healthy = [(name, to_snapshot(healthy_facts(name))) for name in healthy_names()]
    return (*healthy, *((case.id, case.snapshot()) for case in host_cases()))


@cache
def values_at(place: Place) -> tuple[tuple[str, Any], ...]:
    """The different values that hosts have in that place, and the first host of the fixtures with each."""
    found: dict[str, tuple[str, Any]] = {}
    for name, snapshot in all_hosts():
        for value in at(snapshot, place):
            if not isinstance(value, Unknown):
                found.setdefault(repr(value), (name, value))
    return (*found.values(), *(("another", value) for value in OTHER_VALUES.get(written(place), ())))


def others_at(place: Place, snapshot: Snapshot, case: HostCase) -> Iterator[tuple[Place, Any]]:
    """Known values for that place, those of the nearest hosts first: of the host below the case, of the illness's other cases.
    In place of a group, each of its fields, too."""
    name, *rest = place
    general = (name, rest[0], "*", rest[2]) if len(rest) > 1 else place
    near = sorted(
        values_at(general), key=lambda found: found[0] != case.base and not found[0].startswith(case.slug + "/")
    )
    yield from ((place, value) for _, value in near)
    group = getattr(snapshot, str(name))
    if not rest and not isinstance(group, Unknown):
        for field in group.__struct_fields__:
            yield from (((name, field), value) for _, value in values_at((name, field)))


def decides(place: Place, check: Check, case: HostCase, snapshot: Snapshot) -> bool:
    """Whether some value in that place makes the finding go away. What that leaves untested must be for want of another fact."""
    for where, value in others_at(place, snapshot, case):
        result = judged(check, case, put(snapshot, where, value))
        if not result.findings and (not is_untested(result) or "Unknown(" not in repr(value)):
            return True
    return False


def judged(check: Check, case: HostCase, snapshot: Snapshot) -> Result:
    return judge(check, snapshot, plan_for(snapshot, case.nproc))


def is_untested(result: Result) -> bool:
    return result.not_tested is not None and result.not_tested.why is not SkipReason.NOT_APPLICABLE


def worst(result: Result) -> Severity:
    """The worst finding's severity."""
    severities = [finding.severity or result.check.severity for finding in result.findings]
    return min(severities, key=lambda severity: severity.rank, default=INFO)


def complaint(result: Result, unharmed: Result) -> str:
    """What is wrong with a check's result where a fact is unknown, beside that where it is known; "" for nothing that is seen
    without trying other values."""
    skipped = result.not_tested
    if skipped and skipped.why is SkipReason.CRASHED:
        return skipped.reason
    if not result.findings and not is_untested(result):
        return f"doesn't apply: {skipped.reason}" if skipped else "passes"
    if not skipped and worst(result) is INFO and worst(unharmed) is not INFO:
        return "is only good to know, and nothing is said to be untested"
    return ""


def complaints(check: Check, case: HostCase) -> dict[str, str]:
    """The facts that hide the illness of a case from its check while they are unknown, and how."""
    snapshot = case.snapshot()
    unharmed = judged(check, case, snapshot)
    assert unharmed.findings
    found = {}
    for place, changed in with_each_unknown(snapshot, check.groups & set(GROUPS)):
        result = judged(check, case, changed)
        said = complaint(result, unharmed)
        if not said and not result.findings and (check.slug, written(place)) not in NEEDED:
            said = (
                ""
                if decides(place, check, case, snapshot)
                else "is untested, though no value makes the finding go away"
            )
        if said:
            found[written(place)] = said
    return found


@pytest.mark.parametrize("slug", slugs_with_hosts())
def test_unknown_fact_hides_nothing_that_the_others_tell(slug: str) -> None:
    found = {case.id: complaints(find_check(slug), case) for case in host_cases(slug, "sick-")}
    assert not {case: said for case, said in found.items() if said}


@pytest.mark.parametrize(("slug", "fact"), NEEDED)
def test_each_reason_for_leaving_a_check_untested_is_needed(
    slug: str, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(NEEDED, (slug, fact))
    assert any(fact in complaints(find_check(slug), case) for case in host_cases(slug, "sick-"))


FOUND = Finding("TCP is dropped", fixes=(Fix("Let it in"),))
OUT_OF_PLACE = "doesn't apply: nothing is dropped"


def gives_up_too_early(firewall: Firewall) -> Iterator[Finding]:
    known(firewall.tool)
    if known(firewall.drops_new):
        yield FOUND


def passes_on_what_is_unknown(firewall: Firewall) -> Iterator[Finding]:
    if known_or(firewall.drops_new, False):
        yield FOUND


def calls_itself_out_of_place(firewall: Firewall) -> Iterator[Finding]:
    requires(known_or(firewall.drops_new, False), "nothing is dropped")
    yield FOUND


def becomes_good_to_know(firewall: Firewall) -> Iterator[Finding]:
    if known(firewall.drops_new):
        yield msgspec.structs.replace(FOUND, severity=INFO if isinstance(firewall.tool, Unknown) else FAIL)


def crashes(firewall: Firewall) -> Iterator[Finding]:
    if known(firewall.drops_new):
        yield msgspec.structs.replace(FOUND, summary=firewall.tool + " drops TCP")  # type: ignore[operator]


def is_right(firewall: Firewall) -> Iterator[Finding]:
    if known(firewall.drops_new):
        yield FOUND


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (gives_up_too_early, {"firewall.tool": "is untested, though no value makes the finding go away"}),
        (passes_on_what_is_unknown, {"firewall": "passes", "firewall.drops_new": "passes"}),
        (calls_itself_out_of_place, {"firewall": OUT_OF_PLACE, "firewall.drops_new": OUT_OF_PLACE}),
        (becomes_good_to_know, {"firewall.tool": "is only good to know, and nothing is said to be untested"}),
        (crashes, {"firewall.tool": "TypeError"}),
        (is_right, {}),
    ],
)
def test_a_check_that_is_wrong_is_caught(predicate: Any, said: dict[str, str]) -> None:
    found = complaints(Check("wrong", Severity.FAIL, predicate), host_case("local-firewall/sick-firewalld-rejects"))
    assert found.keys() == said.keys()
    assert all(found[fact].startswith(words) for fact, words in said.items())


def lacking(reason: str, *findings: Finding) -> Iterator[Finding]:
    yield from findings
    known(Unknown(reason))


def idle() -> Iterator[Finding]:
    requires(False, "nothing is here")
    yield FOUND


def test_what_one_look_lacks_the_others_find_all_the_same() -> None:
    def several(firewall: Maybe[Firewall]) -> Iterator[Finding]:
        yield from judged_apart((idle(), lacking("first", FOUND), lacking("second"), iter((FOUND,))))

    result = judge(Check("several", Severity.FAIL, several), Snapshot(), plan_for(Snapshot()))
    assert len(result.findings) == 2
    assert result.not_tested
    assert (result.not_tested.why, result.not_tested.reason) == (SkipReason.UNKNOWN, "first")


AMD_CARD = {"address": "0000:03:00.0", "vendor": 0x1002, "device": 0x744C, "class_code": 0x030000, "driver": "amdgpu"}
NO_VERSIONS = {"libcuda_version": None, "nvml_version": None, "nvml_driver_version": None}


@pytest.mark.parametrize(
    ("slug", "host", "facts"),
    [
        ("gpu-memory-in-use", "h100x8-bare-metal", {"gpus": {"devices": {"3": {"memory_used": UNKNOWN}}}}),
        ("compute-mode-exclusive", "h100x8-bare-metal", {"gpus": {"devices": {"3": {"compute_mode": UNKNOWN}}}}),
        ("nvml-driver-mismatch", "jetson-orin", {"driver": {"nvml_status": None, **NO_VERSIONS}}),
        ("torch-cpu-only", "cpu-laptop", {"pci": {"devices": [AMD_CARD]}, "gpus": UNKNOWN}),
        ("torch-cpu-only", "cpu-laptop", {"machine": UNKNOWN}),
        (
            "gpu-arch-unsupported",  # only the driver's compiler could serve this GPU
            "h100x8-container",
            {
                "torch": {"arch_list": ["sm_80", "compute_80"]},
                "driver": {"kernel_version": None, "cuda_version": UNKNOWN, **NO_VERSIONS},
            },
        ),
    ],
)
def test_healthy_host_with_an_unknown_fact_is_not_tested(slug: str, host: str, facts: dict[str, Any]) -> None:
    snapshot = to_snapshot(lay_over(healthy_facts(host), facts))
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check(slug)])
    assert not result.findings
    assert result.not_tested
    assert result.not_tested.why is SkipReason.UNKNOWN


def test_unknown_memory_makes_no_gpu_another() -> None:
    facts = {"gpus": {"devices": {"3": {"memory_total": UNKNOWN}}}}
    snapshot = to_snapshot(lay_over(healthy_facts("h100x8-bare-metal"), facts))
    assert diagnose(snapshot, plan_for(snapshot), [find_check("gpu-heterogeneous")])[0].passed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/local/cuda/compat/lib.real/libcuda.so.580.95.05", True),
        ("/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", True),
        ("/opt/conda/cuda-compat/libcuda.so.580.95.05", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", False),
        ("/home/ada/compatible/libcuda.so.1", False),
        (None, False),
    ],
)
def test_libcuda_for_forward_compatibility(path: str | None, expected: bool) -> None:
    assert is_compat(path) is expected


@pytest.mark.parametrize(
    "name",
    [
        "torch-cpu-only/near-miss-bus-unseen",
        "compute-mode-exclusive/near-miss-processes-untold",
        "cuda-compat-unsupported/near-miss-not-asked",
    ],
)
def test_what_decides_and_is_unknown_is_said(name: str) -> None:
    case = host_case(name)
    result = judged(find_check(case.slug), case, case.snapshot())
    assert result.not_tested
    assert result.not_tested.why is SkipReason.UNKNOWN


def shows_gpus_to_a_cuda_build(snapshot: Snapshot) -> bool:
    torch, pci = snapshot.torch, snapshot.pci
    return isinstance(torch, Torch) and bool(torch.cuda) and isinstance(pci, Pci) and bool(own_gpus(pci))


SHOWN_ON_THE_BUS = [name for name in healthy_names() if name.startswith(("h100x8", "rtx4090x2", "a100"))]
DRIVERS_SICK = [
    case
    for case in host_cases(kind="sick-")
    if find_check(case.slug).family in ("driver", "container", "gpu") and shows_gpus_to_a_cuda_build(case.snapshot())
]
ASKED = (
    "gpus",
    "driver",
    "environment",
    "machine",
    "container",
    "kernel_log",
    "target_python",
    "packages",
    "processes",
)


def blind(snapshot: Snapshot) -> Snapshot:
    """The same host with a torch that can use none of its GPUs, and doesn't say why."""
    assert isinstance(snapshot.torch, Torch)
    torch = msgspec.structs.replace(snapshot.torch, cuda_available=False, device_count=0, cuda_error="")
    return msgspec.structs.replace(snapshot, torch=torch)


def blind_with_unknown_groups(snapshot: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    """That host with each one and two of its other groups unknown; with GPUs that the driver doesn't list, too."""
    hosts = [blind(snapshot)]
    if isinstance(snapshot.gpus, Gpus):
        unlisted = msgspec.structs.replace(snapshot.gpus, devices=(), vendor=None)
        hosts.append(msgspec.structs.replace(hosts[0], gpus=unlisted))
    for host in hosts:
        for count in range(3):
            for groups in combinations(ASKED, count):
                unknown = dict.fromkeys(groups, COULD_NOT_BE_READ)
                yield ", ".join(groups), msgspec.structs.replace(host, **unknown)


def is_ok(snapshot: Snapshot) -> bool:
    """Whether the verdict is OK. Where a check of the driver or of torch's start finds something, no other needs to be asked."""
    nearest = [check for check in all_checks() if check.family in ("driver", "container")]
    for checks in ([find_check("cuda-unavailable")], nearest, all_checks()):
        verdict = examine(snapshot, None, checks).verdict
        if verdict in (Verdict.WARN, Verdict.FAIL):
            return False
    return verdict is Verdict.OK


@pytest.mark.parametrize("name", SHOWN_ON_THE_BUS)
def test_no_host_is_ok_whose_gpus_its_cuda_build_of_torch_cannot_use(name: str) -> None:
    tried = 0
    for groups, snapshot in blind_with_unknown_groups(to_snapshot(healthy_facts(name))):
        assert not is_ok(snapshot), groups
        tried += 1
    assert tried > 50


WHAT_IT_IS_ABOUT = (("torch",), ("torch", "cuda_available"), ("pci",))
"""Without these nobody knows that the bus shows GPUs, or that torch can't use them."""


@pytest.mark.parametrize("name", SHOWN_ON_THE_BUS)
def test_nor_is_it_whatever_single_fact_is_unknown(name: str) -> None:
    snapshot = blind(to_snapshot(healthy_facts(name)))
    tried = [
        (written(place), is_ok(changed))
        for place, changed in with_each_unknown(snapshot, GROUPS)
        if place not in WHAT_IT_IS_ABOUT
    ]
    assert [fact for fact, ok in tried if ok] == []
    assert len(tried) > 150


def test_the_verdict_would_be_ok_without_that() -> None:
    assert all(is_ok(to_snapshot(healthy_facts(name))) for name in ("h100x8-bare-metal", "rtx4090x2-workstation"))


def test_most_of_those_cases_show_gpus() -> None:
    assert len(DRIVERS_SICK) > 80


@pytest.mark.parametrize("case", DRIVERS_SICK, ids=lambda case: case.id)
def test_nor_is_it_whatever_else_ails_it(case: HostCase) -> None:
    for groups, changed in blind_with_unknown_groups(case.snapshot()):
        assert not is_ok(changed), groups
