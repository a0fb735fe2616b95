"""Finds the line of a run's script that explains what went wrong in the run; silent where nothing does, or it takes long."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.base.ownership import ROOT, foothold_on
from ddpdoctor.engine.explanations import Explanation, Illness
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.scripts.judging import judge_script, merge_findings
from ddpdoctor.scripts.project import ModuleCache
from ddpdoctor.scripts.project_settings import SettingsOfProjects
from ddpdoctor.scripts.reading import read_script

PATIENCE_SECONDS: Final = 5.0
"""A large project must not hold up the diagnosis."""
MAX_SCRIPTS: Final = 3
MAX_EXPLANATIONS: Final = 3


def explain(
    scripts: Iterable[str], illnesses: Sequence[Illness], catalogue: Catalogue, patience: float = PATIENCE_SECONDS
) -> tuple[Explanation, ...]:
    """Look for what explains the illnesses in scripts that lie on this host, the surest first.

    Root believes only files that nobody else could have put there: it may be another user's word that names them.

    Args:
        scripts: paths, as the run's command or its log names them; of some there may be nothing here.
        illnesses: of the run.
        catalogue: the checks.
        patience: seconds, after which nothing is told.
    """
    paths = list(dict.fromkeys(scripts))[:MAX_SCRIPTS]
    slugs = {illness.slug for illness in illnesses}
    if not paths or not slugs:
        return ()
    checks = [check for check in catalogue.checks if "script" in check.groups and slugs.intersection(check.explains)]
    found: list[Explanation] = []
    # A parser can't be interrupted, and nobody has to wait for a thread.
    thread = threading.Thread(target=_look, args=(paths, illnesses, checks, found), daemon=True)
    thread.start()
    thread.join(patience)
    return () if thread.is_alive() else tuple(found[:MAX_EXPLANATIONS])


def _shown(path: str) -> str:
    """The path as seen from the working folder, where the file lies in it."""
    inner = os.path.relpath(path)
    return path if inner.startswith(os.pardir) else inner


def _is_believed(path: str) -> bool:
    try:
        return os.path.isfile(path) and (os.geteuid() != ROOT or foothold_on(path) is None)  # noqa: PTH113
    except (OSError, ValueError):
        return False


def _look(
    paths: Sequence[str], illnesses: Sequence[Illness], checks: Sequence[Check], found: list[Explanation]
) -> None:
    # Whatever goes wrong here, the diagnosis stands by itself.
    with suppress(Exception):
        cache, settings, judged = ModuleCache(), SettingsOfProjects(), []
        for path in dict.fromkeys(_shown(path) for path in paths if _is_believed(path)):
            script, found_settings = read_script(path, cache), settings.of(path)
            read_files = [file.path for file in script.files] + ([found_settings.file] if found_settings.file else [])
            if all(map(_is_believed, read_files)):
                judged.append(judge_script(script, found_settings.settings.choose(checks)))
        found += _matching(merge_findings(judged), illnesses)


def _matching(
    findings: Iterable[tuple[Check, Severity, Finding]], illnesses: Sequence[Illness]
) -> Iterator[Explanation]:
    for check, severity, finding in findings:
        slugs = tuple(illness.slug for illness in illnesses if _explains(check, finding, illness))
        if slugs and severity is not Severity.INFO:
            yield Explanation(check, severity, finding, slugs)


def _explains(check: Check, finding: Finding, illness: Illness) -> bool:
    if illness.slug not in check.explains or finding.place is None:
        return False
    if illness.lines is None:
        return True
    place = (os.path.realpath(finding.place.file), finding.place.line)
    return any((os.path.realpath(path), line) == place for path, line in illness.lines)
