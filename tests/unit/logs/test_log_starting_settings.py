"""Settings with which no start is possible: what torch and torchrun say of them."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from tests.support.logs_by_hand import read

TORCH = "/opt/env/lib/python3.11/site-packages/torch/distributed"
RENDEZVOUS = """Traceback (most recent call last):
  File "/home/ada/train.py", line 2, in <module>
    dist.init_process_group("gloo")
  File "{torch}/rendezvous.py", line 279, in _env_rendezvous_handler
    {code}
{error}
"""
GPU = f"""Traceback (most recent call last):
  File "{TORCH}/run.py", line 743, in determine_local_world_size
    return int(nproc_per_node)
ValueError: invalid literal for int() with base 10: 'gpu'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "{TORCH}/run.py", line 755, in determine_local_world_size
    raise ValueError("Cuda is not available.") from e
ValueError: Cuda is not available.
"""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (
            'raise ValueError(f"port must have value from 0 to 65535 but was {port}.")',
            "ValueError: port must have value from 0 to 65535 but was 99999.",
        ),
        (
            'master_port = int(_get_env_or_raise("MASTER_PORT"))',
            "ValueError: invalid literal for int() with base 10: 'abc'",
        ),
    ],
)
def test_a_port_that_is_none_is_a_wrong_setting(code: str, error: str) -> None:
    found = verdict_of(read(RENDEZVOUS.format(torch=TORCH, code=code, error=error)), catalogue())
    assert [suspect.slug for suspect in found.suspects] == ["launcher-env-inconsistent"]


def test_another_number_of_the_script_is_no_setting() -> None:
    text = RENDEZVOUS.format(
        torch=TORCH, code="int(name)", error="ValueError: invalid literal for int() with base 10: 'abc'"
    )
    assert verdict_of(read(text.replace(TORCH, "/home/ada")), catalogue()).outcome is RunOutcome.USER_ERROR


def test_torchrun_says_at_last_that_it_sees_no_gpu() -> None:
    found = verdict_of(read(GPU), catalogue())
    assert found.lead is not None
    assert found.lead.text == "ValueError: Cuda is not available."
    assert [(suspect.slug, suspect.sure) for suspect in found.suspects] == [("torch-cpu-only", False)]


def test_of_a_chain_the_exception_that_ended_it_is_shown_too() -> None:
    text = (
        GPU.replace(TORCH, "/home/ada")
        .replace("/opt/env/bin/torchrun", "/home/ada/train.py")
        .replace("Cuda", "Nothing")
    )
    (opinion,) = judge_log(read(text), catalogue()).opinions
    assert [one.text for one in opinion.finding.evidence][1:] == [
        "ValueError: invalid literal for int() with base 10: 'gpu'",
        "ValueError: Nothing is not available.",
    ]


@pytest.mark.parametrize(
    ("at", "summary"),
    [
        ("127.0.0.1, 0", "The ranks were to meet at 127.0.0.1:0, and nobody can listen at port 0"),
        ("127.0.0.1, 29558", "Nobody listens at 127.0.0.1:29558, which is each host itself"),
        ("10.0.0.7, 29558", "MASTER_ADDR leads nowhere from this host"),
    ],
)
def test_a_loopback_leads_somewhere_and_nobody_listens_there(at: str, summary: str) -> None:
    error = f"The client socket has timed out after 6000ms while trying to connect to ({at})."
    judgement = judge_log(
        read(
            f"[E1123 04:08:03.089029192 socket.cpp:1028] [c10d] {error}\ntorch.distributed.DistNetworkError: {error}\n"
        ),
        catalogue(),
    )
    assert judgement.opinions[0].finding.summary == summary


@pytest.mark.parametrize(("family", "sure"), [("IPv4", True), ("IPv6", False)])
def test_a_name_has_no_address_only_where_none_of_ipv4_was_found(family: str, sure: bool) -> None:
    place = "(head-0.sim, 29511)"
    judgement = judge_log(
        read(
            f"[W socket.cpp:601] [c10d] The {family} network addresses of {place} cannot be retrieved (gai error: -2 - Name or service not known).\n"
            f"[E socket.cpp:656] [c10d] The client socket has failed to connect to any network address of {place}.\n"
        ),
        catalogue(),
    )
    (first, *_) = judgement.opinions
    assert (first.suspect.slug, first.suspect.sure) == ("master-addr-unresolvable", sure)
