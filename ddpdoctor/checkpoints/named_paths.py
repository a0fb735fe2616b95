"""The paths that a user names: what each is, file or folder, and which files are meant where it is a folder or an index."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpdoctor.base.regular_files import read_start
from ddpdoctor.base.text import listed, plural
from ddpdoctor.checkpoints.kinds.file_head import Recognised, mode_of, recognised
from ddpdoctor.checkpoints.kinds.file_kinds import is_legacy, is_own, recognise_file, unreadable
from ddpdoctor.checkpoints.kinds.folder_kinds import KINDS_NAMED_AS_A_WHOLE, entries_of, special_folder
from ddpdoctor.checkpoints.kinds.framework_folders import framework_of_names
from ddpdoctor.checkpoints.shard_index import INDEX_ENDING, by_number, shards_of


def recognise(path: Path) -> Recognised:
    """Recognise a file or folder. Never raises. Reads a few kilobytes, and of a zip archive its directory."""
    if not stat.S_ISDIR(mode_of(path)):
        return recognise_file(path)
    try:
        entries = {name: is_folder for name, (is_folder, _) in entries_of(path).items()}
        return special_folder(path, entries) or _plain_folder(path, entries)
    except OSError as error:
        return unreadable(path, error, "folder")


def _plain_folder(path: Path, entries: dict[str, bool]) -> Recognised:
    found = expand([path])
    kind = "folder"
    if "config.json" in entries and any(_MODEL_FILES.match(name) for name in entries):
        kind = "hf-folder"
    elif any(_MEGATRON.match(name) for name in entries) or "latest_checkpointed_iteration.txt" in entries:
        kind = "megatron-folder"
    if found != (path,):
        return Recognised(kind=kind, called=f"{_called(entries, kind)} with {plural(len(found), 'checkpoint')} in it")
    if kind == "hf-folder" and any(".safetensors" in name for name in entries):
        return recognised("hf-folder")
    return recognised("folder", contents=_contents(entries)) if entries else recognised("folder/empty")


_MEGATRON = re.compile(r"mp_rank_\d+(?:_\d+)*\Z")
_MODEL_FILES = re.compile(r"(?:model|pytorch_model)(?:-\d+-of-\d+)?\.(?:safetensors|bin)(?:\.index\.json)?\Z")


def _called(entries: dict[str, bool], kind: str) -> str:
    if framework := framework_of_names(entries):
        ranks = sum(bool(re.match(r"(?:rng_state|random_states)_\d+\.p", name)) for name in entries)
        of_ranks = f" and {plural(ranks, 'rank')}" if ranks else ""
        return f"a checkpoint of {framework}{of_ranks},"
    return {"hf-folder": "a Hugging Face model", "megatron-folder": "a Megatron checkpoint"}.get(kind, "a folder")


def _contents(entries: dict[str, bool]) -> str:
    """ "2 folders, 14 .png and 3 .yaml"."""
    endings = Counter(
        "hidden" if name.startswith(".") else Path(name).suffix or "without an ending"
        for name, is_folder in entries.items()
        if not is_folder
    )
    folders = sum(entries.values())
    words = [plural(folders, "folder")] if folders else []
    words += [f"{count} {ending}" for ending, count in sorted(endings.items(), key=lambda item: (-item[1], item[0]))]
    return listed(words, 4)


def expand(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The files meant, in a stable order, each once.

    A file is itself, whatever it is. An index of shards is its shards, missing ones included, or itself if it can't be
    followed. A folder is the checkpoints in it and below, by their content, and whatever else has a checkpoint's name: a
    pointer, a broken download. Hidden files and folders in it (.NAME) are not meant, nor is what we leave beside checkpoints
    ourselves. A folder is itself if there is none in it; among the files, folders of distributed and DeepSpeed checkpoints,
    which are not touched, and folders that can't be read are themselves.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for meant in _meant(path):
            found.setdefault(_identity(meant), meant)
    return tuple(found.values())


def _identity(path: Path) -> str:
    """The same for all spellings of a path. A link isn't what it leads to."""
    return os.path.join(os.path.realpath(path.parent), path.name) if path.name else os.path.realpath(path)  # noqa: PTH118


def _meant(path: Path) -> Iterator[Path]:
    if stat.S_ISDIR(mode_of(path)):
        found = list(_within(path))
        yield from found or [path]
    elif path.name.endswith(INDEX_ENDING):
        yield from shards_of(path) or [path]
    else:
        yield path


def _within(folder: Path) -> Iterator[Path]:
    try:
        entries = entries_of(folder)
    except OSError:
        yield folder
        return
    special = special_folder(folder, {name: is_folder for name, (is_folder, _) in entries.items()})
    if special and special.kind in KINDS_NAMED_AS_A_WHOLE:
        yield folder
        if special.kind != "dcp-folder":
            return
    for name in sorted(entries, key=by_number):
        is_folder, is_link = entries[name]
        # Not the user's to change: git's folder, a half copied file of rsync's, and a hub's store, whose files are named by
        # checksum.
        if name.startswith(".") or (name == "blobs" and "snapshots" in entries):
            continue
        if not is_folder:
            yield from _wanted(folder / name)
        elif not is_link:
            yield from _within(folder / name)


_CHECKPOINT_NAMES = re.compile(
    r"\.(?:pt|pth|ckpt|safetensors|pth\.tar|pt\.tar)\Z"
    r"|(?:\A|[_-])(?:pytorch_model|adapter_model|training_args|optimizer|scheduler)[\w.-]*\.bin\Z"
    r"|\Arandom_states_\d+\.pkl\Z",
    re.IGNORECASE,
)
"""Of .bin and .pkl, which others use, those names that transformers, diffusers and Accelerate give."""

_INSTALLED = ("site-packages", "dist-packages")
"""Where Python looks for text files that end in .pth and say where else it is to look."""


def _wanted(path: Path) -> Iterator[Path]:
    """The file, if it is a checkpoint or has the name of one; the shards of an index."""
    if is_own(path.name):
        return
    if path.name.endswith(INDEX_ENDING):
        yield from shards_of(path)
        return
    has_name = _CHECKPOINT_NAMES.search(path.name) is not None
    if not has_name:
        # A few bytes say whether it is one: a folder may hold a data set of a million pictures.
        try:
            head = read_start(path, 64)
        except OSError:
            return
        if not head.startswith(b"PK\3\4") and not is_legacy(head):
            return
    found = recognise_file(path)
    if found.kind in ("zip", "legacy", "torchscript") or (has_name and _is_worth_naming(path, found)):
        yield path


def _is_worth_naming(path: Path, found: Recognised) -> bool:
    """Whether the user has to hear of a file with a checkpoint's name that is none that we rewrite.

    What has no pins and is what its name says needs no word.
    """
    if found.kind == "special" or (found.kind == "safetensors" and path.suffix == ".safetensors" and not found.problem):
        return False
    return not (found.kind in ("text", "empty") and path.suffix == ".pth" and path.parent.name in _INSTALLED)
