"""The table of variables: its readers' rules, as they were read in NCCL's and torch's sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.knowledge.known_settings import (
    KnownSetting,
    in_a_known_family,
    known_settings,
    read_by_a_plugin,
    read_by_nothing,
)


def test_the_table_is_complete() -> None:
    assert len(known_settings()) == 364
    assert len(read_by_nothing()) == 19
    assert not set(known_settings()) & set(read_by_nothing())


def test_every_name_that_is_referred_to_is_known() -> None:
    for setting in known_settings().values():
        assert not setting.replaced_by or setting.replaced_by in known_settings(), setting
    for one in read_by_nothing().values():
        assert not one.meant or one.meant in known_settings(), one


def test_choices_stand_where_the_kind_needs_them() -> None:
    for setting in known_settings().values():
        assert bool(setting.choices) == (setting.kind in ("exact", "word", "words", "level")), setting
        assert setting.kind in (
            "",
            "nccl-int",
            "torch-int",
            "torch-bool",
            "exact",
            "word",
            "words",
            "level",
            "address",
            "thread-counts",
        ), setting


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("NCCL_IB_DISABLE", "true", "reads this as 0"),
        ("NCCL_BUFFSIZE", "8M", "reads this as 8"),
        ("NCCL_BUFFSIZE", "0x10 bytes", "reads this as 16"),
        ("NCCL_SOCKET_FAMILY", "af_inet", "AF_INET or AF_INET6"),
        ("NCCL_DEBUG", "VERBOSE", "VERSION, WARN"),
        ("NCCL_ALGO", "ring,star", "Ring, Tree"),
        ("NCCL_P2P_LEVEL", "nvl", "LOC, NVL"),
        ("TORCH_DISTRIBUTED_DEBUG", "", "OFF, INFO or DETAIL"),
        ("TORCH_NCCL_BLOCKING_WAIT", "on", "0 or 1"),
        ("NCCL_COMM_ID", "", "NCCL stops with an error; it takes host:port"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "yes", "a whole number"),
    ],
)
def test_a_bad_value_is_explained(name: str, value: str, part: str) -> None:
    assert part in known_settings()[name].complaint(value)


def valid_value(one: KnownSetting) -> st.SearchStrategy[str]:
    """Values that the reader's own rules take."""
    numbers = st.integers(-(2**31), 2**31 - 1)
    if one.kind == "nccl-int":
        return st.one_of(numbers.map(str), st.integers(0, 2**31).map(hex), numbers.map(lambda n: f" {n}"), st.just(""))
    if one.kind == "torch-int":
        return numbers.map(str)
    if one.kind == "torch-bool":
        return st.sampled_from(["0", "1", "y", "N", "True", "false", "YES", "no", "t", "F"])
    if one.kind == "thread-counts":
        return st.lists(st.integers(1, 999), min_size=1).map(lambda counts: ", ".join(map(str, counts)))
    if one.kind == "address":
        return st.sampled_from(["10.0.0.11:40000", "[fe80::1]:40000", "node01:1"])
    if one.kind == "exact":
        return st.sampled_from(one.choices)
    if one.kind == "level":
        return st.one_of(st.sampled_from(one.choices), st.integers(0, 9).map(str))
    if one.kind == "word":
        return st.sampled_from(one.choices).flatmap(lambda word: st.sampled_from([word, word.lower(), word.title()]))
    if one.kind == "words":
        lists = st.lists(st.sampled_from(one.choices), min_size=1).map(",".join)
        return st.one_of(lists, lists.map(str.lower), lists.map(lambda text: f"^{text}"))
    return st.text()


@given(st.data())
def test_no_valid_value_is_complained_about(data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(sorted(known_settings().values(), key=lambda one: one.name)))
    assert one.complaint(data.draw(valid_value(one))) == ""


@given(st.text())
def test_no_text_is_too_odd_to_judge(value: str) -> None:
    for setting in known_settings().values():
        assert "\n" not in setting.complaint(value) or not setting.kind


def test_families_and_plugins() -> None:
    assert in_a_known_family("NCCL_SOCKET_IFNMAE")
    assert not in_a_known_family("TORCH_HOME")
    assert not in_a_known_family("TORCHINDUCTOR_CACHE_DIR")
    assert read_by_a_plugin("NCCL_FASTRAK_CTRL_DEV")
    assert not in_a_known_family("NCCL_FASTRAK_CTRL_DEV")
