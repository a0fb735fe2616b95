"""The checks of checkpoints beyond their fixtures: many files, hostile names, unread files, ranks over several nodes."""

from __future__ import annotations

import ast
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.checkpoints.finding_words import loading, paths, short
from ddpdoctor.checkpoints.weights_only import allowing
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, SkipReason, diagnose
from ddpdoctor.facts.checkpoints import CheckpointFile, Checkpoints, Pins
from tests.support.fixture_hosts import HEALTHY, healthy_facts, healthy_names, lay_over, to_snapshot
from tests.support.registered_checks import find_check

CHECKS = [check for check in all_checks() if check.family == "checkpoint" and check.groups != {"log"}]
every_check = pytest.mark.parametrize("slug", [check.slug for check in CHECKS])


def a_file(path: str = "a.pt", **facts: Any) -> dict[str, Any]:
    return {"path": path, "kind": "zip", "called": "a PyTorch checkpoint (zip)", "size": 4096, **facts}


def pinned(device: str, size: int = 4096) -> dict[str, Any]:
    return {"pins": [{"device": device, "tensors": 2, "bytes": size}]}


SICK: dict[str, dict[str, Any]] = {
    "ckpt-truncated": {"problem": "Empty: 0 bytes", "damaged": True},
    "ckpt-weights-only": {"weights_only_blockers": ["argparse.Namespace"]},
    "ckpt-whole-module": {"whole_module": "resnet.ResNet50"},
    "ckpt-device-pin": pinned("cuda:9"),
    "ckpt-rng-state": {**pinned("cuda:0"), "rng_states": ["rng"]},
    "ckpt-device-in-config": {"device_texts": [{"where": "args.device", "device": "cuda:9"}]},
    "ckpt-module-prefix": {"prefixes": [{"where": "model", "prefix": "module.", "keys": 2}]},
    "ckpt-world-size-mismatch": {"rank_files": [{"pattern": "rng_state_*.pth", "world_size": 3}]},
}
"""What makes a file sick on a host of eight GPUs."""


def judged(
    slug: str, *files: dict[str, Any], host: str = "h100x8-bare-metal", nproc: int | None = None, **facts: Any
) -> Result:
    group = {"type": "checkpoints", "files": list(files)}
    snapshot = to_snapshot(lay_over(healthy_facts(host), {"checkpoints": group, **facts}))
    return diagnose(snapshot, plan_for(snapshot, nproc), [find_check(slug)])[0]


def severity(result: Result) -> Severity:
    (finding,) = result.findings
    return finding.severity or result.check.severity


@every_check
@pytest.mark.parametrize("host", healthy_names())
def test_without_a_named_file_there_is_nothing_to_look_at(slug: str, host: str) -> None:
    result = judged(slug, host=host)
    assert result.not_tested
    assert result.not_tested.why is SkipReason.NOT_APPLICABLE
    assert result.not_tested.reason == "no checkpoint was named (--checkpoint FILE)"


def test_a_snapshot_of_an_earlier_release_names_no_file() -> None:
    facts = {key: value for key, value in healthy_facts("h100x8-slurm").items() if key != "checkpoints"}
    assert to_snapshot(facts).checkpoints == Checkpoints(files=())


def test_some_healthy_host_has_a_healthy_checkpoint() -> None:
    assert any("checkpoints" in healthy_facts(path.stem) for path in HEALTHY.iterdir())


@every_check
def test_a_file_that_could_not_be_read_is_not_called_fine(slug: str) -> None:
    result = judged(slug, a_file("whole.pt"), a_file("cut.pt", problem="it ends too early", damaged=True))
    if slug == "ckpt-truncated":
        assert severity(result) is FAIL
        assert "cut.pt" in result.findings[0].summary
    else:
        assert not result.findings
        assert result.not_tested
        assert result.not_tested.why is SkipReason.UNKNOWN
        assert "cut.pt" in result.not_tested.reason


@every_check
def test_what_is_found_in_one_file_is_said_though_another_could_not_be_read(slug: str) -> None:
    result = judged(slug, a_file("cut.pt", problem="it ends too early"), a_file(**SICK[slug]))
    assert result.findings


