"""Which files are meant where a folder or the index of a sharded model is named, and which of them came one from each rank."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpdoctor.base.regular_files import read_start
from ddpdoctor.checkpoints.index_files import INDEX_ENDING, by_number, shards_of
from ddpdoctor.checkpoints.kinds.own_files import is_own
from ddpdoctor.checkpoints.kinds.recognised import Recognised, mode_of


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
        for one in _meant(path):
            found.setdefault(_identity(one), one)
    return tuple(found.values())


def _identity(path: Path) -> str:
    """One for all spellings of a path. A link isn't what it leads to."""
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
    from ddpdoctor.checkpoints.kinds.folder_kinds import LEFT_ALONE, entries_of, special_folder

    try:
        entries = entries_of(folder)
    except OSError:
        yield folder
        return
    kind = special_folder(folder, {name: is_folder for name, (is_folder, _) in entries.items()})
    if kind and kind.kind in LEFT_ALONE:
        yield folder
        if kind.kind != "dcp-folder":
            return
    for name in sorted(entries, key=by_number):
        is_folder, is_link = entries[name]
        if _hidden(name, entries.keys()):
            continue
        if not is_folder:
            yield from _wanted(folder / name)
        elif not is_link:
            yield from _within(folder / name)


def _hidden(name: str, beside: Iterable[str]) -> bool:
    """What isn't the user's to change: git's folder, a half copied file of rsync's, and a hub's store, whose files are named
    by checksum."""
    return name.startswith(".") or (name == "blobs" and "snapshots" in beside)


_NAMES = re.compile(
    r"\.(?:pt|pth|ckpt|safetensors|pth\.tar|pt\.tar)\Z"
    r"|(?:\A|[_-])(?:pytorch_model|adapter_model|training_args|optimizer|scheduler)[\w.-]*\.bin\Z"
    r"|\Arandom_states_\d+\.pkl\Z",
    re.IGNORECASE,
)
"""A checkpoint's. Of .bin and .pkl, which others use, those names that transformers, diffusers and Accelerate give."""

_INSTALLED = ("site-packages", "dist-packages")
"""Where Python looks for text files that end in .pth and say where else it is to look."""


def _wanted(path: Path) -> Iterator[Path]:
    """The file, if it is a checkpoint or has the name of one; the shards of an index."""
    if is_own(path.name):
        return
    if path.name.endswith(INDEX_ENDING):
        yield from shards_of(path)
        return
    named = _NAMES.search(path.name) is not None
    if not named and not _begins_as_checkpoint(path):
        return
    from ddpdoctor.checkpoints.kinds.recognition import recognise_file

    found = recognise_file(path)
    if found.kind in ("zip", "legacy", "torchscript") or (named and _is_named(path, found)):
        yield path


def _is_named(path: Path, found: Recognised) -> bool:
    """Whether the user has to hear of a file with a checkpoint's name that is none that we rewrite. What has no pins and is
    what its name says needs no word."""
    if found.kind == "special" or (found.kind == "safetensors" and path.suffix == ".safetensors" and not found.problem):
        return False
    return not (found.kind in ("text", "empty") and path.suffix == ".pth" and path.parent.name in _INSTALLED)


def _begins_as_checkpoint(path: Path) -> bool:
    """A look at a few bytes, since a folder may hold a data set of a million pictures."""
    from ddpdoctor.checkpoints.kinds.recognition import is_legacy

    try:
        head = read_start(path, 64)
    except OSError:
        return False
    return head.startswith(b"PK\3\4") or is_legacy(head)
