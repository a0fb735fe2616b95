"""Works out what a packet filter does to a new TCP connection from another host to a high port. Pure: rules in, answer out.

nftables' JSON and iptables-save are read into the same few kinds of match; what we don't know how to judge is
`UNSURE`, and makes the answer None rather than a guess.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

ACCEPT, DROP, RETURN, JUMP, GOTO = "accept", "drop", "return", "jump", "goto"
INPUT, OUTPUT = "input", "output"
IPV4, IPV6 = "ip", "ip6"
"""Whose packet it is, in nft's words."""
MAX_LISTED = 20
"""Rules, and ports, that are listed."""
MAX_EDGES = 128
"""Of ranges of ports; rule sets with more of them are too involved."""


class Match(msgspec.Struct, frozen=True):
    """One condition of a rule, as it bears on our packet.

    kind: "always", "never", "source" (depends on the sender or the interface), "ports" (TCP ports), "unsure".
    """

    kind: str
    label: str = ""
    ranges: tuple[tuple[int, int], ...] = ()


ALWAYS, NEVER, UNSURE = Match("always"), Match("never"), Match("unsure")


class Rule(msgspec.Struct, frozen=True):
    """`action`: accept, drop (also reject), return, jump or goto; `text`: the rule as its tool writes it."""

    matches: tuple[Match, ...]
    action: str
    target: str = ""
    text: str = ""


class Chain(msgspec.Struct, frozen=True):
    """`hooked`: a base chain on the hook that was asked for; then `policy` is "accept" or "drop"."""

    name: str
    rules: tuple[Rule, ...]
    hooked: bool = False
    policy: str = ""


class Reading(msgspec.Struct, frozen=True):
    """Result of reading the rules. `drops_new` None: can't tell. `policy` None: nothing filters input."""

    policy: str | None = None
    drops_new: bool | None = False
    open_ports: tuple[str, ...] = ()
    open_sources: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    shut_ports: tuple[str, ...] = ()
    managers: tuple[str, ...] = ()
    """"firewalld", "ufw" where its chains are there."""


def read_filters(tables: Iterable[Mapping[str, Chain]], ephemeral: tuple[int, int]) -> Reading:
    """Lead a packet through every table; it must pass all of them."""
    walk = _Walk(ephemeral)
    for table in tables:
        walk.lead_through(table)
    return walk.reading()


def shut_ranges(tables: Iterable[Mapping[str, Chain]], ephemeral: tuple[int, int]) -> tuple[str, ...]:
    """The parts of that range of ports at which new TCP is plainly dropped: "40000-60999"."""
    tables = list(tables)
    low, high = ephemeral
    matches = (match for table in tables for chain in table.values() for rule in chain.rules for match in rule.matches)
    written = [port_range for match in matches for port_range in match.ranges]
    edges = sorted(
        {low, high + 1, *(edge for first, last in written for edge in (first, last + 1) if low < edge <= high)}
    )
    if len(edges) > MAX_EDGES:
        return ()
    shut: list[tuple[int, int]] = []
    for first, after in pairwise(edges):
        if read_filters(tables, (first, after - 1)).drops_new:
            joined = bool(shut) and shut[-1][1] == first - 1
            shut.append((shut.pop()[0] if joined else first, after - 1))
    return tuple(f"{first}-{last}" if first != last else str(first) for first, last in shut)


