"""Proves what was applied: the checks once more, then the smoke training, each as a process of its own that has sourced the
settings, as a user's job would: not by the file's name, under which somebody else might have laid another one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ddpdoctor.engine.examination import Examination, Verdict, examine
from ddpdoctor.engine.registry import Check, SkipReason
from ddpdoctor.engine.sanitize_facts import plausible
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.fixes.applying import Applied
from ddpdoctor.fixes.choosing import FixChoice
from ddpdoctor.fixes.settings_file import private_copy, shell, shell_environ
from ddpdoctor.probes.run_as import INQUIRY_MARK, options_again
from ddpdoctor.report.reported_fixes import FixState, Treatment

_T = TypeVar("_T")

CHECK_SECONDS = 300
ENDING_SECONDS = 10
"""For a clean end, of which smoke's reaper alone may need five."""
NOTHING_LEFT = "there was nothing left to change"
NOT_SOURCED = 97
"""Exit code of a shell that could not source the settings."""

# Not `-m`: that would look for modules in the current folder first, which may hold anything.
_SELF = "import sys; sys.path[:] = [one for one in sys.path if one] + [{root!r}]; from ddpdoctor.cli.main import main; main()"
_SOURCING = f'. "$1" || exit {NOT_SOURCED}; shift; exec "$@"'


class Unproved(Exception):
    """There is no proof; the text says why."""


class SmokeReport(msgspec.Struct, frozen=True):
    """The part of the smoke command's JSON that counts."""

    verdict: Verdict
    findings: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


class _Facts(msgspec.Struct, frozen=True):
    facts: dict[str, Snapshot]


def look_again(arguments: Sequence[str], settings: str, nproc: int | None, checks: Sequence[Check]) -> Examination:
    """Examine the host once more, with these arguments, by the same checks.

    settings: that were written for a shell to source; "" if none were.

    Raises:
        Unproved: the look brought no facts.
    """
    ended = _run(["check", "--json", "-v", *arguments], settings, show_progress=False)
    try:
        (snapshot,) = msgspec.json.decode(ended.stdout, type=_Facts).facts.values()
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unproved(f"the second look ended with exit code {ended.returncode}{_last_words(ended.stderr)}") from error
    return examine(plausible(snapshot), nproc, checks)


def run_smoke(arguments: Sequence[str], settings: str) -> SmokeReport:
    """Run a smoke training, with its own live table on the terminal. settings: as for `look_again`.

    Raises:
        Unproved: it brought no report.
    """
    ended = _run(["smoke", "--json", *arguments], settings, show_progress=True)
    try:
        return msgspec.json.decode(ended.stdout, type=SmokeReport)
    except msgspec.MsgspecError as error:
        raise Unproved(f"smoke ended with exit code {ended.returncode}{_last_words(ended.stderr)}") from error


