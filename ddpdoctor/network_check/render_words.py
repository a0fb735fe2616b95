"""The words on the netcheck of a fleet: names, phases with their figures, the table of nodes, the headline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import bandwidth, capital, listed, milliseconds, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict, node_names
from ddpdoctor.facts.fleet import Cell, Fleet, Node, Passed, Phase
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.knowledge.node_words import bare_host
from ddpdoctor.knowledge.version_agreement import versions_compared
from ddpdoctor.network_check.analysis.verdicts import overall_verdict
from ddpdoctor.report.check_results import Found, problems_and_warnings
from ddpdoctor.report.merged_findings import folded, idle_everywhere, passed_everywhere, reasons

_MAX_ROWS = 16
_MAX_LINES = 20

_NOT_JUDGED = "No verdict: on at least one node not a single check could be judged"

COLUMNS = ("rank", "host", "address", "interface", "torch", "NCCL")


def names_of(fleet: Fleet, examinations: Sequence[Examination]) -> list[str]:
    """Name each node: by its host's name, else "node 3"."""
    names = node_names(examinations)
    return [
        name if examination.snapshot.host else f"node {node.rank}"
        for name, examination, node in zip(names, examinations, fleet.nodes, strict=True)
    ]


NOTHING_BETWEEN = "with one node nothing between nodes was tested: run it with the job's --nnodes on all of them"


def headline(fleet: Fleet, examinations: Sequence[Examination], done: str = "") -> tuple[Verdict, str]:
    """The verdict and the one sentence that must be seen first: the worst finding, or what was fine and what not tested.

    done: what was fine, where it isn't just that the nodes met.
    """
    verdict, problems = overall_verdict(fleet, examinations)
    if verdict in (Verdict.FAIL, Verdict.WARN):
        found = folded(examinations, names_of(fleet, examinations))
        more = sum(severity is not Severity.INFO for _, severity, _ in found) - 1
        return verdict, found[0][2].summary + (f" (and {more} more)" if more else "")
    if verdict is Verdict.UNKNOWN:
        return verdict, next(iter(problems), _NOT_JUDGED)
    if fleet.expected == 1:
        return verdict, f"Nothing wrong was found on this host alone; {NOTHING_BETWEEN}"
    if done:
        return verdict, done
    text = f"{len(fleet.nodes)} of {plural(max(fleet.expected, len(fleet.nodes)), fleet.seat)} met, and nothing wrong was found"
    return verdict, "; ".join([text, *untested(fleet)])


def untested(fleet: Fleet) -> list[str]:
    """ "not tested: collective", and phases that failed, each where there are any."""
    ended = {"failed": Passed.FAIL, "not tested": Passed.NOT_TESTED}
    phases = {
        label: [phase.name for phase in fleet.phases if phase.passed is passed] for label, passed in ended.items()
    }
    return [f"{label}: {', '.join(names)}" for label, names in phases.items() if names]


def outcome(fleet: Fleet, examinations: Sequence[Examination]) -> str:
    """Say how many problems and warnings there are; never "fine" of what was not tested."""
    found = folded(examinations, names_of(fleet, examinations), verbose=True)
    parts = problems_and_warnings([severity for _, severity, _ in found])
    verdict, problems = overall_verdict(fleet, examinations)
    if verdict is Verdict.UNKNOWN:
        parts += problems or [_NOT_JUDGED]
    text = " and ".join(parts) or "nothing wrong was found"
    if fleet.expected == 1:
        text += f"; {NOTHING_BETWEEN}"
    return capital(text)


def counts(fleet: Fleet, examinations: Sequence[Examination]) -> str:
    """ "14 checks passed on every node, 3 could not be tested, 9 had nothing to look at." """
    where = f" on every {fleet.seat}" if len(examinations) > 1 else ""
    unknown = {slug for reason in reasons(examinations, names_of(fleet, examinations)).values() for slug in reason}
    idle = sum(map(len, idle_everywhere(examinations).values()))
    return (
        f"{plural(len(passed_everywhere(examinations)), 'check')} passed{where}, {len(unknown)} could not be tested, "
        f"{idle} had nothing to look at."
    )


# --- the head ---------------------------------------------------------------------------------------------------------


