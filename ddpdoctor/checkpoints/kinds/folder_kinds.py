"""What a folder is: by the names in it, which for these layouts are fixed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddpdoctor.base.text import plural
from ddpdoctor.checkpoints.kinds.dcp import is_dcp, recognise_dcp
from ddpdoctor.checkpoints.kinds.recognised import Recognised, mode_of
from ddpdoctor.facts.remedies import remedy

LEFT_ALONE = frozenset({"dcp-folder", "deepspeed-states", "tensorflow", "jax", "unpacked-zip"})
"""Kinds of folders that are named as a whole, and whose files are not looked for."""

DEEPSPEED_STATES = re.compile(r"(?:.*_)?mp_rank_\d+(?:_model_states|_optim_states)\.pt\Z|zero_pp_rank_.*_states\.pt\Z")


def special_folder(path: Path, entries: dict[str, bool]) -> Recognised | None:
    """None for a plain one. entries: the names in it, and whether each is a folder."""
    files = {name for name, is_folder in entries.items() if not is_folder}
    if is_dcp(files):
        return recognise_dcp(path, files)
    if any(DEEPSPEED_STATES.match(name) for name in files):
        return _deepspeed_states(path, files)
    if "latest" in files and "zero_to_fp32.py" in files:
        return _deepspeed(path)
    if {"data.pkl", "version"} <= files:
        return _unpacked(path)
    if "saved_model.pb" in files:
        return Recognised(
            kind="tensorflow",
            called="a TensorFlow SavedModel",
            problem="A TensorFlow SavedModel, not a checkpoint of torch",
            advice="Load it with tf.saved_model.load; it holds no device",
        )
    if "manifest.ocdbt" in files or {"_CHECKPOINT_METADATA"} & files:
        return Recognised(
            kind="jax",
            called="a JAX checkpoint (Orbax)",
            problem="A JAX checkpoint (Orbax), not one of torch",
            advice="Load it with Orbax",
        )
    return None


def _deepspeed_states(path: Path, files: set[str]) -> Recognised:
    top = path.absolute().parent
    script = top / "zero_to_fp32.py"
    remedies = (remedy("zero-to-fp32-tag", top, path.absolute().name),) if mode_of(script) else ()
    states = plural(sum(bool(DEEPSPEED_STATES.match(name)) for name in files), "file")
    return Recognised(
        kind="deepspeed-states",
        called=f"a DeepSpeed checkpoint of {states}",
        advice=_DEEPSPEED,
        remedies=remedies,
    )


_DEEPSPEED = (
    "Load it with DeepSpeed, which maps the devices itself; to fix one of its files for torch.load, name that file. "
    "zero_to_fp32.py makes the whole model's weights of it"
)


def _deepspeed(path: Path) -> Recognised:
    return Recognised(
        kind="deepspeed-folder",
        called="a folder of DeepSpeed checkpoints",
        advice=_DEEPSPEED,
        remedies=(remedy("zero-to-fp32", path),),
    )


def _unpacked(path: Path) -> Recognised:
    absolute = path.absolute()
    return Recognised(
        kind="unpacked-zip",
        called="a PyTorch checkpoint that was unpacked",
        problem="The contents of a PyTorch checkpoint that was unpacked as a zip archive: torch.load wants the archive",
        advice="Take the original file if there still is one; else zip the folder again, without compressing it",
        remedies=(remedy("zip", absolute.parent, f"{absolute.name}.pt", absolute.name),),
    )


def entries_of(path: Path) -> dict[str, tuple[bool, bool]]:
    """The names in a folder: whether each is one itself, and whether it is a link. Raises OSError."""
    with os.scandir(path) as entries:
        return {entry.name: (_is_folder(entry), entry.is_symlink()) for entry in entries}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads round in a circle, or where this user may not go.
        return False
