"""Reads this host's packet filter, as far as this user may."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from typing import Any

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.packet_filter import Chain, Reading, opaque_tables, read_filters, read_iptables_save, read_nft
from ddpdoctor.probes.subprocesses import Ended, start

SECONDS = 3.0
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
"""The tools lie in sbin folders, which aren't on everybody's PATH."""

DEFAULT_EPHEMERAL = (32768, 60999)
NEEDS_ROOT = Unknown("reading the packet filter needs root")
NO_TOOL = Unknown("neither nft nor iptables is installed to read the packet filter")

FIREWALLD_UNITS = (
    "/etc/systemd/system/multi-user.target.wants/firewalld.service",
    "/etc/systemd/system/dbus-org.fedoraproject.FirewallD1.service",
)


def probe(context: Context) -> Firewall:
    service = enabled_service(context)
    tables = _tables()
    if isinstance(tables, Unknown):
        return Firewall(tool=tables, input_policy=tables, drops_new=tables, enabled_service=service)
    reading = read_filters([chains for _, chains in tables], _ephemeral_range(context))
    return Firewall(
        tool=_tool(reading, [name for name, _ in tables]),
        input_policy=reading.policy,
        open_ports=reading.open_ports,
        open_sources=reading.open_sources,
        blocked=reading.blocked,
        input_chains=tuple(f"{name} {one.name}" for name, chains in tables for one in chains.values() if one.hooked),
        drops_new=reading.drops_new,
        enabled_service=service,
    )


def enabled_service(context: Context) -> str | None:
    """The firewall that is set to start with the system; anybody may read this."""
    ufw = context.read("/etc/ufw/ufw.conf")
    if isinstance(ufw, str) and any(line.strip().lower() == "enabled=yes" for line in ufw.splitlines()):
        return "ufw"
    return "firewalld" if any(os.path.lexists(context.path(unit)) for unit in FIREWALLD_UNITS) else None


def _tool(reading: Reading, sources: Sequence[str]) -> str | None:
    if reading.policy is None:
        return None
    return next(iter(reading.managers), None) or ("iptables" if "iptables" in sources else "nft")


def _tables() -> list[tuple[str, dict[str, Chain]]] | Unknown:
    """Each table ("inet filter"; "iptables" for what iptables-save shows) and its chains; only those that filter input."""
    commands = {"nft": ("-j", "list", "ruleset"), "iptables-save": ()}
    found = {name: path for name in commands if (path := shutil.which(name, path=SYSTEM_PATH))}
    if os.geteuid() != 0:
        return NEEDS_ROOT
    if not found:
        return NO_TOOL
    started = {name: start((path, *commands[name])) for name, path in found.items()}
    ended = {name: one.wait(SECONDS) for name, one in started.items()}
    # nft shows every rule, so its failure would hide some; iptables-save only explains what nft can't.
    name, one = next(iter(ended.items()))
    if not one.ok:
        return Unknown(f"the packet filter could not be read: {name}: {_failure(one)}")
    ruleset = _json(ended["nft"]) if "nft" in ended else {}
    saved = ended["iptables-save"] if "iptables-save" in ended else Ended()
    tables = []
    if saved.ok:
        tables.append(("iptables", read_iptables_save(saved.stdout.decode("utf-8", "replace"))))
    hidden = opaque_tables(ruleset) if saved.ok else set()
    tables += [(name, chains) for name, chains in read_nft(ruleset).items() if name not in hidden]
    return [(name, chains) for name, chains in tables if any(chain.hooked for chain in chains.values())]


def _json(ended: Ended) -> dict[str, Any]:
    try:
        found = json.loads(ended.stdout)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _failure(ended: Ended) -> str:
    if ended.timed_out:
        return f"no answer within {SECONDS:.0f} s"
    return ended.stderr.decode("utf-8", "replace").strip().partition("\n")[0] or ended.failed_to_start


def _ephemeral_range(context: Context) -> tuple[int, int]:
    text = context.read("/proc/sys/net/ipv4/ip_local_port_range")
    numbers = [int(word) for word in text.split() if word.isdecimal()] if isinstance(text, str) else []
    return (numbers[0], numbers[1]) if len(numbers) == 2 else DEFAULT_EPHEMERAL
