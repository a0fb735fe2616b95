"""The nodes' settings and clocks side by side."""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import clip_middle, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.compare.releases import own_of_several
from ddpdoctor.engine.registry import Subject, check
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.snapshot import Environment, Meeting, Rdma
from ddpdoctor.knowledge.launchers import BACKEND, ENDPOINT
from ddpdoctor.knowledge.node_words import called, names, there
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.knowledge.settings_agreement import Deviation, deviations, pattern_of, value_of

CLOCK_WARN_SECONDS = 1.0
"""Seconds. Logs of several nodes can't be put in order any more, and files of a shared folder seem to come from the future."""

CLOCK_FAIL_SECONDS = 15.0
"""Seconds. torchrun's c10d rendezvous: each agent writes its own wall clock as its sign of life every 5 s, and takes an
agent whose sign is older than 3 x 5 s by its own clock out of the group. Source: torch 2.13,
torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, keep_alive_interval and keep_alive_max_attempt."""

EXCHANGED = "time stamps exchanged with node 0, that of the shortest round trip"
NOT_SETTLED = "No more than half of the nodes go by one clock, so it is open which one is right. "
MAX_CLOCK_GROUPS = 4
"""Groups of nodes by their clocks that are shown."""


@check("env-not-propagated", severity=WARN, owner=Owner.USER, judges=(Subject.JOB_FROM_WITHIN,))
def env_not_propagated(
    fleet: Fleet, meeting: Meeting, environment: Maybe[Environment], rdma: Maybe[Rdma]
) -> Iterator[Finding]:
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
    known(environment)
    differing = deviations(own.settings, pattern_of(there(fleet)))
    if not differing:
        return
    fatal = [deviation for deviation in differing if deviation.fatal and _read(deviation, there(fleet), rdma)]
    others = [node for node in there(fleet) if node.rank != own.rank]
    yield Finding.of(
        _summary(own, differing, called(others[0]) if len(others) == 1 else "the other nodes"),
        (_values(deviation.name, there(fleet)) for deviation in differing),
        _fixes(own, differing, meeting),
        cause=_cause(fatal, differing),
        severity=FAIL if fatal else WARN,
    )


def _read(deviation: Deviation, nodes: Sequence[Node], rdma: Maybe[Rdma]) -> bool:
    """Whether anything reads the setting here, as far as can be told."""
    if not deviation.hits_gloo and all(isinstance(node.torch, str) and node.nccl is None for node in nodes):
        return False
    return not (deviation.of_infiniband and isinstance(rdma, Rdma) and rdma.ports == ())


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return clip_middle(value, 60)


def _summary(own: Node, differing: list[Deviation], others: str) -> str:
    if len(differing) > 1:
        which = listed((deviation.name for deviation in differing), most=4)
        return f"{called(own)} differs from {others} in {plural(len(differing), 'setting')}: {which}"
    first = differing[0]
    if first.own is None:
        return f"{called(own)} lacks {first.name}={_shown(first.wanted)}, as it is on {others}"
    theirs = "not set" if first.wanted is None else _shown(first.wanted)
    return f"{called(own)} has {first.name}={_shown(first.own.value)}; on {others} it is {theirs}"


def _cause(fatal: list[Deviation], differing: list[Deviation]) -> str:
    if not fatal and all(deviation.fatal for deviation in differing):
        return "Nothing reads it as things are: there is no NCCL on any node, or no InfiniBand on this one."
    if not fatal:
        return "As things are, ranks that differ in this still understand each other, but may not behave alike."
    reasons: dict[str, list[str]] = {}
    for deviation in fatal:
        reasons.setdefault(deviation.fatal, []).append(deviation.name)
    return " ".join(f"{listed(named)}: {reason}." for reason, named in reasons.items())


def _values(name: str, nodes: Sequence[Node]) -> Evidence:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_shown(value_of(node, name)), []).append(node)
    origins = {setting.origin for node in nodes for setting in node.settings if setting.name == name}
    text = "; ".join(f"{value} on {names(members, most=4)}" for value, members in groups.items())
    return Evidence(f"{name}: {text}", listed(sorted(origins)))


def _fixes(own: Node, differing: list[Deviation], meeting: Meeting) -> tuple[Fix, ...]:
    files = [
        deviation
        for deviation in differing
        if deviation.own is not None and deviation.own.origin != "environment" and deviation.wanted is None
    ]
    fixes = [
        Fix(
            f"On {called(own)}, make it like the others",
            _lines([deviation for deviation in differing if deviation not in files]),
        )
    ]
    for path in sorted({file.own.origin for file in files if file.own is not None}):
        removed = [file.name for file in files if file.own is not None and file.own.origin == path]
        script = "; ".join(f"/^{name}=/d" for name in removed)
        sudo = "sudo " if path.startswith("/etc/") else ""
        command = f"{sudo}sed -i {shlex.quote(script)} {shlex.quote(path)}"
        text = f"On {called(own)}, take {listed(removed)} out of {path}"
        fixes.append(by_root(text, (command,)) if sudo else Fix(text, (command,)))
    kept = [deviation for deviation in differing if deviation.wanted is not None]
    if kept:
        fixes.append(_where(kept, meeting))
    if meant := [deviation for deviation in differing if deviation.own is not None]:
        turned = [
            Deviation(deviation.name, None, deviation.own.value if deviation.own else None) for deviation in meant
        ]
        fixes.append(Fix(f"Or, if {called(own)} is right, on all other nodes", _lines(turned)))
    return tuple(fix for fix in fixes if fix.commands)