class _Walk:
    """Leads our packet through tables, and notes on the way who else would be let in."""

    def __init__(self, ephemeral: tuple[int, int]) -> None:
        self._low, self._high = ephemeral
        self._table: Mapping[str, Chain] = {}
        self._outcomes: list[bool | None] = []
        self._bases: list[Chain] = []
        self._notes: dict[str, list[str]] = {
            field: [] for field in ("open_ports", "open_sources", "blocked", "shut_ports", "managers")
        }
        self._unsure = False

    def lead_through(self, table: Mapping[str, Chain]) -> None:
        """Lead it through one table."""
        self._table = table
        for chain in table.values():
            if chain.name.startswith(("ufw-", "ufw6-")):
                self._notes["managers"].append("ufw")
            if chain.name in ("filter_INPUT_ZONES", "INPUT_ZONES"):
                self._notes["managers"].append("firewalld")
            if chain.hooked:
                self._bases.append(chain)
                self._unsure = False
                verdict = self._through(chain, ()) or chain.policy
                # What we couldn't judge comes before the verdict, and might have given another.
                self._outcomes.append(None if self._unsure else verdict == DROP)

    def reading(self) -> Reading:
        """Put together what was found on the way."""
        noted = {field: tuple(dict.fromkeys(texts)) for field, texts in self._notes.items()}
        for field in ("blocked", "shut_ports"):
            noted[field] = noted[field][:MAX_LISTED]
        policy = DROP if any(chain.policy == DROP for chain in self._bases) else ACCEPT
        return Reading(
            policy=policy if policy == DROP or any(chain.rules for chain in self._bases) else None,
            drops_new=True if True in self._outcomes else None if None in self._outcomes else False,
            **noted,
        )

    def _through(self, chain: Chain, above: tuple[str, ...]) -> str:
        """accept, drop, or "" where the packet comes out at the end."""
        if chain.name in above:
            return ""
        for rule in chain.rules:
            verdict = self._of(rule, (*above, chain.name))
            if verdict == RETURN:
                return ""
            if verdict:
                return verdict
        return ""

    def _of(self, rule: Rule, above: tuple[str, ...]) -> str:
        matches = [self._on_high_port(match) for match in rule.matches]
        kinds = {match.kind for match in matches}
        if "never" in kinds:
            if rule.action in (ACCEPT, DROP) and not any(
                match.kind == "never" and not match.label for match in matches
            ):
                labels = [match.label for match in matches if match.kind == "never"]
                self._notes["open_ports" if rule.action == ACCEPT else "shut_ports"].extend(labels)
            return ""
        verdict = self._inside(rule, above)
        if not verdict or kinds <= {"always"}:
            return verdict
        if "unsure" in kinds or verdict == RETURN:
            self._unsure = True
        elif verdict == ACCEPT:
            self._note_opening(matches)
        elif "source" not in kinds:
            return DROP  # Some of the high ports are dropped, and who gets which is chance.
        return ""

    def _inside(self, rule: Rule, above: tuple[str, ...]) -> str:
        if rule.action in (JUMP, GOTO):
            if rule.target not in self._table:
                self._unsure = True
                return ""
            verdict = self._through(self._table[rule.target], above)
            return verdict or (RETURN if rule.action == GOTO else "")
        if rule.action == DROP and rule.text:
            self._notes["blocked"].append(rule.text)
        return rule.action

    def _note_opening(self, matches: list[Match]) -> None:
        ports = [match.label for match in matches if match.kind == "ports"]
        sources = [match.label for match in matches if match.kind == "source"]
        self._notes["open_ports"].extend(ports)
        if not ports:
            self._notes["open_sources"].append(" and ".join(sources))

    def _on_high_port(self, match: Match) -> Match:
        """A match on ports holds always, never, or for some of the high ports."""
        if match.kind != "ports":
            return match
        if any(first <= self._low and last >= self._high for first, last in match.ranges):
            return ALWAYS
        if any(first <= self._high and last >= self._low for first, last in match.ranges):
            return match
        return Match("never", match.label)


# --- iptables-save -------------------------------------------------------------------------------------------------

