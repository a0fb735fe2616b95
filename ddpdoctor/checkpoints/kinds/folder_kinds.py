"""What a folder is: by the names in it, which for these layouts are fixed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddpdoctor.base.wording import listed, plural
from ddpdoctor.checkpoints.kinds.dcp import is_dcp, recognise_dcp
from ddpdoctor.checkpoints.kinds.recognised import Recognised, mode_of
from ddpdoctor.checkpoints.loaders import of_names
from ddpdoctor.facts.remedies import remedy

LEFT_ALONE = frozenset({"dcp-folder", "deepspeed-states", "tensorflow", "jax", "unpacked-zip"})
"""Kinds of folders that are named as a whole, and whose files are not looked for."""

DEEPSPEED_STATES = re.compile(r"(?:.*_)?mp_rank_\d+(?:_model_states|_optim_states)\.pt\Z|zero_pp_rank_.*_states\.pt\Z")
_MEGATRON = re.compile(r"mp_rank_\d+(?:_\d+)*\Z")
_MODEL_FILES = re.compile(r"(?:model|pytorch_model)(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?\Z")


def recognise_folder(path: Path) -> Recognised:
    """Raises OSError if it can't be listed."""
    entries = {name: is_folder for name, (is_folder, _) in entries_of(path).items()}
    return special_folder(path, entries) or _plain(path, entries)


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


def _plain(path: Path, entries: dict[str, bool]) -> Recognised:
    from ddpdoctor.checkpoints.folders import expand

    found = expand([path])
    if found == (path,) and _layout(entries) == "hf-folder" and any(".safetensors" in name for name in entries):
        return Recognised(
            kind="hf-folder",
            called="a Hugging Face model in safetensors files",
            advice="safetensors hold no device, so there is nothing to fix",
        )
    if found != (path,):
        return Recognised(
            kind=_layout(entries), called=f"{_called(entries)} with {plural(len(found), 'checkpoint')} in it"
        )
    return Recognised(
        kind="folder",
        called="a folder",
        problem=f"A folder without a checkpoint in it: {_contents(entries)}" if entries else "An empty folder",
    )


def _layout(entries: dict[str, bool]) -> str:
    if "config.json" in entries and any(_MODEL_FILES.match(name) for name in entries):
        return "hf-folder"
    if any(_MEGATRON.match(name) for name in entries) or "latest_checkpointed_iteration.txt" in entries:
        return "megatron-folder"
    return "folder"


def _called(entries: dict[str, bool]) -> str:
    if framework := of_names(entries):
        ranks = sum(bool(re.match(r"(?:rng_state|random_states)_\d+\.p", name)) for name in entries)
        of_ranks = f" and {plural(ranks, 'rank')}" if ranks else ""
        return f"a checkpoint of {framework}{of_ranks},"
    return {"hf-folder": "a Hugging Face model", "megatron-folder": "a Megatron checkpoint"}.get(
        _layout(entries), "a folder"
    )


def _contents(entries: dict[str, bool]) -> str:
    """ "2 folders, 14 .png and 3 .yaml"."""
    endings: dict[str, int] = {}
    for name, is_folder in entries.items():
        ending = "" if is_folder else "hidden" if name.startswith(".") else Path(name).suffix or "without an ending"
        endings[ending] = endings.get(ending, 0) + 1
    words = [plural(endings.pop(""), "folder")] if "" in endings else []
    words += [f"{count} {ending}" for ending, count in sorted(endings.items(), key=lambda one: (-one[1], one[0]))]
    return listed(words, 4)


def entries_of(path: Path) -> dict[str, tuple[bool, bool]]:
    """The names in a folder: whether each is one itself, and whether it is a link. Raises OSError."""
    with os.scandir(path) as entries:
        return {entry.name: (_is_folder(entry), entry.is_symlink()) for entry in entries}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads round in a circle, or where this user may not go.
        return False
