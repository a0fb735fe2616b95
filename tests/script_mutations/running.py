"""Seeds, judges, and tells how many mistakes were seen."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ddpdoctor.base.findings import Severity, SourcePlace
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.facts.script import Script
from ddpdoctor.scripts.judging import JudgedScript, judge_script
from ddpdoctor.scripts.project import ModuleCache
from ddpdoctor.scripts.project_module import ProjectModule
from ddpdoctor.scripts.reading import read_script
from tests.script_corpus import INDEXES, OPEN_INDEXES, ReadScript, read_corpus
from tests.script_mutations.checkpoints import CHECKPOINT_MUTATORS
from tests.script_mutations.collectives import COLLECTIVE_MUTATORS
from tests.script_mutations.data import DATA_MUTATORS
from tests.script_mutations.models import MODEL_MUTATORS
from tests.script_mutations.processes import PROCESS_MUTATORS
from tests.script_mutations.projects import Project
from tests.script_mutations.seeds import Mutator, Seed
from tests.script_mutations.sources import changed_text, moved_line

MUTATORS: Final = (*DATA_MUTATORS, *CHECKPOINT_MUTATORS, *COLLECTIVE_MUTATORS, *MODEL_MUTATORS, *PROCESS_MUTATORS)
MOST_OF_SCRIPT: Final = 2
"""Seeds of a rule in one script."""
NEAR: Final = 3
"""Lines by which the place that is told may differ."""

ToldLine = tuple[str, int]
"""The file and line of what lint tells."""


class Answer(NamedTuple):
    """What lint makes of a seed: "found", "as a hint", "missed". cause: of a miss, as far as the facts tell."""

    outcome: str
    cause: str = ""


class _SeededCache(ModuleCache):
    """Modules of a project, of which some are as after a change."""

    def __init__(self, healthy: ModuleCache, contents: dict[str, bytes]) -> None:
        super().__init__(contents)
        self._healthy = healthy
        self._seeded = contents
        self.names_in = healthy.names_in  # type: ignore[method-assign]
        self.locate = healthy.locate  # type: ignore[method-assign]
        self.roots_of = healthy.roots_of  # type: ignore[method-assign]

    def load(self, path: str, name: str) -> ProjectModule:
        return super().load(path, name) if path in self._seeded else self._healthy.load(path, name)


class SeededScript:
    """A script as it is, and as it is with a mistake.

    Args:
        folder: of the project.
        entry: the script in it.
    """

    def __init__(self, folder: Path, entry: str) -> None:
        self._folder = folder
        self._path = str(folder / entry)
        self.project = Project(folder, entry)
        self._cache = ModuleCache()
        self._checks = [check for check in all_checks() if "script" in check.groups]
        _, judged = self._judge(self._cache)
        self._before = {slug: self._findings(judged, slug) for slug in {mutator.slug for mutator in MUTATORS}}

    def _judge(self, cache: ModuleCache) -> tuple[Script, JudgedScript]:
        script = read_script(self._path, cache)
        judged = judge_script(script, self._checks)
        if judged.crashed:
            raise SystemExit(f"{self._path}: {judged.crashed}")
        return script, judged

    def _findings(self, judged: JudgedScript, slug: str) -> dict[ToldLine, Severity]:
        return {
            (os.path.relpath(finding.place.file, self._folder), finding.place.line): severity
            for check, severity, finding in judged.findings
            if check.slug == slug and finding.place
        }

    def seeds(self, mutator: Mutator) -> Iterator[Seed]:
        """Yield the mistakes of a kind that can be made, and are not told already."""
        told = self._before[mutator.slug]
        if mutator.is_told_once and told:
            return
        for seed in mutator.seeds(self.project):
            is_told = any(
                place.file == file and place.first - NEAR <= line <= place.last + NEAR
                for file, line in told
                for place in seed.places
            )
            if not is_told and all(map(_parses, self._contents(seed).values())):
                yield seed

    def _contents(self, seed: Seed) -> dict[str, bytes]:
        names = {change.file for change in seed.changes}
        return {name: changed_text(self.project.files[name], seed.changes) for name in names}

    def answer(self, mutator: Mutator, seed: Seed) -> Answer:
        """What lint makes of a script with the mistake."""
        contents = {os.path.realpath(self._folder / name): content for name, content in self._contents(seed).items()}
        script, judged = self._judge(_SeededCache(self._cache, contents))
        told = self._findings(judged, mutator.slug)
        places = [self._place(seed, *place) for place in seed.places]
        severities = [
            severity
            for (file, line), severity in told.items()
            if any(name == file and first - NEAR <= line <= last + NEAR for name, first, last in places)
        ]
        if any(severity in (Severity.FAIL, Severity.WARN) for severity in severities):
            return Answer("found")
        if severities:
            return Answer("as a hint")
        if told.keys() - self._before[mutator.slug].keys():
            return Answer("missed", "told at another place")
        return Answer("missed", _cause(script, judged, mutator.slug, self._folder, places))

    def _place(self, seed: Seed, file: str, first: int, last: int) -> tuple[str, int, int]:
        source = self.project.files[file]
        return file, moved_line(source, seed.changes, first), moved_line(source, seed.changes, last)


def _parses(content: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(content)
    except (SyntaxError, ValueError):
        return False
    return True


def _cause(script: Script, judged: JudgedScript, slug: str, folder: Path, places: list[tuple[str, int, int]]) -> str:
    """Why lint says nothing, as far as the facts tell."""
    if script.problem or script.is_cut_short:
        return script.problem or "the script is too large to be followed to its end"
    if slug in judged.idle:
        return f"not judged: {judged.idle[slug]}"
    read = {os.path.relpath(file.path, folder) for file in script.files if not file.problem}
    if places[0][0] not in read:
        return "the file is not read"
    by_place = {place: [call for call in script.calls if _stands_at(call.place, folder, place)] for place in places}
    calls = next(filter(None, by_place.values()), [])
    if not calls:
        return "no call of any role is recorded there"
    if not any(call.is_reached for call in calls):
        return "what is there is not reached"
    roles = ", ".join(sorted({role.value for call in calls for role in call.roles}))
    escapes = sorted({escape.name for call in calls for escape in call.escapes})
    conditions = sorted({condition.ranks.value for call in calls for condition in call.conditions} - {"all"})
    told = f"; handed to {', '.join(escapes[:3])}" if escapes else ""
    told += f"; under {', '.join(conditions)}" if conditions else ""
    return f"judged, nothing found (there: {roles}{told})"


def _stands_at(place: SourcePlace, folder: Path, lines: tuple[str, int, int]) -> bool:
    file, first, last = lines
    return os.path.relpath(place.file, folder) == file and first <= place.line <= last


def _outcomes(scripts: Sequence[ReadScript], root: Path) -> Iterator[tuple[ReadScript, Mutator, Seed, Answer]]:
    done: set[tuple[str, str, object]] = set()
    for script in scripts:
        folder = script.folder(root, script.commit)
        if not (folder / script.entry).is_file():
            print(f"not there: {script.repo} {script.commit[:7]} {script.entry}", file=sys.stderr)
            continue
        try:
            seeded = SeededScript(folder, script.entry)
        except SyntaxError:
            continue
        for mutator in MUTATORS:
            count = 0
            for seed in seeded.seeds(mutator):
                key = (script.repo, mutator.slug, seed.changes)
                if key in done:
                    continue
                done.add(key)
                yield script, mutator, seed, seeded.answer(mutator, seed)
                count += 1
                if count == MOST_OF_SCRIPT:
                    break


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.script_mutations")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", choices=INDEXES, default="open")
    options = parser.parse_args(arguments)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    causes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for script, mutator, seed, answer in _outcomes(read_corpus(options.index), options.folder):
        counts[mutator.slug][answer.outcome] += 1
        if answer.outcome == "missed":
            place = seed.places[0]
            causes[mutator.slug, answer.cause].append(
                f"{script.repo}@{script.commit[:7]} {place.file}:{place.first} (from {script.entry}): {seed.what}"
            )
    if options.index in OPEN_INDEXES:
        for (slug, cause), misses in sorted(causes.items(), key=lambda item: (item[0][0], -len(item[1]))):
            print(f"{slug}: {cause}: {len(misses)}")
            print("".join(f"    {miss}\n" for miss in misses))
    print_table(counts)


def print_table(counts: dict[str, Counter[str]]) -> None:
    """Print how many mistakes were seen, by rule."""
    columns = ("found", "as a hint", "missed")
    print("| rule | seeded | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    total: Counter[str] = Counter()
    for slug, count in sorted(counts.items()):
        total.update(count)
        print(f"| `{slug}` | {count.total()} | " + " | ".join(str(count[column]) for column in columns) + " |")
    print(f"| all | {total.total()} | " + " | ".join(str(total[column]) for column in columns) + " |")
