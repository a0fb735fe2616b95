"""The one builder of commands for netcheck."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.left_out import turned_away
from ddpdoctor.knowledge.meeting_words import another_port
from ddpdoctor.knowledge.netcheck_command import netcheck_command, waits_longer, with_token

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
    assert not any("on node 0, " in one for fix in finding.fixes for one in fix.commands)