def met_at(meeting: Meeting, fleet: Fleet) -> str:
    """ "n0 (10.9.0.1), port 29500"."""
    first = [bare_host(fleet.nodes[0]), fleet.nodes[0].address] if fleet.nodes else []
    also = ", ".join(name for name in first if name and name != meeting.master)
    return f"{meeting.master}{f' ({also})' if also else ''}, port {meeting.port}"


def who_came(fleet: Fleet, meeting: Meeting) -> str:
    """ "2 of 3, started by Slurm"."""
    lost = sum(bool(node.lost) for node in fleet.nodes)
    text = f"{len(fleet.nodes)} of {max(fleet.expected, len(fleet.nodes))}"
    if lost:
        text += f", {lost} of them lost on the way"
    return f"{text}, started {f'by {meeting.launcher}' if meeting.launcher else 'by hand'}"


def node_rows(fleet: Fleet) -> tuple[list[tuple[str, ...]], str]:
    """Rows for COLUMNS and a last one for what is odd, and a sentence on the nodes that got no row. Of many nodes only
    those get a row that are lost or absent, or differ from most."""
    usual = Counter(_looks(node) for node in fleet.nodes if not node.lost).most_common(1)
    most = usual[0][0] if usual else ("", "", "")
    all_shown = len(fleet.nodes) + len(fleet.absent) <= _MAX_ROWS
    shown = [node for node in fleet.nodes if all_shown or node.lost or _looks(node) != most]
    rows: list[tuple[str, ...]] = [
        (str(node.rank), node.host or "?", node.address, *_looks(node), node.lost) for node in shown
    ]
    rows += [
        (str(missing_node.rank), missing_node.host or "?", "", "", "", "", "did not come")
        for missing_node in fleet.absent
    ]
    rows.sort(key=lambda row: int(row[0]))
    left = len(rows) - _MAX_ROWS
    alike = len(fleet.nodes) - len(shown)
    sentences = []
    if alike:
        interface, torch, nccl = most
        sentences.append(f"{alike} {fleet.seat}s alike: {interface}, torch {torch}, NCCL {nccl}")
    if left > 0:
        sentences.append(f"{left} more that differ")
    return rows[:_MAX_ROWS], "; ".join(sentences)


def _looks(node: Node) -> tuple[str, str, str]:
    interface = f"{node.interface} ({node.mtu})" if node.mtu else node.interface
    return interface or "?", _version(node.torch), _version(node.nccl)


def _version(version: str | Unknown | None) -> str:
    return "?" if isinstance(version, Unknown) else version or "none"


# --- the phases -------------------------------------------------------------------------------------------------------

_WORDS = {Passed.PASS: "PASS", Passed.FAIL: "FAIL", Passed.NOT_TESTED: "NOT TESTED"}


def warned_phases(examinations: Sequence[Examination]) -> set[str]:
    """The phases in which a check of their own name warned."""
    return {
        check.family
        for examination in examinations
        for check, severity, _ in examination.findings
        if severity is Severity.WARN
    }


def phase_word(phase: Phase, warned: Collection[str]) -> str:
    """ "PASS", "WARN", "FAIL" or "NOT TESTED": what there is a warning about has not just passed."""
    return "WARN" if phase.passed is Passed.PASS and phase.name in warned else _WORDS[phase.passed]


def phase_text(phase: Phase, fleet: Fleet) -> str:
    """The reason, or the figures of what was looked at."""
    if phase.reason or phase.passed is Passed.NOT_TESTED:
        return phase.reason
    if phase.name == "join":
        return f"{len(fleet.nodes)} of {max(fleet.expected, len(fleet.nodes))} {fleet.seat}s came"
    if phase.name == "compare":
        present = [node for node in fleet.nodes if not node.lost]
        return f"{listed([*versions_compared(present), 'settings', 'clocks'])} of {plural(len(present), fleet.seat)}"
    if phase.name == "reach":
        return _ways(fleet)
    if phase.name == "links":
        return _slowest(fleet)
    ran = [collective for collective in fleet.collectives if collective.backend == phase.name]
    return f"all_reduce of 4 B and 4 MiB on {sum(run.ok for run in ran)} of {plural(len(ran), 'node')}" if ran else ""


