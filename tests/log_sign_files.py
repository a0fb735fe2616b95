"""The log signs of all checks, out of the files that people write (checks/**/*.signs.toml): what checks/log_signs.json is to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.base.sign_files import SignFileError, make_signs, parse_sign_tables, read_tables
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.knowledge import xids
from ddpdoctor.logs.exceptions import OF_ERRORS_MODULES
from ddpdoctor.logs.parse.error_words import NO_FIGURE
from ddpdoctor.logs.parse.exits import PARTS
from tests.support import cuda_oom
from tests.support.cuda_errors import CUDA_SAYS
from tests.support.number_patterns import more_behind

CHECKS: Final = Path(__file__).parent.parent / "checks"
SHARED: Final = CHECKS / "shared.signs.toml"
COMPILED: Final = CHECKS / "log_signs.json"
WORDS: Final = Path(__file__).parent.parent / "ddpdoctor" / "logs" / "parse"
"""Where files of that kind say what launchers and errors read like, whatever the illness."""

_JOINED: Final = ", (?:worker_count|num_workers_joined)="
COMPUTED_PARTS: Final = {
    **{
        name: "|".join(map(str, getattr(xids, name)))
        for name in ("BUS_XIDS", "ECC_XIDS", "NVLINK_XIDS", "FAULTS", "PROGRAMS", "FOLLOWING")
    },
    **{name: getattr(cuda_oom, name) for name in ("SURELY_BY_OTHERS", "OWN_DOING", "BY_NOBODY")},
    "CUDA_SAYS": CUDA_SAYS,
    "MORE_JOINED": more_behind(_JOINED),
    "MORE_JOINED_AS_GROUP_3": more_behind(_JOINED, group=3),
}
"""Parts of patterns that no hand would write: lists of the Xids of a table, shares of a GPU's memory, the comparison of two numbers,
and the frames of CUDA's words."""


def read_all(folder: Path = CHECKS) -> dict[str, tuple[LogSign, ...]]:
    """The log signs of all files of a folder, by slug.

    Raises:
        SignFileError: a file can't be read, or a slug has signs in two.
    """
    shared_file = folder / SHARED.name
    shared = parse_sign_tables(
        read_tables(shared_file.read_text(encoding="utf-8"), shared_file.name), shared_file.name, COMPUTED_PARTS
    )
    signs: dict[str, tuple[LogSign, ...]] = {}
    for path in sorted((*folder.glob("healthy_runs.signs.toml"), *folder.glob("*/*.signs.toml"))):
        name = path.relative_to(folder.parent).as_posix()
        found = make_signs(read_tables(path.read_text(encoding="utf-8"), name), name, shared, COMPUTED_PARTS)
        twice = sorted(signs.keys() & found.keys())
        if twice:
            raise SignFileError(f"{name}: {twice[0]} has signs in another file, too")
        signs.update(found)
    return signs


def use_files() -> None:
    """Have all checks take their log signs from the files as they are now, whatever was compiled of them; before anybody asks for any."""
    catalogue().read_signs = cache(read_all)


def compiled(signs: Mapping[str, Sequence[LogSign]]) -> str:
    """JSON with a sign a line, so that a change is a change of that line."""
    slugs = [
        f'"{slug}": [\n' + ",\n".join(msgspec.json.encode(sign).decode() for sign in signs[slug]) + "\n]"
        for slug in sorted(signs)
    ]
    return "{\n" + ",\n".join(slugs) + "\n}\n"


def compiled_words() -> dict[Path, str]:
    """Of each file of words the JSON that the program reads beside it, by its path."""
    parts = {**PARTS, "NO_FIGURE": NO_FIGURE, "OF_ERRORS_MODULES": OF_ERRORS_MODULES}
    return {
        path.with_name(path.name.replace(".signs.toml", ".json")): compiled(
            make_signs(read_tables(path.read_text(encoding="utf-8"), path.name), path.name, parts=parts)
        )
        for path in sorted(WORDS.glob("*.signs.toml"))
    }
