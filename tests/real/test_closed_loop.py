"""The closed loop: a healthy shell, an illness, its name, the printed fix carried out word for word, and a training that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.support.closed_loop import ILLNESSES, Done, Illness, Shell

# Several trainings a test, on a machine that may run others beside it.
pytestmark = [
    pytest.mark.root,
    pytest.mark.tool("ip", "unshare", "nsenter", "setsid", "setpriv", "script", "pgrep"),
    pytest.mark.timeout(600),
]


def found(shell: Shell, illness: Illness) -> list[dict[str, Any]]:
    """What `check` finds of that slug; nothing must have kept it from judging."""
    ended = shell.do(f"ddpdoctor check --json --select {illness.slug} {illness.options}")
    assert ended.stdout, ended.stderr
    report = json.loads(ended.stdout)
    unjudged = [skipped["reason"] for skipped in report["not_tested"] if skipped["why"] != "not-applicable"]
    assert not unjudged, unjudged
    return [finding for finding in report["findings"] if finding["slug"] == illness.slug]


def smoke(shell: Shell) -> Done:
    return shell.do("ddpdoctor smoke --nproc 2 --json")


def matches(commands: list[str], pattern: str) -> bool:
    wanted = ".*".join(map(re.escape, pattern.split("...")))
    return re.fullmatch(wanted, "; ".join(commands), re.DOTALL) is not None


def each(*illnesses: Illness) -> list[ParameterSet]:
    """Parameters, of which those that are much like another run with -m thorough alone."""
    return [
        pytest.param(
            illness, id=illness.name.replace(" ", "-"), marks=[pytest.mark.thorough] if illness.thorough else []
        )
        for illness in illnesses
    ]


@pytest.mark.parametrize("illness", each(*ILLNESSES))
def test_found_fixed_and_proved(illness: Illness, tmp_path: Path) -> None:
    with illness.place(tmp_path) as shell:
        if illness.prepared:
            assert shell.do(illness.prepared).code == 0
        assert found(shell, illness) == []
        made = shell.do(illness.made)
        assert made.code == 0, made.stderr
        finding = found(shell, illness)[0]
        hurts(shell, illness)
        commands = finding["fixes"][illness.fix]["commands"]
        assert matches(commands, illness.carried_out), commands
        for command in commands:
            ended = shell.answered(command, illness.answer) if illness.answer else shell.do(command)
            assert ended.code == 0, f"{command}: {ended.stdout} {ended.stderr}"
        assert found(shell, illness) == []
        if illness.job:
            assert shell.do(illness.job).code == 0
        if illness.shown:
            said = said_of(shell, illness)
            assert illness.ill not in said
            assert illness.well in said
        trained = smoke(shell)
        assert trained.code == 0, trained.stdout[-4000:] + trained.stderr


def hurts(shell: Shell, illness: Illness) -> None:
    """What smoke, or a job, says while the illness is there."""
    says = illness.smoke_says or illness.job_says
    if says:
        ended = smoke(shell) if illness.smoke_says else shell.do(illness.job)
        assert ended.code != 0
        assert says in ended.stdout + ended.stderr
    if illness.shown:
        assert illness.ill in said_of(shell, illness)


def said_of(shell: Shell, illness: Illness) -> list[str]:
    ended = shell.do(illness.shown)
    assert ended.code == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.parametrize("illness", each(*(illness for illness in ILLNESSES if not illness.smoke_says)))
def test_smoke_passes_although_it_is_ill(illness: Illness, tmp_path: Path) -> None:
    """As the README says: smoke's own training needs nothing of what is broken."""
    with illness.place(tmp_path) as shell:
        shell.do(illness.prepared or "true")
        assert shell.do(illness.made).code == 0
        assert smoke(shell).code == 0
