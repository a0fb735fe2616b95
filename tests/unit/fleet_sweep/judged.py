"""Sweeps over snapshots that a test makes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ddpdoctor.engine.registry import Check
from ddpdoctor.fleet_sweep.judging import FleetJudge
from ddpdoctor.fleet_sweep.sweep import Sweep


def sweep_of(snapshots: Iterable[dict[str, Any]], checks: tuple[Check, ...] = ()) -> Sweep:
    """Judge snapshots as files have them; all can be read."""
    judge = FleetJudge(checks)
    for facts in snapshots:
        judge.judge(json.dumps(facts).encode(), f"{facts['host']}.json")
    assert judge.sweep.problems == []
    return judge.sweep
