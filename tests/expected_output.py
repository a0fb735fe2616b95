"""Says what fixtures/expected is to hold: a file an illness, with what a user sees of each of its sick cases, so that every change
of wording is a diff that somebody reads.

sick-* in fixtures/hosts/SLUG.json   what a command prints where it looks for that illness alone: of a job that was looked at, or a
                                     smoke training, all of the report; of others the finding, which is the same in every command
fixtures/logs/SLUG/sick-*.log        all that `ddpdoctor diagnose-log` prints
fixtures/scripts/SLUG/sick-*         all that `ddpdoctor lint` prints where it looks for that mistake alone
near-miss-*                          a line on each: that nothing is found, why it could not be tested, what a log is taken for instead

Written by python -m tests.regenerate. The same on every machine, for every user, under every supported Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ddpdoctor.api.script_linting import LintResult
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.hang.render import hang_document
from ddpdoctor.logs.diagnosis import LogJudgement, judge_log
from ddpdoctor.logs.render.document import log_document
from ddpdoctor.report.check_results import result_sections
from ddpdoctor.report.document import Document
from ddpdoctor.report.terminal import text_of
from ddpdoctor.scripts.judging import judge_script
from ddpdoctor.smoke_training.render import smoke_document
from tests.log_corpus import LOGS, corpus, log_of
from tests.support.fixture_hosts import HOSTS, host_cases, slugs_with_hosts
from tests.support.registered_checks import find_check
from tests.support.script_cases import ScriptCase, script_cases, slugs_with_scripts

EXPECTED: Final = HOSTS.parent / "expected"
WIDTH_COLUMNS: Final = 100
FORCES_COLOUR: Final = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Settings that rich obeys even where it writes into a file."""
HEALTHY: Final = "healthy"


def all_slugs() -> list[str]:
    """The names of all folders with cases: illnesses, and what logs show besides."""
    return sorted({*slugs_with_hosts(), *(folder.name for folder in LOGS.iterdir()), *slugs_with_scripts()} - {HEALTHY})


def all_expected(slugs: Iterable[str] | None = None) -> dict[Path, str]:
    """Map the path of each illness's file to the text that should stand there."""
    chosen = all_slugs() if slugs is None else list(slugs)
    with ProcessPoolExecutor() as pool:
        texts = pool.map(expected_of, chosen, chunksize=8)
        return {EXPECTED / f"{slug}.txt": text for slug, text in zip(chosen, texts, strict=True) if text}


def expected_of(slug: str) -> str:
    """All cases of an illness, one after the other; nothing where none is sick."""
    with _never_in_colour():
        cases = sorted([*_host_cases(slug), *_log_cases(slug), *_script_cases(slug)])
    sick = [f"{'=' * 8} {name}\n\n{text.rstrip()}\n" for name, text, is_sick in cases if is_sick]
    others = [f"{name}: {text}\n" for name, text, is_sick in cases if not is_sick]
    if not sick:
        return ""
    return "\n\n".join([*sick, f"{'=' * 8} near-misses\n\n{''.join(others)}"] if others else sick)


@contextmanager
def _never_in_colour() -> Iterator[None]:
    wanted = {name: os.environ.pop(name) for name in FORCES_COLOUR if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(wanted)


# --- hosts ------------------------------------------------------------------------------------------------------------------


def _host_cases(slug: str) -> Iterator[tuple[str, str, bool]]:
    """(name, text, whether it is sick) of each."""
    for case in host_cases(slug):
        examination = examine(case.snapshot(), case.nproc, [find_check(slug)])
        text = _report_on_host(examination) if case.is_sick else _line_on_host(examination)
        yield f"hosts/{case.id}", text, case.is_sick


def _report_on_host(examination: Examination) -> str:
    check = examination.results[0].check
    known = {name for name in check.groups if not isinstance(getattr(examination.snapshot, name), Unknown)}
    if "hang" in known:
        document = hang_document(examination)
    elif "smoke" in known:
        document = smoke_document(examination)
    else:
        document = Document(verdict=examination.verdict, sections=result_sections(examination, verbose=False))
    return text_of(document, WIDTH_COLUMNS)


def _line_on_host(examination: Examination) -> str:
    (result,) = examination.results
    return f"not tested: {result.not_tested.reason}" if result.not_tested else "passed"


# --- logs -------------------------------------------------------------------------------------------------------------------


def _log_cases(slug: str) -> Iterator[tuple[str, str, bool]]:
    """The same of logs."""
    for log in corpus(slug):
        judgement = judge_log(log_of(log.path), catalogue())
        text = _report_on_log(judgement) if log.sick else _line_on_log(judgement)
        yield f"logs/{log.name}", text, log.sick


def _report_on_log(judgement: LogJudgement) -> str:
    return text_of(log_document(judgement), WIDTH_COLUMNS)


def _line_on_log(judgement: LogJudgement) -> str:
    slugs = [opinion.check.slug for opinion in (*judgement.opinions, *judgement.also)]
    return f"{judgement.word.value}, names {', '.join(slugs) or 'nothing'}"


# --- scripts ----------------------------------------------------------------------------------------------------------------


def _script_cases(slug: str) -> Iterator[tuple[str, str, bool]]:
    """The same of training scripts."""
    for case in script_cases(slug):
        yield f"scripts/{case.name}", _report_on_script(case), case.is_sick


def _report_on_script(case: ScriptCase) -> str:
    judged = judge_script(case.read(), [find_check(case.slug)])
    if case.is_sick:
        return text_of(LintResult([judged], judged.problems).document(), WIDTH_COLUMNS)
    return f"not tested: {'; '.join(judged.idle.values())}" if judged.idle else "passed"
