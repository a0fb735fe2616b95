"""Versions of packages, of the script and of the files that they read: do they fit each other?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import LONGEST_QUOTE, clip
from ddpdoctor.checks.python.version_mismatches import VersionMismatch, mismatch_of
from ddpdoctor.engine.registry import Catalogue, LogTraits, check, requires
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from ddpdoctor.knowledge.python_packages import PACKAGES
from ddpdoctor.logs.analyze.sightings import NO_LOG, lines, shown_by, where, word
from ddpdoctor.logs.analyze.verdict import verdict_of

SLUG: Final = "package-version-mismatch"


def _with_mismatches(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Add the exceptions that show it by their kind and place; not those of which a sign tells more."""
    known = {match.line.order for match in seen}
    found = ((raised, mismatch_of(raised)) for raised in log.raised if raised.line.order not in known)
    return [
        *seen,
        *(
            shown_by(raised, slug, SignRole.NAMES if mismatch.sure else SignRole.HINTS)
            for raised, mismatch in found
            if mismatch
        ),
    ]


@check(SLUG, severity=FAIL, owner=Owner.USER, log=LogTraits(revises=_with_mismatches))
def package_version_mismatch(log: Log, catalogue: Catalogue) -> Iterator[Finding]:
    """Versions don't fit each other: of two packages, of a package and the script, or of a package and a file that it reads.

    ## What breaks
    A package's own code ends with "got an unexpected keyword argument", "has no attribute", "cannot import name" or "No module named"; a model's
    files can't be read: "did not match any variant of untagged enum", "does not recognize this architecture".

    ## Why
    Names and arguments come and go from release to release. `pip install` changes one package and leaves the others, and a
    requirement without an upper limit lets in what was released since. A file is read by the releases that know its format.

    ## Fix
    Install releases that fit: those that the project's own requirements name, else the newest of both, in one command. `python -m pip check`
    tells what breaks a requirement; that it finds nothing doesn't prove that all fits.
    """
    requires(log.files, NO_LOG)
    suspect = next((suspect for suspect in verdict_of(log, catalogue).suspects if suspect.slug == SLUG), None)
    if suspect is None:
        return
    orders = {match.line.order for match in suspect.sightings}
    known = [raised for raised in log.raised if raised.line.order in orders]
    found = [(raised, mismatch) for raised in known if (mismatch := mismatch_of(raised))]
    if not found:
        yield _by_words(log, suspect.sightings)
        return
    special = (each for each in found if each[1].fixes)
    yield _finding(log, *next(special, found[0]))


def _finding(log: Log, raised: LoggedException, mismatch: VersionMismatch) -> Finding:
    python, frame = python_of(log), mismatch.frame
    said = [Evidence(raised.line.text.strip(), where(log, raised.line))]
    source: tuple[Fix, ...] = ()
    if frame and frame != raised.own:
        code = f": {frame.code}" if frame.code else ""
        said.insert(0, Evidence(f"{frame.path}:{frame.line}, in {frame.function}{code}", where(log, raised.began)))
    if frame and mismatch.sought and not mismatch.asked:
        source = (
            Fix(
                f"See which package {mismatch.sought} is of: this file imports it",
                (f"grep -nw {shlex.quote(mismatch.sought)} {shlex.quote(frame.path)}",),
            ),
        )
    return Finding.of(
        clip(mismatch.summary, LONGEST_QUOTE),
        said,
        source,
        mismatch.fixes or (_see(python, mismatch.packages), *_fit(python, mismatch)),
        cause=mismatch.cause,
        rank=raised.line.rank,
    )


def _see(python: str, packages: Sequence[str]) -> Fix:
    named = [versions_installed(python, *packages)] if packages else []
    return Fix(
        "See which releases the job's Python has, and which requirements are broken",
        (*named, shlex.join((python, "-m", "pip", "check"))),
    )


def _fit(python: str, mismatch: VersionMismatch) -> tuple[Fix, ...]:
    """Say of each side for which case its upgrade is; of the newest of both, where both are known."""
    asker, asked = mismatch.asker, mismatch.asked
    if not asker:
        return (_install(python, mismatch.packages),)
    other = asked or "the other package"
    return (
        _upgrade(python, asked, f"Where {other} is too old, and doesn't have it yet: upgrade that"),
        _upgrade(
            python,
            asker,
            f"Where {asker} is too old, and wants what newer releases of {other} no longer have: upgrade {asker}",
        ),
        *((_install(python, (asker, asked)),) if asked else ()),
    )


def _upgrade(python: str, package: str, why: str) -> Fix:
    known = package in PACKAGES and package != "torch"
    return Fix(why, (shlex.join((python, "-m", "pip", "install", "--upgrade", PACKAGES[package])),) if known else ())


def _install(python: str, packages: Sequence[str]) -> Fix:
    names = [PACKAGES[package] for package in packages if package in PACKAGES and package != "torch"]
    what = "Install releases that fit each other: those that the project's requirements name"
    if not names:
        return Fix(what)
    return Fix(
        f"{what}; where it names none, the newest", (shlex.join((python, "-m", "pip", "install", "--upgrade", *names)),)
    )


def _by_words(log: Log, seen: Sequence[SignMatch]) -> Finding:
    python = python_of(log)
    wanted, found, numpy, file = (word(seen, name) for name in ("wanted", "found", "numpy", "file"))
    fixes: tuple[Fix, ...]
    if wanted:
        has = f", and {found} is installed" if found else ""
        summary = f"A package requires {wanted}{has}"
        cause = "It says so itself, as it is imported."
        fixes = (
            Fix("Install what it requires", (shlex.join((python, "-m", "pip", "install", wanted.replace(" ", ""))),)),
        )
    elif numpy:
        summary = "A compiled package doesn't fit the installed numpy: it was built against another release"
        cause = "What was compiled against a newer numpy doesn't run with an older one; what was compiled against numpy 1 mostly not with numpy 2."
        fixes = (
            Fix("Where numpy is the older one", (shlex.join((python, "-m", "pip", "install", "--upgrade", "numpy")),)),
            Fix(
                "Where a package was built for numpy 1, and numpy 2 is installed",
                (shlex.join((python, "-m", "pip", "install", "numpy<2")),),
            ),
        )
    elif file:
        summary = "The installed release can't read a file of the model: it is most likely older than the file"
        cause = "The file has an entry that this release of transformers or tokenizers doesn't know; newer releases wrote it."
        fixes = (_install(python, ("transformers", "tokenizers")),)
    else:
        summary = "Code that protoc generated is older than the installed protobuf takes"
        cause = "A package that brings such code was made for an older protobuf."
        fixes = (
            Fix(
                "Upgrade that package; or take an older protobuf",
                (shlex.join((python, "-m", "pip", "install", "protobuf<4")),),
            ),
        )
    return Finding.of(
        clip(summary, LONGEST_QUOTE), lines(log, seen), _see(python, _named(wanted, numpy, file)), fixes, cause=cause
    )


def _named(wanted: str, numpy: str, file: str) -> tuple[str, ...]:
    if wanted:
        return (re.split("[<>=!~]", wanted)[0].strip(),)
    return ("numpy", "torch") if numpy else ("transformers", "tokenizers") if file else ("protobuf",)
