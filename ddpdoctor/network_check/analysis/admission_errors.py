"""Findings of a node that isn't let in, or is left behind: it has no part of the verdict and judges by itself. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from ddpdoctor.base.findings import Finding, Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.netcheck_command import TOKEN_VARIABLE, netcheck_command, waits_longer

_VERSION = compile_lazily(r"pip install 'ddpdoctor==([0-9][A-Za-z0-9.+!]{0,39})'(?: on both)?\Z")
"""All that is taken from a command of node 0's: whoever holds the master's port may say anything, and it is typed here."""


NOT_WANTED = "node 0 runs without a token, and this node was given one"
NOT_GIVEN = "node 0 wants a token, and this node has none"
ANOTHER = "this node's token is another one than node 0's"
"""Where tokens differ, the others take node 0's: advice both ways, carried out on both sides, would part them again."""


def wrong_token(*, wanted: bool, given: bool) -> str:
    """Word what node 0 tells a node with another token than its own. wanted: node 0 has one; given: that node has one."""
    if not wanted:
        return f"{NOT_WANTED}: run the command that node 0 prints, without one"
    if not given:
        return f"{NOT_GIVEN}: run the command that node 0 prints, with its token"
    return f"{ANOTHER}: run the command that node 0 prints, or start both in one job"


def token_of_a_visitor(texts: Sequence[str]) -> str:
    """The same in few words, for those who were told one of these."""
    words = {NOT_WANTED: "a token, and this run has none", NOT_GIVEN: "no token", ANOTHER: "another token"}
    found = {words[sign] for text in texts for sign in words if sign in text}
    return found.pop() if len(found) == 1 else "another token or none"


ENDED_BY_FAULT = "it ended without a verdict, since something is wrong there: "
"""The beginning of node 0's last words to the others where it has found on itself why it can't go on."""


def turned_away(meeting: Meeting) -> Finding:
    """The finding on a node whose hub wants other nodes, at another time, or with another token or version. Wrong ranks are no
    case of these."""
    cause, fixes = _meaning_of_refusal(meeting)
    return Finding(
        summary=f"Node 0 doesn't let this node in: {first_words(meeting.turned_away)}",
        cause=cause,
        evidence=(
            told(meeting, "turned_away", f"node 0 says: {meeting.turned_away}"),
            told(meeting, "nnodes", f"--nnodes here: {meeting.nnodes}"),
        ),
        fixes=fixes,
    )


def left_behind(meeting: Meeting) -> Finding:
    """The finding on a node that was let in and lost."""
    reason = meeting.left_behind.removeprefix("node 0 says: ")
    if reason.startswith(ENDED_BY_FAULT):
        summary = f"Node 0 ended without a verdict: {reason.removeprefix(ENDED_BY_FAULT)}"[:160]
        cause = "That is wrong on node 0, and keeps it from its own port; nothing is known of this node."
        text = "Node 0 prints the fix. When it is done there, run this here, while it runs there again"
    else:
        summary = f"This node was let in, and there is no verdict on it: {first_words(meeting.left_behind)}"
        cause = "The network between it and node 0 was cut, its facts didn't arrive in time, or a process was halted for a while."
        text = "Run this here, while it runs on node 0 again"
    return Finding(
        summary=summary,
        cause=cause,
        evidence=(told(meeting, "left_behind", meeting.left_behind),),
        fixes=(Fix(text, (netcheck_command(meeting, meeting.nnodes, meeting.node_rank),)),),
    )


def one_node_more(more: int, meeting: Meeting) -> Fix:
    """The fix where a node came that there was no rank for."""
    text = f"If it belongs to the job, the job has {more} nodes: give that number on all nodes, on this one too"
    return Fix(text, (netcheck_command(meeting, more, 0 if meeting.node_rank == 0 else None),))


def first_words(text: str) -> str:
    return text.removeprefix("node 0 says: ").partition(": ")[0][:90]


def _meaning_of_refusal(meeting: Meeting) -> tuple[str, tuple[Fix, ...]]:
    """Give the cause and the fixes."""
    replace = msgspec.structs.replace
    nnodes, own = meeting.nnodes or 2, meeting.node_rank
    again = netcheck_command(meeting, nnodes, own)
    if meeting.refusal == "nnodes":
        return "The number of nodes must be the same everywhere, else some ranks wait for others that never come.", (
            Fix(f"If the job has {nnodes} nodes, run this on node 0", (netcheck_command(meeting, nnodes, 0),)),
            Fix(
                "If node 0 is right, give its number here; this shows what the launcher says", ("env | grep -i nodes",)
            ),
        )
    if meeting.refusal == "full":
        more = one_node_more(nnodes + 1, meeting)
        return "It is one more than the job is said to have, or it was started twice.", (more,)
    if meeting.refusal == "closed":
        return "Node 0 waits for late nodes as long as its --wait says, and only until all ranks are taken.", (
            Fix("Run this on node 0, which then waits longer", (waits_longer(meeting, nnodes, 0),)),
            Fix("And this here", (again,)),
        )
    if meeting.refusal == "token" and NOT_WANTED in meeting.turned_away:
        # An exported variable would give the token again.
        without = f"env -u {TOKEN_VARIABLE} {netcheck_command(replace(meeting, token=False), nnodes, own)}"
        text = "Run this here, if node 0 is meant to run without a token; nothing proves that it was node 0 who said so"
        return "The token must be the same on all nodes: none, where node 0 has none.", (Fix(text, (without,)),)
    if meeting.refusal == "token":
        with_dots = netcheck_command(replace(meeting, token=True), nnodes, own)
        text = "Run this here, while it runs on node 0 again, with the token that node 0 prints in place of the dots"
        cause = "The token must be the same on all nodes: node 0's."
        return cause if meeting.token else "Only nodes that know the job's token are let in.", (
            Fix(text, (with_dots,)),
        )
    if meeting.refusal == "command":
        other = replace(meeting, command="netcheck" if meeting.command == "smoke" else "smoke")
        return "All nodes of one test must be started with the same command.", (
            Fix("Run this here, while it runs on node 0 again", (netcheck_command(other, nnodes, own),)),
        )
    # Node 0, or this one, says which version to install, and where.
    told_to = meeting.turned_away.rpartition(": ")[2]
    version = _VERSION.search(told_to)
    where = "on node 0" if told_to.startswith("on node 0") else "on both" if told_to.endswith(" on both") else "here"
    ours = f"{shlex.quote(meeting.own_python)} -m " if meeting.own_python and where != "on node 0" else ""
    if version:
        command = f"{ours}pip install 'ddpdoctor=={version[1]}'"
    else:
        where, command = "on both", f"{ours}pip install --upgrade ddpdoctor"
    on_both = "on both; here" if where == "on both" else where
    return "Nodes of one test need versions of ddpdoctor that understand each other.", (
        Fix(f"Install the newer one {on_both}", (command,)),
        Fix("Then start it again on all nodes; here", (again,)),
    )
