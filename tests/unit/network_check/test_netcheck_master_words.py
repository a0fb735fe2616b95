"""What is said of a master that can't be one, and of one where nobody was met."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.network_check.analysis.verdicts import not_met
from ddpdoctor.network_check.job import Flags, JobError, job_of


@pytest.mark.parametrize(
    ("master", "sentence"),
    [
        ("a..b", "neither a host's name nor an address"),
        ("a" * 64, "neither a host's name nor an address"),
        ("fe80::1", "lacks the interface, as in fe80::1%eth0"),
        ("[fe80::1]:29500", "lacks the interface, as in fe80::1%eth0"),
    ],
)
def test_no_name_and_no_interface_are_said_before_anything_is_tried(master: str, sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        job_of(Flags(master=master), {})


@pytest.mark.parametrize("master", ["n1.example.org.", "a" * 63])
def test_names_that_may_be(master: str) -> None:
    assert job_of(Flags(master=master), {}).master == master


def test_nothing_that_was_refused_ends_well() -> None:
    refused = Meeting(master="n1", port=29500, attempts=(Attempt(address="10.0.0.11", met=ConnectOutcome.REFUSED),))
    assert not_met(refused) == ("Nobody answered at n1 port 29500",)
    assert not_met(Meeting(master="n1", port=29500, nnodes=2)) == (
        "2 nodes were to meet, and this one met none of them",
    )
    assert not_met(Meeting(master="n1", port=29500, answered_by="torch's TCPStore")) == ()
