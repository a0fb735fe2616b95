"""What the checks of settings say, where a fixture can't show it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.findings import FAIL, WARN, Severity
from ddpdoctor.checks.settings.invalid import nearest
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpu
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.cuda_visible_devices import what_cuda_shows
from ddpdoctor.knowledge.known_settings import known_settings, one_slip_from, read_by_nothing
from ddpdoctor.probes import environment
from ddpdoctor.probes.context import Context
from tests.support.fixture_hosts import HOSTS, host_case, judge
from tests.support.registered_checks import find_check
from tests.unit.knowledge.test_known_settings import valid_value

FOUR = [Gpu(index=index, uuid=f"GPU-0000000{index}-aaaa") for index in range(4)]


def judged(slug: str, *settings: Setting) -> Result:
    snapshot = Snapshot(environment=Environment(settings=settings))
    return diagnose(snapshot, Plan(1, "test"), [find_check(slug)])[0]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("0,1,2,3", 4),
        ("3, 1", 2),
        ("0,1,", 2),
        ("0,1,4,2", 2),
        ("1,-1,2", 1),
        ("0,0", 0),
        ("00,0", 0),
        ("0 1", 1),
        ("1gpu,2", 1),
        ("gpu0", 0),
        ("GPU-00000002", 1),
        ("GPU-00000002-aaaa,GPU-00000000-aaaa", 2),
        ("GPU-00000002-aaaa,1", 1),
        ("GPU-ffff", 0),
        ("MIG-1234", 1),
        (",1", 0),
    ],
)
def test_what_cuda_shows(value: str, count: int) -> None:
    shown = what_cuda_shows(value, FOUR)
    assert shown.count == count
    well_formed = {"0,1,2,3", "3, 1", "0,1,", "GPU-00000002", "GPU-00000002-aaaa,GPU-00000000-aaaa", "MIG-1234"}
    assert bool(shown.stopped) == (value not in well_formed)


@given(st.permutations(range(4)).flatmap(lambda order: st.integers(1, 4).map(lambda count: order[:count])))
def test_any_choice_of_gpus_is_right(order: list[int]) -> None:
    assert what_cuda_shows(",".join(map(str, order)), FOUR).stopped == ""


def test_no_known_name_is_called_misspelt() -> None:
    assert not [name for name in known_settings() if judged("setting-misspelt", Setting(name, "1")).findings]


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_TESTS_SPLIT", "NCCL_TESTS_DEVICE", "NCCL_HOME", "NCCL_PATH", "NCCL_INCLUDE_PATH", "NCCL_TOPO_ID",
        "NCCL_NET_PLUGIN_PATH", "NCCL_DIR", "NCCL_LIBRARY", "GLOO_VERSION", "TORCH_DISTRIBUTED_BACKEND", "NCCL_LIBRARY_PATH",
    ],
)  # fmt: skip
def test_other_programs_names_are_no_misspellings(name: str) -> None:
    assert not judged("setting-misspelt", Setting(name, "1")).findings


@given(
    st.sampled_from(sorted(name for name in known_settings() if name.startswith("NCCL_") and len(name) > 12)), st.data()
)
def test_two_letters_exchanged_are_found(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(6, len(name) - 3))
    wrong = name[:place] + name[place + 1] + name[place] + name[place + 2 :]
    if wrong in known_settings():
        return
    assert nearest(wrong)


@given(st.data())
def test_no_valid_value_of_a_known_setting_is_called_invalid(data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(sorted(known_settings().values(), key=lambda one: one.name)))
    value = data.draw(valid_value(one))
    assert not judged("setting-invalid", Setting(one.name, value)).findings


def test_the_fix_mends_the_file_that_sets_it() -> None:
    finding = judged("setting-misspelt", Setting("NCCL_IFNAME", "eth0", "/home/ada/.nccl.conf")).findings[0]
    assert finding.fixes[0].commands == ("NCCL_SOCKET_IFNAME=eth0",)
    assert finding.fixes[1].commands == ("sed -i '/^NCCL_IFNAME=/d' /home/ada/.nccl.conf",)


def test_a_value_is_quoted_for_the_shell() -> None:
    finding = judged("setting-misspelt", Setting("NCCL_IFNAME", "eth0; rm -rf ~")).findings[0]
    assert finding.fixes[0].commands == ("unset NCCL_IFNAME; export NCCL_SOCKET_IFNAME='eth0; rm -rf ~'",)


@pytest.mark.parametrize(
    ("settings", "summary"),
    [
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1'"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE is 2, more than WORLD_SIZE"),
    ],
)
def test_what_is_wrong_is_what_is_taken_away(settings: dict[str, str], summary: str) -> None:
    found = judged("launcher-env-inconsistent", *(Setting(name, value) for name, value in settings.items())).findings
    assert found[0].summary.startswith(summary)
    commands = [command for fix in found[0].fixes for command in fix.commands]
    assert any(command.startswith("unset ") and command.split()[1] in settings for command in commands)


@given(
    st.integers(1, 64).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))), st.integers(1, 65535)
)
def test_consistent_ranks_are_right(ranks: tuple[int, int], port: int) -> None:
    size, rank = ranks
    settings = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    assert not judged(
        "launcher-env-inconsistent", *(Setting(name, str(value)) for name, value in settings.items())
    ).findings


@pytest.mark.parametrize(
    ("version", "commands"),
    [
        ("2.0.1", ("unset TORCH_FR_BUFFER_SIZE",)),
        ("2.6.0+cu124", ("unset TORCH_FR_BUFFER_SIZE; export TORCH_NCCL_TRACE_BUFFER_SIZE=2000",)),
        ("2.13.0+cu130", None),
    ],
)
def test_too_new_goes_by_the_version(version: str, commands: tuple[str, ...] | None) -> None:
    snapshot = Snapshot(
        environment=Environment(settings=(Setting("TORCH_FR_BUFFER_SIZE", "2000"), Setting("NCCL_ALGO", "Ring"))),
        torch=Torch(installed=True, version=version),
    )
    found = diagnose(snapshot, Plan(1, "test"), [find_check("setting-too-new")])[0].findings
    assert [finding.fixes[0].commands for finding in found] == ([commands] if commands else [])


def test_what_harm_it_does_is_not_known_without_the_hardware() -> None:
    result = judged("setting-dangerous", Setting("NCCL_P2P_DISABLE", "1"), Setting("CUDA_LAUNCH_BLOCKING", "1"))
    assert [finding.evidence[0].text for finding in result.findings] == ["CUDA_LAUNCH_BLOCKING=1"]
    assert result.not_tested is not None


ASYNC = Setting("NCCL_ASYNC_ERROR_HANDLING", "0")


def commands(result: Result) -> list[str]:
    return [command for finding in result.findings for fix in finding.fixes for command in fix.commands]


def test_an_old_name_is_judged_by_its_value_and_never_carried_over() -> None:
    assert commands(judged("setting-dangerous", ASYNC)) == ["unset NCCL_ASYNC_ERROR_HANDLING"]
    assert judged("setting-deprecated", ASYNC).passed
    harmless = Setting("NCCL_ASYNC_ERROR_HANDLING", "1")
    assert judged("setting-dangerous", harmless).passed
    (command,) = commands(judged("setting-deprecated", harmless))
    assert command.endswith("export TORCH_NCCL_ASYNC_ERROR_HANDLING=1")


def test_no_fix_sets_a_value_that_does_harm() -> None:
    assert commands(judged("setting-misspelt", Setting("NCCL_P2P_DISABLED", "1"))) == ["unset NCCL_P2P_DISABLED"]
    new = Setting("TORCH_NCCL_BLOCKING_WAIT", "1")
    snapshot = Snapshot(environment=Environment(settings=(new,)), torch=Torch(installed=True, version="2.0.1"))
    result = diagnose(snapshot, Plan(1, "test"), [find_check("setting-too-new")])[0]
    assert commands(result) == ["unset TORCH_NCCL_BLOCKING_WAIT"]


def test_a_file_of_the_system_is_left_to_root_and_the_environment_goes_before_it() -> None:
    removal = judged("setting-dangerous", Setting("NCCL_PROTO", "LL", "/etc/nccl.conf"))
    assert commands(removal) == ["sudo sed -i '/^NCCL_PROTO=/d' /etc/nccl.conf"]
    assert "a value of your own in the environment" in removal.findings[0].fixes[0].text
    own = judged("setting-dangerous", Setting("NCCL_PROTO", "LL", "/home/ada/.nccl.conf"))
    assert commands(own) == ["sed -i '/^NCCL_PROTO=/d' /home/ada/.nccl.conf"]
    invalid = judged("setting-invalid", Setting("NCCL_IB_DISABLE", "true", "/etc/nccl.conf"))
    assert commands(invalid)[0] == "export NCCL_IB_DISABLE=1"


def prescribed(slug: str, fixture: str) -> list[str]:
    found = judge(host_case(f"{slug}/sick-{fixture}")).findings
    return [command for finding in found for fix in finding.fixes for command in fix.commands]


def test_settings_by_hand_fit_together() -> None:
    assert "export WORLD_SIZE=2 MASTER_PORT=29500" in prescribed("launcher-env-missing", "rank-1")
    assert "export MASTER_ADDR=127.0.0.1" in prescribed("launcher-env-inconsistent", "blank-in-address")


@pytest.mark.parametrize(("fixture", "severity"), [("rank-0-elsewhere", FAIL), ("rank-0-behind-a-router", WARN)])
def test_rank_0_runs_where_master_addr_points(fixture: str, severity: Severity) -> None:
    (finding,) = judge(host_case(f"launcher-env-inconsistent/sick-{fixture}")).findings
    assert finding.severity is severity
    assert [fix.commands for fix in finding.fixes] == [("export MASTER_ADDR=10.0.0.11",), ("export RANK=8",)]


def slips(name: str) -> set[str]:
    """The name with one slip in it, at each of its places."""
    found = set()
    for place in range(len(name)):
        before, letter, after = name[:place], name[place], name[place + 1 :]
        found |= {before + after, before + after[:1] + letter + after[1:]}
        found |= {before + other + after for other in "QZ"} | {
            before + other + letter + after for other in ("Q", letter)
        }
    return found


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_NCCL_BLOCKING_WAIT",
        "GLOO_SOCKET_IFNAME",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LD_LIBRARY_PATH",
        "MKL_NUM_THREADS",
        "TORCHELASTIC_RUN_ID",
    ],
)
def test_one_slip_is_named_wherever_it_is(name: str) -> None:
    tried = 0
    for slip in sorted(slips(name) - set(known_settings()) - set(read_by_nothing())):
        taken = environment.probe(Context(sys.executable, environ={slip: "1", "PATH": "/usr/bin"}))
        assert isinstance(taken, Environment)
        assert slip in taken, f"{slip} isn't among the facts"
        (finding,) = judged("setting-misspelt", Setting(slip, "1")).findings
        assert slip in finding.summary
        assert one_slip_from(slip), slip
        tried += 1
    assert tried > 5 * len(name) - 5


@pytest.mark.parametrize(
    ("slip", "name"),
    [
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("CCL_DEBUG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("TROCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("OPM_NUM_THREADS", "OMP_NUM_THREADS"),
        ("CUDA_VISBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("MASTR_ADDR", "MASTER_ADDR"),
        ("WORLDSIZE", "WORLD_SIZE"),
    ],
)
def test_the_right_name_is_told(slip: str, name: str) -> None:
    (finding,) = judged("setting-misspelt", Setting(slip, "1")).findings
    assert f"the right name is {name}" in finding.summary


def test_other_programs_variables_are_silent() -> None:
    text = (HOSTS.parent / "other_programs_variables.txt").read_text()
    names = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(names) > 2500
    assert [name for name in names if one_slip_from(name)] == []
    assert not judged("setting-misspelt", *(Setting(name, "1") for name in names)).findings


def test_a_misspelt_name_is_set_right_unless_that_does_harm() -> None:
    renamed = "unset NCCL_IB_DISABEL; export NCCL_IB_DISABLE=1"
    assert renamed in prescribed("setting-misspelt", "harmless-without-infiniband")
    everywhere = judged("setting-misspelt", Setting("NCCL_SHM_DISABEL", "1")).findings[0]
    assert [fix.commands for fix in everywhere.fixes] == [("unset NCCL_SHM_DISABEL",)]


def test_of_thousands_of_unknown_names_the_first_are_compared() -> None:
    many = [Setting(f"NCCL_MADE_UP_{index}", "1") for index in range(5000)]
    (rest,) = judged("setting-misspelt", *many).findings
    assert not judged("setting-conflict", *many).findings
    assert "4950 of them were not compared" in rest.summary
