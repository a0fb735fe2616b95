#!/usr/bin/env python3
"""Writes ddpdoctor.json, the dashboard: the fleet, a host, a job. Each panel is a line of the tables below.

python deploy/grafana/generate.py > deploy/grafana/ddpdoctor.json
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'job=~"$job", instance=~"$instance"'
HOST_OF_INSTANCE = '"Hostname", "$1", "instance", "([^:]+)(?::[0-9]+)?"'
"""dcgm-exporter calls a host Hostname, whatever the instance is called that it was asked at."""
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "purple"}
WIDTH = 24


class Panel(NamedTuple):
    """One panel. kind: Grafana's; expr: in which CHOSEN stands for the chosen hosts; unit: Grafana's."""

    title: str
    description: str
    kind: str
    expr: str
    legend: str
    unit: str
    width: int = 8
    height: int = 8


FLEET = (
    Panel(
        "Hosts by verdict", "Hosts by what their last check came to.", "stat",
        "sum by (verdict) (ddpdoctor_verdict{CHOSEN})", "{{verdict}}", "short",
    ),
    Panel(
        "Verdicts over time", "Hosts by verdict, as they were checked.", "timeseries",
        "sum by (verdict) (ddpdoctor_verdict{CHOSEN})", "{{verdict}}", "short",
    ),
    Panel(
        "Findings by owner", "Failures and warnings by whose they are to mend; only those of node and fabric take a host out of use.",
        "timeseries", 'sum by (owner, severity) (ddpdoctor_findings{CHOSEN, severity=~"fail|warn"})', "{{owner}}: {{severity}}",
        "short",
    ),
    Panel(
        "Checks that most hosts fail", "What many hosts have in common is rarely the fault of each.", "bargauge",
        'topk(10, sum by (check) (ddpdoctor_check_status{CHOSEN, status="fail"}) > 0)', "{{check}}", "short",
    ),
    Panel(
        "Hosts that fail or can't be judged", "Hosts whose last verdict was fail or unknown.", "table",
        'ddpdoctor_verdict{CHOSEN, verdict=~"fail|unknown"} == 1', "", "short",
    ),
    Panel(
        "Oldest checks", "Time since hosts were last checked: the timer runs every five minutes.", "bargauge",
        "topk(10, time() - ddpdoctor_last_run_timestamp_seconds{CHOSEN})", "{{instance}}", "s",
    ),
    Panel(
        "GPUs on hosts that fail", "How busy the GPUs are on hosts whose last verdict was fail.", "table",
        "DCGM_FI_DEV_GPU_UTIL{CHOSEN} and on (Hostname) "
        f'label_replace(ddpdoctor_verdict{{CHOSEN, verdict="fail"}} == 1, {HOST_OF_INSTANCE})', "", "percent", 24,
    ),
)  # fmt: skip
HOST = (
    Panel(
        "Findings", "What the last check found on the chosen hosts; `ddpdoctor explain CHECK` says what it is.", "table",
        "ddpdoctor_findings{CHOSEN} > 0", "", "short", 12,
    ),
    Panel(
        "Failing checks over time", "When a check failed, and when it healed.", "timeseries",
        'ddpdoctor_check_status{CHOSEN, status="fail"} == 1', "{{instance}} {{check}}", "short", 12,
    ),
    Panel(
        "GPU use", "Share of the time in which a kernel ran.", "timeseries",
        "DCGM_FI_DEV_GPU_UTIL{CHOSEN}", "{{Hostname}} GPU {{gpu}}", "percent",
    ),
    Panel(
        "GPU memory in use", "Share of the GPU's memory that is in use.", "timeseries",
        "100 * DCGM_FI_DEV_FB_USED{CHOSEN} / (DCGM_FI_DEV_FB_USED{CHOSEN} + DCGM_FI_DEV_FB_FREE{CHOSEN})",
        "{{Hostname}} GPU {{gpu}}", "percent",
    ),
    Panel(
        "Temperature", "Of the GPU itself, not of its memory.", "timeseries",
        "DCGM_FI_DEV_GPU_TEMP{CHOSEN}", "{{Hostname}} GPU {{gpu}}", "celsius",
    ),
    Panel(
        "Power", "That the GPU draws.", "timeseries", "DCGM_FI_DEV_POWER_USAGE{CHOSEN}", "{{Hostname}} GPU {{gpu}}", "watt",
    ),
    Panel(
        "SM clock", "A GPU whose clock stays below that of its neighbours is throttled.", "timeseries",
        "1e6 * DCGM_FI_DEV_SM_CLOCK{CHOSEN}", "{{Hostname}} GPU {{gpu}}", "hertz",
    ),
    Panel(
        "Last XID", "Number of the driver's last error of the GPU; 0 for none since the exporter started.", "table",
        "DCGM_FI_DEV_XID_ERRORS{CHOSEN} != 0", "", "short",
    ),
    Panel(
        "Remapped rows", "Rows of memory that were replaced after errors that could not be corrected.", "timeseries",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{CHOSEN}", "{{Hostname}} GPU {{gpu}}", "short",
    ),
    Panel(
        "Row remapping failed", "1: no spare row was left, and the GPU must be replaced.", "timeseries",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE{CHOSEN}", "{{Hostname}} GPU {{gpu}}", "short",
    ),
    Panel(
        "PCIe replays", "Packets that were sent again: a bad slot, riser or cable.", "timeseries",
        "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{CHOSEN}[$__rate_interval])", "{{Hostname}} GPU {{gpu}}", "short",
    ),
    Panel(
        "Time that a check takes", "The whole run, looking and judging.", "timeseries",
        "ddpdoctor_last_run_duration_seconds{CHOSEN}", "{{instance}}", "s", 12,
    ),
    Panel(
        "Slowest checks", "Time that judging what was seen took.", "bargauge",
        "topk(10, max by (check) (ddpdoctor_check_duration_seconds{CHOSEN}))", "{{check}}", "s", 12,
    ),
)  # fmt: skip
OF_JOB = 'CHOSEN, hpc_job=~"$hpc_job"'
JOB = (
    Panel(
        "Use of the job's GPUs", "By GPU; one that idles while the others work waits for nobody, and they wait for it.", "timeseries",
        f"DCGM_FI_DEV_GPU_UTIL{{{OF_JOB}}}", "{{Hostname}} GPU {{gpu}}", "percent", 12,
    ),
    Panel(
        "Busiest less idlest GPU", "Of each job: a wide gap that stays is a straggler or a hang.", "timeseries",
        f"max by (hpc_job) (DCGM_FI_DEV_GPU_UTIL{{{OF_JOB}}}) - min by (hpc_job) (DCGM_FI_DEV_GPU_UTIL{{{OF_JOB}}})",
        "job {{hpc_job}}", "percent", 12,
    ),
    Panel(
        "Findings on the job's hosts", "What the last check found on the hosts whose GPUs the job uses.", "table",
        f"label_replace(ddpdoctor_findings{{CHOSEN}} > 0, {HOST_OF_INSTANCE}) "
        f"and on (Hostname) DCGM_FI_DEV_GPU_UTIL{{{OF_JOB}}}", "", "short", 24,
    ),
)  # fmt: skip


def panels() -> list[dict[str, Any]]:
    built: list[dict[str, Any]] = []
    y = 0
    for title, row in (("Fleet", FLEET), ("Host", HOST), ("Job", JOB)):
        built.append(
            {
                "id": len(built) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + panel.height
            built.append(built_panel(panel, len(built) + 1, x, y))
            x += panel.width
        y += row[-1].height
    return built


def built_panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": "A", "datasource": DATASOURCE, "expr": panel.expr.replace("CHOSEN", CHOSEN)}
    if panel.kind == "timeseries":
        target |= {"range": True, "legendFormat": panel.legend}
    else:
        target |= {"instant": True, "legendFormat": panel.legend}
    if panel.kind == "table":
        target |= {"format": "table"}
    overrides = [
        {
            "matcher": {"id": "byName", "options": word},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for word, colour in COLOURS.items()
        if panel.legend == "{{verdict}}"
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": overrides},
        "options": {},
        "targets": [target],
    }


def variable(name: str, label: str, selector: str, all_value: str) -> dict[str, Any]:
    query = f"label_values({selector}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": all_value,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    ours_and_gpus = '{__name__=~"ddpdoctor_build_info|DCGM_FI_DEV_GPU_UTIL"'
    return {
        "uid": "ddpdoctor",
        "title": "ddpdoctor",
        "description": "What ddpdoctor finds on each host, beside what dcgm-exporter measures on its GPUs.",
        "tags": ["ddpdoctor", "pytorch", "gpu"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "type": "datasource",
                    "name": "datasource",
                    "label": "Data source",
                    "query": "prometheus",
                    "current": {"text": "default", "value": "default"},
                },
                variable("job", "Job", f"{ours_and_gpus}}}", ".+"),
                variable("instance", "Instance", f'{ours_and_gpus}, job=~"$job"}}', ".+"),
                # Of dcgm-exporter's --hpc-job-mapping-dir; a cluster without it has no such label, and sees all GPUs.
                variable("hpc_job", "Training job", f"DCGM_FI_DEV_GPU_UTIL{{{CHOSEN}}}", ".*"),
            ]
        },
        "panels": panels(),
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
