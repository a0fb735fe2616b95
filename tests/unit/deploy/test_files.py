"""The files of deploy/ by their consumers' own schemas, models and linters."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubeflow_trainer_api.models as kubeflow
import kubernetes_validate
import pytest
import yaml

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Verdict, examine
from ddpdoctor.gating.dialects import DIALECTS
from tests.support.deployed import DEPLOY, INSTALLED, broken_doctor, deployed, install, noting_doctor
from tests.support.fixture_hosts import healthy_facts, lay_over, to_snapshot

KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.30", "1.36")
MODELS = {
    "JobSet": kubeflow.JobsetV1alpha2JobSet,
    "TrainJob": kubeflow.TrainerV1alpha1TrainJob,
    "ClusterTrainingRuntime": kubeflow.TrainerV1alpha1ClusterTrainingRuntime,
}
SCRIPTS = sorted((DEPLOY / "slurm").rglob("*.sh"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def pods(content: Any) -> Iterator[dict[str, Any]]:
    """All pods' specifications within it."""
    if isinstance(content, dict):
        if "containers" in content:
            yield content
        for value in content.values():
            yield from pods(value)
    elif isinstance(content, list):
        for value in content:
            yield from pods(value)


ALL_DOCUMENTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}") for path in KUBERNETES for document in documents(path)
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", [entry for entry in ALL_DOCUMENTS if list(pods(entry.values[0]))])
def test_kubernetes_takes_it(document: dict[str, Any], version: str) -> None:
    if document["apiVersion"] in ("apps/v1", "batch/v1"):
        kubernetes_validate.validate(document, version, strict=True)
    for spec in pods(document):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, version, strict=True)


