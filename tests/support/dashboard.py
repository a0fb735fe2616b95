"""The Grafana dashboard of deploy/, as tests look at it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.command import ROOT

FOLDER = ROOT / "deploy" / "grafana"
RANGE = "$__rate_interval"


def read_dashboard() -> dict[str, Any]:
    """The file, as Grafana imports it."""
    return dict(json.loads((FOLDER / "ddpdoctor.json").read_text(encoding="utf-8")))


def shown_panels() -> list[dict[str, Any]]:
    """All panels that show something: without the headings of rows."""
    return [panel for panel in read_dashboard()["panels"] if panel["type"] != "row"]


def variables(kind: str) -> list[dict[str, Any]]:
    """The variables of that type."""
    return [known for known in read_dashboard()["templating"]["list"] if known["type"] == kind]


def filled_in(expr: str, **chosen: str) -> str:
    """An expression as Grafana sends it, with all hosts and jobs where a variable isn't chosen."""
    for known in variables("query"):
        expr = expr.replace(f"${known['name']}", chosen.get(known["name"], known["allValue"]))
    return expr.replace(RANGE, "1m")
