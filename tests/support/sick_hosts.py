"""Hosts made sick for real, and what `ddpdoctor check --json` must hold to on each of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.facts.snapshot import GROUPS
from tests.support.command import command, plain_environ
from tests.support.fixture_hosts import JSON_NAMES

Environ = Mapping[str, str] | Mapping[bytes, bytes]


class Told:
    """One report. Reading it asserts what holds on any host: every check says something, nothing of ours crashed."""

    def __init__(self, stdout: str, stderr: str, code: int) -> None:
        assert stderr == "", stderr
        self.code = code
        self.report: dict[str, Any] = json.loads(stdout)
        slugs = {finding["slug"] for finding in self.report["findings"] + self.report["not_tested"]}
        silent = {check.slug for check in all_checks()} ^ (slugs | set(self.passed))
        assert not silent, silent
        crashed = [skipped for skipped in self.report["not_tested"] if skipped["why"] == "crashed"]
        assert not crashed, crashed
        for facts in self.report["facts"].values():
            for group in GROUPS:
                reason = facts[JSON_NAMES[group]].get("reason", "")
                assert not reason.startswith(("the probe of", "not looked at")), f"{group}: {reason}"
        assert code == {"ok": 0, "warn": 0, "fail": 1, "unknown": 2}[self.report["verdict"]]

    @property
    def passed(self) -> list[str]:
        return list(self.report["passed"])

    @cached_property
    def found(self) -> dict[str, str]:
        """Slug to severity and summary of what was found: "fail: GPU 3 no longer answers"."""
        return {finding["slug"]: f"{finding['severity']}: {finding['summary']}" for finding in self.report["findings"]}

    @cached_property
    def failed(self) -> set[str]:
        return {finding["slug"] for finding in self.report["findings"] if finding["severity"] == "fail"}

    @cached_property
    def not_tested(self) -> dict[str, str]:
        """Slug to reason, where a fact could not be learned."""
        return {
            skipped["slug"]: skipped["reason"] for skipped in self.report["not_tested"] if skipped["why"] == "unknown"
        }

    @cached_property
    def reasons(self) -> str:
        """All reasons for which something could not be tested, in one text."""
        return "\n".join(sorted(set(self.not_tested.values())))


def check(
    *arguments: str | Path,
    environ: Environ | None = None,
    around: Sequence[str] = (),
    cwd: Path | None = None,
    timeout: float = 60,
) -> Told:
    """`AROUND... ddpdoctor check ARGUMENTS --json -v`, with the settings of a plain shell unless `environ` is given."""
    ended = run("check", *arguments, "--json", "-v", environ=environ, around=around, cwd=cwd, timeout=timeout)
    return Told(ended.stdout, ended.stderr, ended.returncode)


def run(
    *arguments: str | Path,
    environ: Environ | None = None,
    around: Sequence[str] = (),
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*around, *command(*arguments)],
        env=plain_environ() if environ is None else environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def in_shell(script: str) -> list[str]:
    """What to put in front of a command so that the shell does this first: `in_shell('cd /tmp; exec "$@" >&-')`."""
    return ["sh", "-c", script if '"$@"' in script else f'{script}\nexec "$@"', "sh"]


def with_mounts(script: str) -> list[str]:
    """The same in a mount namespace of its own, where the script may mount whatever it likes. Needs root."""
    return ["unshare", "--mount", *in_shell(f"set -e\n{script}")]
