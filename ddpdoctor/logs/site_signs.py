r"""Log signs that a site or a user adds to ours: other words of illnesses that we know, and illnesses of its own.

    [pages.scratch-quota]
    title = "The project's quota on /scratch is used up"
    why = "Checkpoints count against the project's quota, not against yours"
    fix = "See who uses it, and ask storage@example.org for more"
    commands = ["lfs quota -p $PROJECT /scratch"]

    [[scratch-quota]]
    text = 'scratchfs: write refused'
    pattern = 'write refused for project (?P<name>\w+)'

The signs are written as ours are; an illness of one's own has a table in `pages` beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.error_lines import remark
from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner, Severity
from ddpdoctor.base.log_signs import HEALTHY_RUNS, LogSign
from ddpdoctor.base.ownership import foothold_on
from ddpdoctor.base.regular_files import read_start
from ddpdoctor.base.shell import quoted
from ddpdoctor.base.sign_files import SignFileError, make_signs, read_tables
from ddpdoctor.base.text import has_unseen, one_line
from ddpdoctor.engine.registry import LEAST_SIGN, Catalogue, Check, Predicate, nearest_names
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import judging_signs

SYSTEM_FOLDER: Final = "/etc/ddpdoctor/signs"
MAX_BYTES: Final = 1 << 20
MAX_FILES: Final = 100
FAMILY: Final = "site"
PAGES: Final = "pages"
_SLUG: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class SitePage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a report says of an illness of the site's own."""

    title: str
    why: str = ""
    fix: str = ""
    commands: tuple[str, ...] = ()
    owner: Owner = Owner.UNKNOWN
    severity: Severity = FAIL


class SignFile(msgspec.Struct, frozen=True):
    """A file of a site. pages, signs: by slug."""

    name: str
    pages: tuple[tuple[str, SitePage], ...]
    signs: tuple[tuple[str, tuple[LogSign, ...]], ...]


def with_site_signs(checks: Catalogue, paths: Sequence[str] = ()) -> Catalogue:
    """Add the signs of the system's and the user's folders, and of those files, to the checks.

    Args:
        checks: those that ddpdoctor brings.
        paths: files, or folders of files that end in .toml, that somebody named.

    Raises:
        SignFileError: one of those can't be read, or is wrong. Of the folders that nobody named, what is wrong is told and left out.
    """
    files = list(files_of_host(checks))
    for path in paths:
        inside = _files_in(path) if os.path.isdir(path) else [path]  # noqa: PTH112
        if not inside:
            raise SignFileError(f"{path}: no file there ends in .toml")
        files += [_read(name, checks, is_named=True) for name in inside]
    return _extended(checks, tuple(files)) if files else checks


@cache
def files_of_host(checks: Catalogue) -> tuple[SignFile, ...]:
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    folders = [SYSTEM_FOLDER, *([f"{settings}/ddpdoctor/signs"] if os.path.isabs(settings) else ())]  # noqa: PTH117
    files = []
    for path in (path for folder in folders for path in _files_in(folder)):
        try:
            files.append(_read(path, checks, is_named=False))
        except SignFileError as error:
            remark(one_line(f"signs not used: {error}"))
    return tuple(files)


def _files_in(folder: str) -> list[str]:
    try:
        return [str(path) for path in sorted(Path(folder).iterdir()) if path.suffix == ".toml"][:MAX_FILES]
    except OSError:
        return []


def _read(path: str, known: Catalogue, *, is_named: bool) -> SignFile:
    try:
        if not is_named and (foothold := foothold_on(path)):
            raise SignFileError(f"{path}: {foothold.words}")
        written = read_start(path, MAX_BYTES + 1)
        if len(written) > MAX_BYTES:
            raise SignFileError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
        text = written.decode()
    except OSError as error:
        raise SignFileError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SignFileError(f"{path}: not UTF-8") from error
    tables = read_tables(text, path)
    try:
        pages = msgspec.convert(tables.pop(PAGES, {}), dict[str, SitePage])
    except msgspec.ValidationError as error:
        raise SignFileError(f"{path}: {PAGES}: {error}") from error
    file = SignFile(path, tuple(pages.items()), tuple(make_signs(tables, path).items()))
    _verify(file, known)
    return file


def _verify(file: SignFile, known: Catalogue) -> None:
    own = dict(file.pages)
    for slug, signs in file.signs:
        if slug in own or slug == HEALTHY_RUNS or known.get(slug):
            for sign in signs:
                _verify_sign(sign, f"{file.name}: {slug}")
            continue
        nearest = nearest_names(slug, (check.slug for check in known.checks))
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
        raise SignFileError(f"{file.name}: no illness is called {slug}.{hint} One of your own needs a [{PAGES}.{slug}]")
    for slug in own:
        if known.get(slug) or slug == HEALTHY_RUNS:
            raise SignFileError(f"{file.name}: {slug} is an illness of ddpdoctor's: leave [{PAGES}.{slug}] out")
        if not _SLUG.fullmatch(slug):
            raise SignFileError(f"{file.name}: {slug!r} is no name: small letters, digits and hyphens")
        if slug not in dict(file.signs):
            raise SignFileError(f"{file.name}: {slug} has no signs: a table [[{slug}]] with a text")


def _verify_sign(sign: LogSign, place: str) -> None:
    if any("\n" in words or has_unseen(words) for words in (sign.text, sign.near)):
        raise SignFileError(f"{place}: {sign.text!r} is no text of one line as it is printed")
    if len(sign.text) < LEAST_SIGN and not sign.pattern and not sign.near:
        raise SignFileError(
            f"{place}: {sign.text!r} may stand in any log: take {LEAST_SIGN} characters, or add a pattern or near"
        )


@cache
def _extended(catalogue: Catalogue, files: tuple[SignFile, ...]) -> Catalogue:
    signs: dict[str, tuple[LogSign, ...]] = {}
    checks: dict[str, Check] = {}
    for file in files:
        for slug, more in file.signs:
            signs[slug] = (*signs.get(slug, ()), *more)
        # Of two pages that of the user, who is read after the system, counts.
        checks |= {slug: SiteCheck(slug, page, file.name) for slug, page in file.pages}
    return catalogue.extended(signs, checks.values())


class SiteCheck(Check):
    """An illness of a site's own, which only a log shows."""

    def __init__(self, slug: str, page: SitePage, file: str) -> None:
        super().__init__(slug, page.severity, _predicate(slug, page), owner=page.owner)
        self._file = file

    @property
    def docs(self) -> str:
        """The file that describes it."""
        return self._file

    @property
    def more(self) -> str:
        return f"cat {quoted(self._file)}"


def _predicate(slug: str, page: SitePage) -> Predicate:
    def finding_of(log: Log, seen: Sequence[SignMatch]) -> Finding:
        fix = Fix(page.fix or "Run this", page.commands) if page.fix or page.commands else None
        return Finding.of(page.title.rstrip("."), fix, cause=page.why)

    predicate = judging_signs(slug, finding_of, of_rank=True)
    predicate.__module__ = f"ddpdoctor.checks.{FAMILY}.{slug}"
    predicate.__doc__ = f"{page.title}\n\n## Why\n{page.why}\n\n## Fix\n{page.fix}"
    return predicate
