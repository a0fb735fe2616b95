"""What a hostile node says of itself never ends up bare in a command that somebody copies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.engine.sanitize_facts import is_address, is_host, plausible, text_kinds
from ddpdoctor.engine.snapshots import decode_snapshot, encode_snapshot
from ddpdoctor.facts.fleet import Cell, Fleet, Link, Reach, TriedCollective
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.node_facts import CHECK_FAMILIES, node_of
from ddpdoctor.network_check.analysis.verdicts import judge, with_fleet
from tests.support.fixture_hosts import healthy_facts, healthy_names, host_cases, lay_over, to_snapshot
from tests.support.fleets import make_fleet, node
from tests.support.registered_checks import find_check

HOSTILE = "$(touch x);\n\x1b[2J"
LEFT = "$(touch x);"
TAGS = {"type", "ddpdoctor_snapshot", "role"}
"""Of the format itself: with another word there it says something else."""


@cache
def fixtures() -> dict[str, Snapshot]:
    """Every sick host and near miss of the checks that netcheck judges by."""
    from ddpdoctor.checks.catalogue import all_checks

    slugs = {check.slug for check in all_checks() if check.family in CHECK_FAMILIES}
    return {case.id: case.snapshot() for case in host_cases() if case.slug in slugs}


def poisoned(value: Any, keep: frozenset[str] = frozenset()) -> Any:
    """The same facts with something for a shell behind every string."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}"
    if isinstance(value, list):
        return [poisoned(one, keep) for one in value]
    if isinstance(value, dict):
        return {name: one if name in TAGS | keep else poisoned(one, keep) for name, one in value.items()}
    return value


def commands(examinations: list[Examination]) -> Iterator[str]:
    for examination in examinations:
        for _, _, finding in examination.findings:
            yield from (command for fix in finding.fixes for command in fix.commands)