def _lines(differing: Sequence[Deviation]) -> tuple[str, ...]:
    return tuple(
        f"unset {shlex.quote(deviation.name)}"
        if deviation.wanted is None
        else f"export {shlex.quote(deviation.name)}={shlex.quote(deviation.wanted)}"
        for deviation in differing
    )


def _where(kept: Sequence[Deviation], meeting: Meeting) -> Fix:
    """The place where such lines belong so that all nodes get them."""
    lines = _lines(kept)
    if meeting.launcher == "Slurm":
        # Not `--export=ALL,NAME=a,b`: Slurm cuts that list at every comma.
        return Fix(
            "For all nodes, put these lines before srun, which hands on what it finds (with another --export it doesn't)",
            (*lines, "export SLURM_EXPORT_ENV=ALL"),
        )
    if meeting.launcher == "Open MPI":
        options = " ".join(f"-x {shlex.quote(deviation.name)}" for deviation in kept)
        return Fix(f"For all nodes, put this before mpirun, and give mpirun the option {options}", lines)
    words = [f"{shlex.quote(deviation.name)}={shlex.quote(deviation.wanted or '')}" for deviation in kept]
    return Fix(
        "For good, put these lines into the script that starts training on every node; the deepspeed launcher reads them "
        "from this file",
        tuple(f"echo {shlex.quote(word)} >> ~/.deepspeed_env" for word in words),
    )


@check("clock-skew", severity=WARN, owner=Owner.NODE)
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
    right = _by_one_clock(nodes)
    ahead = own.clock_offset - right[0].clock_offset
    error = own.clock_error + right[0].clock_error
    if abs(ahead) <= CLOCK_WARN_SECONDS + error:
        return
    others = [node for node in nodes if node.rank != own.rank]
    theirs = "that of the other nodes" if len(right) == len(others) else f"that of {names(right, most=3)}"
    settled = 2 * len(right) > len(nodes)
    where = called(own) if settled else names([own, *right], most=4)
    elastic = _elastic(environment)
    severe = abs(ahead) > CLOCK_FAIL_SECONDS + error
    yield Finding.of(
        f"{called(own)}'s clock is {_seconds(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} "
        f"{f'that of {called(others[0])}' if len(others) == 1 else theirs}",
        Evidence(f"offset {ahead:+.3f} s, known within {error:.3f} s", EXCHANGED),
        Evidence(_who_agrees(nodes), EXCHANGED) if len(nodes) > 2 else None,
        Evidence(elastic, "settings") if elastic else None,
        by_root(
            f"On {where}, see whether a time service runs and let it set the clock",
            ("timedatectl", "sudo timedatectl set-ntp true"),
        ),
        by_root(
            "Where chrony runs: set it right at once, and look at its servers",
            ("sudo chronyc makestep", "chronyc sources"),
        ),
        cause=("" if settled else NOT_SETTLED) + _consequence(severe=severe, elastic=elastic),
        severity=FAIL if severe and elastic else WARN,
    )


def _by_one_clock(nodes: Sequence[Node]) -> list[Node]:
    """The most nodes that go by one clock, and first the one that stands for them; of equally many, those of the lowest
    rank, so node 0's."""
    offsets = sorted(node.clock_offset for node in nodes)

    def count_near(node: Node) -> int:
        return bisect_right(offsets, node.clock_offset + CLOCK_WARN_SECONDS) - bisect_left(
            offsets, node.clock_offset - CLOCK_WARN_SECONDS
        )

    first = max(nodes, key=count_near)
    near = (node for node in nodes if abs(node.clock_offset - first.clock_offset) <= CLOCK_WARN_SECONDS)
    return [first, *(node for node in near if node is not first)]


def _who_agrees(nodes: Sequence[Node]) -> str:
    """The clocks of the nodes, those together of which each is within CLOCK_WARN_SECONDS of the next: "ahead of node 0 by 0.0 s: n1
    and n2; by 40.1 s: n3"."""
    # Here and not above: it brings fractions and decimals along, and `check` meets no fleet.
    from statistics import median

    groups: list[list[Node]] = []
    for node in sorted(nodes, key=lambda node: node.clock_offset):
        if groups and node.clock_offset - groups[-1][-1].clock_offset <= CLOCK_WARN_SECONDS:
            groups[-1].append(node)
        else:
            groups.append([node])
    shown = (
        f"by {median(node.clock_offset for node in group):+.1f} s: {names(group)}"
        for group in groups[:MAX_CLOCK_GROUPS]
    )
    more = f"; and {len(groups) - MAX_CLOCK_GROUPS} more" if len(groups) > MAX_CLOCK_GROUPS else ""
    return f"Ahead of node 0 {'; '.join(shown)}{more}"


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
