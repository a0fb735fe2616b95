"""Small trainings on the CPU by the frameworks that most people use, started as their users start them.

Each script writes "ROLE-N.pid" and, once it has done a step, "ROLE-N.training" into the folder it was started in, as
`RunningJob` waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.running_jobs import RunningJob, _job, _settings

_MARKS = """
import gc, os, sys, time
from pathlib import Path

gc.disable()  # A sixth of the time that importing the framework takes.
import torch

RUN = sys.argv[1] if len(sys.argv) > 1 else "rank"
RANK = next((os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID") if name in os.environ), "")

def mark(word, rank):
    folder = Path(os.environ["RUNNING_JOB"])
    (folder / f".{RUN}-{rank}.{word}").write_text(str(os.getpid()))
    (folder / f".{RUN}-{rank}.{word}").rename(folder / f"{RUN}-{rank}.{word}")
"""

LIGHTNING = (
    _MARKS
    + """
mark("pid", os.environ.get("LOCAL_RANK", "0"))
import lightning
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        if number:
            mark("training", self.global_rank)
        time.sleep(0.05)
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=10**6, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.zeros(16, 4)), batch_size=4))
"""
)

ACCELERATE = (
    _MARKS
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
mark("pid", accelerator.process_index)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(10**6):
    accelerator.backward(model(torch.zeros(4, 4)).mean())
    optimizer.step()
    optimizer.zero_grad()
    mark("training", accelerator.process_index)
    time.sleep(0.05)
"""
)

TRAINER = (
    _MARKS
    + """
mark("pid", RANK)
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.layer(x).mean()}

class Steps(TrainerCallback):
    def on_step_end(self, arguments, state, control, **more):
        mark("training", RANK)
        time.sleep(0.05)
        if Path(os.environ["RUNNING_JOB"], "sleep").exists() and RANK == "1":
            mark("asleep", "1")
            time.sleep(1000)

arguments = TrainingArguments(
    output_dir=os.environ["RUNNING_JOB"], max_steps=10**6, save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True
)
data = [{"x": torch.zeros(4)}] * 64
Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Steps()]).train()
"""
)

BY_ARGUMENTS = (
    _MARKS
    + """
import torch.distributed

rank, port = int(os.environ["RANK"]), sys.argv[2]
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
torch.distributed.init_process_group("gloo")
mark("pid", rank)
for step in range(10**6):
    torch.distributed.all_reduce(torch.zeros(1))
    mark("training", rank)
    time.sleep(0.05)
"""
)
"""RANK and WORLD_SIZE come from the shell; where the ranks meet, the script says."""


OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
}
"""As root, and over the loopback alone."""


@contextmanager
def job_of(folder: Path, script: str, shell: str, settings: Mapping[str, str] | None = None) -> Iterator[RunningJob]:
    """What that shell script starts. $python is this Python, $bin where its commands are, train.py the script."""
    with _job(folder) as job:
        (job.folder / "train.py").write_text(script)
        own = {"python": sys.executable, "bin": str(Path(sys.executable).parent), **(settings or {})}
        job.start(["bash", "-c", shell], _settings(job, None, own, master=False))
        yield job


def pids_of(job: RunningJob, runs: Sequence[str], ranks: int = 2) -> list[list[int]]:
    """Of the ranks of each run, once they train."""
    for run in runs:
        for rank in range(ranks):
            job.wait_for(f"{run}-{rank}.training")
    return [[int(job.wait_for(f"{run}-{rank}.pid")) for rank in range(ranks)] for run in runs]
