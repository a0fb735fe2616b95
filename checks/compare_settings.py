"""The nodes' settings and clocks side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.checks.compare import own_of_several
from ddpdoctor.facts.base import Maybe, Unknown
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.rdma import Rdma
from ddpdoctor.findings import FAIL, WARN, Evidence, Finding, Fix
from ddpdoctor.knowledge.across_nodes import Deviation, deviations, meaning, must_agree
from ddpdoctor.knowledge.fleet_words import called, names, there
from ddpdoctor.knowledge.launchers import BACKEND, ENDPOINT
from ddpdoctor.knowledge.root import by_root
from ddpdoctor.knowledge.version_agreement import to_agree_on
from ddpdoctor.registry import check
from ddpdoctor.wording import listed, plural

CLOCK_WARN = 1.0
"""Seconds. Logs of several nodes can't be put in order any more, and files of a shared folder seem to come from the future."""

CLOCK_FAIL = 15.0
"""Seconds. torchrun's c10d rendezvous: each agent writes its own wall clock as its sign of life every 5 s, and takes an
agent whose sign is older than 3 x 5 s by its own clock out of the group. Source: torch 2.13,
torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, keep_alive_interval and keep_alive_max_attempt."""


@check("env-not-propagated", severity=WARN)
def env_not_propagated(fleet: Fleet, meeting: Meeting, rdma: Maybe[Rdma]) -> Iterator[Finding]:
    """A setting that all nodes should have is set on some of them only, or differs.

    ## What breaks
    Ranks that pick another algorithm, transport or number of channels than their peers hang in the first collective, or mix
    up their data. Settings that only steer one node's behaviour make it react differently from the others.

    ## Why
    `export` in one shell, or in one node's ~/.bashrc, doesn't reach the others: ssh and most launchers start without it.
    Or one node has an /etc/nccl.conf or ~/.nccl.conf of its own.

    ## Fix
    Set it where all nodes get it: in the script that starts training on every node, by the launcher (`mpirun -x NAME`,
    `srun --export=ALL`, DeepSpeed's `.deepspeed_env`), or in the container image.
    """
    own = own_of_several(fleet, meeting)
    differing = deviations(own.settings, _pattern(there(fleet)))
    if not differing:
        return
    fatal = [one for one in differing if one.fatal and _read(one, there(fleet), rdma)]
    yield Finding(
        summary=_summary(own, differing, _others(own, there(fleet))),
        cause=_cause(fatal, differing),
        evidence=tuple(_values(one.name, there(fleet)) for one in differing),
        fixes=_fixes(own, differing, meeting),
        severity=FAIL if fatal else WARN,
    )


def _read(one: Deviation, nodes: Sequence[Node], rdma: Maybe[Rdma]) -> bool:
    """Whether anything reads the setting here, as far as can be told."""
    if one.of_nccl and all(isinstance(node.torch, str) and node.nccl is None for node in nodes):
        return False
    return not (one.of_infiniband and isinstance(rdma, Rdma) and rdma.ports == ())


def _pattern(nodes: Sequence[Node]) -> tuple[Setting, ...]:
    """The settings that all nodes should have: for each name the majority's, on a tie that of the lowest rank."""
    pattern = []
    for name in sorted({one.name for node in nodes for one in node.settings if must_agree(one.name)}):
        values = {node.rank: _value(node, name) for node in nodes}
        wanted = to_agree_on({rank: meaning(name, value) for rank, value in values.items()})
        value = next(value for value in values.values() if meaning(name, value) == wanted)
        if value is not None:
            pattern.append(Setting(name, value))
    return tuple(pattern)


def _value(node: Node, name: str) -> str | None:
    return next((one.value for one in node.settings if one.name == name), None)


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return value if len(value) <= 60 else f"{value[:57]}..."


def _others(own: Node, nodes: Sequence[Node]) -> str:
    others = [one for one in nodes if one.rank != own.rank]
    return called(others[0]) if len(others) == 1 else "the other nodes"


def _summary(own: Node, differing: list[Deviation], others: str) -> str:
    if len(differing) > 1:
        which = listed((one.name for one in differing), most=4)
        return f"{called(own)} differs from {others} in {plural(len(differing), 'setting')}: {which}"[:160]
    one = differing[0]
    if one.own is None:
        return f"{called(own)} lacks {one.name}={_shown(one.wanted)}, as it is on {others}"[:160]
    theirs = "not set" if one.wanted is None else _shown(one.wanted)
    return f"{called(own)} has {one.name}={_shown(one.own.value)}; on {others} it is {theirs}"[:160]


def _cause(fatal: list[Deviation], differing: list[Deviation]) -> str:
    if not fatal and all(one.fatal for one in differing):
        return "Nothing reads it as things are: there is no NCCL on any node, or no InfiniBand on this one."
    if not fatal:
        return "As things are, ranks that differ in this still understand each other, but may not behave alike."
    reasons: dict[str, list[str]] = {}
    for one in fatal:
        reasons.setdefault(one.fatal, []).append(one.name)
    return " ".join(f"{listed(some)}: {reason}." for reason, some in reasons.items())


def _values(name: str, nodes: Sequence[Node]) -> Evidence:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_shown(_value(node, name)), []).append(node)
    origins = {one.origin for node in nodes for one in node.settings if one.name == name}
    text = "; ".join(f"{value} on {names(some, most=4)}" for value, some in groups.items())
    return Evidence(f"{name}: {text}", listed(sorted(origins)))


