"""Who may take part: tokens, and how both sides show that they know one."""

from __future__ import annotations

import re

import msgspec
import pytest

from ddpdoctor.network_check.job import Flags, NetcheckJob, job_of
from ddpdoctor.network_check.protocol.tokens import is_private_address, make_token, matches, proof, token_of
from tests.support.recorded_launches import SRUN, TORCHRUN_STATIC

JOB = NetcheckJob(master="n1", port=29500, job_id="Slurm 1.0")


def test_the_one_that_was_given_goes_first() -> None:
    assert token_of(JOB, " k7wq-m3xt ") == "k7wq-m3xt"


def test_by_hand_there_is_none() -> None:
    assert token_of(NetcheckJob(master="n1", port=29500), None) == ""
    # torchrun's run id is "none" unless somebody chose one.
    assert token_of(job_of(Flags(), TORCHRUN_STATIC), None) == ""


def test_all_processes_of_a_job_derive_the_same() -> None:
    first, last = (job_of(Flags(), SRUN | {"SLURM_PROCID": rank, "SLURM_NODEID": node}) for rank, node in ("00", "31"))
    assert token_of(first, None) == token_of(last, None) != ""


@pytest.mark.parametrize("change", [{"job_id": "Slurm 1.1"}, {"master": "n2"}, {"port": 29501}])
def test_another_job_derives_another(change: dict[str, str | int]) -> None:
    assert token_of(msgspec.structs.replace(JOB, **change), None) != token_of(JOB, None)


def test_a_derived_token_doesnt_show_the_job_id() -> None:
    assert re.fullmatch("[0-9a-f]{20}", token_of(JOB, None))


def test_fresh_ones_differ_and_can_be_read_out() -> None:
    many = {make_token() for _ in range(200)}
    assert len(many) == 200
    assert all(re.fullmatch("[a-hjkmnp-z2-9]{4}(-[a-hjkmnp-z2-9]{4}){2}", one) for one in many)


def test_a_proof_fits_one_side_and_one_pair_of_nonces() -> None:
    good = proof("token", "agent", "first", "second")
    others = [
        proof("tokem", "agent", "first", "second"),
        proof("token", "hub", "first", "second"),
        proof("token", "agent", "second", "first"),
        proof("token", "agent", "firs", "tsecond"),
        proof("", "agent", "first", "second"),
        "",
        good.upper(),
        "\ud800é",
    ]
    assert matches(proof("token", "agent", "first", "second"), good)
    assert not any(matches(one, good) for one in others)
    assert "token" not in good


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.1.1", "10.77.0.11", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255",
     "::1", "fe80::1%eth0", "fd00::1", "fc00::1", "::ffff:10.0.0.1"],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert is_private_address(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "172.32.0.1", "172.15.0.1", "100.128.0.1", "100.63.0.1", "192.169.0.1", "2001:db8::1", "2a00::1",
     "::ffff:8.8.8.8", "::", "0.0.0.0", "n1", ""],
)  # fmt: skip
def test_public_addresses_and_what_is_none(address: str) -> None:
    assert not is_private_address(address)
