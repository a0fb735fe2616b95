"""Where a node may say that it listens, since all others dial there."""

from __future__ import annotations

import ipaddress

import pytest

from ddpdoctor.network_check.protocol.claimed_addresses import plain_address, why_not_its_address
from ddpdoctor.network_check.protocol.messages import ListenAddress

JOB = (ipaddress.ip_network("198.51.100.0/25"),)


def why(kind: str, address: str, seen: str) -> str:
    """It claims to have every address that is named."""
    claimed = {plain_address(address)}
    return why_not_its_address(
        ListenAddress(kind, address, (40000,)), seen, claimed, {"10.0.0.12", "203.0.113.12"}, JOB
    )


@pytest.mark.parametrize(
    ("kind", "address", "seen"),
    [
        ("route", "203.0.113.11", "203.0.113.11"),
        ("nccl", "10.1.0.5", "203.0.113.11"),
        ("nccl", "203.0.113.200", "203.0.113.11"),
        ("nccl", "198.51.100.7", "203.0.113.11"),
        ("nccl", "172.17.0.1", "10.0.0.11"),
        ("gloo", "127.0.1.1", "10.0.0.11"),
        ("nccl", "fe80::9%eth0", "10.0.0.11"),
        ("route", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_node_listens_at_its_own_end_and_in_networks_of_the_job(kind: str, address: str, seen: str) -> None:
    assert why(kind, address, seen) == ""


@pytest.mark.parametrize(
    ("kind", "address", "seen", "words"),
    [
        ("route", "127.0.0.1", "10.0.0.11", "every node's own"),
        ("route", "::ffff:127.0.0.1", "10.0.0.11", "every node's own"),
        ("route", "10.0.0.12", "10.0.0.11", "another node's"),
        ("nccl", "203.0.113.12", "203.0.113.11", "another node's"),
        ("nccl", "198.51.100.200", "10.0.0.11", "outside of the job's networks"),
        ("nccl", "2001:db8::1", "10.0.0.11", "outside of the job's networks"),
        ("nccl", "0.0.0.0", "10.0.0.11", "no host's address"),
        ("nccl", "169.254.169.254", "10.0.0.11", "no host's address"),
        ("nccl", "fd00:ec2::254", "10.0.0.11", "no host's address"),
        ("nccl", "239.1.1.1", "10.0.0.11", "no host's address"),
        ("nccl", "255.255.255.255", "10.0.0.11", "no host's address"),
    ],
)
def test_what_it_claims_beyond_that_is_refused(kind: str, address: str, seen: str, words: str) -> None:
    assert words in why(kind, address, seen)