_TARGETS = {"ACCEPT": ACCEPT, "DROP": DROP, "REJECT": DROP, "RETURN": RETURN}
_PASSING = ("LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "AUDIT", "SET", "TRACE", "CT", "NOTRACK", "TCPMSS")
_HARMLESS_MODULES = ("tcp", "comment", "conntrack", "state", "multiport", "addrtype", "mark", "iprange", "rt")


def read_iptables_save(text: str, hook: str = INPUT) -> dict[str, Chain]:
    """The chains of the filter table."""
    section = re.search(r"^\*filter$(.*?)^COMMIT$", text, re.MULTILINE | re.DOTALL)
    rules: dict[str, list[Rule]] = {}
    policies: dict[str, str] = {}
    for line in section[1].splitlines() if section else ():
        if line.startswith(":"):
            name, policy, *_ = line[1:].split()
            rules.setdefault(name, [])
            policies[name] = policy.lower()
        elif line.startswith("-A "):
            words = shlex.split(line)
            if rule := _iptables_rule(words[2:], line):
                rules.setdefault(words[1], []).append(rule)
    base = hook.upper()
    return {
        name: Chain(name, tuple(found), name == base, policies.get(name, "") if name == base else "")
        for name, found in rules.items()
    }


def _iptables_rule(words: list[str], line: str) -> Rule | None:
    matches: list[Match] = []
    action = target = ""
    negated = False
    at = 0
    while at < len(words):
        option, value = words[at], words[at + 1] if at + 1 < len(words) else ""
        at += 1
        if option == "!":
            negated = True
            continue
        if option in ("-j", "-g"):
            if value not in _PASSING:
                action = _TARGETS.get(value, GOTO if option == "-g" else JUMP)
                target = "" if value in _TARGETS else value
            break  # What follows belongs to the target.
        if option.startswith("-"):
            match = _iptables_match(option, value)
            matches.append(_negated(match) if negated else match)
            negated = False
    return Rule(tuple(matches), action, target, line) if action else None


def _iptables_match(option: str, value: str) -> Match:
    if option == "-p":
        return ALWAYS if value in ("tcp", "all", "6") else NEVER
    if option == "-i":
        return NEVER if value == "lo" else Match("source", f"iif {value}")
    if option in ("-s", "--src-range"):
        return Match("source", value)
    if option == "-d":
        return NEVER if value.startswith("127.") else UNSURE
    if option in ("--dport", "--dports", "--ports"):
        return Match("ports", value.replace(":", "-"), tuple(_ranges(value.replace(":", "-"))))
    if option in ("--ctstate", "--state"):
        return ALWAYS if "NEW" in value.split(",") else NEVER
    if option == "--dst-type":
        return ALWAYS if value == "LOCAL" else NEVER
    if option in ("--mark", "--rt-type"):
        return NEVER  # Nobody has marked our packet, and it has no routing header.
    if option == "--comment" or (option == "-m" and value in _HARMLESS_MODULES):
        return ALWAYS
    return UNSURE


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield int(first), int(last) if last.isdecimal() else int(first)


def _negated(match: Match) -> Match:
    if match.kind == "source":
        return Match("source", f"not {match.label}")
    return {"always": NEVER, "never": ALWAYS}.get(match.kind, UNSURE)


# --- nft -j list ruleset -------------------------------------------------------------------------------------------


def read_nft(ruleset: Mapping[str, Any], hook: str = INPUT, family: str = IPV4) -> dict[str, dict[str, Chain]]:
    """Table ("inet filter") to its chains, for the tables that see packets of that family."""
    bases: dict[tuple[str, str], dict[str, Any]] = {}
    rules: dict[tuple[str, str], list[Rule]] = {}
    for item in ruleset.get("nftables", ()):
        for kind, body in item.items():
            if kind not in ("chain", "rule") or body.get("family") not in (family, "inet"):
                continue
            table = f"{body['family']} {body['table']}"
            if kind == "chain":
                bases[table, body["name"]] = body
            elif rule := _nft_rule(body.get("expr", []), family):
                rules.setdefault((table, body["chain"]), []).append(rule)
    tables: dict[str, dict[str, Chain]] = {}
    for (table, name), body in bases.items():
        hooked = body.get("hook") == hook and body.get("type") != "nat"
        policy = body.get("policy", ACCEPT) if hooked else ""
        tables.setdefault(table, {})[name] = Chain(name, tuple(rules.get((table, name), ())), hooked, policy)
    return tables


def opaque_tables(ruleset: Mapping[str, Any]) -> set[str]:
    """The tables that iptables keeps in nftables with matches that only iptables-save can show."""
    return {
        f"{rule['family']} {rule['table']}"
        for item in ruleset.get("nftables", ())
        if (rule := item.get("rule")) and any("xt" in expression for expression in rule.get("expr", ()))
    }


def _nft_rule(expressions: list[dict[str, Any]], family: str) -> Rule | None:
    matches: list[Match] = []
    for expression in expressions:
        for kind, body in expression.items():
            if kind in (ACCEPT, DROP, "reject", RETURN):
                return Rule(tuple(matches), DROP if kind == "reject" else kind, "", _nft_text(expressions, family))
            if kind in (JUMP, GOTO):
                return Rule(tuple(matches), kind, str(body["target"]), _nft_text(expressions, family))
            if kind == "match":
                matches.append(_nft_match(body, family))
            elif kind == "vmap":
                matches.append(_nft_verdict_map(body))
                return Rule(tuple(matches), RETURN)
            elif kind not in ("counter", "log", "comment", "mangle", "notrack"):
                matches.append(UNSURE)
    return Rule(tuple(matches), RETURN) if UNSURE in matches else None


def _nft_verdict_map(body: dict[str, Any]) -> Match:
    """`ct state vmap {...}` says nothing of new connections unless "new" is in it."""
    key = body.get("key", {})
    of_states = isinstance(key, dict) and key.get("ct", {}).get("key") == "state"
    return NEVER if of_states and b'"new"' not in msgspec.json.encode(body) else UNSURE


_OTHER_PROTOCOLS = ("udp", "icmp", "icmpv6", "sctp", "dccp", "igmp")


def _nft_match(body: dict[str, Any], family: str) -> Match:
    left, right = body.get("left", {}), body.get("right")
    if not isinstance(left, dict):
        return UNSURE
    if left.get("payload", {}).get("protocol") in (*_OTHER_PROTOCOLS, *({IPV4, IPV6} - {family})):
        return NEVER  # Also where it says that a field is not this or that.
    match = UNSURE
    if "meta" in left:
        match = _nft_meta(left["meta"].get("key"), right, family)
    elif "ct" in left:
        key = left["ct"].get("key")
        if key in ("state", "status"):
            match = ALWAYS if key == "state" and "new" in _members(right) else NEVER
    elif "payload" in left:
        match = _nft_payload(left["payload"], right, family)
    return _negated(match) if body.get("op") == "!=" else match


def _members(right: object) -> list[object]:
    """List what stands on the right of a match, one or a set."""
    if isinstance(right, dict) and isinstance(right.get("set"), list):
        return list(right["set"])
    return list(right) if isinstance(right, list) else [right]


def _nft_meta(key: object, right: object, family: str) -> Match:
    words = _members(right)
    if key in ("iif", "iifname"):
        return NEVER if words == ["lo"] else Match("source", f"iif {', '.join(str(word) for word in words)}")
    if key == "l4proto":
        return ALWAYS if "tcp" in words or 6 in words else NEVER
    if key in ("nfproto", "protocol"):
        own = {IPV4: {"ipv4", "ip"}, IPV6: {"ipv6", "ip6"}}[family]
        return ALWAYS if own & {str(word) for word in words} else NEVER
    return UNSURE


def _nft_payload(payload: Mapping[str, Any], right: object, family: str) -> Match:
    protocol, field = payload.get("protocol"), payload.get("field")
    if protocol in ("tcp", "th") and field == "dport":
        ranges = [_nft_range(member) for member in _members(right)]
        if None in ranges:
            return UNSURE
        known = tuple(port_range for port_range in ranges if port_range)
        return Match("ports", ",".join(f"{a}-{b}" if a != b else str(a) for a, b in known), known)
    if protocol == family and field == "saddr":
        return Match("source", ", ".join(_nft_address(member) for member in _members(right)))
    if protocol == family and field in ("protocol", "nexthdr"):
        return ALWAYS if "tcp" in _members(right) else NEVER
    if protocol == "tcp" and field == "flags":
        return ALWAYS if "syn" in _members(right) else UNSURE
    return UNSURE


def _nft_range(port: object) -> tuple[int, int] | None:
    if isinstance(port, int):
        return port, port
    if isinstance(port, dict) and isinstance(port.get("range"), list):
        first, last = port["range"]
        return (first, last) if isinstance(first, int) and isinstance(last, int) else None
    return None


def _nft_address(address: object) -> str:
    if isinstance(address, dict) and isinstance(address.get("prefix"), dict):
        return f"{address['prefix']['addr']}/{address['prefix']['len']}"
    return str(address)


def _nft_text(expressions: list[dict[str, Any]], family: str) -> str:
    """A rule in words near to nft's own; its JSON doesn't carry them."""
    words: list[str] = []
    for expression in expressions:
        for kind, body in expression.items():
            if kind == "match":
                match = _nft_match(body, family)
                words.append(f"tcp dport {match.label}" if match.kind == "ports" else match.label)
            elif kind != "counter":
                words.append(f"{kind} {body['target']}" if kind in (JUMP, GOTO) else kind)
    return " ".join(word for word in words if word)