@every_check
def test_hundreds_of_shards_are_one_finding(slug: str) -> None:
    result = judged(slug, *(a_file(f"/data/shard-{number}.pt", **SICK[slug]) for number in range(500)))
    (finding,) = result.findings
    assert len(finding.evidence) <= 10
    assert all(len(command) < 600 for fix in finding.fixes for command in fix.commands)


@every_check
def test_long_and_odd_names_stay_short_and_on_one_line(slug: str) -> None:
    name = "/data/ada's runs/" + "very-long-name " * 15 + "\n.pt"
    (finding,) = judged(slug, a_file(name, **SICK[slug])).findings
    assert len(finding.summary) <= 160
    assert "\n" not in finding.summary
    for command in (command for fix in finding.fixes for command in fix.commands):
        if command.startswith("ddpdoctor"):
            assert name in shlex.split(command)


@pytest.mark.parametrize("device", ["xpu:" + "9" * 5000, "cuda:" + "9" * 5000, "cuda:0\n", "", "\x1b[2J" * 90])
def test_any_text_in_place_of_a_device(device: str) -> None:
    (finding,) = judged("ckpt-device-pin", a_file(**pinned(device)), host="cpu-laptop").findings
    assert len(finding.summary) <= 160


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
def test_commands_name_the_file_whatever_it_is_called(path: str) -> None:
    one = CheckpointFile(path=path, kind="zip", called="", size=0)
    argument = ast.parse(loading(one, "weights_only=False"), mode="eval").body.args[0]  # type: ignore[attr-defined]
    assert ast.literal_eval(argument) == path
    (word,) = shlex.split(paths([one]))
    assert word in (path, f"./{path}")
    assert not word.startswith("-")
    assert len(short(path)) <= 40


@pytest.mark.parametrize("count", [1, 20, 21, 500])
def test_very_many_files_of_one_folder_are_named_by_the_folder(count: int) -> None:
    files = [CheckpointFile(path=f"/d/{number}.pt", kind="zip", called="", size=0) for number in range(count)]
    assert paths(files) == ("/d" if count > 20 else " ".join(file.path for file in files))


@pytest.mark.parametrize(
    ("device", "nproc", "expected"),
    [
        ("cpu", 8, None),
        ("meta", 8, None),
        ("cuda", 1, None),
        ("cuda:0", 1, None),
        ("cuda:0", 2, WARN),
        ("cuda", 2, WARN),
        ("cuda:7", 8, WARN),
        ("cuda:8", 1, FAIL),
        ("cuda:10", 8, FAIL),
        ("mps", 1, FAIL),
        ("mps:0", 1, FAIL),
        ("npu:3", 1, WARN),
        ("hpu", 1, WARN),
        ("xpu:0", 1, WARN),
    ],
)
def test_pins_on_a_host_of_eight_gpus(device: str, nproc: int, expected: Severity | None) -> None:
    result = judged("ckpt-device-pin", a_file(**pinned(device)), nproc=nproc)
    assert result.passed is (expected is None)
    if expected:
        assert severity(result) is expected


def test_the_gpu_of_rank_0_has_its_own_context_anyway() -> None:
    (own,) = judged("ckpt-device-pin", a_file(**pinned("cuda:0")), nproc=4).findings
    (other,) = judged("ckpt-device-pin", a_file(**pinned("cuda:7")), nproc=4).findings
    assert "3 extra contexts" in own.summary
    assert "4 extra contexts" in other.summary


