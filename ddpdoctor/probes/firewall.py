"""Reads this host's packet filter, as far as this user may."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists
from ddpdoctor.probes.network import ephemeral_range
from ddpdoctor.probes.packet_filter_rules import (
    INPUT,
    IPV4,
    IPV6,
    OUTPUT,
    Chain,
    Reading,
    opaque_tables,
    read_filters,
    read_iptables_save,
    read_nft,
    shut_ranges,
)
from ddpdoctor.probes.programs import find_system_tool
from ddpdoctor.probes.subprocesses import EndedProgram, start

Tables = list[tuple[str, dict[str, Chain]]]
"""Tables as a command names them, and their chains."""

SECONDS = 3.0

DEFAULT_EPHEMERAL = (32768, 60999)
NEEDS_ROOT = Unknown("reading the packet filter needs root")
NO_TOOL = Unknown("neither nft nor iptables is installed to read the packet filter")
NO_TOOL_6 = Unknown("neither nft nor ip6tables could read the packet filter of IPv6")

FIREWALLD_CGROUPS = (
    "/sys/fs/cgroup/system.slice/firewalld.service",
    "/sys/fs/cgroup/systemd/system.slice/firewalld.service",
)
"""There while systemd runs it (cgroup v2 and v1), also where /proc hides other users' processes."""


def probe(context: Context) -> Firewall:
    service = enabled_service(context)
    rules = _rules()
    if isinstance(rules, Unknown):
        return _unread(rules, service)
    known = ephemeral_range(context)
    ephemeral = DEFAULT_EPHEMERAL if isinstance(known, Unknown) else known
    six = _judged(rules, IPV6, ephemeral, service) if rules.shows_ipv6 else _unread(NO_TOOL_6, service)
    return msgspec.structs.replace(_judged(rules, IPV4, ephemeral, service), ipv6=six)


def _unread(why: Unknown, service: str | None) -> Firewall:
    return Firewall(tool=why, input_policy=why, drops_new=why, enabled_service=service)


def _judged(rules: Rules, family: str, ephemeral: tuple[int, int], service: str | None) -> Firewall:
    """Work out what the rules do to packets of that family."""
    tables, sent = rules.tables(INPUT, family), rules.tables(OUTPUT, family)
    reading, reading_sent = (read_filters([chains for _, chains in shown], ephemeral) for shown in (tables, sent))
    return Firewall(
        # Where nothing filters input, the tool that filters output.
        tool=_tool(reading, tables) or (_tool(reading_sent, sent) if reading_sent.drops_new is not False else None),
        input_policy=reading.policy,
        open_ports=reading.open_ports,
        open_sources=reading.open_sources,
        blocked=reading.blocked,
        shut_ports=reading.shut_ports,
        input_chains=_chains_to_open(tables, ephemeral),
        output_chains=_chains_to_open(sent, ephemeral),
        shut_ephemeral=shut_ranges([chains for _, chains in tables], ephemeral),
        shut_outbound=shut_ranges([chains for _, chains in sent], ephemeral),
        drops_new=reading.drops_new,
        enabled_service=service,
    )


def enabled_service(context: Context) -> str | None:
    """The firewall that is switched on; anybody may see this. ufw only loads rules, firewalld is a process: one that is
    installed and doesn't run filters nothing."""
    if any(line.strip().lower() == "enabled=yes" for line in context.text("/etc/ufw/ufw.conf").splitlines()):
        return "ufw"
    in_cgroup = any(exists(context.path(firewalld_cgroup)) for firewalld_cgroup in FIREWALLD_CGROUPS)
    return "firewalld" if in_cgroup or context.runs("firewalld") else None


def _tool(reading: Reading, tables: Tables) -> str | None:
    if reading.policy is None:
        return None
    by_iptables = any(name in ("iptables", "ip6tables") for name, _ in tables)
    return next(iter(reading.managers), "iptables" if by_iptables else "nft")


def _chains_to_open(tables: Tables, ephemeral: tuple[int, int]) -> tuple[str, ...]:
    """Every table must let a packet through, but those that do so already (fail2ban's, Docker's) are best left alone."""
    shut = [table for table in tables if read_filters([table[1]], ephemeral).drops_new] or tables
    return tuple(f"{name} {chain.name}" for name, chains in shut for chain in chains.values() if chain.hooked)


class Rules(msgspec.Struct, frozen=True):
    """Output of the tools: nft's JSON, and the text of iptables-save and ip6tables-save ("" where there is none).

    shows_ipv6: whether any of them showed IPv6's rules.
    """

    ruleset: dict[str, Any]
    saved: str
    saved_6: str
    shows_ipv6: bool

    def tables(self, hook: str, family: str) -> Tables:
        """Each table that sees packets of that family ("inet filter"; "iptables" or "ip6tables" for what those show) and its
        chains; only those with that hook."""
        name, saved = {IPV4: ("iptables", self.saved), IPV6: ("ip6tables", self.saved_6)}[family]
        found = [(name, read_iptables_save(saved, hook))] if saved else []
        hidden = opaque_tables(self.ruleset) if saved else set()
        shown = read_nft(self.ruleset, hook, family)
        found += [(table, chains) for table, chains in shown.items() if table not in hidden]
        return [(name, chains) for name, chains in found if any(chain.hooked for chain in chains.values())]


def _rules() -> Rules | Unknown:
    commands = {"nft": ("-j", "list", "ruleset"), "iptables-save": (), "ip6tables-save": ()}
    found = {name: path for name in commands if (path := find_system_tool(name))}
    if os.geteuid() != 0:
        return NEEDS_ROOT
    if not found:
        return NO_TOOL
    started = {name: start((str(path), *commands[name])) for name, path in found.items()}
    ended = {name: process.wait(SECONDS) for name, process in started.items()}
    # nft shows every rule, so its failure would hide some; iptables-save only explains what nft can't.
    name, first = next(iter(ended.items()))
    if not first.ok:
        why = first.why_no_answer(SECONDS) or first.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        return Unknown(f"the packet filter could not be read: {name}: {why}")
    saved, saved_6 = (ended.get(f"{name}-save", EndedProgram()) for name in ("iptables", "ip6tables"))
    return Rules(
        ruleset=_json(ended["nft"]) if "nft" in ended else {},
        saved=saved.text if saved.ok else "",
        saved_6=saved_6.text if saved_6.ok else "",
        shows_ipv6="nft" in ended or ("ip6tables-save" in ended and saved_6.ok),
    )


def _json(ended: EndedProgram) -> dict[str, Any]:
    try:
        found = json.loads(ended.stdout)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
