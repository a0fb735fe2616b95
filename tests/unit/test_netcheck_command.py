"""The one builder of commands for netcheck."""

from __future__ import annotations

from ddpdoctor.facts.meeting import Meeting
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
