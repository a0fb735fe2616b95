"""netcheck between two hosts that don't meet, a pair of namespaces for each reason; all pairs run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.namespaces import Host, add_ipv6, network, take_ipv4
from tests.support.netcheck_hosts import Ran, carry_out, start, sudo_shim
from tests.support.netcheck_pairs import (
    DEADLINE,
    FROM_OTHERS,
    HTTP,
    SERVER,
    SQUATTERS,
    STORE,
    TLS,
    UNREACHABLE,
    WAIT,
    Case,
    Pair,
    rule,
    run,
    squat,
    without_name_server,
)

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "nft", "openssl")]

AT_ONCE = 4
"""Pairs that measure their links, which wants a core that isn't busy."""

SHUT = (UNREACHABLE, "{zero}'s packet filter stops the other nodes at the master's port, 29500")
REJECTED = (UNREACHABLE, "A packet filter rejects {one}'s connections to {zero_ip} port 29500")
OWN_FILTER = (UNREACHABLE, "{one}'s own packet filter stops its connections to {zero_ip} port 29500")
NO_ANSWERS = (UNREACHABLE, "{one}'s own packet filter stops the answers of {zero_ip} port 29500")
MISSING = ("rdzv-missing-node", "node 1 didn't come: 1 of 2 nodes are here")


def squatted(by: Callable[[Host], None], who: str, wait: int = WAIT) -> Case:
    return Case(
        wait=wait,
        zero=(by,),
        said_by_zero=("port-in-use", "Port 29500 (MASTER_PORT) is taken by"),
        said_by_one=("port-squatted", who),
        mended_on="zero",
        slug_of_fix="port-in-use",
    )


