"""What is advised for logs of real trainings by the frameworks: each thing as that framework spells it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.command import ROOT, ddpdoctor, plain_environ
from tests.support.framework_jobs import OPEN_MPI
from tests.support.free_ports import free_port

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


ACCELERATE = """
import torch
from accelerate import Accelerator

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.used(x).mean()

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(Model())
for step in range(3):
    accelerator.backward(model(torch.zeros(4, 4)))
"""


def advice_after(folder: Path, script: str, launch: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """What is advised for the log of that run, which fails for its unused parameters."""
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        launch, cwd=folder, capture_output=True, text=True, env=plain_environ() | (environ or {}), timeout=110
    )
    assert done.returncode != 0
    log = folder / "log.txt"
    log.write_text(done.stdout + done.stderr)
    told = json.loads(ddpdoctor("diagnose-log", "--json", str(log), environ=plain_environ()).stdout)
    (finding,) = [finding for finding in told["findings"] if finding["slug"] == "unused-parameters"]
    return " ".join(fix["text"] for fix in finding["fixes"])


def test_unused_parameters_as_transformers_trainer_spells_it(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    assert "TrainingArguments(ddp_find_unused_parameters=True)" in advice_after(tmp_path, TRAINER, launch)


@pytest.mark.tool("mpirun")
def test_unused_parameters_as_accelerate_spells_it_where_its_launcher_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    launch = [str(Path(sys.executable).parent / "accelerate"), "launch", "--cpu", "--num_processes=2"]
    launch += [f"--main_process_port={free_port()}", "--mpirun_hostfile=hosts", "train.py"]
    advice = advice_after(tmp_path, ACCELERATE, launch, OPEN_MPI)
    assert "DistributedDataParallelKwargs(find_unused_parameters=True)" in advice


def test_unused_parameters_as_torch_spells_it_where_no_framework_is_in_the_log() -> None:
    log = ROOT / "fixtures" / "logs" / "unused-parameters" / "sick-second-head.log"
    told = json.loads(ddpdoctor("diagnose-log", "--json", str(log), environ=plain_environ()).stdout)
    (finding,) = [finding for finding in told["findings"] if finding["slug"] == "unused-parameters"]
    assert any("DDP(model, find_unused_parameters=True)" in fix["text"] for fix in finding["fixes"])
