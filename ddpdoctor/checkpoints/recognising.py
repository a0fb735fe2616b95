"""What a path is, be it a file or a folder."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from ddpdoctor.base.text import listed, plural
from ddpdoctor.checkpoints.folders import expand
from ddpdoctor.checkpoints.kinds.folder_kinds import entries_of, special_folder
from ddpdoctor.checkpoints.kinds.recognised import Recognised, mode_of
from ddpdoctor.checkpoints.kinds.recognition import recognise_file, unreadable
from ddpdoctor.checkpoints.loaders import of_names


def recognise_folder(path: Path) -> Recognised:
    """Raises OSError if it can't be listed."""
    entries = {name: is_folder for name, (is_folder, _) in entries_of(path).items()}
    return special_folder(path, entries) or _plain(path, entries)


def _plain(path: Path, entries: dict[str, bool]) -> Recognised:
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


def recognise(path: Path) -> Recognised:
    """Never raises. Reads a few kilobytes, and of a zip archive its directory."""
    if not stat.S_ISDIR(mode_of(path)):
        return recognise_file(path)

    try:
        return recognise_folder(path)
    except OSError as error:
        return unreadable(path, error, "folder")


_MEGATRON = re.compile(r"mp_rank_\d+(?:_\d+)*\Z")


_MODEL_FILES = re.compile(r"(?:model|pytorch_model)(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?\Z")
