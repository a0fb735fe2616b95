"""`ddpdoctor check --fix`: shows the fixes that the tool can apply itself, asks, applies, and proves them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.base.text import one_line
from ddpdoctor.cli.asking import ask
from ddpdoctor.engine.examination import Examination
from ddpdoctor.fixes.appliable_fixes import AppliableFix, Case, cases
from ddpdoctor.fixes.applying import Applied, apply, find_refusals
from ddpdoctor.fixes.choosing import FixChoice, ask_for_each, choose_first_of_each
from ddpdoctor.fixes.proof import Proof, SmokeReport, judge_treatments, look_again, prove, run_smoke
from ddpdoctor.fixes.render import case_blocks, outcome_blocks, source_path, treatment_blocks
from ddpdoctor.fixes.settings_file import SettingsPlace, safe_place
from ddpdoctor.report.document import Paragraph
from ddpdoctor.report.examined_hosts import check_document, check_verdict
from ddpdoctor.report.reported_fixes import FixState, Treatment
from ddpdoctor.report.terminal import screen_for

if TYPE_CHECKING:
    from ddpdoctor.cli.fix_check_options import Wish
    from ddpdoctor.engine.registry import Check


def treat(examination: Examination, checks: Sequence[Check], wish: Wish) -> int:
    """The whole of it, from the first report to the exit code."""
    if not wish.as_json:
        screen_for(sys.stdout).show(check_document([examination], verbose=wish.verbose, quiet=wish.quiet))
    found = cases(examination)
    if not any(case.remedies for case in found):
        return _nothing_to_apply(examination, found, wish)
    may_ask = not wish.yes and not wish.dry_run
    if wish.dry_run or (may_ask and not (sys.stdin.isatty() and sys.stderr.isatty())):
        return _only_shown(examination, found, wish, nobody_to_ask=may_ask)
    applied = Applied()
    try:
        choices = ask_for_each(found, _Terminal()) if may_ask else choose_first_of_each(found)
        apply(choices, _here(), applied)
        proof = _prove(applied, checks, wish) if applied.anything else None
    except StoppedBySignal as stopped:
        applied.stopped()
        stopped.text = f"Stopped. {_changed(applied)}"
        raise
    return _told(examination, judge_treatments(choices, applied, proof), applied, proof, wish)


def _here() -> Path:
    """The folder for the settings; where somebody removed it, writing there will say so."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def _nothing_to_apply(examination: Examination, found: Sequence[Case], wish: Wish) -> int:
    left = judge_treatments([FixChoice(case=case, reason=case.reason) for case in found], Applied(), None)
    if not wish.as_json:
        words = "None of these fixes is one that ddpdoctor applies itself." if left else "There is nothing to fix."
        screen_for(sys.stdout).write(*(treatment_blocks(left) if left else ()), Paragraph(""), Paragraph(words))
    return _end(examination, left, None, wish)


def _only_shown(examination: Examination, found: Sequence[Case], wish: Wish, *, nobody_to_ask: bool) -> int:
    """Changes nothing."""
    choices = choose_first_of_each(found)
    refused = find_refusals(choices, _here())
    where = safe_place(_here())
    told = [_would_be(choice, refused, where) for choice in choices]
    if not wish.as_json:
        screen_for(sys.stdout).write(*treatment_blocks(told))
    if not nobody_to_ask:
        return _end(examination, told, None, wish)
    sys.stdout.flush()
    print(
        "Nothing was applied: there is no terminal to ask on. To apply these fixes without being asked: "
        "ddpdoctor check --fix --yes",
        file=sys.stderr,
    )
    return 2


def _would_be(choice: FixChoice, refused: dict[AppliableFix, str], where: SettingsPlace) -> Treatment:
    if choice.remedy is None or choice.remedy in refused:
        applied = Applied()
        applied.refused = refused
        (left,) = judge_treatments([choice], applied, None)
        return left
    if choice.remedy.leftovers:
        how = "ended, if a second look agrees"
    elif choice.remedy.lines:
        assert where.path  # Else it is refused.
        how = f"written to {where.path} ({where.reason})" if where.reason else f"written to {where.path.name}"
    else:
        how = "changed in place, with an undo file"
    return Treatment(
        slug=choice.case.slug,
        text=choice.remedy.fix.text,
        commands=choice.remedy.commands,
        state=FixState.WOULD_APPLY,
        reason=f"{how}; nothing was changed now",
    )


