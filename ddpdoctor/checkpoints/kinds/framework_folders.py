"""Telling by names which framework's checkpoint a file or folder is: who loads a file when a training is resumed; of which step
and how many ranks a folder is, and what lies in it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from ddpdoctor.base.regular_files import read_start
from ddpdoctor.checkpoints.kinds.file_head import mode_of
from ddpdoctor.checkpoints.rank_files import rank_files
from ddpdoctor.facts.checkpoints import CheckpointFolder

TRAINER = "transformers' Trainer"
ACCELERATE = "accelerate"
LIGHTNING = "Lightning"
HUGGING_FACE = "Hugging Face"
NOBODY = "nobody"

# As text and not compiled: compiling takes as long as looking at a small checkpoint.
_OF_TRAINER = r"(?:optimizer|scheduler|scaler)\.pt\Z|rng_state(?:_\d+)?\.pth\Z|pytorch_model(?:-\d+-of-\d+)?\.bin\Z"
_OF_ACCELERATE = r"(?:optimizer|scheduler|sampler|pytorch_model)(?:_\d+)?\.bin\Z|scaler\.pt\Z|random_states_\d+\.pkl\Z"


def loader_of(path: Path, keys: Collection[str] = ()) -> str:
    """Name the framework that loads the file at a resume; "nobody" for a file that is only kept, "" where nothing tells.

    keys: those of the dict that the file holds.
    """
    if "pytorch-lightning_version" in keys:
        return LIGHTNING
    if path.name == "training_args.bin":
        return NOBODY
    for framework, own_names in ((TRAINER, _OF_TRAINER), (ACCELERATE, _OF_ACCELERATE)):
        if re.match(own_names, path.name) and framework_of_names(_names(path.parent)) == framework:
            return framework
    return ""


def framework_of_names(names: Collection[str]) -> str:
    """Name the framework whose checkpoint a folder with these names is; "" for another."""
    if "trainer_state.json" in names:
        return TRAINER
    if "random_states_0.pkl" in names:
        return ACCELERATE
    # Of its strategies that write a share a rank.
    return LIGHTNING if {"meta.pt", ".metadata"} <= set(names) else ""


MAX_STATE_BYTES = 1 << 26
MAX_CHECKPOINTS = 200
"""In one folder, of which each is looked into."""

_PARTS = (
    ("model and optimizer in shares", r"__\d+_\d+\.distcp\Z"),
    ("model", r"(?:model|pytorch_model|adapter_model)(?:[_-][\w-]*)?(?:\.safetensors|\.bin)?(?:\.index\.json)?\Z"),
    ("optimizer", r"optimizer(?:_\d+)?(?:\.pt|\.bin)?\Z"),
    ("scheduler", r"scheduler(?:_\d+)?\.(?:pt|bin)\Z"),
    ("gradient scaler", r"scaler\.pt\Z"),
    ("random numbers", r"rng_state(?:_\d+)?\.pth\Z|random_states_\d+\.pkl\Z"),
    ("settings of the training", r"training_args\.bin\Z"),
)
"""What these files and folders hold. As text and not compiled, like the names above."""


class _State(msgspec.Struct):
    global_step: int | None = None


def framework_folders(paths: Iterable[Path]) -> tuple[CheckpointFolder, ...]:
    """Describe each of these that is a framework's checkpoint, or holds such folders, as the output folder of a training does."""
    found: list[CheckpointFolder] = []
    for path in paths:
        folders = [path, *sorted(_below(path), key=_step_of_name)]
        found += [described for folder in folders if (described := _describe(folder, _names(folder)))]
    return tuple(found)


def _below(path: Path) -> Iterator[Path]:
    names = _names(path)
    if not framework_of_names(names):
        numbered = sorted(name for name in names if re.search(r"checkpoint[-_]\d+\Z", name))
        yield from (path / name for name in numbered[:MAX_CHECKPOINTS])


def _names(folder: Path) -> Collection[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return ()


def _describe(folder: Path, names: Collection[str]) -> CheckpointFolder | None:
    holds = tuple(part for part, pattern in _PARTS if any(re.match(pattern, name) for name in names))
    framework = framework_of_names(names) or (HUGGING_FACE if "config.json" in names and "model" in holds else "")
    if not framework:
        return None
    worlds = [
        rank_file.world_size
        for rank_file in rank_files(folder)
        if rank_file.pattern.startswith(("rng_state", "random_states"))
    ]
    worlds += [int(found[1]) + 1 for name in names if (found := re.match(r"__(\d{1,6})_\d+\.distcp\Z", name))]
    single = 1 if "rng_state.pth" in names else None
    return CheckpointFolder(
        path=str(folder),
        framework=framework,
        step=_step(folder, names),
        world_size=max(worlds, default=single),
        holds=holds,
    )


def _step(folder: Path, names: Collection[str]) -> int | None:
    """The step that the Trainer wrote; where there is none, the one in the folder's name, as it and Lightning give it."""
    state = folder / "trainer_state.json"
    if "trainer_state.json" in names and mode_of(state):
        try:
            step = msgspec.json.decode(read_start(state, MAX_STATE_BYTES), type=_State).global_step
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            step = None
        if step is not None:
            return step
    found = re.search(r"checkpoint-(\d{1,15})\Z|step=(\d{1,15})", folder.name)
    return int(found[1] or found[2]) if found else None


def _step_of_name(folder: Path) -> int:
    found = re.search(r"(\d{1,15})\Z", folder.name)
    return int(found[1]) if found else -1
