"""The meta-tests: what must hold of every check, whoever adds it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, SkipReason, diagnose
from ddpdoctor.network_check.analysis.node_facts import CHECK_FAMILIES
from tests.support.command import ROOT
from tests.support.fixture_hosts import (
    HostCase,
    healthy_facts,
    healthy_names,
    host_cases,
    judge,
    slugs_with_hosts,
    to_snapshot,
)

CHECKS = ROOT / "checks"
PACKAGE = CHECKS.parent / "ddpdoctor"
PURE = "Pure."
"""What the docstring of a module ends with, or says in passing, that works on facts alone."""
MAY_IMPORT = {
    "__future__", "ast", "bisect", "signal.SIGKILL", "signal.SIGTERM", "collections", "datetime", "difflib", "enum", "functools", "hashlib", "pkgutil", "ipaddress", "itertools", "json", "math", "re", "shlex", "statistics", "typing", "warnings",
    "msgspec", "packaging", "ddpdoctor",
    # Tables of Python's own: which modules are its, what Python 2 called them, and which signals there are.
    "_compat_pickle", "sys.stdlib_module_names", "signal.Signals",
}  # fmt: skip


def pure_modules() -> list[Path]:
    """Those of checks/, of knowledge/ and of logs/analyze/, and elsewhere all that say so of themselves."""
    rooms = (CHECKS, PACKAGE / "knowledge", PACKAGE / "logs" / "analyze")
    own_word = {
        path
        for path in PACKAGE.rglob("*.py")
        if "checks" not in path.relative_to(PACKAGE).parts
        and PURE in (ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    return sorted({*own_word, *(path for room in rooms for path in room.rglob("*.py"))} - {CHECKS / "catalogue.py"})


every_check = pytest.mark.parametrize("one", all_checks(), ids=lambda one: one.slug)
# What shows itself in logs alone has its fixtures in fixtures/logs, what source tells in fixtures/scripts.
of_hosts = [check for check in all_checks() if check.groups not in ({"log"}, {"script"})]
every_check_of_hosts = pytest.mark.parametrize("one", of_hosts, ids=lambda one: one.slug)
every_illness = pytest.mark.parametrize("slug", slugs_with_hosts())


@pytest.mark.quick
@every_check
def test_page_has_its_sections(one: Check) -> None:
    assert one.title.endswith(".")
    for heading in ("What breaks", "Why", "Fix"):
        assert one.section(heading), f"{one.slug} has no section {heading!r}"


@pytest.mark.quick
@every_check_of_hosts
def test_has_sick_and_near_miss_fixtures(one: Check) -> None:
    assert host_cases(one.slug, "sick-")
    assert host_cases(one.slug, "near-miss-")


@every_check_of_hosts
def test_a_near_miss_is_tested_and_fine(one: Check) -> None:
    """Silence may also mean that there was nothing to look at: that alone proves nothing."""
    assert any(judge(case).passed for case in host_cases(one.slug, "near-miss-"))


@pytest.mark.parametrize("case", host_cases(), ids=lambda case: case.id)
def test_fixture_is_judged_right(case: HostCase) -> None:
    result = judge(case)
    if case.is_sick:
        assert result.findings, f"found nothing: {result.not_tested}"
        for finding in result.findings:
            assert finding.evidence
            assert finding.fixes
            assert "\n" not in finding.summary
            assert len(finding.summary) <= 160
    else:
        assert case.name.startswith("near-miss-")
        assert not result.findings
    assert result.not_tested is None or result.not_tested.why is not SkipReason.CRASHED, result.not_tested


@every_illness
def test_its_fixtures_name_only_facts_that_exist(slug: str) -> None:
    for case in host_cases(slug):
        assert case.origin in ("recorded", "hand-made"), case.id
        assert case.about, case.id
        assert_kept(case.facts, json.loads(msgspec.json.encode(case.snapshot())), case.id)


def assert_kept(given: object, decoded: object, where: str) -> None:
    """Every key that a fixture names survives decoding: a misspelt one would silently test nothing."""
    if isinstance(given, dict) and isinstance(decoded, dict):
        for key, value in given.items():
            assert key in decoded, f"{where}: there is no fact {key!r}"
            assert_kept(value, decoded[key], f"{where}.{key}")
    elif isinstance(given, dict) and isinstance(decoded, list):
        for key, value in given.items():
            assert_kept(value, decoded[0 if key == "*" else int(key)], f"{where}.{key}")
    elif isinstance(given, list) and isinstance(decoded, list):
        for index, value in enumerate(given):
            assert_kept(value, decoded[index], f"{where}[{index}]")


@pytest.mark.parametrize("name", healthy_names())
def test_healthy_host_is_called_healthy(name: str) -> None:
    snapshot = to_snapshot(healthy_facts(name))
    for result in diagnose(snapshot, plan_for(snapshot), all_checks()):
        assert not result.findings, f"{result.check.slug} complains: {result.findings[0].summary}"
        assert result.not_tested is None or result.not_tested.why is not SkipReason.CRASHED, result.not_tested


@pytest.mark.parametrize("name", healthy_names())
def test_healthy_host_says_whether_it_was_recorded(name: str) -> None:
    assert healthy_facts(name)["origin"] in ("recorded", "hand-made")
    assert healthy_facts(name)["about"]


@pytest.mark.parametrize("name", healthy_names())
def test_healthy_host_names_only_facts_that_exist(name: str) -> None:
    facts = healthy_facts(name)
    assert_kept(
        {key: value for key, value in facts.items() if key not in ("origin", "about")},
        json.loads(msgspec.json.encode(to_snapshot(facts))),
        name,
    )


@pytest.mark.quick
@pytest.mark.parametrize("path", pure_modules(), ids=lambda path: ".".join(path.parts[-2:]))
def test_checks_and_what_they_share_never_look_at_the_world(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = node.module not in ("sys", "signal")
            names = [node.module or ""] if whole else [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            assert any(name == good or name.startswith(good + ".") for good in MAY_IMPORT), (
                f"{path.name} imports {name}"
            )
            assert not name.startswith("ddpdoctor.probes"), f"{path.name} imports {name}"
        assert not (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("open", "__import__", "eval", "exec")
        )


@every_illness
def test_fixes_that_install_name_the_target_python(slug: str) -> None:
    for case in host_cases(slug):
        target_python = case.snapshot().target_python
        for fix in (fix for finding in judge(case).findings for fix in finding.fixes):
            # Its own, or an environment that the same fix makes of it.
            made = [f"{command.rpartition(' ')[2]}/bin/python" for command in fix.commands if " -m venv " in command]
            for command in fix.commands:
                if "pip install" in command or "pip uninstall" in command:
                    named = [f"{python} -m pip" in command for python in (target_python.python, *made)]
                    assert any(named), f"{case.id} installs elsewhere: {command}"


@pytest.mark.parametrize("slug", [check.slug for check in of_hosts if check.family in CHECK_FAMILIES])
def test_commands_can_be_typed_as_they_stand(slug: str) -> None:
    """Of what netcheck judges: no command has dots in it, or a script that isn't there. (Starting the training anew is told
    with "train.py" by the checks of the launch.)"""
    for case in host_cases(slug):
        for finding in judge(case).findings:
            for command in (one for fix in finding.fixes for one in fix.commands):
                assert not re.search(r"\.\.\.|train\.py|<\w+>|\bPEER\b", command), f"{case.id}: {command}"
