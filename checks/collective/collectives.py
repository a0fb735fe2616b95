"""The real store and collectives of torch, run on nodes whose connections all work."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import capital, clip, listed
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.fleet import Fleet, TriedCollective
from ddpdoctor.facts.snapshot import Meeting, TargetPython
from ddpdoctor.knowledge.node_words import NO_FLEET, why_not_run
from ddpdoctor.knowledge.python_commands import in_target_python
from ddpdoctor.network_check.analysis.collective_failures import (
    BEFORE_THE_STORE,
    NOT_STARTED,
    STAGES,
    ErrorKind,
    Run,
    blamed,
    kind_of,
    meaning,
)

SOURCE = "torch.distributed, in a subprocess"
MAX_SHOWN_RANKS = 8
"""Ranks whose words are shown."""


@check("collective-failed", severity=FAIL, owner=Owner.UNKNOWN)
def collective_failed(fleet: Fleet, meeting: Meeting, target_python: TargetPython) -> Iterator[Finding]:
    """The real store or an all_reduce fails although the nodes reach each other.

    ## What breaks
    Training on these nodes fails or hangs at the same place: at `init_process_group`, or at the first collective.

    ## Why
    The stage tells. `import`: that node's torch is broken. `store`: torch's TCPStore could not be opened or reached; its
    protocol differs between torch releases, and its port must be free on node 0. `group`: the addresses that the ranks offer
    each other don't work, or one rank never got so far. 4 B: the group's first transfer. 4 B passes and 4 MiB fails: large
    packets are lost on the way (MTU). Where all hang, the logs of none name a culprit: some wait for each other.

    ## Fix
    By stage: see the words of torch in the finding, then run the same by hand with `TORCH_CPP_LOG_LEVEL=INFO` on all nodes.
    """
    requires(fleet.nodes, NO_FLEET)
    requires(fleet.collectives, why_not_run(fleet, ("gloo", "nccl"), "no collective was run"))
    nodes = fleet.by_rank
    for backend in dict.fromkeys(collective.backend for collective in fleet.collectives):
        ran = [collective for collective in fleet.collectives if collective.backend == backend]
        run = Run(ran, nodes, meeting, target_python)
        blame = blamed(ran)
        # A node that was lost has a finding of its own.
        here = next(
            (
                collective
                for collective in blame
                if collective.node == meeting.node_rank and not nodes[collective.node].lost
            ),
            None,
        )
        if here is not None:
            yield _failed(here, run)
        elif not blame and any(not collective.ok for collective in ran) and meeting.node_rank == ran[0].node:
            yield _all_waited(run)


def _failed(here: TriedCollective, run: Run) -> Finding:
    """This rank ended with an error of its own."""
    kind = kind_of(here)
    waiting = [
        run.name(collective) for collective in run.ran if not collective.ok and kind_of(collective) is ErrorKind.WAITED
    ]
    cause, fixes = meaning(here, kind, run)
    return Finding.of(
        _short(f"{run.name(here)}: {_doing(here)} {'crashes' if kind is ErrorKind.CRASH else 'fails'}: {here.words}"),
        _words(run),
        fixes if here.stage in BEFORE_THE_STORE else (*fixes, _by_hand(here, run)),
        cause=cause + (f" Meanwhile {listed(waiting, 4)} waited." if waiting else ""),
    )


def _all_waited(run: Run) -> Finding:
    """No rank has an error of its own: each waited for another one."""
    failed = [collective for collective in run.ran if not collective.ok]
    first = min(
        failed, key=lambda collective: STAGES.index(collective.stage) if collective.stage in STAGES else len(STAGES)
    )
    cause, fixes = meaning(first, ErrorKind.WAITED, run)
    what = f"{_doing(first)} doesn't {'come up' if first.stage == 'store' else 'end'}"
    who = "all ranks" if len(failed) == len(run.ran) else listed((run.name(collective) for collective in failed), 4)
    seconds = max(collective.seconds for collective in failed)
    return Finding.of(
        _short(f"{what} within {seconds:.0f} s: {who} wait, and none has an error of its own"),
        _words(run),
        fixes,
        _by_hand(first, run),
        cause=cause,
    )


def _by_hand(failed: TriedCollective, run: Run) -> Fix:
    """The same without ddpdoctor, with all that torch has to say."""
    rank = [collective.node for collective in run.ran].index(failed.node)
    code = (
        f'import torch.distributed as d; d.init_process_group({json.dumps(failed.backend)}); d.barrier(); print("ok")'
    )
    settings = (
        f"MASTER_ADDR={shlex.quote(run.meeting.master)} MASTER_PORT={run.meeting.port} WORLD_SIZE={len(run.ran)}"
        f" RANK={rank} TORCH_CPP_LOG_LEVEL=INFO"
    )
    others = listed((number for number in range(len(run.ran)) if number != rank), 3)
    text = f"See all that torch says: run this here, and the same with RANK={others} on the others"
    return Fix(text, (f"{settings} {in_target_python(run.target_python, '-c', code)}",))


def _words(run: Run) -> tuple[Evidence, ...]:
    """The outcome of each rank, those that failed first."""
    ordered = sorted(run.ran, key=lambda collective: collective.ok)
    shown = tuple(
        Evidence(f"{run.name(collective)}: {_came_to(collective)}", SOURCE) for collective in ordered[:MAX_SHOWN_RANKS]
    )
    more = len(ordered) - len(shown)
    return (*shown, Evidence(f"and {more} more", SOURCE)) if more else shown


def _came_to(collective: TriedCollective) -> str:
    return (
        f"all well after {collective.seconds:.1f} s"
        if collective.ok
        else f"{collective.stage}, after {collective.seconds:.1f} s: {collective.words}"
    )


def _doing(collective: TriedCollective) -> str:
    """The stage as the subject of a sentence."""
    what = {
        NOT_STARTED: "the start of torch",
        "import": "the import of torch",
        "store": "torch's TCPStore",
        "group": f"the making of a {collective.backend} group",
        "end": f"a barrier over {collective.backend}",
    }
    return what.get(collective.stage, f"an {collective.stage} over {collective.backend}")


def _short(summary: str) -> str:
    """One line with a capital first, unless it begins with a node's name, of at most 160 characters."""
    text = " ".join(summary.split())
    if ": " not in text.partition(" ")[0] + " ":
        text = capital(text)
    return clip(text)
