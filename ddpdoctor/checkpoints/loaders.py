"""Who loads a file when a training is resumed: by the names that the frameworks give their files, and what lies beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

TRAINER = "transformers' Trainer"
ACCELERATE = "accelerate"
LIGHTNING = "Lightning"
NOBODY = "nobody"

# As text and not compiled: compiling takes as long as looking at a small checkpoint.
_OF_TRAINER = r"(?:optimizer|scheduler|scaler)\.pt\Z|rng_state(?:_\d+)?\.pth\Z|pytorch_model(?:-\d+-of-\d+)?\.bin\Z"
_OF_ACCELERATE = r"(?:optimizer|scheduler|sampler|pytorch_model)(?:_\d+)?\.bin\Z|scaler\.pt\Z|random_states_\d+\.pkl\Z"


def loader_of(path: Path, keys: Collection[str] = ()) -> str:
    """Name the framework that loads the file at a resume; "nobody" for a file that is only kept, "" where nothing tells.

    Args:
        keys: those of the dict that the file holds.
    """
    if "pytorch-lightning_version" in keys:
        return LIGHTNING
    if path.name == "training_args.bin":
        return NOBODY
    for framework, own_names in ((TRAINER, _OF_TRAINER), (ACCELERATE, _OF_ACCELERATE)):
        if re.match(own_names, path.name) and of_folder(path.parent) == framework:
            return framework
    return ""


def of_folder(folder: Path) -> str:
    """Name the framework whose checkpoint a folder is; "" for another."""
    try:
        return of_names(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return ""


def of_names(names: Collection[str]) -> str:
    """Name the framework whose checkpoint a folder with these names is; "" for another."""
    if "trainer_state.json" in names:
        return TRAINER
    return ACCELERATE if "random_states_0.pkl" in names else ""