def _fixes(own: Node, differing: list[Deviation], meeting: Meeting) -> tuple[Fix, ...]:
    files = [one for one in differing if one.own is not None and one.own.origin != "environment" and one.wanted is None]
    fixes = [Fix(f"On {called(own)}, make it like the others", _lines([one for one in differing if one not in files]))]
    for path in sorted({one.own.origin for one in files if one.own is not None}):
        removed = [one.name for one in files if one.own is not None and one.own.origin == path]
        script = "; ".join(f"/^{name}=/d" for name in removed)
        sudo = "sudo " if path.startswith("/etc/") else ""
        command = f"{sudo}sed -i {shlex.quote(script)} {shlex.quote(path)}"
        text = f"On {called(own)}, take {listed(removed)} out of {path}"
        fixes.append(by_root(text, (command,)) if sudo else Fix(text, (command,)))
    kept = [one for one in differing if one.wanted is not None]
    if kept:
        fixes.append(_where(kept, meeting))
    if meant := [one for one in differing if one.own is not None]:
        fixes.append(Fix(f"Or, if {called(own)} is right, on all other nodes", _lines(_turned(meant))))
    return tuple(one for one in fixes if one.commands)


def _lines(differing: Sequence[Deviation]) -> tuple[str, ...]:
    return tuple(
        f"unset {one.name}" if one.wanted is None else f"export {one.name}={shlex.quote(one.wanted)}"
        for one in differing
    )


def _turned(differing: Sequence[Deviation]) -> list[Deviation]:
    return [Deviation(one.name, None, one.own.value if one.own else None) for one in differing]


def _where(kept: Sequence[Deviation], meeting: Meeting) -> Fix:
    """Where such a line belongs so that all nodes get it."""
    words = [f"{one.name}={shlex.quote(one.wanted or '')}" for one in kept]
    if meeting.launcher == "Slurm":
        exported = ",".join(["ALL", *words])
        return Fix("For all nodes, let Slurm hand it on (before your script's name)", (f"srun --export={exported}",))
    if meeting.launcher == "Open MPI":
        return Fix(
            "For all nodes, let mpirun hand it on (before your script's name)",
            (f"mpirun {' '.join(f'-x {one}' for one in words)}",),
        )
    return Fix(
        "For good, put these lines into the script that starts training on every node; the deepspeed launcher reads them "
        "from this file",
        tuple(f"echo {shlex.quote(word)} >> ~/.deepspeed_env" for word in words),
    )


@check("clock-skew", severity=WARN)
def clock_skew(fleet: Fleet, meeting: Meeting, environment: Maybe[Environment]) -> Iterator[Finding]:
    """A node's clock is off.

    ## What breaks
    With torchrun's c10d rendezvous, nodes compare their signs of life by the wall clock: from 15 s on, the node that is
    behind is taken for dead and put out of the group again and again. Otherwise logs of several nodes can't be put in
    order, certificates and tokens may be refused, and files in a shared folder seem to come from the future.

    ## Why
    The time service isn't running, or can't reach its servers; a virtual machine was suspended.

    ## Fix
    `sudo timedatectl set-ntp true`, or `sudo chronyc makestep` where chrony runs.
    """
    own = own_of_several(fleet, meeting)
    nodes = there(fleet)
    wanted = _common_time(nodes)
    ahead = own.clock_offset - wanted
    error = own.clock_error + max(one.clock_error for one in nodes if one.clock_offset == wanted)
    if abs(ahead) <= CLOCK_WARN + error:
        return
    elastic = _elastic(environment)
    severe = abs(ahead) > CLOCK_FAIL + error
    yield Finding(
        summary=f"{called(own)}'s clock is {_seconds(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} that of "
        f"{_others(own, nodes)}",
        cause=_consequence(severe=severe, elastic=elastic),
        evidence=(
            Evidence(
                f"offset {ahead:+.3f} s, known within {error:.3f} s",
                "time stamps exchanged with node 0, that of the shortest round trip",
            ),
            *((Evidence(elastic, "settings"),) if elastic else ()),
        ),
        fixes=(
            by_root(
                f"On {called(own)}, see whether a time service runs and let it set the clock",
                ("timedatectl", "sudo timedatectl set-ntp true"),
            ),
            by_root(
                "Where chrony runs: set it right at once, and look at its servers",
                ("sudo chronyc makestep", "chronyc sources"),
            ),
        ),
        severity=FAIL if severe and elastic else WARN,
    )


def _common_time(nodes: Sequence[Node]) -> float:
    """The offset of the clock by which most go: the middle one; of two, node 0's."""
    offsets = sorted((one.clock_offset for one in nodes), key=float)
    return nodes[0].clock_offset if len(offsets) == 2 else offsets[len(offsets) // 2]


def _elastic(environment: Maybe[Environment]) -> str:
    """The sign that the job uses torchrun's c10d rendezvous, "" where there is none."""
    if isinstance(environment, Unknown):
        return ""
    for name in (BACKEND, ENDPOINT):
        value = environment.get(name)
        if value and (name == ENDPOINT or value == "c10d"):
            return f"{name}={value}"
    return ""


def _consequence(*, severe: bool, elastic: str) -> str:
    if severe and elastic:
        return "The c10d rendezvous takes a node for dead whose last sign of life is 15 s old by another node's clock."
    if severe:
        return (
            "A job with torchrun's c10d rendezvous (--rdzv-backend=c10d) would put a node out whose sign of life is 15 s old by "
            "another node's clock. Others run, but their logs can't be put in order."
        )
    return "Logs of several nodes can't be put in order, and files in a shared folder seem to come from the future."


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