class _Terminal:
    """Asks there. An empty answer, or the end of input, is a no."""

    def __init__(self) -> None:
        self._screen = screen_for(sys.stderr)
        self._place = safe_place(_here())

    def which(self, case: Case, number: int, total: int) -> int | None:
        sys.stdout.flush()
        self._screen.write(Paragraph(""), *case_blocks(case, number, total, self._place))
        several = len(case.remedies) > 1
        places = (
            {str(number): number - 1 for number in range(1, len(case.remedies) + 1)} if several else {"y": 0, "yes": 0}
        )
        choices = "/".join([*places, "N"] if several else ["y", "N"])
        return _answer(f"Apply {'which' if several else 'it'}? [{choices}] ", places)

    def instead(self, remedy: AppliableFix, earlier: FixChoice) -> bool:
        assert earlier.remedy is not None
        mine, theirs = "; ".join(remedy.commands), "; ".join(earlier.remedy.commands)
        print(f"That contradicts what you chose for {earlier.case.slug}:", file=sys.stderr)
        print(f"    {one_line(theirs)}\n    {one_line(mine)}", file=sys.stderr)
        return _answer("Take the second instead of the first? [y/N] ", {"y": 0, "yes": 0}) is not None


def _answer(question: str, places: dict[str, int]) -> int | None:
    while True:
        line = ask(question)
        answer = line.strip().lower()
        if answer in places:
            return places[answer]
        if answer in ("", "n", "no"):
            if not line:
                print(file=sys.stderr)
            return None


def _prove(applied: Applied, checks: Sequence[Check], wish: Wish) -> Proof:
    def look() -> Examination:
        line = StatusLine(lambda seconds: f"Running the checks again ({seconds:.0f} s)", 0.3)
        try:
            return look_again(wish.look, applied.settings, wish.nproc, checks)
        finally:
            line.close()

    def train() -> SmokeReport:
        return run_smoke(wish.train, applied.settings)

    return prove(look, train)


def _changed(applied: Applied) -> str:
    """Say what was done when we were stopped."""
    if not applied.anything and not applied.endings.describe():
        return "Nothing was changed."
    parts = []
    if applied.settings_file:
        parts.append(f"{source_path(applied.settings_file)} was written, and counts only where it is sourced")
    if applied.fixed:
        from ddpdoctor.checkpoints.render import undo_command

        undo = undo_command(applied.fixed, [str(path) for path in applied.fixed])
        parts.append(
            f"fixed, and whole: {', '.join(one_line(str(path)) for path in applied.fixed)} (to go back: {undo})"
        )
    if ended := applied.endings.describe():
        parts.append(ended)
    return f"By then {'; '.join(parts)}. Nothing was proved yet."


def _told(examination: Examination, told: list[Treatment], applied: Applied, proof: Proof | None, wish: Wish) -> int:
    """The examination that counts is the last one that there is."""
    after = proof.examination if proof and isinstance(proof.examination, Examination) else examination
    if not wish.as_json:
        screen = screen_for(sys.stdout)
        screen.write(*treatment_blocks(told), *outcome_blocks(applied, proof, wish.checkpoints))
        screen.write(*_new_findings(examination, after), Paragraph(""))
        screen.show(check_verdict([after]))
    return _end(after, told, proof, wish)


def _new_findings(before: Examination, after: Examination) -> Iterator[Paragraph]:
    """List findings that came to light only after the fixes."""
    known = {finding.summary for _, _, finding in before.findings}
    slugs = {check.slug for check, _, _ in before.findings}
    for check, severity, finding in after.findings:
        if finding.summary not in known and check.slug not in slugs:
            yield Paragraph(f"New after the fixes: {severity.value} {check.slug}: {one_line(finding.summary)}")


def _end(examination: Examination, told: list[Treatment], proof: Proof | None, wish: Wish) -> int:
    """The JSON, if asked for, and the exit code: 1 where something applied is not confirmed, or is still wrong."""
    if wish.as_json:
        from ddpdoctor.report.contract import build_report, to_json

        report = build_report("check", [examination], with_facts=wish.verbose, of_all=examination.conclusion)
        print(to_json(msgspec.structs.replace(report, treatments=tuple(told))))
    unconfirmed = any(treatment.state is FixState.NOT_CONFIRMED for treatment in told)
    code = examination.conclusion.exit_code(strict=wish.strict)
    return 1 if unconfirmed else code
