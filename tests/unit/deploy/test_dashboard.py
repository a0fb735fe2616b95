"""The dashboard holds the rules of Grafana's dashboard-linter, is what its script writes, and loses nothing in Grafana's own models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.dashboard import FOLDER, RANGE, read_dashboard, shown_panels, variables

SELECTOR = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*\{([^{}]*)\}|(?<![A-Za-z0-9_}])\{([^{}]*)\}")
METRIC = re.compile(r"\b(?:ddpdoctor|DCGM)_\w+")
DCGM_DEFAULTS = {
    f"DCGM_FI_DEV_{name}"
    for name in (
        "SM_CLOCK", "GPU_TEMP", "POWER_USAGE", "GPU_UTIL", "FB_FREE", "FB_USED", "XID_ERRORS", "PCIE_REPLAY_COUNTER",
        "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE",
    )
}  # fmt: skip
"""That dcgm-exporter offers unless told otherwise: ECC, throttling and NVLink errors are not among them."""


def exprs() -> list[str]:
    return [target["expr"] for panel in shown_panels() for target in panel["targets"]]


def selectors(expr: str) -> list[str]:
    """The inner parts of {...}: one for each metric that is named."""
    found = [first or second for first, second in SELECTOR.findall(expr)]
    assert len(found) == len(METRIC.findall(expr)), expr
    return found


def test_it_is_what_the_script_writes() -> None:
    made = subprocess.run([sys.executable, FOLDER / "generate.py"], capture_output=True, text=True, check=True).stdout
    assert json.loads(made) == read_dashboard()


def test_grafanas_models_lose_nothing_of_it() -> None:
    register_default_plugins()
    written = read_dashboard()
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(written)))
    assert list(lost(written, back, "")) == []


def lost(written: Any, back: Any, where: str) -> Any:
    """Places at which something is missing or differs; what a model adds is a default."""
    if isinstance(written, dict):
        for key, value in written.items():
            yield from lost(value, back.get(key, "missing") if isinstance(back, dict) else "missing", f"{where}/{key}")
    elif isinstance(written, list):
        if not isinstance(back, list) or len(back) != len(written):
            yield where
            return
        for number, (one, other) in enumerate(zip(written, back, strict=True)):
            yield from lost(one, other, f"{where}/{number}")
    elif written != back:
        yield where


def test_template_datasource_rule() -> None:
    (datasource,) = variables("datasource")
    assert (datasource["name"], datasource["query"], datasource["label"]) == ("datasource", "prometheus", "Data source")


@pytest.mark.parametrize(("name", "label"), [("job", "Job"), ("instance", "Instance")])
def test_template_job_and_instance_rules(name: str, label: str) -> None:
    (known,) = [known for known in variables("query") if known["name"] == name]
    assert known["label"] == label
    assert known["datasource"]["uid"] == "${datasource}"
    assert known["multi"]
    assert known["allValue"] == ".+"


def test_template_label_promql_and_on_time_change_reload_rules() -> None:
    for known in variables("query"):
        assert re.fullmatch(rf"label_values\(.*\{{.*\}}, {known['name']}\)", known["query"]["query"])
        assert known["refresh"] == 2


def test_target_job_and_instance_rules() -> None:
    for expr in exprs():
        for inner in selectors(expr):
            assert 'job=~"$job"' in inner, expr
            assert 'instance=~"$instance"' in inner, expr


def test_target_rate_interval_rule() -> None:
    ranges = [found for expr in exprs() for found in re.findall(r"(?:rate|increase)\([^()]*\[([^\]]*)\]\)", expr)]
    assert ranges == [RANGE]


def test_panel_datasource_rule() -> None:
    for panel in shown_panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_panel_title_description_and_units_rules() -> None:
    for panel in shown_panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
    assert len({panel["title"] for panel in shown_panels()}) == len(shown_panels())


def test_uneditable_rule() -> None:
    assert read_dashboard()["editable"] is False


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read_dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_it_asks_for_nothing_that_dcgm_exporter_leaves_out() -> None:
    asked = {name for expr in exprs() for name in METRIC.findall(expr) if name.startswith("DCGM")}
    assert asked == DCGM_DEFAULTS
