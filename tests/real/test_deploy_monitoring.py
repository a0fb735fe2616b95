"""deploy/'s metrics, rules and dashboard with Prometheus and node_exporter as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.command import ROOT, ddpdoctor
from tests.support.dashboard import filled_in, shown_panels, variables
from tests.support.monitoring import JOB, Prometheus, dcgm_text, monitored

DEPLOY = ROOT / "deploy"
HOST = "127.0.0.1"
"""By which both exporters are asked, and what the GPUs' exporter calls itself here."""

pytestmark = pytest.mark.tool("prometheus", "promtool", "prometheus-node-exporter")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With the metrics of a real check, which fails, of this host, and deploy/'s configuration and rules."""
    folder = tmp_path_factory.mktemp("monitoring")
    metrics = folder / "metrics"
    metrics.mkdir()
    ended = ddpdoctor(
        "check", "--quick", "-q", "--python", sys.executable, "--prometheus", metrics / "ddpdoctor.prom",
        environ={"GLOO_SOCKET_IFNAME": "nowhere0"},
    )  # fmt: skip
    assert ended.returncode == 1, ended.stdout + ended.stderr
    scrape = (DEPLOY / "prometheus" / "scrape.yml").read_text()
    for number in (9100, 9400):
        scrape = re.sub(rf'\["node001:{number}", .*\]', f'["{HOST}:{number}"]', scrape)
    scrape = scrape.replace("/etc/prometheus/ddpdoctor", str(DEPLOY / "prometheus"))
    with monitored(folder, metrics, dcgm_text(HOST), scrape) as running:
        running.wait_for(f'ddpdoctor_build_info{{instance="{HOST}"}}')
        running.wait_for(f'increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{instance="{HOST}"}}[1m])')
        yield running


def test_rules_do_as_their_tests_say() -> None:
    folder = DEPLOY / "prometheus"
    for line in (
        ("check", "rules", "--lint-fatal", "alerts.yml", "recording.yml"),
        ("test", "rules", "rules_test.yml"),
    ):
        ended = subprocess.run(["promtool", *line], cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_rule_has_a_test() -> None:
    rules = [
        re.findall(r"(?:alert|record): (\S+)", (DEPLOY / "prometheus" / f"{name}.yml").read_text())
        for name in ("alerts", "recording")
    ]
    tests = (DEPLOY / "prometheus" / "rules_test.yml").read_text()
    assert [name for names in rules for name in names if name not in tests] == []


def test_metrics_arrive_as_they_were_written(prometheus: Prometheus) -> None:
    assert [series["metric"]["instance"] for series in prometheus.query('ddpdoctor_verdict{verdict="fail"} == 1')] == [
        HOST
    ]
    assert prometheus.query('ddpdoctor_findings{check="gloo-ifname-not-found", owner="user", severity="fail"}')
    assert [series["value"][1] for series in prometheus.query("node_textfile_scrape_error")] == ["0"]
    words = prometheus.ask("metadata", metric="ddpdoctor_check_status")["ddpdoctor_check_status"][0]
    assert words["type"] == "gauge"
    assert words["help"]


def test_rules_are_evaluated(prometheus: Prometheus) -> None:
    prometheus.wait_for('job_verdict:ddpdoctor_verdict:sum{verdict="fail"} == 1')
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}


@pytest.mark.parametrize("title", [panel["title"] for panel in shown_panels()])
def test_each_panel_shows_something(title: str, prometheus: Prometheus) -> None:
    (panel,) = [panel for panel in shown_panels() if panel["title"] == title]
    for target in panel["targets"]:
        found = prometheus.query(filled_in(target["expr"]))
        assert found
        for name in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            # A GPU without a job has no label for it, and is shown all the same.
            assert all(name in series["metric"] for series in found) is (name != "hpc_job")


@pytest.mark.parametrize(
    ("title", "values"),
    [
        ("Use of the job's GPUs", ["40", "97"]),
        ("Busiest less idlest GPU", ["57"]),
        ("Findings on the job's hosts", None),
    ],
)
def test_a_chosen_job_shows_its_own_gpus(title: str, values: list[str] | None, prometheus: Prometheus) -> None:
    (panel,) = [panel for panel in shown_panels() if panel["title"] == title]
    (target,) = panel["targets"]
    found = prometheus.query(filled_in(target["expr"], hpc_job=JOB))
    assert found
    assert values is None or sorted(series["value"][1] for series in found) == values
    assert prometheus.query(filled_in(target["expr"], hpc_job="9")) == []


@pytest.mark.parametrize("name", ["job", "instance", "hpc_job"])
def test_variables_offer_what_there_is(name: str, prometheus: Prometheus) -> None:
    (known,) = [known for known in variables("query") if known["name"] == name]
    found = re.fullmatch(r"label_values\((.*), \w+\)", filled_in(known["query"]["query"]))
    assert found
    values = {labels[name] for labels in prometheus.ask("series", **{"match[]": found[1]}) if name in labels}
    assert values == {"job": {"node", "dcgm"}, "instance": {HOST}, "hpc_job": {JOB}}[name]