def test_copies_that_exceed_the_memory_stop_the_job() -> None:
    size = 80 << 30
    assert severity(judged("ckpt-device-pin", a_file(**pinned("cuda:0", size // 8)))) is FAIL
    assert severity(judged("ckpt-device-pin", a_file(**pinned("cuda:0", size // 16)))) is WARN
    unknown = {"gpus": {"type": "unknown", "reason": "no NVML"}}
    assert severity(judged("ckpt-device-pin", a_file(**pinned("cuda:0", size)), nproc=8, **unknown)) is WARN


def test_a_torch_for_xpu_may_have_the_device() -> None:
    torch = {"torch": {"version": "2.13.0+xpu", "cuda": None, "cuda_available": False, "device_count": 0}}
    assert judged("ckpt-device-pin", a_file(**pinned("xpu:0")), host="cpu-laptop", **torch).passed


def test_a_mac_has_mps() -> None:
    mac = {"machine": {"system": "Darwin"}}
    assert judged("ckpt-device-pin", a_file(**pinned("mps")), host="cpu-laptop", **mac).passed


def test_without_torch_nobody_can_say_where_it_loads() -> None:
    none = {"torch": {"installed": False, "version": None}}
    result = judged("ckpt-device-pin", a_file(**pinned("cuda:0")), host="cpu-laptop", **none)
    assert result.not_tested
    assert result.not_tested.reason == "torch is not installed"


def test_commands_never_hold_what_only_looks_like_a_class() -> None:
    (finding,) = judged("ckpt-weights-only", a_file(weights_only_blockers=["os.x; rm -rf ~", "a.B"])).findings
    assert not [command for fix in finding.fixes for command in fix.commands if "rm -rf" in command]
    assert not [command for fix in finding.fixes for command in fix.commands if "add_safe_globals" in command]


EVIL = {"globals": [{"name": "posix.system", "meaning": "runs a command", "dangerous": True}]}


@pytest.mark.parametrize("kind", ["zip", "legacy", "torchscript"])
@pytest.mark.parametrize("torch", ["2.5.1", "2.13.0"])
def test_a_dangerous_file_is_loud_whatever_it_is(kind: str, torch: str) -> None:
    evil = a_file(kind=kind, weights_only_blockers=["posix.system"], **EVIL)
    assert severity(judged("ckpt-weights-only", evil, torch={"version": torch})) is FAIL


@every_check
def test_nobody_is_told_to_load_a_dangerous_file(slug: str) -> None:
    result = judged(slug, a_file(**SICK[slug], **EVIL))
    for command in (command for finding in result.findings for fix in finding.fixes for command in fix.commands):
        assert "load(" not in command
        assert "pickle" not in command


def test_allowing_names_each_class_as_the_file_does() -> None:
    assert allowing(["argparse.Namespace", "omegaconf.base.Metadata"]) == (
        "import torch, argparse, omegaconf.base",
        "torch.serialization.add_safe_globals([argparse.Namespace, omegaconf.base.Metadata])",
    )
    assert allowing(["__main__.Config"]) == ("import torch", "torch.serialization.add_safe_globals([Config])")


RANKS = {"pattern": "zero_pp_rank_*_mp_rank_00_optim_states.pt"}
SLURM = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    ("settings", "nproc", "ranks", "expected"),
    [
        ({}, 8, 8, None),
        ({}, 8, 4, FAIL),
        ({}, 8, 12, FAIL),
        ({}, 8, 32, INFO),
        ({"WORLD_SIZE": "8", "RANK": "0", "LOCAL_WORLD_SIZE": "8"}, None, 32, FAIL),
        ({"WORLD_SIZE": "32", "RANK": "0", "LOCAL_WORLD_SIZE": "8"}, None, 32, None),
        ({"WORLD_SIZE": "32", "RANK": "0", "LOCAL_WORLD_SIZE": "8"}, 4, 16, None),
        ({"WORLD_SIZE": "32", "RANK": "0"}, None, 32, None),
        ({"PET_NNODES": "1"}, 8, 32, FAIL),
        ({**SLURM, "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, 8, 32, None),
        ({**SLURM, "SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, None, 32, None),
        ({**SLURM, "SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "32", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, None, 16, FAIL),
    ],
)  # fmt: skip
def test_ranks_that_wrote_and_ranks_that_are_planned(
    settings: dict[str, str], nproc: int | None, ranks: int, expected: Severity | None
) -> None:
    environment = {"settings": [{"name": name, "value": value} for name, value in settings.items()]}
    wrote = a_file(rank_files=[{**RANKS, "world_size": ranks}])
    result = judged("ckpt-world-size-mismatch", wrote, nproc=nproc, environment=environment)
    assert result.passed is (expected is None)
    if expected:
        assert severity(result) is expected


def test_random_numbers_are_no_shares_of_the_model() -> None:
    other = judged("ckpt-world-size-mismatch", a_file(rank_files=[{"pattern": "random_states_*.pkl", "world_size": 3}]))
    assert severity(other) is INFO
    assert "share" not in other.findings[0].cause


@pytest.mark.parametrize(
    ("name", "loader", "stops"),
    [
        ("optimizer.pt", "", True),
        ("optimizer.pt", "transformers' Trainer", False),
        ("rng_state.pth", "transformers' Trainer", True),
        ("random_states_0.pkl", "accelerate", True),
        ("last.ckpt", "Lightning", False),
        ("training_args.bin", "nobody", False),
    ],
)
def test_who_loads_a_pinned_file_at_a_resume_decides(name: str, loader: str, stops: bool) -> None:
    result = judged("ckpt-device-pin", a_file(name, **pinned("cuda:9"), loader=loader))
    assert severity(result) is (FAIL if stops else WARN)


@pytest.mark.parametrize(
    ("name", "loader", "blocker", "told"),
    [
        ("rng_state.pth", "", "numpy.core.multiarray._reconstruct", True),
        ("rng_state.pth", "transformers' Trainer", "numpy.core.multiarray._reconstruct", False),
        ("random_states_0.pkl", "accelerate", "argparse.Namespace", True),
        ("last.ckpt", "Lightning", "argparse.Namespace", True),
        ("training_args.bin", "nobody", "transformers.training_args.TrainingArguments", False),
    ],
)
def test_who_loads_a_file_with_classes_at_a_resume_decides(name: str, loader: str, blocker: str, told: bool) -> None:
    result = judged("ckpt-weights-only", a_file(name, weights_only_blockers=[blocker], loader=loader))
    assert bool(result.findings) is told
    assert all(loader in finding.cause for finding in result.findings)


def test_lost_random_numbers_stop_no_job() -> None:
    lost = {"pattern": "rng_state_*.pth", "world_size": 8, "missing": [3]}
    assert severity(judged("ckpt-world-size-mismatch", a_file(rank_files=[lost]))) is WARN
    lost_optimizer = {**RANKS, "world_size": 8, "missing": [3]}
    assert severity(judged("ckpt-world-size-mismatch", a_file(rank_files=[lost_optimizer]))) is FAIL


def test_pinned_is_what_is_neither_on_the_cpu_nor_without_data() -> None:
    pins = tuple(Pins(device=device, tensors=1, bytes=4) for device in ("cpu", "meta", "cuda:0"))
    one = CheckpointFile(path="a.pt", kind="zip", called="", size=0, pins=pins)
    assert [pin.device for pin in one.pinned] == ["cuda:0"]


def test_of_what_is_not_there_neither_a_size_nor_a_killed_save_is_told() -> None:
    gone = a_file("nope.pt", kind="missing", called="nothing", size=0, problem="No such file")
    (finding,) = judged("ckpt-truncated", gone).findings
    assert [evidence.text for evidence in finding.evidence] == ["nope.pt: No such file"]
    assert finding.cause
    assert "cut short" not in finding.cause
    assert not [fix for fix in finding.fixes if "Resume" in fix.text]
    (damaged,) = judged("ckpt-truncated", a_file(problem="It ends too early", damaged=True)).findings
    assert not damaged.cause


def test_a_long_problem_is_cut_where_a_clause_ends() -> None:
    problem = "The zip archive's directory is not where the file says that it is; of its 161 tensors " + "so many " * 20
    (finding,) = judged("ckpt-truncated", a_file(problem=problem, damaged=True)).findings
    assert finding.summary.endswith("is not where the file says that it is")
    (finding,) = judged("ckpt-truncated", a_file(problem="word " * 99, damaged=True)).findings
    assert finding.summary.endswith("...")
    assert len(finding.summary) <= 160


def test_a_dangerous_plain_pickle_is_loud_though_torch_cannot_read_it() -> None:
    evil = a_file(kind="pickle", problem="A plain pickle", **EVIL)
    assert severity(judged("ckpt-weights-only", evil)) is FAIL