CASES = {
    "nobody-started-node-0": Case(
        alone=True, said_by_one=(UNREACHABLE, "{zero_ip} port 29500 refuses {one}'s connections")
    ),
    "reset-by-the-master": Case(
        zero=(rule("input", FROM_OTHERS, "reject with tcp reset"),),
        said_by_zero=SHUT,
        also=("rdzv-missing-node",),
        said_by_one=(UNREACHABLE, "{zero_ip} port 29500 refuses {one}'s connections"),
        mended_on="zero",
    ),
    "host-prohibited-by-the-master": Case(
        zero=(rule("input", FROM_OTHERS, "reject with icmp type host-prohibited"),),
        said_by_zero=SHUT,
        also=("rdzv-missing-node",),
        said_by_one=REJECTED,
        mended_on="zero",
    ),
    "admin-prohibited-by-the-master": Case(
        zero=(rule("input", FROM_OTHERS, "reject with icmp type admin-prohibited"),),
        said_by_zero=SHUT,
        also=("rdzv-missing-node",),
        said_by_one=REJECTED,
        mended_on="zero",
    ),
    "dropped-by-the-master": Case(
        zero=(rule("input", FROM_OTHERS, "drop"),),
        said_by_zero=SHUT,
        also=("rdzv-missing-node",),
        said_by_one=(UNREACHABLE, "{zero_ip} port 29500 doesn't answer {one} at all"),
        mended_on="zero",
    ),
    "dropped-by-the-master-even-from-itself": Case(
        zero=(rule("input", "tcp dport 29500 drop"),),
        said_by_zero=(UNREACHABLE, "{zero} listens at {zero_ip} port 29500 and can't reach it itself"),
        said_by_one=(UNREACHABLE, "{zero_ip} port 29500 doesn't answer {one} at all"),
        mended_on="zero",
    ),
    "dropped-on-the-way-out": Case(
        one=(rule("output", "tcp dport 29500 drop"),), said_by_zero=MISSING, said_by_one=OWN_FILTER, mended_on="one"
    ),
    "rejected-on-the-way-out": Case(
        one=(rule("output", "tcp dport 29500 reject with icmpx type admin-prohibited"),),
        said_by_zero=MISSING,
        said_by_one=OWN_FILTER,
        mended_on="one",
    ),
    "the-answers-are-dropped": Case(
        one=(rule("input", "tcp sport 29500 drop"),),
        said_by_zero=MISSING,
        said_by_one=NO_ANSWERS,
        mended_on="one",
    ),
    "the-answers-are-dropped-with-all-high-ports": Case(
        one=(rule("input", 'iifname != "lo" tcp dport 30000-65535 drop'),),
        said_by_zero=MISSING,
        said_by_one=NO_ANSWERS,
        also=("local-firewall",),
        mended_on="one",
    ),
    "no-route": Case(
        one=(lambda host: host.ip("route add unreachable 10.77.0.0/25"),),
        said_by_zero=MISSING,
        said_by_one=(UNREACHABLE, "{one} has no route to the master, {zero_ip}"),
    ),
    "no-such-host": Case(
        master="10.77.0.250",
        said_by_zero=(UNREACHABLE, "10.77.0.250 isn't an address of {zero}, which was started as node 0"),
        said_by_one=(UNREACHABLE, "No host has the address 10.77.0.250"),
        mended_on="zero",
    ),
    "another-hosts-address": Case(
        master="{one_ip}",
        said_by_zero=(UNREACHABLE, "{one_ip} isn't an address of {zero}, which was started as node 0"),
        said_by_one=(UNREACHABLE, "{one_ip} is {one} itself, which was started as node 1"),
    ),
    "unknown-name": Case(
        master="no-such-host",
        said_by_zero=("master-addr-unresolvable", "no-such-host"),
        said_by_one=("master-addr-unresolvable", "no-such-host"),
    ),
    "dead-name-server": Case(
        zero=(without_name_server,),
        one=(without_name_server,),
        master="no-such-host",
        said_by_zero=("master-addr-unresolvable", "no answer within"),
        said_by_one=("master-addr-unresolvable", "no answer within"),
    ),
    "cut-off": Case(
        zero=(squat(SERVER.format(do="there.close()")),),
        said_by_zero=("port-in-use", "Port 29500 (MASTER_PORT) is taken by"),
        said_by_one=(UNREACHABLE, "{zero_ip} port 29500 accepts {one}'s connections and cuts them off at once"),
    ),
    "web-server": squatted(squat(HTTP), "an HTTP server", wait=120),
    "tls-server": squatted(squat(TLS), "a TLS server", wait=120),
    "ssh-server": squatted(
        squat(SERVER.format(do='there.sendall(b"SSH-2.0-OpenSSH_9.2p1\\r\\n"); there.recv(9)')), "an SSH server", wait=120
    ),
    "silence": squatted(squat(SERVER.format(do="time.sleep(60)")), "something that says nothing"),
    "store-with-libuv": squatted(squat(STORE.format(libuv=True)), "torch's TCPStore"),
    "store-without-libuv": squatted(squat(STORE.format(libuv=False)), "torch's TCPStore"),
    "ipv6-alone": Case(
        zero=(add_ipv6, take_ipv4), one=(add_ipv6, take_ipv4), master="{zero_ip6}", code=0
    ),
    "ipv6-on-one-side-by-name": Case(
        zero=(add_ipv6,),
        master="{zero}",
        said_by_zero=("ipv6-mismatch", "gloo takes {zero_ip6} (IPv6) on {zero}, and IPv4 on 1 other node"),
        also=("gloo-wrong-interface",),
        mended_on="zero",
        slug_of_fix="ipv6-mismatch",
    ),
    "ipv6-unused-on-one-side": Case(zero=(add_ipv6,), code=0),
    "ipv6-on-one-side-by-address": Case(
        zero=(add_ipv6,),
        one=(lambda host: host.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1") and None,),
        master="{zero_ip6}",
        said_by_zero=MISSING,
        said_by_one=("ipv6-mismatch", "MASTER_ADDR {zero_ip6} has only IPv6 addresses, this host only IPv4"),
    ),
}  # fmt: skip


ETC_HOSTS = {
    "ipv6-alone": "::1 localhost\n{zero_ip6} {zero}\n{one_ip6} {one}\n",
    "ipv6-on-one-side": "127.0.0.1 localhost\n{zero_ip6} {zero}\n{zero_ip} {zero}\n{one_ip} {one}\n",
}
"""By the beginning of the case's name."""


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Pair]]:
    names = [f"{letter}{number}" for number in range(len(CASES)) for letter in ("zero", "one")]
    with network(*names) as hosts:
        made = {
            name: Pair(case, hosts[2 * number], hosts[2 * number + 1], number)
            for number, (name, case) in enumerate(CASES.items())
        }
        try:
            for name, pair in made.items():
                for part, text in ETC_HOSTS.items():
                    if name.startswith(part):
                        pair.zero.hosts(text.format(**pair.words))
                        pair.one.hosts(text.format(**pair.words))
                pair.break_it()
            run(list(made.values()))
            yield made
        finally:
            for squatter in SQUATTERS:
                squatter.kill()
                squatter.wait()


