"""What the checks of compiled extensions say and prescribe, where a fixture can't show it."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Finding, Severity
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import diagnose
from tests.support.fixture_hosts import healthy_facts, host_case, judge, lay_over, to_snapshot
from tests.support.registered_checks import find_check


def found(slug: str, **facts: Any) -> tuple[Finding, ...]:
    snapshot = to_snapshot(lay_over(healthy_facts("h100x8-bare-metal"), facts))
    return diagnose(snapshot, plan_for(snapshot), [find_check(slug)])[0].findings


def commands(finding: Finding) -> str:
    return "\n".join(command for fix in finding.fixes for command in fix.commands)


@pytest.mark.parametrize(
    ("consumers", "nvcc", "severity"),
    [
        (["torch"], "12.4", FAIL),
        (["deepspeed"], "12.4", WARN),
        (["deepspeed", "torch"], "12.4", FAIL),
        (["deepspeed", "torch"], "13.1", WARN),
        (["apex"], "13.1", FAIL),
        (["torch"], "13.1", None),
    ],
)
def test_how_bad_another_nvcc_is_depends_on_who_builds(
    consumers: list[str], nvcc: str, severity: Severity | None
) -> None:
    """torch 2.13 raises a RuntimeError for another major version and logs a warning for another minor one."""
    findings = found(
        "cuda-toolkit-mismatch",
        toolchain={
            "nvccs": {"0": {"version": nvcc}},
            "compiles": [{"name": name, "reason": f"{name} is here"} for name in consumers],
        },
    )
    assert [finding.severity for finding in findings] == ([severity] if severity else [])


def test_no_torch_is_offered_that_this_driver_and_these_gpus_cannot_run() -> None:
    (finding,) = judge(host_case("cuda-toolkit-mismatch/sick-old-gpu")).findings
    assert "whl/" not in commands(finding)
    assert "cuda-12.6" in commands(finding)


def test_a_package_is_built_again_from_pypis_version() -> None:
    def broken(version: str) -> dict[str, Any]:
        one = {"path": "/env/torch_scatter/_scatter_cuda.so", "module": "torch_scatter._scatter_cuda"}
        one = {**one, "needed": ["libcudart.so.12"]}
        return {"packages": [{"package": "torch_scatter", "version": version, "objects": [one]}]}

    (finding,) = found("extension-abi-mismatch", extensions=broken("2.1.2+pt24cu124"))
    assert commands(finding).endswith(" torch-scatter==2.1.2")
    assert "+pt24cu124 came from elsewhere" in finding.fixes[0].text
    (finding,) = found("extension-abi-mismatch", extensions=broken("2.1.2"))
    assert "elsewhere" not in finding.fixes[0].text


@pytest.mark.parametrize(("fixture", "severity"), [("sick-display-card-seen", WARN), ("sick-built-on-a100", FAIL)])
def test_apex_that_runs_on_some_gpus_only_warns(fixture: str, severity: Severity) -> None:
    (finding,) = judge(host_case(f"apex-arch-missing/{fixture}")).findings
    assert finding.severity is severity
    assert ("export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6" in commands(finding)) is (severity is WARN)


def test_a_tree_without_a_toolkit_for_it_gets_no_command_that_fails() -> None:
    tree = {"apex_source": "/home/ada/apex", "apex_source_style": "environment"}
    (finding,) = found("apex-build-isolation", toolchain=tree, extensions={"apex": []})
    assert "CUDA_HOME=/usr/local/cuda-13.0 " in commands(finding)
    other = {**tree, "nvccs": {"0": {"version": "12.4"}}}
    (finding,) = found("apex-build-isolation", toolchain=other, extensions={"apex": []})
    assert commands(finding) == "ddpdoctor explain apex"
