"""`lint`: the mistakes of training scripts, found in their source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ddpdoctor.api.check_selection import selected_checks
from ddpdoctor.api.errors import UsageError
from ddpdoctor.api.results import CommandResult
from ddpdoctor.base.status_line import StatusLine

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.engine.registry import Check
    from ddpdoctor.facts.script import Script
    from ddpdoctor.report.contract import Report
    from ddpdoctor.report.document import Document
    from ddpdoctor.scripts.judging import JudgedScript, PlacedFinding
    from ddpdoctor.scripts.project import ModuleCache
    from ddpdoctor.scripts.project_settings import FoundSettings

STDIN = "-"
COMMAND = "lint"
STATUS_DELAY_SECONDS = 0.5


class LintResult(CommandResult):
    """Scripts, judged by what their source says.

    Args:
        judged: the files that were read.
        problems: why files or settings could not be.
    """

    command = COMMAND

    def __init__(self, judged: Sequence[JudgedScript], problems: Sequence[str]) -> None:
        self.judged = tuple(judged)
        self._problems = tuple(problems)

    @property
    def problems(self) -> Sequence[str]:
        return self._problems

    @cached_property
    def placed_findings(self) -> tuple[PlacedFinding, ...]:
        """Findings with their checks, worst first, then by file and line."""
        from ddpdoctor.scripts.judging import merge_findings

        return merge_findings(self.judged)

    @property
    def verdict(self) -> Verdict:
        from ddpdoctor.base.findings import Severity
        from ddpdoctor.engine.examination import Verdict, unless_unjudged

        severities = {severity for _, severity, _ in self.placed_findings}
        if Severity.FAIL in severities:
            return Verdict.FAIL
        return unless_unjudged(Verdict.WARN if Severity.WARN in severities else Verdict.OK, self.unjudged)

    def report(self, *, with_facts: bool = False) -> Report:
        from ddpdoctor.scripts.render_json import lint_report

        return lint_report(self.command, self.judged, self.placed_findings, self._problems, self.verdict)

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.scripts.render import lint_document

        return lint_document(
            self.judged, self.placed_findings, self._problems, self.verdict, verbose=verbose, quiet=quiet
        )

    def to_concise(self) -> str:
        """Write `file:line:column: severity slug message` for each finding, for editors."""
        from ddpdoctor.scripts.render_lines import concise_lines

        return _text(concise_lines(self.placed_findings, self.unjudged))

    def to_github(self) -> str:
        """Write commands of GitHub's workflows, each an annotation."""
        from ddpdoctor.scripts.places import repository_root
        from ddpdoctor.scripts.render_lines import github_lines

        return _text(github_lines(self.placed_findings, self.unjudged, repository_root(os.curdir)))

    def to_sarif(self) -> str:
        """Write a log file of SARIF 2.1.0, with paths as seen from the root of the repository."""
        from ddpdoctor.scripts.places import repository_root
        from ddpdoctor.scripts.render_sarif import sarif_log

        return f"{sarif_log(self.placed_findings, self.unjudged, repository_root(os.curdir))}\n"

    @property
    def unjudged(self) -> tuple[str, ...]:
        """What could not be judged: files that could not be read, and checks that failed themselves."""
        from ddpdoctor.scripts.render import crashes

        return (*self._problems, *crashes(self.judged))


def lint(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    stdin: bytes | None = None,
) -> LintResult:
    """Read training scripts and the files of their project that they import, and judge what they do. Nothing of them is run.

    Args:
        paths: scripts, notebooks, folders of them, or "-" for `stdin`; one, or several.
        select: only these checks.
        ignore: not these checks.
        stdin: the source that "-" stands for; None: standard input is read.

    Raises:
        UsageError: a path can be no file's, or no check is left.
    """
    named = [os.fspath(path) for path in ((paths,) if isinstance(paths, str | os.PathLike) else paths)]
    if not named or not all(named):
        raise UsageError("a path is empty; is the variable in it set?" if named else "there is nothing to read")
    if any("\0" in path for path in named):
        raise UsageError("a path has a NUL character in it, which no file's name has")
    return lint_as_if({}, named, select, ignore, stdin=stdin)