def of(pair: Pair, rank: int) -> Ran:
    return pair.ran[-1] if rank else pair.ran[0]


@pytest.mark.parametrize("name", CASES)
def test_each_node_says_what_it_met(pairs: dict[str, Pair], name: str) -> None:
    pair = pairs[name]
    case = pair.case
    assert {run.code for run in pair.ran} == {case.code}, [run.stderr for run in pair.ran]
    for rank, (slug, words) in ((0, case.said_by_zero), (1, case.said_by_one)):
        if case.alone and not rank:
            continue
        ran = of(pair, rank)
        if slug:
            found = ran.findings(slug)
            assert found, ran.report["findings"]
            assert words.format(**pair.words) in found[0]["summary"]
            assert found[0]["fixes"]
        others = ran.slugs - {slug, *case.also}
        assert not others, [finding["summary"] for finding in ran.report["findings"] if finding["slug"] in others]


ALONE = [
    "nobody-started-node-0",
    "host-prohibited-by-the-master",
    "dropped-by-the-master",
    "dropped-on-the-way-out",
    "no-route",
    "no-such-host",
    "unknown-name",
    "dead-name-server",
    "cut-off",
    "web-server",
    "tls-server",
    "ssh-server",
    "silence",
    "store-with-libuv",
]
"""What one host alone is to find out, too."""

LENIENT = {"silence": "warn", "store-with-libuv": "info"}
"""The store may be the very one that is to be there."""


@pytest.fixture(scope="module")
def alone(pairs: dict[str, Pair]) -> dict[str, Ran]:
    """netcheck on the second host, told nothing but the master."""
    chosen = {name: pairs[name] for name in ALONE}
    running = {name: start(pair.one, "--json", *pair.master) for name, pair in chosen.items()}
    return {name: one.end(DEADLINE) for name, one in running.items()}


@pytest.mark.parametrize("name", ALONE)
def test_one_side_alone_sees_it_too(pairs: dict[str, Pair], alone: dict[str, Ran], name: str) -> None:
    slug, words = pairs[name].case.said_by_one
    (found,) = alone[name].findings(slug)
    assert words.format(**pairs[name].words) in found["summary"]
    assert alone[name].slugs <= {slug, *pairs[name].case.also}
    assert found["severity"] == LENIENT.get(name, "fail")
    assert alone[name].code == (0 if name in LENIENT else 1)


@pytest.fixture(scope="module")
def mended(pairs: dict[str, Pair], alone: dict[str, Ran], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """The first fix has been carried out, word for word, where it was printed, and netcheck has run again."""
    shim = sudo_shim(tmp_path_factory.mktemp("bin"))
    again = {name: pair for name, pair in pairs.items() if pair.case.mended_on}
    environ: dict[str, dict[str, str]] = {}
    for pair in again.values():
        at = 0 if pair.case.mended_on == "zero" else 1
        host = (pair.zero, pair.one)[at]
        (finding, *_) = of(pair, at).findings(pair.case.slug_of_fix)
        for command in finding["fixes"][0]["commands"]:
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                # A fix that names the master is for all nodes alike, and says so.
                for one in (pair.zero, pair.one) if name == "MASTER_ADDR" else (host,):
                    environ.setdefault(one.hostname, {})[name] = value
            elif not command.startswith("ddpdoctor netcheck "):
                carry_out(host, [command], shim)
    healthy = list(again.values())
    for at in range(0, len(healthy), AT_ONCE):
        run(healthy[at : at + AT_ONCE], environ)
    return again


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mended_on])
def test_the_printed_fix_makes_the_next_run_pass(mended: dict[str, Pair], name: str) -> None:
    for one in mended[name].ran:
        assert one.code == 0, [found["summary"] for found in one.report["findings"]]
        assert one.slugs == set()
