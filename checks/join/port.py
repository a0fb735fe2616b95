"""Strangers that a node met at the master's port instead of the others."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.snapshot import Meeting, Network
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.network_check.analysis.way_to_master import (
    OURS,
    STORE,
    another_port,
    attempts_seen,
    furthest,
    place,
    who_listens,
)

SILENT = "something that says nothing"


@check("port-squatted", severity=FAIL, owner=Owner.UNKNOWN)
def port_squatted(meeting: Meeting, network: Network) -> Iterator[Finding]:
    """Something that isn't the job's holds the master's port.

    ## What breaks
    Node 0 can't listen there and ends with "Address already in use". The other nodes connect to whatever listens, ask it
    as if it were torch's store, and wait in silence for its answer, however short their timeout is.

    ## Why
    Another job, a left-over of the last one, or a service like a notebook, a dashboard or an SSH server has taken the
    port. 29500 is everybody's default.

    ## Fix
    See on the master who it is: `ss -tlnp 'sport = :29500'`. End it if it is a left-over of yours, else set another
    MASTER_PORT on all nodes.
    """
    requires(meeting.master, "only netcheck goes to the master")
    requires(meeting.attempts, "this node didn't go to the master")
    who = meeting.answered_by
    if who in ("", OURS):
        return
    where = place(furthest(meeting).address, meeting.port)
    alone = meeting.nnodes is None
    said = f': "{meeting.banner}"' if meeting.banner else ""
    fixes = [who_listens(meeting.port)]
    start_again = Fix(
        "Then, once the port is free, start node 0 first", (netcheck_command(meeting, meeting.nnodes, 0),)
    )
    summary = f"{network.hostname} finds {who} at {where}, not the job's store"
    if who == STORE:
        busy = "" if alone else ": a job runs there already"
        summary = f"{network.hostname} reaches {where}, where {who} listens{busy}"
        fixes.append(
            Fix("If it is this job's own, there is nothing to mend: let netcheck run before the job, or inside it")
        )
    yield Finding(
        summary=summary,
        cause=_cause(who, alone=alone),
        evidence=(Evidence(f"{where} is {who}{said}", "a conversation with it"), *attempts_seen(meeting)),
        fixes=(*fixes, another_port(meeting), *(() if alone else (start_again,))),
        # Where only this side is looked at, the store may be the very one that is to be there.
        severity=(INFO if who == STORE else WARN if who == SILENT else FAIL) if alone else FAIL,
    )


def _cause(who: str, *, alone: bool) -> str:
    if who == STORE:
        here = "The way there is open. " if alone else ""
        return f"{here}This job's own ranks have started there already, or another job, or a left-over of one, has the port."
    if who == SILENT:
        return "It accepts connections and answers neither a store's, a TLS nor an HTTP client's first words: a stopped or overloaded process, or a store older than torch 2.2."
    return ""
