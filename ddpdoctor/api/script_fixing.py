"""`lint --fix`: changes to scripts that certainly are right, proved before anything is written."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddpdoctor.api.script_linting import LintResult, lint_as_if
from ddpdoctor.base.text import visible

if TYPE_CHECKING:
    from ddpdoctor.base.findings import SourceEdit
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
    left = [(found, "") for found in result.placed_findings if not found[2].edits]
    files: dict[str, FileFix] = {}
    for path, findings in _by_file(result).items():
        fix, refused = _edited(path, findings)
        left += refused
        if fix is not None:
            files[path] = fix
    while files:
        again = lint_as_if(_contents(files.values()), paths, select, ignore)
        failed = {path: why for path, fix in files.items() if (why := _disproved(fix, result, again))}
        if not failed and len(again.unjudged) > len(result.unjudged):
            failed = dict.fromkeys(files, "with it a script could not be judged")
        if not failed:
            break
        for path, why in failed.items():
            left += [(found, why) for found in files.pop(path).findings]
    return ScriptFixes(tuple(files.values()), tuple(left))


def _by_file(result: LintResult) -> dict[str, list[PlacedFinding]]:
    findings: dict[str, list[PlacedFinding]] = {}
    for found in result.placed_findings:
        if found[2].edits:
            findings.setdefault(found[2].edits[0].place.file, []).append(found)
    return findings


def _edited(path: str, findings: Sequence[PlacedFinding]) -> tuple[FileFix | None, list[tuple[PlacedFinding, str]]]:
    """The file with the edits that can be made, and the findings whose edits can't."""
    from ddpdoctor.scripts.edits import SourceEditor, UneditableError
    from ddpdoctor.scripts.places import is_in_notebook
    from ddpdoctor.scripts.rewriting import refusal
    from ddpdoctor.scripts.source_text import UnreadableSource, read_source

    if why := "notebooks are not changed" if is_in_notebook(path) else refusal(path):
        return None, [(found, why) for found in findings]
    try:
        before = read_source(path)
        editor = SourceEditor(before, path)
    except (UnreadableSource, UneditableError) as error:
        return None, [(found, str(error)) for found in findings]
    edits: list[SourceEdit] = []
    mended: list[PlacedFinding] = []
    left: list[tuple[PlacedFinding, str]] = []
    for found in findings:
        try:
            editor.edited(found[2].edits)
        except UneditableError as error:
            left.append((found, str(error)))
        else:
            edits += found[2].edits
            mended.append(found)
    fix = FileFix(path, before, editor.edited(edits), tuple(mended)) if mended else None
    return fix, left


def _contents(fixes: Iterable[FileFix]) -> Mapping[str, bytes]:
    return {os.path.realpath(fix.path): fix.after for fix in fixes}


def _disproved(fix: FileFix, before: LintResult, after: LintResult) -> str:
    """Say what speaks against a change; "" if nothing does."""
    was, now = (_in_file(result, fix.path) for result in (before, after))
    if any(now[key] >= was[key] for key in map(_key, fix.findings)):
        return "the finding is still there with it"
    if now - was:
        return "there is another finding with it"
    return ""


def _in_file(result: LintResult, path: str) -> Counter[tuple[str, str]]:
    """Findings by what stays the same where lines move."""
    return Counter(_key(found) for found in result.placed_findings if found[2].place and found[2].place.file == path)


def _key(found: PlacedFinding) -> tuple[str, str]:
    return found[0].slug, found[2].summary
