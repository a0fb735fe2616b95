"""The options of `fix-checkpoint` as one struct, or the sentence that says why they can't be meant so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.api.errors import UsageError
from ddpdoctor.checkpoints.pickles.editing import EditOptions

_DEVICE = re.compile(r"cpu|mps(:0)?|(cuda|xpu|npu|hpu|mtia)(:(0|[1-9]\d{0,3}))?")
"""Places that torch.load knows. It knows no cpu:0."""


def edit_options(
    paths: Sequence[str],
    *,
    to: str | None,
    prefixes: list[str] | None,
    keep: list[str] | None,
    drop: list[str] | None,
    params_only: bool,
    to_safetensors: bool,
    output: str | None,
    undo: bool,
) -> EditOptions:
    """Put the options for each file together.

    Raises:
        UsageError: they contradict each other, or one lacks what it needs; with the command to type instead.
    """
    if not all(paths):
        # Path("") is the current folder, and all in it would be changed.
        raise UsageError("a path is empty; is the variable in it set?")
    if "-" in paths:
        raise UsageError("standard input can't be fixed: a file is needed (one that is called so is ./-)")
    given = {
        "--output": output is not None,
        "--to": to is not None,
        "--strip-prefix": bool(prefixes),
        "--keep": bool(keep),
        "--drop": bool(drop),
        "--params-only": params_only,
        "--to-safetensors": to_safetensors,
    }
    named = [option for option, is_given in given.items() if is_given]
    if undo and named:
        raise UsageError(f"--undo only restores; it can't go with {' or '.join(named)}")
    for first, second, why in (
        ("--keep", "--drop", "what isn't kept is dropped"),
        ("--to-safetensors", "--to", "a safetensors file names no device"),
    ):
        if given[first] and given[second]:
            raise UsageError(f"{first} and {second} exclude each other: {why}")
    if output is not None and not output.strip():
        raise UsageError("--output is empty; is the variable in it set?")
    dropping = [option for option in ("--keep", "--drop", "--params-only", "--to-safetensors") if given[option]]
    if dropping and output is None:
        raise UsageError(
            f"{dropping[-1]} leaves something out, and what is left out can't be brought back, so it needs a new file",
            lacking=("-o", _new_name(paths, dropping[-1])),
        )
    return EditOptions(
        to=_device(to),
        strip_prefixes=tuple(map(_prefix, prefixes or ())),
        keep=_keys("--keep", keep),
        drop=_keys("--drop", drop),
        params_only=params_only,
        to_safetensors=to_safetensors,
    )


def _device(wanted: str | None) -> str:
    if wanted is None:
        return "cpu"
    if _DEVICE.fullmatch(wanted):
        return wanted
    if _DEVICE.fullmatch(wanted.lower()):
        raise UsageError(f"--to {wanted!r}: write it in lower case, --to {wanted.lower()}")
    kind = wanted.partition(":")[0].lower()
    if kind == "meta":
        raise UsageError("--to meta would lose every value: a tensor on meta has none")
    hint = (
        "torch.load knows no numbers for it; write --to cpu"
        if kind == "cpu"
        else "say cpu, cuda, cuda:0, mps, xpu:0 ..."
    )
    raise UsageError(f"--to {wanted!r} is no device that torch.load could restore tensors on; {hint}")


def _prefix(wanted: str) -> str:
    """Complete the prefix by its dot: `module` can only mean `module.`.

    Raises:
        UsageError: it is empty.
    """
    if not wanted.strip("."):
        raise UsageError("--strip-prefix is empty; is the variable in it set?")
    return wanted + "." if wanted[-1].isalnum() else wanted


def _keys(option: str, values: list[str] | None) -> tuple[str, ...]:
    """Take keys as they were typed: only who knows the file's keys can tell whether a comma is part of one.

    Raises:
        UsageError: one of them is empty.
    """
    if values and not all(value.strip(", ") for value in values):
        raise UsageError(f"{option} is empty; is the variable in it set?")
    return tuple(values or ())


def _new_name(paths: Sequence[str], option: str) -> str:
    """Propose a name for the output; of several files a folder."""
    if len(paths) > 1:
        return "fixed/"
    if option == "--to-safetensors":
        return _renamed(paths[0], ".safetensors")
    _, dot, ending = paths[0].rpartition("/")[2].rpartition(".")
    return _renamed(paths[0], f"-params{dot}{ending}" if option == "--params-only" else f"-small{dot}{ending}")


def _renamed(path: str, ending: str) -> str:
    folder, slash, name = path.rpartition("/")
    stem = name.rpartition(".")[0] or name
    return f"{folder}{slash}{stem}{ending}"