def lint_as_if(
    contents: Mapping[str, bytes],
    paths: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
    *,
    stdin: bytes | None = None,
) -> LintResult:
    """Judge scripts as they would be after a change.

    Args:
        contents: by real path, of the files that are changed.
        paths: as for `lint`, as the rest.
        select: only these checks.
        ignore: not these checks.
        stdin: the source that "-" stands for.

    Raises:
        UsageError: no check is left.
    """
    from ddpdoctor.scripts.project import ModuleCache

    checks = tuple(check for check in selected_checks(select, ignore) if "script" in check.groups)
    if not checks:
        raise UsageError("--select and --ignore leave no check of scripts")
    return _Linter(checks, ModuleCache(contents)).lint(paths, stdin)


class _Linter:
    def __init__(self, checks: tuple[Check, ...], cache: ModuleCache) -> None:
        self._checks = checks
        self._cache = cache
        self._judged: list[JudgedScript] = []
        self._problems: dict[str, None] = {}

    def lint(self, paths: Sequence[str], stdin: bytes | None) -> LintResult:
        from ddpdoctor.scripts.collecting import collecting_between_scripts

        line = StatusLine(lambda seconds: f"{len(self._judged)} files read ({seconds:.0f} s)", STATUS_DELAY_SECONDS)
        try:
            with collecting_between_scripts() as collect:
                for script, settings in self._scripts(paths, stdin):
                    self._judge(script, settings)
                    collect()
                # As long as garbage isn't collected, which would go through all of their trees first.
                self._cache.clear()
        finally:
            line.close()
        return LintResult(self._judged, tuple(self._problems))

    def _judge(self, script: Script, settings: FoundSettings) -> None:
        from ddpdoctor.scripts.judging import judge_script

        judged = judge_script(script, self._checks_for(settings))
        for comment in script.ignored:
            self._refuse_unknown(comment.slugs, f"{comment.file}:{comment.line}")
        self._problems.update(dict.fromkeys(judged.problems))
        if not script.problem:
            self._judged.append(judged)

    def _scripts(self, paths: Sequence[str], stdin: bytes | None) -> Iterator[tuple[Script, FoundSettings]]:
        from ddpdoctor.scripts.named_paths import files_in
        from ddpdoctor.scripts.project_settings import FoundSettings, SettingsOfProjects
        from ddpdoctor.scripts.reading import read_script, read_text
        from ddpdoctor.scripts.source_text import STDIN_NAME

        projects = SettingsOfProjects()
        done: set[str] = set()
        for path in paths:
            if path == STDIN:
                content = _standard_input() if stdin is None else stdin
                if problem := _problem_of_stdin(content):
                    self._problems[f"{STDIN_NAME}: {problem}"] = None
                else:
                    yield read_text(content, STDIN_NAME), FoundSettings()
                continue
            excluding = ""
            is_read = False
            for file in files_in(path):
                settings = projects.of(file.path)
                if file.path != path and settings.excludes(file.path):
                    excluding = settings.file
                    continue
                is_read = True
                real = os.path.realpath(file.path)
                if real in done:
                    continue
                done.add(real)
                if file.problem:
                    self._problems[f"{file.path}: {file.problem}"] = None
                    continue
                yield read_script(file.path, self._cache), settings
            if excluding and not is_read:
                self._problems[f"{path}: nothing was read in it: {excluding} excludes all of it"] = None

    def _checks_for(self, found: FoundSettings) -> tuple[Check, ...]:
        settings = found.settings
        if found.problem:
            self._problems[found.problem] = None
        self._refuse_unknown((*settings.select, *settings.ignore), found.file)
        return settings.choose(self._checks)

    def _refuse_unknown(self, names: Iterable[str], place: str) -> None:
        from ddpdoctor.engine.registry import nearest_names

        for name in names:
            if name not in self._names:
                nearest = nearest_names(name, self._names)
                hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
                self._problems[f"{place}: there is no check of scripts called {name!r}{hint}"] = None

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for check in selected_checks((), ()) for name in (check.slug, check.family))


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _problem_of_stdin(content: bytes) -> str:
    from ddpdoctor.scripts.source_text import MAX_SOURCE_BYTES, too_large

    if not content.strip():
        return "not read: nothing arrived. Run what stands before the | alone, and read what it says"
    return too_large(MAX_SOURCE_BYTES) if len(content) > MAX_SOURCE_BYTES else ""


def _standard_input() -> bytes:
    import sys

    from ddpdoctor.scripts.source_text import MAX_SOURCE_BYTES

    return sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1)
