"""A host's examination as metrics, in the text that Prometheus and node_exporter's textfile collector read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Result

CHECK_STATUSES: Final = ("ok", "warn", "fail", "skip")


def metrics_text(examination: Examination, verdict: Verdict, ended: float, seconds: float) -> str:
    """Build the metrics of one run.

    Args:
        examination: of the host.
        verdict: on it.
        ended: when, in seconds since 1970.
        seconds: that the whole of it took.
    """
    registry = CollectorRegistry()

    def gauge(name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"ddpdoctor_{name}", help_text, labels, registry=registry)

    gauge("build_info", "The ddpdoctor that ran; always 1.", "version").labels(__version__).set(1)
    gauge("last_run_timestamp_seconds", "When the last run ended, in seconds since 1970.").set(ended)
    gauge("last_run_duration_seconds", "Time that the last run took, looking and judging.").set(seconds)
    _set_states(
        gauge(
            "verdict", "1 for the verdict on this host, 0 for the others; unknown: too little could be seen.", "verdict"
        ),
        (),
        (known.value for known in Verdict),
        verdict.value,
    )
    status = gauge(
        "check_status", "1 for what each check came to, 0 for the rest; skip: it could not judge.", "check", "status"
    )
    duration = gauge("check_duration_seconds", "Time that the check took to judge what was seen.", "check")
    for result in examination.results:
        _set_states(status, (result.check.slug,), CHECK_STATUSES, check_status(result))
        if result.seconds:  # One that had nothing to look at was not even called.
            duration.labels(result.check.slug).set(result.seconds)
    findings = gauge("findings", "Findings of the last run, by whose they are to mend.", "check", "severity", "owner")
    count = Counter(
        (check.slug, severity.value, (finding.owner or check.owner).value)
        for check, severity, finding in examination.findings
    )
    for labels, number in count.items():
        findings.labels(*labels).set(number)
    return generate_latest(registry).decode()


def check_status(result: Result) -> str:
    """Tell what a check came to: what it warns of stands also where it could not see the rest, and good to know is fine."""
    found = {(finding.severity or result.check.severity).value for finding in result.findings}
    unless_found = "skip" if result.not_tested else "ok"
    return next((status for status in ("fail", "warn") if status in found), unless_found)


def _set_states(gauge: Gauge, labels: tuple[str, ...], states: Iterable[str], current: str) -> None:
    """Set a gauge for each state: 1 for the current one, 0 for the others. Prometheus's text format has no type for it."""
    for state in states:
        gauge.labels(*labels, state).set(state == current)
