"""Versions of packages, of the script and of the files that they read: do they fit each other?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import LONGEST_QUOTE, clip
from ddpdoctor.checks.python.version_changes import VersionChange, change_of
from ddpdoctor.checks.python.version_mismatches import MODELS_CODE, VersionMismatch, mismatch_of
from ddpdoctor.engine.registry import Catalogue, LogTraits, check, requires
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.knowledge.python_commands import python_of, versions_installed
from ddpdoctor.knowledge.python_packages import PACKAGES
from ddpdoctor.logs.analyze.failures import passed_over
from ddpdoctor.logs.analyze.sightings import NO_LOG, lines, shown_by, where, word
from ddpdoctor.logs.analyze.verdict import verdict_of

SLUG: Final = "package-version-mismatch"
OF_RAY: Final = "Version mismatch: The cluster"


def _with_mismatches(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """Add the exceptions that show it by their kind and place; not those of which a sign tells more."""
    known = {match.line.order for match in seen} | passed_over(log.raised)
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
    special = (each for each in found if each[1].fixes or each[1].change)
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
    if mismatch.change:
        return _of_a_change(python, asker, mismatch.change)
    if not asker and not asked:
        return (_install(python, mismatch.packages),)
    other = asked or "the other package"
    if not asker:
        return (
            _upgrade(python, asked, f"Where {other} is too old, and doesn't have it yet: upgrade that"),
            Fix(
                f"Where the script is too old: see {other}'s release notes for what has taken its place, or take the release of {other} that the "
                "project's requirements name"
            ),
        )
    return (
        _upgrade(python, asked, f"Where {other} is too old, and doesn't have it yet: upgrade that"),
        _upgrade(
            python,
            asker,
            f"Where {asker} is too old, and wants what newer releases of {other} no longer have: upgrade {asker}",
        ),
        *((_install(python, (asker, asked)),) if asked else ()),
    )


def _of_a_change(python: str, asker: str, change: VersionChange) -> tuple[Fix, ...]:
    """Say what to do where it is known which release took away what is lacking, or brought it."""
    package = change.package
    if change.added:
        upgrade = _upgrade(python, package, f"Take {package} {change.added} or newer", f">={change.added}")
        return (
            upgrade,
            *(() if asker else (Fix(f"Or write in its place, as older releases have it: {change.instead}"),)),
        )
    older = _upgrade(python, package, f"Or take {package} before {change.removed}", f"<{change.removed}")
    if asker == MODELS_CODE:
        return (
            Fix(
                "Take a newer revision of the model (revision=...), or, where transformers has that model itself, trust_remote_code=False"
            ),
            older,
        )
    if asker:
        return (_upgrade(python, asker, f"Upgrade {asker}: newer releases do without it"), older)
    return (Fix(f"Write in its place: {change.instead}"), older)


def _upgrade(python: str, package: str, why: str, limit: str = "") -> Fix:
    """Say how to install another release of a package; of torch its own page tells, since there are builds for each CUDA."""
    if package not in PACKAGES or package == "torch":
        return Fix(why)
    what = (f"{PACKAGES[package]}{limit}",) if limit else ("--upgrade", PACKAGES[package])
    return Fix(why, (shlex.join((python, "-m", "pip", "install", *what)),))


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
    if told := _of_an_age(python, seen):
        summary, cause, fixes, packages = told
        return Finding.of(clip(summary, LONGEST_QUOTE), lines(log, seen), _see(python, packages), fixes, cause=cause)
    wanted, found, numpy, file, kind = (word(seen, name) for name in ("wanted", "found", "numpy", "file", "kind"))
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
    elif any(match.sign.startswith(OF_RAY) for match in seen):
        summary = "Ray and Python are of other releases here than where the cluster was started"
        cause = "Ray takes only processes of its own release, and of the same Python, into a cluster."
        fixes = (
            Fix(
                "See on each node which releases there are, install one and the same everywhere, and start the cluster anew",
                (versions_installed(python, "ray"), f"{shlex.quote(python)} --version", "ray stop"),
            ),
        )
    elif kind:
        summary = f"transformers knows no model of type {kind}: most likely it is older than the model"
        cause = "The model's config.json names its type, and the installed transformers has none of that name."
        fixes = (_install(python, ("transformers",)),)
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
        clip(summary, LONGEST_QUOTE),
        lines(log, seen),
        _see(python, _named(wanted, numpy, file or kind)),
        fixes,
        cause=cause,
    )


def _of_an_age(python: str, seen: Sequence[SignMatch]) -> tuple[str, str, tuple[Fix, ...], tuple[str, ...]] | None:
    """Tell what is older than what, where the words show it: (summary, cause, fixes, packages)."""
    pip = (python, "-m", "pip", "install")
    if dropped := word(seen, "dropped"):
        change = change_of(f"numpy.{dropped}") or VersionChange(
            package="numpy", removed="2.0", instead="what its message names", source=""
        )
        return (
            f"The installed numpy no longer has np.{dropped}, which other code uses: that was written for an older numpy",
            f"numpy {change.removed} has dropped that name. Where it is a package's code, upgrade that package.",
            _of_a_change(python, "", change),
            ("numpy",),
        )
    if word(seen, "newer"):
        return (
            "The checkpoint was written by a newer torch than the one that is to read it",
            "The format of torch.save() has changed with torch 1.6, and gets a higher number from time to time: older releases can't read newer files.",
            (
                Fix("Read it with a torch as new as the one that wrote it"),
                Fix(
                    "Or, with that newer torch, write it once more in the old format",
                    (
                        "python -c \"import torch; torch.save(torch.load('NEW.pt', map_location='cpu'), 'OLD.pt', _use_new_zipfile_serialization=False)\"",
                    ),
                ),
            ),
            ("torch",),
        )
    if version := word(seen, "python"):
        return (
            f"This torch is older than its Python: its torch.compile takes none of {version} or later",
            "torch.compile reads Python's bytecode, which is another one in each release.",
            (
                Fix(
                    "Take a newer torch, or an environment with an older Python",
                    (shlex.join((*pip, "--upgrade", "torch")),),
                ),
                Fix("Or train without torch.compile: slower, and the same results", ("export TORCHDYNAMO_DISABLE=1",)),
            ),
            ("torch",),
        )
    if option := word(seen, "adapter"):
        return (
            f"The installed PEFT doesn't know {option}: it is older than the adapter, or the script, that names it",
            "A newer PEFT writes all of its options into adapter_config.json, those that are switched off, too.",
            (
                _upgrade(python, "peft", "Upgrade PEFT"),
                Fix(f"Or remove the line of {option} from adapter_config.json, where its value is null or false"),
            ),
            ("peft",),
        )
    if nowhere := word(seen, "nowhere"):
        there = word(seen, "there")
        newest = f": it has {there.rpartition(',')[2].strip()} at most" if there else ""
        return (
            f"pip finds no {nowhere} for this Python, system and index{newest}",
            "An index has wheels of a release for some Pythons and systems only; those of torch with +cu in their number lie on PyTorch's own index alone.",
            (
                Fix("See which Python that is", (shlex.join((python, "-V")),)),
                Fix(
                    "Take a release that is there, or a Python that it was made for; for torch of a certain CUDA name PyTorch's index",
                    (shlex.join((*pip, "torch", "--index-url", "https://download.pytorch.org/whl/cuXYZ")),),
                ),
            ),
            (),
        )
    return None


def _named(wanted: str, numpy: str, file: str) -> tuple[str, ...]:
    if wanted:
        return (re.split("[<>=!~]", wanted)[0].strip(),)
    return ("numpy", "torch") if numpy else ("transformers", "tokenizers") if file else ("protobuf",)
