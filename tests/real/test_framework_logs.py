"""What is advised for logs of real trainings by the frameworks: each thing as that framework spells it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ddpdoctor.facts.log import Log, LogFrame, LoggedException, LogLine
from ddpdoctor.knowledge.frameworks import ACCELERATE, FIND_UNUSED, framework_of
from tests.support.command import ddpdoctor, plain_environ

TRAINER = """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.used(x).mean()}

arguments = TrainingArguments(
    output_dir="out", max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
    ddp_find_unused_parameters=False,
)
Trainer(model=Model(), args=arguments, train_dataset=[{"x": torch.zeros(4)} for _ in range(64)]).train()
"""


def test_unused_parameters_as_transformers_trainer_spells_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, env=plain_environ(), timeout=110)
    assert done.returncode != 0
    log = tmp_path / "log.txt"
    log.write_text(done.stdout + done.stderr)
    told = json.loads(ddpdoctor("diagnose-log", "--json", str(log), environ=plain_environ()).stdout)
    (finding,) = [finding for finding in told["findings"] if finding["slug"] == "unused-parameters"]
    assert any("TrainingArguments(ddp_find_unused_parameters=True)" in fix["text"] for fix in finding["fixes"]), (
        finding["fixes"]
    )


def test_accelerates_own_spelling_where_its_launcher_or_its_calls_are_in_the_log() -> None:
    for path, framework in (
        ("/opt/env/lib/python3.11/site-packages/accelerate/commands/launch.py", ACCELERATE),
        ("/opt/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", ""),
    ):
        line = LogLine(file=0, number=1, text="RuntimeError: x")
        raised = LoggedException(
            exception="RuntimeError", message="x", line=line, began=line, frames=(LogFrame(path, 1, "main"),)
        )
        assert framework_of(Log(raised=(raised,))) == framework
    assert "kwargs_handlers" in FIND_UNUSED[ACCELERATE]
