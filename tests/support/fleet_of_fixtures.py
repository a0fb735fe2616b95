"""A fleet out of the healthy hosts of the fixtures: as many as are wanted, each with its own name, addresses, serials and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.fixture_hosts import healthy_facts


def fleet_snapshots(
    count: int,
    change: Callable[[int, dict[str, Any]], object] = lambda number, facts: None,
    model: str = "h100x8-slurm",
) -> Iterator[dict[str, Any]]:
    """Snapshots of hosts that are alike.

    Args:
        count: of hosts.
        change: what makes some of them odd; takes the host's number, from 1, and its facts, which it changes in place.
        model: the healthy host that they are like.
    """
    template = healthy_facts(model)
    own = template["host"]
    text = json.dumps({key: value for key, value in template.items() if key not in ("origin", "about")})
    for number in range(1, count + 1):
        name = host_name(number)
        facts = json.loads(re.sub(rf"(?<![\w-]){re.escape(own)}(?!\w)", name, _own_addresses(text, number)))
        _give_figures(facts, number)
        change(number, facts)
        yield facts


def host_name(number: int) -> str:
    return f"node{number:05}"


def _own_addresses(text: str, number: int) -> str:
    high, low = divmod(number, 200)
    text = re.sub(r"(?<![\d.])10\.(\d+)\.(\d+)\.11(?!\d)", rf"10.\g<1>.{high}.{low + 20}", text)
    return re.sub(r"fe80::a288:c2ff:fe3e:\w+", f"fe80::a288:c2ff:fe3e:{number:x}", text)


def _give_figures(facts: dict[str, Any], number: int) -> None:
    facts["taken_at"] = f"2026-11-28T02:{number // 60 % 4:02}:{number % 60:02}+00:00"
    machine = facts["machine"]
    machine["memory_available"] -= number * 4096
    machine["memory_total"] += number % 7 * 4096
    machine["boot_id"] = f"0d2b9f64-3c55-4c1f-8c59-{number:012x}"
    for place, device in enumerate(facts["gpus"]["devices"]):
        device["uuid"] = f"GPU-{number:08x}-0000-4000-8000-{place:012x}"
        device["temperature"] = 30 + (number + place) % 9
        device["power"] = 70.0 + (number * 3 + place) % 20
    for folder in facts["disks"]["folders"]:
        folder["free"] -= number * 65536
    facts["shared_memory"]["free"] -= number % 5 * 4096
    for line in facts["kernel_log"].get("lines", ()):
        line["age"] += number
    for port in facts["rdma"]["ports"]:
        for gid in port["gids"]:
            gid["gid"] = f"{gid['gid'][:-4]}{number % 65536:04x}"
