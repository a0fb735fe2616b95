"""A framework's checkpoint folder is called by its name, whatever state it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.checkpoints.kinds.framework_folders import framework_folders


def folder(path: Path, *names: str, state: str | None = None) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    return path


@pytest.mark.parametrize(
    ("state", "step"),
    [
        ('{"global_step": 480, "epoch": 1.5}', 480),
        ("{", 500),
        ('{"global_step": "x"}', 500),
        ("[" * 10_000, 500),
        ("", 500),
    ],
)
def test_the_step_is_the_trainers_word_or_the_folders_name(tmp_path: Path, state: str, step: int) -> None:
    path = folder(tmp_path / "checkpoint-500", "model.safetensors", "rng_state_0.pth", "rng_state_1.pth", state=state)
    (told,) = framework_folders([path])
    assert told.called == (
        f"a checkpoint of transformers' Trainer, step {step}, written by 2 ranks; it holds model and random numbers"
    )


def test_the_checkpoints_of_an_output_folder_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (500, 1000, 90):
        folder(tmp_path / f"checkpoint-{step}", "optimizer.pt", state=f'{{"global_step": {step}}}')
    assert [told.step for told in framework_folders([tmp_path])] == [90, 500, 1000]


def test_a_checkpoint_of_lightnings_in_shares_and_a_model_of_hugging_face(tmp_path: Path) -> None:
    shares = [f"__{rank}_0.distcp" for rank in range(4)]
    lightning = folder(tmp_path / "epoch=1-step=480.ckpt", "meta.pt", ".metadata", *shares)
    model = folder(tmp_path / "llama", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    assert [described.called for described in framework_folders([lightning, model])] == [
        "a checkpoint of Lightning, step 480, written by 4 ranks; it holds model and optimizer in shares",
        "a checkpoint of Hugging Face; it holds model",
    ]


def test_a_state_of_accelerates_and_no_other_folder(tmp_path: Path) -> None:
    ranks = [f"random_states_{rank}.pkl" for rank in range(4)]
    (told,) = framework_folders([folder(tmp_path / "state", "model.safetensors", "optimizer.bin", *ranks)])
    assert told.called == "a checkpoint of accelerate, written by 4 ranks; it holds model, optimizer and random numbers"
    assert (
        framework_folders(
            [folder(tmp_path / "plain", "a.pt"), tmp_path / "nothing", tmp_path / "state" / "optimizer.bin"]
        )
        == ()
    )
