"""Public training scripts, with what a reader found in them before `lint` saw them; and how well `lint` judges them.

fixtures/script_corpus/open.json, opened.json      may be looked at while a rule is written; the second was read last, and is open since it was measured
fixtures/script_corpus/unseen.json, unread.json    may not: rules are measured by them; nobody has looked at a wrong answer of the second

The scripts themselves aren't here. Each repository lies in a folder OWNER+NAME+COMMIT, of the commit the first seven digits, as
`git archive COMMIT` writes it.

python -m tests.script_corpus FOLDER                 the open ones: each wrong answer, then a table by rule
python -m tests.script_corpus FOLDER --index NAME    those of another index; of what may not be looked at only the table
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ddpdoctor import lint
from ddpdoctor.base.findings import Severity

CORPUS = Path(__file__).parent.parent / "fixtures" / "script_corpus"
INDEXES = ("open", "opened", "unseen", "unread")
OPEN_INDEXES = INDEXES[:2]
"""Those that may be looked at."""


class ReadMistake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a reader found. strength: "certain": to be found; "arguable": neither a miss nor a false alarm. stays: the commit that mended
    another mistake of the script left this one."""

    file: str
    line: int
    slug: str
    strength: Literal["certain", "arguable"]
    why: str
    stays: bool = False


class ReadScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script that was read. verdict: "sick" where at least one mistake is certain. fixed_by: the commit that mended these."""

    repo: str
    commit: str
    entry: str
    kind: str
    framework: str
    verdict: Literal["healthy", "sick"]
    findings: tuple[ReadMistake, ...]
    read_by: str
    license: str
    fixed_by: str = ""

    def folder(self, root: Path, commit: str) -> Path:
        """Where it lies as of that commit."""
        return root / f"{self.repo.replace('/', '+')}+{commit[:7]}"


def read_corpus(name: str) -> tuple[ReadScript, ...]:
    """Read one of the indexes."""
    return msgspec.json.decode((CORPUS / f"{name}.json").read_bytes(), type=tuple[ReadScript, ...])


Alarm = tuple[str, str]
"""A rule, and the file in which it found something."""


def alarms(folder: Path, entry: str) -> dict[Alarm, int]:
    """What lint says of a script that breaks, or certainly is slower or wrong, with the first line."""
    found: dict[Alarm, int] = {}
    result = lint([folder / entry])
    if crashed := [script.crashed for script in result.judged if script.crashed]:
        raise SystemExit(f"{folder / entry}: {crashed}")
    for check, severity, finding in result.placed_findings:
        if severity in (Severity.FAIL, Severity.WARN) and finding.place:
            file = os.path.relpath(finding.place.file, folder)
            found.setdefault((check.slug, file), finding.place.line)
    return found


def judge(script: ReadScript, known: set[Alarm], root: Path) -> Iterator[tuple[str, Alarm, int]]:
    """Yield what is right and wrong of a script: "found", "missed", "false", "after the fix"; with the line."""
    found = alarms(script.folder(root, script.commit), script.entry)
    certain = {(read.slug, read.file): read.line for read in script.findings if read.strength == "certain"}
    stays = {(read.slug, read.file) for read in script.findings if read.stays}
    for mistake, line in certain.items():
        yield "found" if mistake in found else "missed", mistake, line
    for alarm, line in found.items():
        if alarm not in known:
            yield "false", alarm, line
    if script.fixed_by:
        for alarm, line in alarms(script.folder(root, script.fixed_by), script.entry).items():
            if alarm in certain and alarm not in stays:
                yield "after the fix", alarm, line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", choices=INDEXES, default="open")
    options = parser.parse_args(arguments)
    scripts = read_corpus(options.index)
    known: dict[tuple[str, str], set[Alarm]] = defaultdict(set)
    for script in scripts:
        known[script.repo, script.commit].update((read.slug, read.file) for read in script.findings)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for script in scripts:
        if not (script.folder(options.folder, script.commit) / script.entry).is_file():
            print(f"not there: {script.repo} {script.commit[:7]} {script.entry}", file=sys.stderr)
            continue
        for answer, (slug, file), line in judge(script, known[script.repo, script.commit], options.folder):
            counts[slug][answer] += 1
            if answer != "found" and options.index in OPEN_INDEXES:
                print(f"{answer}: {slug} {script.repo}@{script.commit[:7]} {file}:{line} (from {script.entry})")
    columns = ("found", "missed", "false", "after the fix")
    print("| rule | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for slug in sorted(counts):
        print(f"| `{slug}` | " + " | ".join(str(counts[slug][answer]) for answer in columns) + " |")
    print("| all | " + " | ".join(str(sum(count[answer] for count in counts.values())) for answer in columns) + " |")


if __name__ == "__main__":
    main()
