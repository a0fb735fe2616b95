"""What is advised for logs of real trainings by the frameworks: each thing as that framework spells it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT, ddpdoctor, plain_environ

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


LAUNCHER_OF_ACCELERATE = """Traceback (most recent call last):
  File "/opt/env/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/opt/env/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1189, in launch_command
    multi_gpu_launcher(args)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train_multitask.py FAILED
"""
"""What stands below the ranks' tracebacks where accelerate has started them."""


def test_unused_parameters_as_accelerate_spells_it_where_its_launcher_is_in_the_log(tmp_path: Path) -> None:
    recorded = (ROOT / "fixtures" / "logs" / "unused-parameters" / "sick-second-head.log").read_text()
    for text, spelling in (
        (recorded + LAUNCHER_OF_ACCELERATE, "DistributedDataParallelKwargs(find_unused_parameters=True)"),
        (recorded, "DDP(model, find_unused_parameters=True)"),
    ):
        (log := tmp_path / "log.txt").write_text(text)
        told = json.loads(ddpdoctor("diagnose-log", "--json", str(log), environ=plain_environ()).stdout)
        (finding,) = [finding for finding in told["findings"] if finding["slug"] == "unused-parameters"]
        assert any(spelling in fix["text"] for fix in finding["fixes"]), finding["fixes"]
