"""One snapshot after the other: read, judged, and added to a `Sweep`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ddpdoctor.base.text import one_line
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Check, Result
from ddpdoctor.engine.sanitize_facts import is_host
from ddpdoctor.engine.snapshot_lines import BEGINNING_BYTES
from ddpdoctor.engine.snapshot_series import Answers, HostInSeries, SnapshotSeries
from ddpdoctor.engine.snapshots import SnapshotError
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.fleet_sweep.comparable import COMPARED_GROUPS, TOOL_VERSION, OwnWords, Pair, comparable_facts, json_text
from ddpdoctor.fleet_sweep.sweep import STATES, FleetFinding, FleetHost, Sweep, SweepBuilder

_HOST: Final = re.compile(rb'\s*\{[^{}\[\]]{0,300}?"host"\s*:\s*"([^"\\]{1,253})"')
"""In the first lines of a snapshot: what stands before the host's name has no parts."""


def _host_named_in(beginning: bytes) -> str:
    """The host whose snapshot begins so; "" where that isn't said."""
    matched = _HOST.match(beginning[:BEGINNING_BYTES]) if b"ddpdoctor_snapshot" in beginning[:BEGINNING_BYTES] else None
    name = matched[1].decode(errors="replace") if matched else ""
    return name if is_host(name) else ""


class _ComparedFacts(NamedTuple):
    """A group's facts as they are compared. values: all of them. place: in the sweep."""

    pairs: list[Pair]
    values: str
    place: int


class FleetJudge:
    """Reads and judges snapshots.

    Args:
        checks: by which they are judged.
        nproc: ranks planned on each host; None: as many as it has GPUs.
    """

    def __init__(self, checks: Sequence[Check], nproc: int | None = None) -> None:
        self._series = SnapshotSeries(checks, nproc)
        self._builder = SweepBuilder([check.slug for check in checks])
        self._facts: dict[str, Answers[_ComparedFacts]] = {group: Answers([group]) for group in COMPARED_GROUPS}

    @property
    def sweep(self) -> Sweep:
        return self._builder.sweep

    def problem(self, text: str, labels: Iterable[str] = (), beginning: bytes = b"") -> None:
        """Note why something was not judged.

        Args:
            text: a sentence.
            labels: what a launcher or a file calls it.
            beginning: of the snapshot, as far as there is one.
        """
        if host := _host_named_in(beginning):
            whose = "" if host in text else f" (of {host})"
            self._builder.problem(one_line(f"{text}{whose}"), (host,), says_so_itself=True)
        else:
            self._builder.problem(one_line(text), filter(is_host, labels))

    def judge(self, content: bytes, source: str, labels: Iterable[str] = ()) -> None:
        """Judge one snapshot; what can't be read is a problem, and no error.

        Args:
            content: as a file or a line has it.
            source: the file's name, or what tells which line it was.
            labels: what a launcher or a file calls it.
        """
        try:
            host = self._series.read(content, source)
        except SnapshotError as error:
            self.sweep.read += 1
            self.problem(str(error), labels, content)
            return
        if not host.snapshot.host:
            self.sweep.read += 1
            self.problem(
                f"{source}: it doesn't say which host it is of, or in a way in which no host is called", labels
            )
            return
        self._builder.add(self._judged(host, source))

    def _judged(self, host: HostInSeries, source: str) -> FleetHost:
        examination = self._series.examine(host)
        own = OwnWords(host.snapshot)
        unanswered, applicable = examination.unanswered
        verdict = examination.conclusion
        return FleetHost(
            name=host.snapshot.host,
            source=one_line(source),
            taken_at=host.snapshot.taken_at,
            verdict=verdict,
            unanswered=f"{unanswered} of {applicable} checks could not be tested" if verdict is Verdict.UNKNOWN else "",
            states="".join(map(_state, examination.results)),
            findings=tuple(dict.fromkeys(self._findings(examination, host.snapshot.host))),
            groups=(
                self._builder.facts(((TOOL_VERSION, json_text(host.snapshot.tool_version)),)),
                *(self._group(host, name, own) for name in COMPARED_GROUPS),
            ),
            own_words=own.words,
            models=_models(host.snapshot),
            pci_models=_pci_models(host.snapshot),
            partition=value_of(host.snapshot.environment, "SLURM_JOB_PARTITION"),
        )

    def _group(self, host: HostInSeries, name: str, own: OwnWords) -> int:
        facts = self._facts[name].get(host, lambda snapshot, _: self._compared(name, snapshot))
        if own.stand_in(facts.values):
            return self._builder.facts(own.replaced(facts.pairs))
        return facts.place

    def _compared(self, name: str, snapshot: Snapshot) -> _ComparedFacts:
        pairs = comparable_facts(name, getattr(snapshot, name))
        return _ComparedFacts(pairs, "\n".join(value for _, value in pairs), self._builder.facts(pairs))

    def _findings(self, examination: Examination, host: str) -> list[int]:
        own_name = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
        return [
            self._builder.finding(
                FleetFinding(
                    key=f"{severity.value} {own_name.sub(chr(0), finding.summary)}",
                    slug=check.slug,
                    family=check.family,
                    severity=severity,
                    owner=finding.owner or check.owner,
                    finding=finding,
                    docs=check.docs,
                    host=host,
                )
            )
            for check, severity, finding in examination.findings
        ]


def _state(result: Result) -> str:
    if result.findings:
        severities = [result.check.severity_of(finding) for finding in result.findings]
        return STATES[min(severities, key=lambda severity: severity.rank).value]
    return STATES["passed" if result.not_tested is None else result.not_tested.why.value]


def _models(snapshot: Snapshot) -> tuple[str, ...]:
    gpus = snapshot.gpus
    return () if isinstance(gpus, Unknown) else tuple(sorted({device.name for device in gpus.devices if device.name}))


def _pci_models(snapshot: Snapshot) -> tuple[str, ...]:
    if isinstance(snapshot.pci, Unknown):
        return ()
    devices = (*snapshot.pci.nvidia_gpus, *snapshot.pci.amd_gpus)
    return tuple(sorted({f"{device.vendor:04x}:{device.device:04x}" for device in devices}))
