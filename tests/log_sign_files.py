"""The log signs of all checks, what exceptions mean, and what releases of packages changed, out of the files that people write
(checks/**/*.signs.toml, *.meanings.toml, *.changes.toml): what the JSON is to say that the program reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.base.sign_files import SignFileError, make_row, make_rows, make_signs, parse_sign_tables, read_tables
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.checks.python.version_changes import VersionChange
from ddpdoctor.knowledge import xids
from ddpdoctor.logs.analyze.error_meanings import Meaning
from ddpdoctor.logs.exceptions import OF_ERRORS_MODULES
from ddpdoctor.logs.parse.error_words import NO_FIGURE
from ddpdoctor.logs.parse.exits import PARTS
from tests.support import cuda_oom
from tests.support.cuda_errors import CUDA_SAYS
from tests.support.number_patterns import more_behind

CHECKS: Final = Path(__file__).parent.parent / "checks"
SHARED: Final = CHECKS / "shared.signs.toml"
COMPILED: Final = CHECKS / "log_signs.json"
LOGS: Final = Path(__file__).parent.parent / "ddpdoctor" / "logs"
MEANINGS: Final = CHECKS / "log" / "failures.meanings.toml"
COMPILED_MEANINGS: Final = LOGS / "analyze" / "error_meanings.json"
CHANGES: Final = CHECKS / "python" / "package_versions.changes.toml"
COMPILED_CHANGES: Final = CHECKS / "python" / "version_changes.json"
WORDS: Final = LOGS / "parse"
"""Where files of that kind say what launchers and errors read like, whatever the illness."""

_IN_BRACES: Final = re.compile(r"\{([a-z_]+)\}")
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


def read_meanings() -> dict[str, tuple[Meaning, ...]]:
    """What exceptions mean, as the file says it."""
    return make_meanings(read_tables(MEANINGS.read_text(encoding="utf-8"), MEANINGS.name), MEANINGS.name)


def make_meanings(content: Mapping[str, Any], name: str) -> dict[str, tuple[Meaning, ...]]:
    """Make the meanings of a file.

    Args:
        content: of the file, as `read_tables` gives it.
        name: what errors call it.

    Raises:
        SignFileError: one is wrong, or two are for the same words.
    """
    meanings = make_rows(content, name, lambda table, place: (_meaning(table, place),), noun="number")
    of_words = Counter(
        (row.begins, row.exception, row.code, row.file, row.ranks) for rows in meanings.values() for row in rows
    )
    for words, times in of_words.items():
        if times > 1:
            raise SignFileError(f"{name}: {' '.join(filter(None, words))!r} has {times} meanings")
    return meanings


def _meaning(table: Mapping[str, Any], place: str) -> Meaning:
    meaning = make_row(dict(table), Meaning, place)
    pattern = re.compile(meaning.begins)
    if pattern.match("") and not meaning.exception:
        raise SignFileError(f"{place}: any message begins so")
    if unknown := {field for fix in table["fixes"] for field in fix} - set(Fix.__struct_fields__):
        raise SignFileError(f"{place}: a fix has no field {min(unknown)}")
    texts = [meaning.cause, *(text for fix in meaning.fixes for text in (fix.text, *fix.commands))]
    named = {name for text in texts for name in _IN_BRACES.findall(text)}
    if odd := named ^ set(pattern.groupindex):
        raise SignFileError(
            f"{place}: {min(odd)} is not both a group of its pattern and in braces in its cause or fixes"
        )
    return meaning


def read_changes() -> dict[str, tuple[VersionChange, ...]]:
    """What releases of packages changed, as the file says it."""
    return make_changes(read_tables(CHANGES.read_text(encoding="utf-8"), CHANGES.name), CHANGES.name)


def make_changes(content: Mapping[str, Any], name: str) -> dict[str, tuple[VersionChange, ...]]:
    """Make the changes of a file.

    Raises:
        SignFileError: one is wrong, or two are of the same name.
    """
    changes = make_rows(content, name, lambda table, place: (_change(table, place),), noun="number")
    for what, times in Counter(what for rows in changes.values() for row in rows for what in row.names).items():
        if times > 1:
            raise SignFileError(f"{name}: {what} has {times} changes")
    return changes


def _change(table: Mapping[str, Any], place: str) -> VersionChange:
    change = make_row(dict(table), VersionChange, place)
    if not (change.names and change.instead and bool(change.removed) != bool(change.added)):
        raise SignFileError(f"{place}: it needs names, what to write instead, and one of removed and added")
    return change


def compiled(rows: Mapping[str, Sequence[LogSign | Meaning | VersionChange]]) -> str:
    """JSON with a sign or a meaning a line, so that a change is a change of that line."""
    keys = [
        f'"{key}": [\n' + ",\n".join(msgspec.json.encode(row).decode() for row in rows[key]) + "\n]"
        for key in sorted(rows)
    ]
    return "{\n" + ",\n".join(keys) + "\n}\n"


def compiled_words() -> dict[Path, str]:
    """Of each file of words, of meanings and of changes, the JSON that the program reads, by its path."""
    parts = {**PARTS, "NO_FIGURE": NO_FIGURE, "OF_ERRORS_MODULES": OF_ERRORS_MODULES}
    words = {
        path.with_name(path.name.replace(".signs.toml", ".json")): compiled(
            make_signs(read_tables(path.read_text(encoding="utf-8"), path.name), path.name, parts=parts)
        )
        for path in sorted(WORDS.glob("*.signs.toml"))
    }
    return {**words, COMPILED_MEANINGS: compiled(read_meanings()), COMPILED_CHANGES: compiled(read_changes())}