def bare(command: str) -> bool:
    """Whether a shell would do something else with it than hand the hostile text to a program as it is."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    plain, quote, escaped = [], "", False
    for letter in command:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            # Within double quotes a shell goes on to carry out $(...).
            plain.append(letter if quote == '"' else " ")
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            plain.append(letter)
    return bool(quote) or "touch" in "".join(plain)


def test_the_test_itself_sees_what_is_bare() -> None:
    for command in ("ip link show $(touch x)", 'echo "$(touch x)"', "echo 'a' b$(touch x)", "a 'touch", "x; touch y"):
        assert bare(command)
    for command in ("echo 'a $(touch x)'", shlex.quote(HOSTILE), f"echo {shlex.quote(HOSTILE)} | tee y"):
        assert not bare(command)


def with_company(snapshot: Snapshot, host: str) -> list[Snapshot]:
    """The node in a fleet of three in which all goes wrong, as node 0 judges them."""
    there = [snapshot, to_snapshot(healthy_facts("h100x8-slurm")), to_snapshot(healthy_facts("cpu-laptop"))]
    names = [host, "n2", "n3"]
    nodes = tuple(
        node_of(one, rank=rank, host=names[rank], address=f"10.0.0.1{rank}", offset=9.0, error=0.001)
        for rank, one in enumerate(there)
    )
    addresses = ("10.0.0.10", "10.0.0.11", "10.0.0.12")
    for cell in (Cell.SILENT, Cell.STALLED):
        for collective in (False, True):
            fleet = Fleet(
                nodes=nodes,
                expected=3,
                reach=(
                    Reach(
                        kind="route", addresses=addresses, ports=(4, 4, 4), rows=(f"-{cell.value * 2}", ".-.", "..-")
                    ),
                    Reach(kind="nccl", addresses=addresses, ports=(4, 4, 4), rows=(f"-{cell.value * 2}", "x-.", "x.-")),
                ),
                links=(
                    Link(a=0, b=1, round_trip=0.5, forth=1.0, back=1.0, resent=0.5),
                    Link(a=0, b=2, round_trip=0.5, forth=1.0, back=1.0, resent=0.5),
                    Link(a=1, b=2, round_trip=0.0001, forth=9000.0, back=9000.0),
                ),
                collectives=tuple(
                    TriedCollective(node=rank, backend="gloo", stage="group", ok=False, words=f"connect {HOSTILE}")
                    for rank in range(3)
                )
                if collective
                else (),
            )
            yield from (with_fleet(one, fleet, rank) for rank, one in enumerate(there))  # type: ignore[misc]


def all_commands(snapshot: Snapshot, host: str = "n1") -> list[str]:
    return [
        *commands(judge([snapshot], catalogue())),
        *commands(judge(list(with_company(snapshot, host)), catalogue())),
    ]


@pytest.mark.parametrize("name", healthy_names())
def test_real_facts_are_plausible(name: str) -> None:
    snapshot = to_snapshot(healthy_facts(name))
    assert plausible(snapshot) == snapshot


def test_all_hosts_are_plausible() -> None:
    cases = host_cases()
    assert len(cases) > 1000
    for case in cases:
        snapshot = case.snapshot()
        assert plausible(snapshot) == snapshot, case.id


@pytest.mark.parametrize("name", healthy_names())
def test_nothing_of_a_hostile_node_is_bare_in_a_command(name: str) -> None:
    snapshot = to_snapshot(poisoned(healthy_facts(name)))
    assert not any("touch" in command for command in all_commands(plausible(snapshot)) if bare(command))


def test_a_hostile_word_takes_its_group_along_and_says_why() -> None:
    snapshot = to_snapshot(
        lay_over(healthy_facts("h100x8-slurm"), {"network": {"interfaces": {"0": {"name": f"eth0{LEFT}"}}}})
    )
    found = plausible(snapshot)
    assert isinstance(found.network, Unknown)
    assert found.network.reason == ("the snapshot's facts were not taken: 'eth0$(touch x);' is not an interface's name")
    assert found.nccl == snapshot.nccl


LONG_ROW = Reach(kind="route", addresses=("10.9.0.1", "10.9.0.2"), ports=(1, 2), rows=("-ss", "s-"))


@pytest.mark.parametrize(
    "change",
    [
        {"reach": (LONG_ROW,)},
        {"reach": (msgspec.structs.replace(LONG_ROW, rows=("-s",)),)},
        {"reach": (msgspec.structs.replace(LONG_ROW, rows=("-s", "s-"), ports=(1,)),)},
        {"links": (Link(a=0, b=7, round_trip=0.0001),)},
        {"nodes": (node(0), node(0))},
    ],
)
def test_a_fleet_that_does_not_fit_together_is_not_judged(change: dict[str, Any]) -> None:
    fleet = msgspec.structs.replace(make_fleet(2), **change)
    found = plausible(Snapshot(fleet=fleet)).fleet
    assert isinstance(found, Unknown)
    assert found.reason == "the snapshot's facts were not taken: they aren't of one fleet of nodes"
    assert plausible(Snapshot(fleet=make_fleet(2))).fleet == make_fleet(2)


def test_a_row_that_is_too_long_crashes_no_check() -> None:
    snapshot = Snapshot(
        fleet=msgspec.structs.replace(make_fleet(2), reach=(LONG_ROW,)), meeting=Meeting(joined=True, node_rank=0)
    )
    (result,) = diagnose(snapshot, Plan(1, ""), [find_check("mtu-mismatch")])
    assert result.findings
    assert result.not_tested is None


def test_an_odd_package_is_left_out_alone() -> None:
    packages = Packages(
        installed=(Package(name="torch", version="2.9.1"), Package(name="--index-url=http://x", version="1"))
    )
    found = plausible(Snapshot(packages=packages)).packages
    assert found == Packages(installed=(Package(name="torch", version="2.9.1"),))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from leaves(one, (*path, index))
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in TAGS:
                yield from leaves(one, (*path, name))


def replaced(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return f"{value}{HOSTILE}"
    changed = list(value) if isinstance(value, list) else dict(value)
    changed[path[0]] = replaced(value[path[0]], path[1:])
    return changed


SICK = (
    "hostname-resolves-loopback",
    "nccl-wrong-interface",
    "gloo-wrong-interface",
    "local-firewall",
    "port-in-use",
    "rdzv-hostname-not-self",
    "ib-link-error",
    "roce-gid-index",
    "nccl-ifname-not-found",
    "ipv6-mismatch",
    "master-addr-unreachable",
    "port-squatted",
    "launcher-conflict",
)


@pytest.mark.parametrize("slug", SICK)
def test_no_single_hostile_word_gets_into_a_command(slug: str) -> None:
    """One word at a time, so that all else still leads to the finding and its commands."""
    tried = 0
    for case in host_cases(slug, "sick-"):
        facts = msgspec.to_builtins(case.snapshot())
        groups = ("network", "nccl", "firewall", "rdma", "patient", "environment", "meeting")
        for leaf in leaves({name: facts[name] for name in groups if name in facts}):
            tried += 1
            snapshot = to_snapshot(replaced(facts, leaf))
            taken = plausible(snapshot)
            for judged in [snapshot] if taken is snapshot else [taken, snapshot]:
                for command in commands(judge([judged], catalogue())):
                    assert not bare(command), (case.name, leaf, command)
    assert tried > 20


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1/24", "fe80::1%eth0", "fe80::1%eth0/64", "::1", "fd00::/8"])
def test_addresses(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize(
    "text", ["", "10.0.0", "10.0.0.1/x", "10.0.0.1/33", "fe80::1%$(x)", "fe80::1%", "10.0.0.1 x", "n1", "1.2.3.4/٣"]
)
def test_no_addresses(text: str) -> None:
    assert not is_address(text)


def test_hosts() -> None:
    assert all(map(is_host, ("n1", "node-01.example.org", "gpu_7", "1e7b4c0d2f5a")))
    assert not any(map(is_host, ("", "-x", "a b", "a;b", "$(x)", "a\n", "ünï", "a\u202eb", "x" * 300)))


def structs_of(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from structs_of(part)


def test_what_is_declared_exists() -> None:
    """A field that isn't declared must be plain words; one that is misspelt would be so unnoticed."""
    found: dict[type[msgspec.Struct], set[str]] = {}
    waiting: list[type[msgspec.Struct]] = [Snapshot]
    while waiting:
        struct = waiting.pop()
        if struct not in found:
            found[struct] = set(struct.__struct_fields__)
            hints = get_type_hints(struct)
            waiting += [inner for name in struct.__struct_fields__ for inner in structs_of(hints[name])]
    by_name = {struct.__name__: fields for struct, fields in found.items()}
    assert len(by_name) == len(found)
    for name, fields in text_kinds().items():
        assert name in by_name, name
        assert fields.keys() <= by_name[name], name


def test_a_field_that_nobody_declared_is_plain_words() -> None:
    snapshot = to_snapshot(lay_over(healthy_facts("h100x8-slurm"), {"gpus": {"devices": {"0": {"uuid": LEFT}}}}))
    found = decode_snapshot(encode_snapshot(snapshot), "x")
    assert found.gpus == Unknown("the snapshot's facts were not taken: '$(touch x);' is not plain words")
    assert found.driver == snapshot.driver
