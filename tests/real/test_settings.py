"""The target Python's real torch agrees with the table about the values that it rejects."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ddpdoctor.knowledge.known_settings import known_settings

ASK = """
import json, os, sys
import torch.distributed as dist
from torch.distributed.rendezvous import _torchelastic_use_agent_store
answers = {}
for value in json.loads(sys.argv[1]):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = value
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = value
    try:
        dist.set_debug_level_from_env()
        taken = True
    except ValueError:
        taken = False
    answers[value] = [taken, _torchelastic_use_agent_store()]
print(json.dumps(answers))
"""
VALUES = ["OFF", "info", "Detail", "", "1", "DEBUG", " INFO", "True", "true"]


@pytest.mark.slow
def test_torch_agrees() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK, json.dumps(VALUES)], capture_output=True, text=True, timeout=110
    )
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    debug = known_settings()["TORCH_DISTRIBUTED_DEBUG"]
    for value, (taken, agent_store) in answers.items():
        assert (debug.complaint(value) == "") == taken, value
        assert agent_store == (value == "True"), value