def test_a_typing_error_would_be_seen() -> None:
    (job,) = documents(DEPLOY / "kubernetes" / "job.yaml")
    job["spec"]["template"]["spec"]["initContainer"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("document", [entry for entry in ALL_DOCUMENTS if entry.values[0]["kind"] in MODELS])
def test_kubeflows_models_lose_nothing_of_it(document: dict[str, Any]) -> None:
    back = MODELS[document["kind"]].from_dict(document)
    assert back is not None
    assert back.to_dict() == document


def test_a_preflight_comes_first_and_the_training_waits_for_it() -> None:
    for name in ("jobset", "trainjob"):
        document = documents(DEPLOY / "kubernetes" / f"{name}.yaml")[0]
        spec = document["spec"].get("template", document)["spec"]
        preflight, training = spec["replicatedJobs"]
        assert "dependsOn" not in preflight
        assert training["dependsOn"] == [{"name": preflight["name"], "status": "Complete"}]


def test_a_preflight_sees_the_gpus_and_the_shared_memory_of_the_training() -> None:
    checked = 0
    for name in ("job", "pytorchjob"):
        for spec in pods(documents(DEPLOY / "kubernetes" / f"{name}.yaml")):
            (preflight,), (training,) = spec["initContainers"], spec["containers"]
            assert preflight["resources"] == training["resources"]
            assert preflight["volumeMounts"] == training["volumeMounts"]
            checked += 1
    assert checked == 3


OUR_CONTAINERS = [
    pytest.param(container, id=f"{path.stem}-{container['name']}")
    for path in KUBERNETES
    for document in documents(path)
    for spec in pods(document)
    for container in (*spec.get("initContainers", ()), *spec["containers"])
    if "/ddpdoctor:" in container.get("image", "")
]


@pytest.mark.parametrize("container", OUR_CONTAINERS)
def test_a_healthy_node_passes_with_what_the_container_may_use(container: dict[str, Any]) -> None:
    limits = container["resources"].get("limits", {})
    facts = {
        "container": {"runtime": "kubernetes"},
        "cgroup": {"memory_limit": amount(limits.get("memory")), "cpu_limit": amount(limits.get("cpu"))},
    }
    snapshot = to_snapshot(lay_over(healthy_facts("h100x8-container"), facts))
    assert examine(snapshot, None, all_checks()).verdict is Verdict.OK


def amount(text: str | None) -> float | None:
    """As a cgroup has it: "512Mi", "500m"."""
    units = {"": 1, "m": 0.001, "Mi": 1 << 20, "Gi": 1 << 30}
    found = re.fullmatch(r"(\d+)(\D*)", text) if text else None
    return int(found[1]) * units[found[2]] if found else None


@pytest.mark.parametrize("version", VERSIONS)
def test_nvsentinels_preflight_reaches_the_socket(version: str) -> None:
    """Its chart makes the images' names, and its webhook gives a pod the volume; the mount is the container's own."""
    (values,) = documents(DEPLOY / "nvsentinel" / "values.yaml")
    containers = values["preflight"]["initContainers"]
    for container in containers:
        container["image"] = "{repository}:{tag}".format(**container["image"])
        container.pop("defaultEnabled", None)
    spec = {
        "initContainers": containers,
        "containers": [{"name": "training", "image": "training"}],
        "volumes": [{"name": "nvsentinel-socket", "hostPath": {"path": "/var/run/nvsentinel"}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(pod, version, strict=True)
    (sender,) = [container for container in containers if "nvsentinel" in container["command"]]
    assert sender["volumeMounts"] == [{"name": "nvsentinel-socket", "mountPath": "/var/run"}]


@pytest.mark.tool("shellcheck")
@pytest.mark.parametrize("script", [*SCRIPTS, DEPLOY / "ddpdoctor-gate"], ids=lambda path: path.stem)
def test_scripts_are_clean(script: Path) -> None:
    ended = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_take_no_node_out_where_ddpdoctor_is_missing(script: Path, tmp_path: Path) -> None:
    name = str(script.relative_to(DEPLOY))
    ended = subprocess.run(
        [install(name, tmp_path / "nowhere", tmp_path / "script")], env={}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "nothing was checked" in ended.stderr
    doctor = noting_doctor(tmp_path)
    assert subprocess.run([install(name, doctor, tmp_path / "script")], env={}, check=True).returncode == 0
    assert "gate --for slurm-" in (tmp_path / "called").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_look_as_for_jobs_of_several_nodes(script: Path, tmp_path: Path) -> None:
    """All alike: a check that only one of them makes would hold the node for ever."""
    launcher = broken_doctor(tmp_path, f'echo "$PET_NNODES" >{shlex.quote(str(tmp_path / "nodes"))}')
    installed = install(str(script.relative_to(DEPLOY)), launcher.with_name("ddpdoctor"), tmp_path / "script")
    subprocess.run([installed], env={}, check=True)
    assert (tmp_path / "nodes").read_text() == "2\n"


@pytest.mark.tool("systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in (*(DEPLOY / "systemd").iterdir(), *(DEPLOY / "nvrx").iterdir()):
        (tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, "/bin/true"))
    units = sorted(map(str, tmp_path.iterdir()))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    # Where no systemd runs, it may complain of the machine, and never of our lines.
    ours = [line for line in ended.stderr.splitlines() if "ddpdoctor" in line]
    assert ours == []


def test_the_service_calls_what_there_is() -> None:
    line = re.search(r"^ExecStart=(.*)$", deployed("systemd/ddpdoctor-check.service", Path("ddpdoctor")), re.MULTILINE)
    assert line
    words = line[1].split()
    assert words[:2] == ["ddpdoctor", "check"]
    assert words[-2:] == ["--prometheus", "/var/lib/prometheus/node-exporter/ddpdoctor.prom"]


def test_githubs_schema_takes_the_action() -> None:
    action = DEPLOY / "github-action" / "action.yml"
    line = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(action)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def action_steps() -> list[dict[str, Any]]:
    (action,) = documents(DEPLOY / "github-action" / "action.yml")
    return list(action["runs"]["steps"])


@pytest.mark.tool("shellcheck")
@pytest.mark.parametrize("step", action_steps(), ids=lambda step: step["name"])
def test_the_actions_scripts_are_clean_and_hold_no_input(step: dict[str, Any]) -> None:
    ended = subprocess.run(
        ["shellcheck", "--shell=bash", "-"], input=step["run"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
    assert "${{" not in step["run"]


@pytest.mark.parametrize("name", ["drain", "undrain"])
def test_soperator_knows_each_key(name: str) -> None:
    check = json.loads((DEPLOY / "soperator" / f"ddpdoctor.{name}.json").read_text())
    assert set(check) == {
        "name", "command", "platforms", "skip_for_cpu_jobs", "skip_for_partial_gpu_jobs", "contexts", "node_states", "on_fail",
        "on_ok", "reason_base", "reason_append_details", "run_in_jail", "log", "need_env",
    }  # fmt: skip
    assert check["on_fail"] in ("none", "drain", "comment")
    assert check["on_ok"] in ("none", "undrain", "uncomment")
    assert set(check["contexts"]) <= {"prolog", "epilog", "hc_program"}
    assert check["reason_base"] == "[node_problem] $name"


def test_soperator_undrains_by_no_pass_without_a_verdict() -> None:
    """And the two have time for a gate each in the 60 seconds of a health check."""
    for name in ("drain", "undrain"):
        words = json.loads((DEPLOY / "soperator" / f"ddpdoctor.{name}.json").read_text())["command"].split()
        assert words[words.index("--timeout") + 1] == "20"
    ok, _, fail, no_verdict = DIALECTS[words[words.index("--for") + 1]].codes
    assert ok == 0 != fail
    assert no_verdict != 0


def test_nhcs_line_is_that_of_its_page() -> None:
    line = (DEPLOY / "nhc" / "nhc.conf").read_text().splitlines()[-1]
    assert f"\n{line}\n" in (DEPLOY.parent / "docs" / "commands" / "gate.md").read_text()


def test_node_problem_detector_takes_the_plugin() -> None:
    plugin = json.loads((DEPLOY / "node-problem-detector" / "ddpdoctor-monitor.json").read_text())
    assert plugin["plugin"] == "custom"
    known = {condition["type"] for condition in plugin["conditions"]}
    (rule,) = plugin["rules"]
    assert rule["condition"] in known, "a permanent rule needs a condition that is there from the start"
    assert seconds(rule["timeout"]) <= seconds(plugin["pluginConfig"]["timeout"])


def seconds(text: str) -> int:
    number, unit = int(text[:-1]), text[-1]
    return number * {"s": 1, "m": 60}[unit]


def test_gpud_takes_the_plugin() -> None:
    (plugin,) = yaml.safe_load((DEPLOY / "gpud" / "plugins.yaml").read_text())
    assert plugin["plugin_type"] == "component"
    assert seconds(plugin["interval"]) >= 60
    (step,) = plugin["health_state_plugin"]["steps"]
    assert step["run_bash_script"]["content_type"] == "plaintext"
    for path in plugin["health_state_plugin"]["parser"]["json_paths"]:
        assert re.fullmatch(r"\$\.[a-z]+", path["query"])
        for rule in (path.get("expect", {}), *path.get("suggested_actions", {}).values()):
            re.compile(rule.get("regex", ""))


def test_the_image_installs_exact_releases() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    assert "--require-hashes -r /source/constraints.txt" in text
    assert text.count("--no-deps /source") == 1
