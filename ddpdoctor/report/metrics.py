"""A host's examination as metrics, in the text that Prometheus and node_exporter's textfile collector read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Result, SkipReason

UNJUDGED_STATUSES: Final = {
    SkipReason.NOT_APPLICABLE: "skip",
    SkipReason.UNKNOWN: "unknown",
    SkipReason.CRASHED: "crashed",
}
CHECK_STATUSES: Final = ("ok", "warn", "fail", *UNJUDGED_STATUSES.values())


class MeasuredGauges(Collector):
    """Metrics that were measured already. A `Gauge` would write them into the folder of PROMETHEUS_MULTIPROC_DIR, whosever that is."""

    def __init__(self) -> None:
        self._families: list[GaugeMetricFamily] = []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._families

    def add(self, name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
        """Add a metric of which each value has these labels. name: without "ddpdoctor_"."""
        self._families.append(GaugeMetricFamily(f"ddpdoctor_{name}", help_text, labels=labels))
        return self._families[-1]

    def text(self) -> str:
        """The metrics as Prometheus reads them."""
        return generate_latest(self).decode()


def metrics_text(examination: Examination, verdict: Verdict, ended: float, seconds: float) -> str:
    """Build the metrics of one run.

    Args:
        examination: of the host.
        verdict: on it.
        ended: when, in seconds since 1970.
        seconds: that the whole of it took.
    """
    gauges = MeasuredGauges()
    gauge = gauges.add
    gauge("build_info", "The ddpdoctor that ran; always 1.", "version").add_metric((__version__,), 1)
    gauge("last_run_timestamp_seconds", "When the last run ended, in seconds since 1970.").add_metric((), ended)
    gauge("last_run_duration_seconds", "Time that the last run took, looking and judging.").add_metric((), seconds)
    _set_states(
        gauge(
            "verdict", "1 for the verdict on this host, 0 for the others; unknown: too little could be seen.", "verdict"
        ),
        (),
        (known.value for known in Verdict),
        verdict.value,
    )
    status = gauge(
        "check_status",
        "1 for what each check came to, 0 for the rest; skip: nothing to look at; unknown: it could not judge; crashed: its bug.",
        "check",
        "status",
    )
    duration = gauge("check_duration_seconds", "Time that the check took to judge what was seen.", "check")
    for result in examination.results:
        _set_states(status, (result.check.slug,), CHECK_STATUSES, check_status(result))
        if result.seconds:  # One that had nothing to look at was not even called.
            duration.add_metric((result.check.slug,), result.seconds)
    findings = gauge("findings", "Findings of the last run, by whose they are to mend.", "check", "severity", "owner")
    count = Counter(
        (check.slug, severity.value, (finding.owner or check.owner).value)
        for check, severity, finding in examination.findings
    )
    for labels, number in count.items():
        findings.add_metric(labels, number)
    return gauges.text()


def check_status(result: Result) -> str:
    """Tell what a check came to: what it warns of stands also where it could not see the rest, and good to know is fine."""
    found = {result.check.severity_of(finding).value for finding in result.findings}
    unless_found = UNJUDGED_STATUSES[result.not_tested.why] if result.not_tested else "ok"
    return next((status for status in ("fail", "warn") if status in found), unless_found)


def _set_states(gauge: GaugeMetricFamily, labels: tuple[str, ...], states: Iterable[str], current: str) -> None:
    """Set a gauge for each state: 1 for the current one, 0 for the others. Prometheus's text format has no type for it."""
    for state in states:
        gauge.add_metric((*labels, state), float(state == current))
