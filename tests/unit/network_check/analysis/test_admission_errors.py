"""The one builder of commands for netcheck."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.network.ports import port_in_use
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.network import Network
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.netcheck_command import netcheck_command, waits_longer, with_token
from ddpdoctor.network_check.analysis.admission_errors import token_of_a_visitor, turned_away, wrong_token
from ddpdoctor.network_check.analysis.way_to_master import another_port

PLAIN = Meeting(master="n0", port=29500, nnodes=2)
GIVEN = Meeting(
    master="n0",
    port=29600,
    nnodes=2,
    options=("--wait 300", "--quick", "--python /home/a b/bin/python", "--strict", "--evil x; reboot"),
    token=True,
)


def test_what_was_given_goes_into_every_command() -> None:
    assert netcheck_command(PLAIN, 2, 1) == "ddpdoctor netcheck --master-addr n0 --nnodes 2 --node-rank 1"
    assert netcheck_command(PLAIN, None, 1) == "ddpdoctor netcheck --master-addr n0"
    command = (
        "DDPDOCTOR_TOKEN=... ddpdoctor netcheck --master-addr n0 --master-port 29600 --nnodes 2 --node-rank 1 "
        "--wait 300 --quick --python '/home/a b/bin/python' --strict"
    )
    assert netcheck_command(GIVEN, 2, 1) == command
    assert with_token(command, "a b").startswith("DDPDOCTOR_TOKEN='a b' ddpdoctor")
    assert with_token(command, "") == command


def test_what_a_fix_adds_wins() -> None:
    command = netcheck_command(GIVEN, 2, 1, ("--python ddp-env/bin/python",), master="10.0.0.1", port=29700)
    assert "--python ddp-env/bin/python " in command
    assert "/home" not in command
    assert "--master-addr 10.0.0.1 --master-port 29700 " in command
    assert "--wait 600 " in waits_longer(GIVEN, 2, 0)
    assert waits_longer(PLAIN, 2, 0).endswith("--wait 300")


@pytest.mark.parametrize(("port", "other"), [(29500, 29600), (65500, 65400), (22, 29500)])
def test_another_port_for_the_job_and_for_netcheck(port: int, other: int) -> None:
    fix = another_port(Meeting(master="n0", port=port, nnodes=2, node_rank=1, options=("--quick",)))
    shown = "" if other == 29500 else f" --master-port {other}"
    assert fix.commands == (
        f"export MASTER_PORT={other}",
        f"ddpdoctor netcheck --master-addr n0{shown} --nnodes 2 --node-rank 1 --quick",
    )
    (_, alone) = another_port(Meeting(master="n0", port=port)).commands
    assert alone == f"ddpdoctor netcheck --master-addr n0{shown}"


@pytest.mark.parametrize(
    ("refusal", "words", "command"),
    [
        (
            "version",
            "ddpdoctor 1 here speaks protocol 1: /p/python -m pip install 'ddpdoctor==2'",
            "pip install 'ddpdoctor==2'",
        ),
        ("version", "speaks protocol 2: on node 0, pip install 'ddpdoctor==2'", "pip install 'ddpdoctor==2'"),
        ("closed", "the test began without this node: start it again", "--node-rank 0 --wait 300"),
        ("full", "all 2 nodes are here already", "--nnodes 3"),
        ("token", "node 0 wants a token: run what it prints", "DDPDOCTOR_TOKEN=... "),
        ("nnodes", "--nnodes is 2 here: it must be the same", "--nnodes 2 --node-rank 0"),
    ],
)
def test_whoever_is_turned_away_hears_what_to_type(refusal: str, words: str, command: str) -> None:
    finding = turned_away(Meeting(master="n0", port=29500, nnodes=2, node_rank=1, turned_away=words, refusal=refusal))
    assert finding.summary.startswith("Node 0 doesn't let this node in: ")
    assert any(command in one for one in finding.fixes[0].commands)
    assert not any("on node 0, " in command for fix in finding.fixes for command in fix.commands)


def other_token(*, wanted: bool, given: bool) -> Finding:
    return turned_away(
        Meeting(
            master="n0",
            port=29500,
            nnodes=2,
            node_rank=1,
            token=given,
            refusal="token",
            turned_away=f"node 0 says: {wrong_token(wanted=wanted, given=given)}",
        )
    )


@pytest.mark.parametrize("given", [True, False])
def test_of_two_tokens_it_is_node_0_s_that_the_other_takes(given: bool) -> None:
    """Were each told to take the other's, they would differ again."""
    (fix,) = other_token(wanted=True, given=given).fixes
    assert fix.commands == ("DDPDOCTOR_TOKEN=... ddpdoctor netcheck --master-addr n0 --nnodes 2 --node-rank 1",)


def test_where_node_0_has_no_token_the_variable_goes() -> None:
    (fix,) = other_token(wanted=False, given=True).fixes
    assert fix.commands == ("env -u DDPDOCTOR_TOKEN ddpdoctor netcheck --master-addr n0 --nnodes 2 --node-rank 1",)


@pytest.mark.parametrize(
    ("wanted", "given", "words"),
    [(True, True, "another token"), (True, False, "no token"), (False, True, "a token, and this run has none")],
)
def test_node_0_says_which_it_was(wanted: bool, given: bool, words: str) -> None:
    text = wrong_token(wanted=wanted, given=given)
    assert token_of_a_visitor([text, text]) == words
    assert token_of_a_visitor([text, "something else"]) == words
    assert token_of_a_visitor([wrong_token(wanted=True, given=one) for one in (True, False)]) == "another token or none"


@pytest.mark.parametrize(("port", "other"), [(18080, 18180), (80, 29500)])
@pytest.mark.parametrize("nnodes", [2, None])
def test_all_that_speak_of_a_taken_port_name_the_same_other_one(port: int, other: int, nnodes: int | None) -> None:
    meeting = Meeting(master="127.0.0.1", port=port, nnodes=nnodes, node_rank=0, hosts_the_store=True)
    network = Network(
        hostname="n0",
        fqdn="n0",
        own_name=Unknown("not asked"),
        wanted_ports=(port,),
        taken_ports=(port,) if port > 1023 else (),
        forbidden_ports=() if port > 1023 else (port,),
    )
    environment = Environment(settings=(Setting(name="MASTER_PORT", value=str(port), origin="environment"),))
    target_python = TargetPython(python="/usr/bin/python3", chosen_by="PATH")
    (finding,) = port_in_use(network, environment, target_python, meeting)
    assert finding.fixes[-1].commands == another_port(meeting).commands
    assert finding.fixes[-1].commands[0] == f"export MASTER_PORT={other}"
    assert finding.fixes[0].text.startswith("Let the job") == (port < 1024)
    # Without netcheck nobody else has to name the same.
    (plain,) = port_in_use(network, environment, target_python, Meeting())
    assert "getsockname" in plain.fixes[-1].commands[0]
