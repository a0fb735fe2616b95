"""The part of the JSON contract that only `fleet` fills in."""

from __future__ import annotations

import msgspec

from ddpdoctor.engine.examination import Verdict


class ReportedFleetHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a sweep. `group`: what it has in common with the hosts that should be like it; `passing`: whether it stands in
    passing_nodes.txt; `why`: why it doesn't; `fail` and `warn`: slugs; `odd`: paths of the facts in which it differs."""

    host: str
    group: str
    verdict: Verdict
    passing: bool
    why: str
    fail: tuple[str, ...]
    warn: tuple[str, ...]
    odd: tuple[str, ...]


class ReportedOddFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact in which hosts differ from those like them, or from the baseline. `hosts` is a list as Slurm writes it; `expected` is null where
    no value has a majority; `agreeing` of the `of` hosts on which it is known have the expected value."""

    group: str
    path: str
    value: str
    expected: str | None
    hosts: str
    agreeing: int
    of: int


class ReportedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change since an earlier sweep. `kind`: "new fault", "healed", "changed fact", "new host", "gone"; `what`: the check's slug, or the
    fact's path."""

    kind: str
    what: str
    before: str
    after: str
    hosts: str


class ReportedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep over many hosts. Lists of hosts are written as Slurm writes them.

    read: snapshots, whether they could be judged or not.
    failing: all hosts on which no job should be put, those of `absent` and `unjudged` among them.
    absent: hosts that were expected and didn't answer.
    unexpected: hosts that answered and weren't expected.
    unjudged: hosts of which something came, but no snapshot that could be read.
    odd: the odd ones out.
    undecided: facts in which no value has a majority.
    not_compared: facts that are known on some hosts only; `value` says why not.
    deviations: facts that are otherwise than the baseline has them.
    without_baseline: hosts of which the baseline has no word.
    different: paths of facts in which nearly every host differs, so that nothing follows.
    changes: since the sweep of --since; null without it.
    """

    read: int
    passing: str
    failing: str
    absent: str
    unexpected: str
    unjudged: str
    hosts: tuple[ReportedFleetHost, ...]
    odd: tuple[ReportedOddFact, ...]
    undecided: tuple[ReportedOddFact, ...]
    not_compared: tuple[ReportedOddFact, ...]
    deviations: tuple[ReportedOddFact, ...]
    without_baseline: str
    different: tuple[str, ...]
    changes: tuple[ReportedChange, ...] | None
