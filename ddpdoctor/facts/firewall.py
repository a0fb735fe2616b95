"""Packet filters on this host, as far as this user may read them."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Firewall(Facts, frozen=True, kw_only=True):
    """Effect of the packet filter on new TCP between this host and another one, over IPv4; `ipv6` says the same of IPv6."""

    tool: Annotated[Maybe[str | None], Source("services and rule sets")] = None
    """What manages it: "firewalld", "ufw", "nft", "iptables"; None: no rules at all."""
    input_policy: Annotated[Maybe[str | None], Source("nft list ruleset, iptables -S")] = None
    """"accept", "drop", "reject"; None: no filter on input."""
    open_ports: Annotated[tuple[str, ...], Source("rules that accept TCP")] = ()
    """"22", "29500", "32768-60999", "all" for rules that accept TCP from anywhere or from `open_sources`."""
    open_sources: Annotated[tuple[str, ...], Source("rules that accept")] = ()
    """Networks and interfaces from which everything is accepted: "10.0.0.0/8", "iif lo"."""
    blocked: Annotated[tuple[str, ...], Source("rules that drop or reject TCP")] = ()
    """Such rules in their tool's own words, at most 20."""
    shut_ports: Annotated[tuple[str, ...], Source("rules that drop or reject TCP")] = ()
    """Ports below the ephemeral ones that single rules drop or reject, for everybody or for some: "29500"."""
    shut_ephemeral: Annotated[tuple[str, ...], Source("reading of the rules")] = ()
    """Parts of the ephemeral range at which new incoming TCP is dropped or rejected, but for `open_sources`:
    "40000-60999"."""
    shut_outbound: Annotated[tuple[str, ...], Source("reading of the rules")] = ()
    """Parts of it to which this host's new TCP is dropped or rejected."""
    input_chains: Annotated[tuple[str, ...], Source("nft list ruleset")] = ()
    """Base chains on input, as a command names them ("inet filter input", "iptables INPUT"): of the tables that drop new
    TCP, of all where none plainly does."""
    output_chains: Annotated[tuple[str, ...], Source("nft list ruleset")] = ()
    """Base chains on output in the same way."""
    drops_new: Annotated[Maybe[bool | None], Source("reading of the rules")] = None
    """Whether a new TCP connection to an unlisted high port is dropped or rejected; None: the rules are too involved to tell."""
    enabled_service: Annotated[str | None, Source("/etc/ufw/ufw.conf, running processes")] = None
    """"ufw" where it is set to start, "firewalld" where it runs, which anybody may see; the rules may still be unreadable."""
    ipv6: Annotated[Firewall | None, Source("nft list ruleset, ip6tables-save")] = None
    """None: nobody looked."""
