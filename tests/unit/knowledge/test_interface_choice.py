"""NCCL's and gloo's rules for choosing an interface. That they are NCCL's own is tested in tests/real/test_nccl_choice.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.facts.network import Interface
from ddpdoctor.knowledge.interface_choice import (
    FELL_BACK,
    NcclFilter,
    gloo_choice,
    in_kernel_order,
    interface_with,
    nccl_choices,
    parse_nccl_filter,
)

OLD, NEW = (2, 21, 5), (2, 28, 9)
LO = Interface(name="lo", addresses=("127.0.0.1/8", "::1/128"), loopback=True)


def nic(name: str, *addresses: str, running: bool = True) -> Interface:
    return Interface(name=name, addresses=addresses, running=running)


ETH0 = nic("eth0", "10.0.0.1/24", "fe80::1/64")
DOCKER0 = nic("docker0", "172.17.0.1/16")
VIRBR0 = nic("virbr0", "192.168.122.1/24")


def first(*interfaces: Interface, ifname: str = "", version: tuple[int, ...] = NEW, **more: str) -> str | None:
    choices = nccl_choices(interfaces, ifname=ifname, version=version, **more)  # type: ignore[arg-type]
    return choices[0].interface if choices else None


def test_ipv4_of_all_comes_before_ipv6_of_any() -> None:
    order = in_kernel_order([nic("a", "fd00::1/64"), nic("b", "10.0.0.1/24", "fd00::2/64")])
    assert [one.address for one in order] == ["10.0.0.1", "fd00::1", "fd00::2"]


@pytest.mark.parametrize(
    ("interfaces", "version", "wanted"),
    [
        ((LO, DOCKER0, ETH0), NEW, "eth0"),
        ((LO, nic("br-1", "172.18.0.1/16"), ETH0), NEW, "br-1"),
        ((LO, ETH0, nic("ib0", "10.10.0.1/24")), NEW, "ib0"),
        ((LO, ETH0, nic("ib0")), NEW, "eth0"),
        ((LO, VIRBR0, ETH0), OLD, "virbr0"),
        ((LO, VIRBR0, ETH0), NEW, "eth0"),
        ((LO, nic("eth0", "10.0.0.1/24", running=False), DOCKER0), OLD, "eth0"),
        ((LO, nic("eth0", "10.0.0.1/24", running=False), DOCKER0), NEW, "docker0"),
        ((LO, VIRBR0), NEW, "lo"),
        ((LO,), NEW, "lo"),
        ((nic("lo", "::1/128"), VIRBR0), NEW, "virbr0"),
        ((nic("lo", "::1/128"),), NEW, None),
        ((), NEW, None),
    ],
)
def test_nccl_without_settings(interfaces: tuple[Interface, ...], version: tuple[int, ...], wanted: str | None) -> None:
    assert first(*interfaces, version=version) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("eth", "eth0"),
        ("=eth0", "eth0"),
        ("=eth", None),
        ("^eth0", "lo"),
        ("^=eth0", "lo"),
        ("^lo,docker", "eth0"),
        ("foo,e", "eth0"),
        ("e", "eth0"),
        ("d", "eth0"),
        ("^e", "lo"),
        ("^", "eth0"),
        ("eth0:1", "eth0"),
        ("eth9", None),
        ("docker0,eth0", "eth0"),
    ],
)
def test_nccl_socket_ifname(value: str, wanted: str | None) -> None:
    """One character alone is ignored, as if nothing was set; order in the list means nothing."""
    assert first(LO, ETH0, DOCKER0, ifname=value) == wanted


def test_nccl_family_and_comm_id() -> None:
    two = nic("eth1", "10.5.0.1/24")
    assert first(LO, ETH0, two, comm_id="10.5.0.9:1234") == "eth1"
    assert first(LO, ETH0, two, comm_id="10.5.0.9:1234", ifname="eth0") == "eth1"
    assert first(LO, ETH0, two, comm_id="10.6.0.9:1234") is None
    assert first(LO, ETH0, two, family="AF_INET6") == "eth0"
    assert nccl_choices([LO, ETH0], family="AF_INET6")[0].address == "fe80::1"
    assert first(LO, two, family="AF_INET6") is None


def test_gloo() -> None:
    hosts = (LO, ETH0, DOCKER0)
    assert gloo_choice(hosts, ["127.0.1.1"]).interface == "lo"  # type: ignore[union-attr]
    assert gloo_choice(hosts, ["203.0.113.1", "10.0.0.1"]).address == "10.0.0.1"  # type: ignore[union-attr]
    fallen = gloo_choice(hosts, ["203.0.113.1"])
    assert fallen
    assert (fallen.address, fallen.reason) == ("127.0.0.1", FELL_BACK)
    assert gloo_choice(hosts, ["10.0.0.1"], ifname="docker0").address == "172.17.0.1"  # type: ignore[union-attr]
    assert gloo_choice(hosts, ["10.0.0.1"], ifname="docker") is None
    assert gloo_choice(hosts, ["10.0.0.1"], ifname="docker0,eth9") is None


names = st.text("abehilotdckrv0123-", min_size=1, max_size=8)
ipv4 = st.ip_addresses(v=4).map(lambda one: f"{one}/24")
ipv6 = st.ip_addresses(v=6).map(lambda one: f"{one}/64")
interfaces = st.lists(
    st.builds(
        lambda name, four, six, running: Interface(name=name, addresses=(*four, *six), running=running),
        names,
        st.lists(ipv4, max_size=2),
        st.lists(ipv6, max_size=2),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda one: one.name,
)
versions = st.sampled_from([OLD, NEW])
lists = st.lists(names, min_size=1, max_size=4).map(",".join)


@given(interfaces, versions, st.text("^=,:abeloth0", max_size=10))
def test_what_is_chosen_exists_and_is_chosen_once(there: list[Interface], version: tuple[int, ...], value: str) -> None:
    choices = nccl_choices(there, ifname=value, version=version)
    assert len({choice.interface for choice in choices}) == len(choices)
    for one in choices:
        assert interface_with(one.address, there) is not None
        assert any(one.interface == it.name and (it.running or version == OLD) for it in there)


@given(interfaces, versions, lists)
def test_a_list_and_its_exclusion_divide_the_interfaces(
    there: list[Interface], version: tuple[int, ...], value: str
) -> None:
    value = value + ",zz"  # One character alone would be ignored.
    chosen = {choice.interface for choice in nccl_choices(there, ifname=value, version=version)}
    rest = {choice.interface for choice in nccl_choices(there, ifname="^" + value, version=version)}
    everything = {choice.interface for choice in nccl_choices(there, ifname="^zz", version=version)}
    assert chosen | rest == everything
    assert not chosen & rest


@given(interfaces, versions, lists)
def test_exact_names_are_among_the_prefixes(there: list[Interface], version: tuple[int, ...], value: str) -> None:
    value = value + ",zz"
    exact = nccl_choices(there, ifname="=" + value, version=version)
    prefixes = {(choice.interface, choice.address) for choice in nccl_choices(there, ifname=value, version=version)}
    assert {(one.interface, one.address) for one in exact} <= prefixes
    assert all(one.interface in value.split(",") for one in exact)


@given(lists, st.booleans(), st.booleans())
def test_a_filter_reads_back(value: str, exclude: bool, exact: bool) -> None:
    text = "^" * exclude + "=" * exact + value
    assert parse_nccl_filter(text) == NcclFilter(tuple(value.split(",")), exact, exclude)


@given(interfaces, st.lists(st.ip_addresses().map(str), max_size=3))
def test_gloo_takes_what_can_be_bound_or_the_loopback(there: list[Interface], resolved: list[str]) -> None:
    choice = gloo_choice([LO, *there], resolved)
    assert choice
    assert choice.address in (*resolved, "127.0.0.1")
    assert interface_with(choice.address, [LO, *there]) == choice.interface