def seconds_text(phase: Phase) -> str:
    return "" if phase.passed is Passed.NOT_TESTED else f"{phase.seconds:.1f} s"


def _ways(fleet: Fleet) -> str:
    """ "5 of 6 directions open, 3 ports each; 6 of 6 at gloo's own addresses". Of a kind that was tried on several ports a
    direction is open where each of them is."""
    texts = []
    for kind in dict.fromkeys(reach.kind for reach in fleet.reach):
        rounds = [reach.rows for reach in fleet.reach if reach.kind == kind]
        directions = list(zip(*("".join(rows) for rows in rounds), strict=False))
        tried = [cells for cells in directions if set(cells) != {Cell.NOT_TRIED.value}]
        good = sum(set(cells) <= {Cell.OK.value, Cell.NOT_TRIED.value} for cells in tried)
        if kind == "route":
            texts.append(f"{good} of {len(tried)} directions open, {plural(len(rounds), 'port')} each")
        else:
            texts.append(f"{good} of {len(tried)} at {kind.replace('nccl', 'NCCL')}'s own addresses")
    return "; ".join(texts)


def _slowest(fleet: Fleet) -> str:
    """ "28 of 28 pairs, at worst 0.43 ms, 1.7 Gbit/s": of many nodes only some pairs are measured."""
    measured = [link for link in fleet.links if not link.error]
    if not measured:
        return ""
    slowest = max(link.round_trip for link in measured)
    rates = [rate for link in measured for rate in (link.forth, link.back) if rate >= 0]
    worst = f"{milliseconds(slowest)}, {bandwidth(min(rates))}" if rates else milliseconds(slowest)
    pairs = len(fleet.nodes) * (len(fleet.nodes) - 1) // 2
    return f"{len(measured)} of {plural(pairs, 'pair')}, at worst {worst}"


# --- for the other nodes ----------------------------------------------------------------------------------------------


def part_lines(fleet: Fleet, examinations: Sequence[Examination]) -> tuple[str, ...]:
    """List what every node is told of the whole: the phases, then what was found anywhere, worst first."""
    warned = warned_phases(examinations)
    lines = [
        f"{phase_word(phase, warned):<11} {phase.name:<11} {phase_text(phase, fleet)}".rstrip()
        for phase in fleet.phases
    ]
    everything = folded(examinations, names_of(fleet, examinations))
    found = [finding for finding in everything if finding[1] is not Severity.INFO]
    lines += [finding_line(finding) for finding in found[:_MAX_LINES]]
    if len(found) > _MAX_LINES:
        lines.append(f"and {len(found) - _MAX_LINES} more, which node 0 shows")
    return tuple(lines)


def finding_line(found: Found) -> str:
    """ "FAIL  n1 drops inbound TCP 32768-60999  [firewall-blocked-ports]"."""
    check, severity, finding = found
    return f"{severity.value.upper():<5} {finding.summary}  [{check.slug}]"


# --- one side alone ---------------------------------------------------------------------------------------------------

_MET = {
    ConnectOutcome.CONNECTED: "connected",
    ConnectOutcome.REFUSED: "refused: nobody listens there, or a packet filter rejects",
    ConnectOutcome.SILENT: "no answer: packets are dropped on the way, or there is no such host",
    ConnectOutcome.NO_ROUTE: "this host has no route there",
    ConnectOutcome.NO_HOST: "nobody has that address: no host, or one that is down",
    ConnectOutcome.PROHIBITED: "not let through: a packet filter or a router says no",
    ConnectOutcome.RESET: "connected, then cut off",
    ConnectOutcome.FAILED: "failed",
}


def attempt_text(attempt: Attempt) -> str:
    """Word what one address came to, with the system's own words and how often it was tried."""
    text = _MET[attempt.met]
    if attempt.words and attempt.met is not ConnectOutcome.CONNECTED:
        text += f" ({attempt.words})"
    return text + (f", tried {attempt.tries} times" if attempt.tries > 1 else "")


def who_listens(meeting: Meeting) -> str:
    """Name who answered at the master's port, and its first words."""
    return meeting.answered_by + (f': "{meeting.banner}"' if meeting.banner else "")
