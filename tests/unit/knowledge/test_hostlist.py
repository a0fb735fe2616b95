"""Slurm's lists of hosts are written out as Slurm itself does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.knowledge.hostlist import MAX_HOSTS, HostlistError, expand, fold


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("node01", ("node01",)),
        ("node[01-03,07],gpu-a[1-2]b", ("node01", "node02", "node03", "node07", "gpu-a1b", "gpu-a2b")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[1-2,007]", ("n1", "n2", "n007")),
        ("rack[1-2]n[1-2]", ("rack1n1", "rack1n2", "rack2n1", "rack2n2")),
        ("b,a,b", ("b", "a", "b")),
        (" n1 ,, n2,", ("n1", "n2")),
        ("n[1-65536]", tuple(f"n{number}" for number in range(1, 65537))),
    ],
)
def test_written_out(text: str, hosts: tuple[str, ...]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("n[1-2", "bracket"),
        ("n1-2]", "bracket"),
        ("n[[1-2]]", "bracket"),
        ("n[]", "ranges"),
        ("n[1,]", "ranges"),
        ("n[a-b]", "ranges"),
        ("n[-1]", "ranges"),
        ("n[٣]", "ranges"),
        ("n[3-1]", "backwards"),
        ("n[1-1000000000]", "more than"),
        ("n[1-999999999999999999]", "more than"),
        ("n[1-300][1-300]", "more than"),
        ("[1-65000]" * 100_000, "more than"),
        (",".join(["n[1-60000]"] * 2), "more than"),
        ("n," * 600_000, "longer"),
    ],
)
def test_nonsense_ends_in_a_sentence(text: str, word: str) -> None:
    with pytest.raises(HostlistError, match=word):
        expand(text)


RANGES = st.tuples(st.integers(0, 9999), st.integers(0, 6), st.integers(1, 5)).map(
    lambda one: f"{one[0]:0{one[2]}}" + (f"-{one[0] + one[1]:0{one[2]}}" if one[1] else "")
)
BRACKETS = st.lists(RANGES, min_size=1, max_size=4).map(lambda ranges: f"[{','.join(ranges)}]")
PREFIXES = st.from_regex(r"\A[a-z]([a-z0-9-]{0,8}[a-z0-9])?\Z")
# Slurm 22.05 knows no text behind the last bracket.
WORDS = st.one_of(
    PREFIXES,
    st.builds("".join, st.tuples(PREFIXES, BRACKETS)),
    st.builds("".join, st.tuples(PREFIXES, BRACKETS, st.sampled_from(["-", "n", "x-"]), BRACKETS)),
)
LISTS = st.lists(WORDS, min_size=1, max_size=5).map(",".join)


@given(LISTS)
def test_nothing_is_left_to_write_out(text: str) -> None:
    hosts = expand(text)
    assert expand(",".join(hosts)) == hosts
    assert not any(set(host) & set("[],") for host in hosts)


@given(st.text(alphabet="ab01-,[] ", max_size=40))
def test_whatever_comes(text: str) -> None:
    with contextlib.suppress(HostlistError):
        assert len(expand(text)) <= MAX_HOSTS


@pytest.mark.tool("scontrol")
@settings(max_examples=60)
@given(text=LISTS)
def test_as_scontrol_does(text: str, configuration: Path) -> None:
    assert expand(text) == scontrol(text, configuration)


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("scontrol"), "Slurm is needed: apt-get install slurm-client"
    file = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    file.write_text("ClusterName=ddpdoctor\nSlurmctldHost=localhost\nNodeName=n1\n")
    return file


def scontrol(text: str, configuration: Path) -> tuple[str, ...]:
    """What Slurm makes of it; no daemon is asked."""
    environ = {"PATH": os.environ["PATH"], "SLURM_CONF": str(configuration)}
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text], env=environ, capture_output=True, text=True, check=True, timeout=30
    )
    return tuple(done.stdout.split())


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("", ""),
        ("login", "login"),
        ("node001 node002 node003 node077 login", "login,node[001-003,077]"),
        ("n8 n9 n10 n11", "n[8-11]"),
        ("n08 n09 n10 n9", "n[9,08-10]"),
        ("n1 n2 n007 n1", "n[1-2,007]"),
        ("gpu-a1b gpu-a2b", "gpu-a[1-2]b"),
        ("node01.c2.example node02.c2.example", "node[01-02].c2.example"),
        ("rack1n1 rack1n2 rack2n1", "rack1n[1-2],rack2n1"),
        ("node node1", "node,node1"),
    ],
)
def test_folded(hosts: str, text: str) -> None:
    assert fold(hosts.split()) == text


NAMES = st.from_regex(r"\A[a-z0-9_]{1,4}-?[0-9]{0,5}[a-z]?(\.[a-z0-9]{1,3})?\Z")


@given(st.lists(NAMES | st.builds("n{:0{}}".format, st.integers(0, 30), st.integers(1, 4)), max_size=60))
def test_what_is_folded_is_written_out_as_it_was(hosts: list[str]) -> None:
    written = expand(fold(hosts))
    assert sorted(written) == sorted(set(hosts))
    assert fold(written) == fold(hosts)


@given(LISTS)
def test_what_is_written_out_folds_into_the_same_hosts(text: str) -> None:
    assert set(expand(fold(expand(text)))) == set(expand(text))


def test_ten_thousand_in_a_row_are_one_range() -> None:
    assert fold(f"node{number:05}" for number in range(10_000)) == "node[00000-09999]"
