"""A shut port where netcheck's user isn't root and can't read the packet filter, as with most jobs: what is printed opens it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.real.test_netcheck_firewalls import ufw
from tests.support.command import command
from tests.support.namespaces import NETNS_ETC, Host, drop_input, network
from tests.support.netcheck_hosts import NAMED_WITHIN, Ran, carry_out, netcheck, sudo_shim

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "setpriv", "nft", "ufw")]

USER = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
)  # fmt: skip
"""A foreign user who may read all files, since the interpreter may lie in root's home."""
SLUG = "firewall-blocked-ports"
SHUT = ("ct state established,related accept", "iif lo accept", "tcp dport 29500 accept", "meta l4proto tcp drop")


class OfAUser(Host):
    """The same host, on which ddpdoctor runs as that user."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.hostname)
        self.namespace = host.namespace

    def command(self, *words: str) -> list[str]:
        python, *_ = command()
        return super().command(*(USER if words[0] == python else ()), *words)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with network("n0", "n1") as made:
        for one in made:
            # In place of the machine's own folder, where firewalld may be set to start.
            (NETNS_ETC / one.namespace / "systemd").mkdir()
        yield [OfAUser(one) for one in made]


@pytest.fixture
def sudo(tmp_path: Path) -> Path:
    return sudo_shim(tmp_path)


def blamed(hosts: Sequence[Host]) -> Ran:
    ran = netcheck(hosts)
    assert ran[0].slugs == {SLUG}, ran[0].stdout
    assert ran[0].nodes(SLUG) == ["n1"]
    summary = ran[0].findings(SLUG)[0]["summary"]
    assert summary.startswith("n1 drops inbound TCP 32768-60999 (its only peer times out; outbound OK)")
    assert ran[0].report["seconds"] < NAMED_WITHIN
    evidence = [evidence["text"] for evidence in ran[0].findings(SLUG)[0]["evidence"]]
    assert "reading the packet filter needs root" in evidence
    return ran[0]


def assert_mended(hosts: Sequence[Host]) -> None:
    assert [(one.code, one.slugs) for one in netcheck(hosts)] == [(0, set())] * 2


def test_a_filter_of_unknown_tool(hosts: list[Host], sudo: Path) -> None:
    """First a look, and then the tool to which it fits."""
    drop_input(hosts[1], *SHUT)
    look, *tools = blamed(hosts).findings(SLUG)[0]["fixes"]
    assert look["commands"] == ["sudo nft list ruleset"]
    of_nft = next(tool for tool in tools if "it is nft" in tool["text"])
    assert "inet filter input" in of_nft["text"]
    carry_out(hosts[1], of_nft["commands"], sudo)
    assert_mended(hosts)


@pytest.mark.thorough
def test_ufw_is_known_to_everybody(hosts: list[Host], sudo: Path) -> None:
    ufw()(hosts)
    fix = blamed(hosts).findings(SLUG)[0]["fixes"][0]
    assert fix["commands"] == ["sudo ufw prepend allow proto tcp from 10.77.0.0/24"]
    carry_out(hosts[1], fix["commands"], sudo)
    assert_mended(hosts)
