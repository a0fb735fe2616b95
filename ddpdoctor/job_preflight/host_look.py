"""A look at this rank's host, in a process of its own: nothing of it, a driver that crashes included, touches the training process."""

from __future__ import annotations

import os
import pathlib
import socket
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Evidence, Finding, Fix, Severity
from ddpdoctor.base.text import clip
from ddpdoctor.engine.registry import Skipped, SkipReason
from ddpdoctor.job_preflight.messages import HostAnswer, JudgedCheck

ARGUMENTS: Final = ("check", "--quick", "--json", "--ignore", "processes")
"""Without the checks of what runs here: this job, which has just begun, and those of others, which are none of its concern."""
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class _Found(msgspec.Struct):
    slug: str
    severity: Severity
    summary: str
    cause: str
    evidence: tuple[Evidence, ...]
    fixes: tuple[Fix, ...]


class _NotTested(msgspec.Struct):
    slug: str
    reason: str
    why: SkipReason


class _Report(msgspec.Struct):
    findings: tuple[_Found, ...]
    not_tested: tuple[_NotTested, ...]
    passed: tuple[str, ...]


def host_key() -> str:
    """A name of this host that its ranks have in common, and no other host's."""
    try:
        with pathlib.Path(BOOT_ID).open(encoding="ascii") as file:
            boot = file.read(64).strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def look_at_host(seconds: float, nproc: int | None) -> HostAnswer:
    """Have `ddpdoctor check --quick` look at it.

    Args:
        seconds: that it may take.
        nproc: ranks on this host; None: not known.
    """
    from ddpdoctor.probes.subprocesses import run

    options: Sequence[str] = () if nproc is None else ("--nproc", str(nproc))
    command = (sys.executable, "-m", "ddpdoctor", *ARGUMENTS, "--python", sys.executable, *options)
    host = socket.gethostname()
    if not sys.executable:
        return HostAnswer(host=host, problem="this program doesn't tell its Python, which would look at the host")
    ended = run(command, seconds, environ=os.environ)
    try:
        report = msgspec.json.decode(ended.stdout, type=_Report)
    except (msgspec.DecodeError, ValueError):
        why = ended.why_no_answer(seconds) or clip(ended.stderr.decode("utf-8", "replace").strip())
        return HostAnswer(host=host, problem=why or f"it ended with exit code {ended.returncode}")
    found: dict[str, list[Finding]] = {}
    for told in report.findings:
        finding = Finding(told.summary, told.cause, told.evidence, told.fixes, told.severity)
        found.setdefault(told.slug, []).append(finding)
    unknown = [told for told in report.not_tested if told.why is not SkipReason.NOT_APPLICABLE]
    return HostAnswer(
        host=host,
        checks=(
            *(JudgedCheck(slug, tuple(findings)) for slug, findings in found.items()),
            *(JudgedCheck(told.slug, (), Skipped(told.why, told.reason)) for told in unknown if told.slug not in found),
        ),
        passed=len(report.passed),
        idle=len(report.not_tested) - len(unknown),
    )
