"""`lint --fix`: changes to scripts that certainly are right, proved before anything is written."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.api.script_linting import LintResult, lint_as_if
from ddpdoctor.base.text import visible

if TYPE_CHECKING:
    from ddpdoctor.scripts.edits import SourceEditor
    from ddpdoctor.scripts.judging import PlacedFinding


class FileFix(NamedTuple):
    """A file that is to be changed.

    Args:
        path: as it was named.
        before: what is in it.
        after: what is to be in it.
        findings: that are gone then.
    """

    path: str
    before: bytes
    after: bytes
    findings: tuple[PlacedFinding, ...]

    def diff(self) -> str:
        """A unified diff, with what isn't seen written out, and without the secrets of the lines around: what is written keeps them."""
        from ddpdoctor.engine.redaction import redact_source
        from ddpdoctor.scripts.source_text import decode_source

        before, after = (decode_source(content, self.path).lines for content in (self.before, self.after))
        lines = difflib.unified_diff(before, after, self.path, self.path, lineterm="")
        return "\n".join(visible(redact_source(line)) for line in lines)

    def write(self) -> str:
        """Write it; returns why it was not, "" where it was."""
        from ddpdoctor.scripts.rewriting import rewrite

        return rewrite(self.path, self.before, self.after)


class ScriptFixes(NamedTuple):
    """What can be changed, and what not.

    Args:
        files: to be changed.
        left: findings that are not mended, each with the reason; "" where it has no fix that is made by itself.
    """

    files: tuple[FileFix, ...]
    left: tuple[tuple[PlacedFinding, str], ...]


def propose_script_fixes(
    result: LintResult, paths: Sequence[str], select: Sequence[str], ignore: Sequence[str]
) -> ScriptFixes:
    """Work out changes, and judge the scripts again as if they were made. Nothing is written.

    Args:
        result: of `lint` with the same arguments.
        paths: that it was given.
        select: only these checks.
        ignore: not these checks.
    """
    chosen = _Chosen(result, lambda contents: lint_as_if(contents, paths, select, ignore))
    chosen.left += [(found, "") for found in result.placed_findings if not found[2].edits]
    candidates = [found for path, findings in _by_file(result).items() for found in chosen.possible_in(path, findings)]
    if candidates:
        chosen.keep(candidates)
    return ScriptFixes(tuple(chosen.fixes(chosen.kept)), tuple(chosen.left))


class _Chosen:
    """Findings whose edits are made, each of them proved with those that were kept before.

    Args:
        result: before all edits.
        judge: judges the scripts with other contents, by real path.
    """

    def __init__(self, result: LintResult, judge: Callable[[Mapping[str, bytes]], LintResult]) -> None:
        self.kept: list[PlacedFinding] = []
        self.left: list[tuple[PlacedFinding, str]] = []
        self._result = result
        self._judge = judge
        self._editors: dict[str, SourceEditor] = {}

    def possible_in(self, path: str, findings: Sequence[PlacedFinding]) -> Iterator[PlacedFinding]:
        """Yield the findings of a file whose edits can be made, each alone."""
        from ddpdoctor.scripts.edits import SourceEditor, UneditableError
        from ddpdoctor.scripts.places import is_in_notebook
        from ddpdoctor.scripts.rewriting import refusal
        from ddpdoctor.scripts.source_text import UnreadableSource, read_source

        why = "notebooks are not changed" if is_in_notebook(path) else refusal(path)
        try:
            editor = None if why else SourceEditor(read_source(path), path)
        except (UnreadableSource, UneditableError) as error:
            editor, why = None, str(error)
        for found in findings:
            try:
                if editor is None:
                    self.left.append((found, why))
                else:
                    editor.edited(found[2].edits)
                    self._editors[path] = editor
                    yield found
            except UneditableError as error:
                self.left.append((found, str(error)))

    def keep(self, candidates: Sequence[PlacedFinding]) -> None:
        """Keep those with whose edits their findings are gone and nothing new is found: all at once, or, where that fails, the halves of them."""
        why = self._objection([*self.kept, *candidates])
        if not why:
            self.kept += candidates
        elif len(candidates) == 1:
            self.left.append((candidates[0], why))
        else:
            middle = len(candidates) // 2
            self.keep(candidates[:middle])
            self.keep(candidates[middle:])

    def fixes(self, findings: Iterable[PlacedFinding]) -> Iterator[FileFix]:
        """Yield the files with the edits of findings.

        Raises:
            UneditableError: two of them don't go together.
        """
        by_file: dict[str, list[PlacedFinding]] = {}
        for found in findings:
            by_file.setdefault(found[2].edits[0].place.file, []).append(found)
        for path, mended in by_file.items():
            editor = self._editors[path]
            after = editor.edited([edit for _, _, finding in mended for edit in finding.edits])
            yield FileFix(path, editor.content, after, tuple(mended))

    def _objection(self, findings: Sequence[PlacedFinding]) -> str:
        """Say what speaks against the edits of findings; "" if nothing does."""
        from ddpdoctor.scripts.edits import UneditableError

        try:
            fixes = list(self.fixes(findings))
        except UneditableError as error:
            return str(error)
        after = self._judge({os.path.realpath(fix.path): fix.after for fix in fixes})
        if len(after.unjudged) > len(self._result.unjudged):
            return "with it a script could not be judged"
        was = Counter(map(_key, self._result.placed_findings))
        lines_before = {fix.path: _lines_before(fix) for fix in fixes}
        now = [(_key(found, lines_before), found) for found in after.placed_findings]
        counted = Counter(key for key, _ in now)
        if any(counted[key] >= was[key] for key in map(_key, findings)):
            return "the finding is still there with it"
        new = next((found for key, found in now if counted[key] > was[key]), None)
        return f"with it there is another finding, {new[0].slug} at {new[2].place}" if new else ""


def _by_file(result: LintResult) -> dict[str, list[PlacedFinding]]:
    findings: dict[str, list[PlacedFinding]] = {}
    for found in result.placed_findings:
        if found[2].edits:
            findings.setdefault(found[2].edits[0].place.file, []).append(found)
    return findings


def _lines_before(fix: FileFix) -> dict[int, int]:
    """The lines of a changed file to those that stood there before; a new one is not among them."""
    before, after = (content.splitlines() for content in (fix.before, fix.after))
    lines: dict[int, int] = {}
    for kind, first, end, first_after, end_after in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if kind in ("equal", "replace"):
            lines |= {line + 1: min(first + line - first_after, end - 1) + 1 for line in range(first_after, end_after)}
    return lines


def _key(found: PlacedFinding, lines_before: Mapping[str, Mapping[int, int]] | None = None) -> tuple[str, str, int]:
    """The check and the line of a finding, as it was before an edit, whatever its severity; a new line is below none."""
    place = found[2].place
    if place is None:
        return found[0].slug, "", 0
    moved = (lines_before or {}).get(place.file)
    return found[0].slug, place.file, place.line if moved is None else moved.get(place.line, -place.line)
