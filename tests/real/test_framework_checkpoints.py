"""Checkpoints that the frameworks write from GPUs which aren't there: they are resumed, and so no `check` fails them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ddpdoctor.checkpoints.kinds.framework_folders import framework_folders
from tests.support.checkpoints import on, tagged
from tests.support.command import ddpdoctor, plain_environ


def findings(path: Path) -> dict[str, dict[str, Any]]:
    """What is said of the checkpoints there, by slug; nothing that fails."""
    done = ddpdoctor("check", "--json", "--select", "checkpoint", "--checkpoint", str(path), environ=plain_environ())
    found = {finding["slug"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0, found
    return found


def take_to_the_cpu(path: Path) -> None:
    """Random numbers are there, whatever the model is on."""
    torch.save(torch.load(path, map_location="cpu", weights_only=False), path)


def a_model() -> torch.nn.Linear:
    return torch.nn.Linear(4, 1)


def test_accelerates_state_is_resumed_on_a_host_without_that_gpu(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = a_model()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    accelerator.backward(model(torch.zeros(2, 4)).mean())
    optimizer.step()
    folder = tmp_path / "state"
    with tagged(on("cuda:9")):
        accelerator.save_state(str(folder), safe_serialization=False)
    take_to_the_cpu(folder / "random_states_0.pkl")
    found = findings(folder)
    assert found["ckpt-device-pin"]["severity"] == "warn"
    assert "accelerate" in found["ckpt-device-pin"]["cause"]
    assert "ckpt-weights-only" not in found, "its random numbers are loaded with what they need"
    accelerator.load_state(str(folder))


def test_lightnings_checkpoint_is_resumed_on_a_host_without_that_gpu(tmp_path: Path) -> None:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = a_model()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    def trainer(epochs: int) -> Any:
        return lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip

    data = DataLoader(TensorDataset(torch.zeros(4, 4)))
    first = trainer(1)
    first.fit(Model(), data)
    path = tmp_path / "epoch=0-step=4.ckpt"
    with tagged(on("cuda:9")):
        first.save_checkpoint(path)
    found = findings(path)
    assert found["ckpt-device-pin"]["severity"] == "warn"
    assert "Lightning" in found["ckpt-device-pin"]["cause"]
    assert "begin with layer." in found["ckpt-module-prefix"]["summary"]
    assert found["ckpt-module-prefix"]["severity"] == "info"
    (strip,) = found["ckpt-module-prefix"]["fixes"][0]["commands"]
    assert "--strip-prefix layer." in strip
    trainer(2).fit(Model(), data, ckpt_path=path)


def test_transformers_trainer_is_resumed_whatever_its_files_hold(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = a_model()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).mean()}

    def trainer(steps: int) -> Any:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=steps, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True
        )
        return Trainer(model=Model(), args=arguments, train_dataset=[{"x": torch.zeros(4)} for _ in range(32)])

    with tagged(on("cuda:9")):
        trainer(2).train()
    folder = tmp_path / "checkpoint-2"
    take_to_the_cpu(folder / "rng_state.pth")
    called = "a checkpoint of transformers' Trainer, step 2, written by 1 rank; it holds model, optimizer, scheduler, random numbers"
    for path in (folder, tmp_path):
        (told,) = framework_folders([path])
        assert (told.path, told.step, told.world_size) == (str(folder), 2, 1)
        assert told.called.startswith(called)
        for command in (["check", "--select", "checkpoint", "--checkpoint"], ["fix-checkpoint", "--dry-run"]):
            done = ddpdoctor(*command, str(path), environ={**plain_environ(), "COLUMNS": "1000"})
            assert f"{folder}: {called}" in " ".join(done.stdout.split()), done.stdout
    found = findings(folder)
    assert found["ckpt-device-pin"]["severity"] == "warn"
    assert "transformers' Trainer" in found["ckpt-device-pin"]["cause"]
    assert "ckpt-weights-only" not in found, "nobody loads training_args.bin, and random numbers are let pass"
    trainer(4).train(resume_from_checkpoint=str(folder))
