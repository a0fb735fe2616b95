"""Files of which every rank writes its own: how many there are, and which are missing."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ddpdoctor.checkpoints.kinds.file_head import mode_of
from ddpdoctor.facts.checkpoints import RankFiles

# As text and not compiled: few files are a rank's, and compiling takes as long as looking at a small checkpoint.
_ZERO_NAME = r"(?P<before>(?:bf16_)?zero_pp_rank_)(?P<rank>\d{1,5})(?P<middle>_mp_rank_)(?P<part>\d{1,4})(?P<after>_(?:optim|model)_states\.pt)\Z"
_RANKS_NAMES = (
    r"(?P<before>rng_state_)(?P<rank>\d{1,5})(?P<after>\.pth)\Z",
    r"(?P<before>random_states_)(?P<rank>\d{1,5})(?P<after>\.pkl)\Z",
    r"(?=.*\.(?:pt|pth|ckpt|bin|pkl|safetensors)\Z)(?P<before>(?:.*[^a-z])?(?<!mp_)rank[-_]?)(?P<rank>\d{1,5})(?P<after>(?:[^\d].*)?\.(?:pt|pth|ckpt|bin|pkl|safetensors))\Z",
)
"""Of transformers, of Accelerate, and of whoever puts the rank into the name."""
_WORLD_SIZE = r"world_?size_?(\d{1,5})(?!\d)"
"""Some put the number of ranks into the name, too."""


def rank_files(path: Path) -> tuple[RankFiles, ...]:
    """Count the per-rank files in a folder, or of a per-rank file, it and its brothers. None of a file of no rank's.

    Distributed checkpoints aren't among them: they load with any number of ranks, and their .metadata knows what is missing.
    """
    is_folder = stat.S_ISDIR(mode_of(path))
    folder = path if is_folder else path.parent
    wanted = "" if is_folder else _pattern(path.name)
    if not is_folder and not wanted:
        return ()
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return ()
    groups: dict[str, list[str]] = {}
    for name in names:
        if (pattern := _pattern(name)) and (is_folder or pattern == wanted):
            groups.setdefault(pattern, []).append(name)
    return tuple(filter(None, (_summary(pattern, groups[pattern]) for pattern in sorted(groups))))


def _pattern(name: str) -> str:
    if not any(word in name for word in ("rank", "rng_state_", "random_states_")):
        return ""
    if found := re.match(_ZERO_NAME, name):
        return f"{found['before']}*{found['middle']}*{found['after']}"
    for form in _RANKS_NAMES:
        if found := re.match(form, name):
            return f"{found['before']}*{found['after']}"
    return ""


def _summary(pattern: str, names: list[str]) -> RankFiles | None:
    ranks = _ranks(names)
    world = re.search(_WORLD_SIZE, pattern)
    size = max(max(ranks) + 1, int(world[1]) if world else 0)
    if all("_mp_rank_00_" in name for name in names):
        # Of a model in one part, as most are.
        pattern = pattern.replace("_mp_rank_*_", "_mp_rank_00_")
    is_of_ranks = world or re.match(_SURE_PATTERNS, pattern) or (0 in ranks and size > 1 and 2 * len(ranks) > size)
    if not is_of_ranks or size > _MAX_RANKS:
        return None
    return RankFiles(pattern=pattern, world_size=size, missing=tuple(sorted(set(range(size)) - ranks)))


_MAX_RANKS = 100_000
"""A name with a larger number means something else."""
_SURE_PATTERNS = r"rng_state_\*|random_states_\*|(?:bf16_)?zero_pp_rank_\*"
"""Sure to be of ranks. In other names "rank" may be a matrix's, as in lora_rank16.pt, and 0 to n must mostly be there."""


def _ranks(names: list[str]) -> set[int]:
    # ZeRO numbers the model's parts, too: with n of them, part p of data-parallel rank r is rank r * n + p.
    zero = [(int(found["rank"]), int(found["part"])) for name in names if (found := re.match(_ZERO_NAME, name))]
    if zero:
        parts = max(part for _, part in zero) + 1
        return {rank * parts + part for rank, part in zero}
    return {int(found["rank"]) for name in names for form in _RANKS_NAMES if (found := re.match(form, name))}