def _run(arguments: Sequence[str], settings: str, *, show_progress: bool) -> subprocess.CompletedProcess[bytes]:
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-c", _SELF.format(root=root), *options_again(), *arguments]
    inherited = show_progress and os.isatty(2)
    with ExitStack() as stack:
        given: tuple[int, ...] = ()
        try:
            if settings:
                file, name = stack.enter_context(private_copy(settings))
                given = (file,)
                command = [shell(), "-c", _SOURCING, "sh", name, *command]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if inherited else subprocess.PIPE,
                env=INQUIRY_MARK | (shell_environ() if settings else dict(os.environ)),
                pass_fds=given,
            )
        except OSError as error:
            raise Unproved(f"{command[0]} could not be started: {error.strerror}") from error
    try:
        stdout, stderr = process.communicate(timeout=None if show_progress else CHECK_SECONDS)
    except BaseException as error:
        _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise Unproved(f"no answer within {CHECK_SECONDS} s") from None
        raise
    if settings and process.returncode == NOT_SOURCED:
        raise Unproved(f"the settings file could not be sourced{_last_words(stderr)}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a process end its ranks or probes and give the terminal back; when that takes too long, kill it. Where a terminal's Ctrl-C has
    reached it as well, it is ending already, and a second signal does nothing."""
    with process:
        process.terminate()
        try:
            process.communicate(timeout=ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _last_words(stderr: bytes | None) -> str:
    lines = (stderr or b"").decode("utf-8", "replace").strip().splitlines()
    return f'; it last said "{lines[-1][:300]}"' if lines else ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the second look and of the training; in place of each, why it is missing."""

    examination: Examination | str
    smoke: SmokeReport | str

    @property
    def smoke_passed(self) -> bool:
        return isinstance(self.smoke, SmokeReport) and self.smoke.verdict in (Verdict.OK, Verdict.WARN)


def prove(look: Callable[[], Examination], train: Callable[[], SmokeReport]) -> Proof:
    """Do both, one after the other. The training is run even where a check still complains: its word is the last one."""
    return Proof(examination=_result_or_reason(look), smoke=_result_or_reason(train))


def _result_or_reason(step: Callable[[], _T]) -> _T | str:
    try:
        return step()
    except Unproved as error:
        return str(error)


def judge_treatments(choices: Sequence[FixChoice], applied: Applied, proof: Proof | None) -> list[Treatment]:
    """Say what became of each case; proof None: nothing was applied, so nothing was proved."""
    return [_treatment(choice, choices, applied, proof) for choice in choices]


def _treatment(choice: FixChoice, choices: Sequence[FixChoice], applied: Applied, proof: Proof | None) -> Treatment:
    remedy, case = choice.remedy, choice.case
    if remedy is None or remedy in applied.refused or proof is None:
        left = case.remedies[0].fix if case.remedies else next(iter(case.fixes), None)
        return Treatment(
            slug=case.slug,
            text=left.text if left else "",
            commands=left.commands if left else (),
            state=FixState.LEFT,
            reason=choice.reason if remedy is None else applied.refused.get(remedy, NOTHING_LEFT),
        )
    complaint = _complaint(choice, choices, applied, proof)
    return Treatment(
        slug=case.slug,
        text=remedy.fix.text,
        commands=remedy.commands,
        state=FixState.NOT_CONFIRMED if complaint else FixState.CONFIRMED,
        reason=complaint or "its check passes now, and smoke passed",
    )


def _complaint(choice: FixChoice, choices: Sequence[FixChoice], applied: Applied, proof: Proof) -> str:
    """Say why a fix isn't confirmed; "" where it is."""
    assert choice.remedy is not None
    if isinstance(proof.examination, str):
        return f"its check could not be run again: {proof.examination}"
    slug = choice.remedy.fix.proven_by or choice.case.slug
    if choice.remedy.lines and applied.settings_replaced:
        return f"{applied.settings_file} isn't what was written there any more: don't source it before you have looked at it"
    result = next((result for result in proof.examination.results if result.check.slug == slug), None)
    if result is None:
        return f"{slug}, which would prove it, is not among the chosen checks"
    # Of the same illness a second case may have been left as it was.
    left = {other.case.summary for other in choices if other.remedy is None or other.remedy in applied.refused}
    remaining = [finding.summary for finding in result.findings if finding.summary not in left]
    if remaining:
        return f"its check still finds: {remaining[0]}"
    if result.not_tested is not None and result.not_tested.why is not SkipReason.NOT_APPLICABLE:
        return f"its check could not be judged: {result.not_tested.reason}"
    if isinstance(proof.smoke, str):
        return f"its check passes now, but smoke could not be run: {proof.smoke}"
    if not proof.smoke_passed:
        return f"its check passes now, but {_smoke_words(proof.smoke)}"
    return ""


def _smoke_words(report: SmokeReport) -> str:
    if report.verdict is Verdict.UNKNOWN:
        return f"smoke could not test anything: {'; '.join(report.problems) or 'no stage was run'}"
    fails = [finding for finding in report.findings if finding.get("severity") == "fail"]
    # The training's own word first; what the whole check says of this host may come with it.
    worst = min(fails, key=lambda fail: fail.get("family") != "smoke", default={})
    return f"smoke failed: {worst.get('summary', 'it does not say why')} [{worst.get('slug', 'smoke')}]"
