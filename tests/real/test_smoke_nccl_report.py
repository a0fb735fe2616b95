"""A real training whose rank 0 prints what NCCL's own diagnosis does: a stand-in, made by hand, since there is no GPU here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import ROOT, ddpdoctor
from tests.support.report_schema import check_against_schema

STAND_IN = '''
import os

def report(device):
    """As NCCL does it: from another thread, to the process's own standard output, a while after the communicator is made."""
    text = open(os.environ["DDPDOCTOR_TEST_REPORT"], "rb").read()
    if os.environ["RANK"] == "0":
        os.write(1, text[:300])
        os.write(1, text[300:])
'''


@pytest.mark.slow
def test_what_nccl_prints_of_the_ranks_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "stands_in_for_nccl.py").write_text(STAND_IN)
    log = ROOT / "fixtures" / "logs" / "nccl-ranks-differ" / "sick-setting.log"
    fault = {"rank": 0, "stage": "barrier", "kind": "stands_in_for_nccl:report"}
    done = ddpdoctor(
        "smoke",
        "--stages",
        "barrier",
        "--json",
        environ={
            "PYTHONPATH": f"{ROOT}:{tmp_path}",
            "DDPDOCTOR_SMOKE_FAULT": json.dumps(fault),
            "DDPDOCTOR_TEST_REPORT": str(log),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    check_against_schema(told)
    assert told["verdict"] == "warn"
    [finding] = told["findings"]
    assert finding["slug"] == "nccl-ranks-differ"
    assert len(told["smoke"]["nccl_report"]) == 12
    assert told["smoke"]["backend"] == "gloo"
