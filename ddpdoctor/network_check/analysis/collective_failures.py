"""What a failure of torch's store or of a collective means, by torch's own words and by the stage, and what to do. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed
from ddpdoctor.facts.fleet import Node, TriedCollective
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.network_fixes import PING_COMES_IN
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install

NOT_STARTED = "start"
"""The stage of a rank that didn't get as far as to run torch."""

BEFORE_THE_STORE = (NOT_STARTED, "import")
STAGES = (*BEFORE_THE_STORE, "store", "group", "all_reduce of 4 B", "all_reduce of 4 MiB", "end")
"""In their order."""


class ErrorKind(Enum):
    """How one rank failed."""

    ERROR = "an error of its own"
    WRONG = "a wrong result"
    CRASH = "it crashed"
    WAITED = "it waited for another rank, or lost it"


WAITING = compile_lazily(
    r"(?i)clients joined|wait timeout|timed? ?out|timeout|connection closed by (?:remote )?peer|connection reset by peer"
    r"|broken pipe|failed to recv|no end within|it was ended, since"
)
"""What torch says where another rank didn't come, or went away."""

TURNED_DOWN = compile_lazily(r"(?i)refused|no route to host|unreachable")
"""What it says where the network says no; gloo calls these time-outs too."""


def kind_of(one: TriedCollective) -> ErrorKind:
    """How a rank that failed has failed."""
    if one.words.startswith("ended by SIG"):
        return ErrorKind.CRASH
    if one.words.startswith("wrong sum"):
        return ErrorKind.WRONG
    waited = one.hung or (WAITING.search(one.words) and not TURNED_DOWN.search(one.words))
    return ErrorKind.WAITED if waited else ErrorKind.ERROR


def blamed(ran: Sequence[TriedCollective]) -> list[TriedCollective]:
    """The ranks that failed by themselves; none where every one that failed waited for another."""
    return [
        tried_collective
        for tried_collective in ran
        if not tried_collective.ok and kind_of(tried_collective) is not ErrorKind.WAITED
    ]


Meaning = tuple[str, tuple[Fix, ...]]
"""The cause in a sentence or two, and fixes."""


class Run(NamedTuple):
    """One run of one backend, as it is judged on one node. ran: the outcome of each rank, in their order."""

    ran: Sequence[TriedCollective]
    nodes: dict[int, Node]
    meeting: Meeting
    target_python: TargetPython

    def name(self, one: TriedCollective) -> str:
        return (self.nodes[one.node].host if one.node in self.nodes else "") or f"node {one.node}"

    def way(self, one: TriedCollective) -> str:
        """The interface of that node which leads to the others."""
        return (self.nodes[one.node].interface if one.node in self.nodes else "") or "eth0"

    def releases(self) -> list[str]:
        """The releases of torch that the nodes have, the newest last."""
        found = {node.torch.partition("+")[0] for node in self.nodes.values() if isinstance(node.torch, str)}
        return sorted(found, key=lambda one: [int(part) for part in re.findall(r"\d+", one)])


def meaning(one: TriedCollective, kind: ErrorKind, run: Run) -> Meaning:
    """What the words mean; where they don't tell, what a failure at that stage usually means."""
    way = run.way(one)
    if kind is ErrorKind.WRONG:
        offloading = f"sudo ethtool -K {shlex.quote(way)} tx off rx off tso off gso off gro off"
        return (
            "The numbers were changed on their way or in the reckoning: a network card's offloading, or faulty memory.",
            (by_root("Switch the card's offloading off (ethtool is a package) and run it again", (offloading,)),),
        )
    if kind is ErrorKind.CRASH:
        importing = in_target_python(run.target_python, "-X", "faulthandler", "-c", "import torch.distributed")
        return (
            "torch was ended from outside (SIGKILL: often for lack of memory), or crashed in a library.",
            (
                by_root("See whether the kernel ended it", ("sudo dmesg | tail -20",)),
                Fix("See where it crashes", (importing,)),
            ),
        )
    if "EADDRINUSE" in one.words:
        port = re.search(r"port: (\d+)", one.words)
        return (
            "Another program took the port between the test of the port and the start of the store.",
            (Fix("See who holds it", (f"ss -ltnp 'sport = :{port[1] if port else run.meeting.port}'",)),),
        )
    if "Unable to find address for" in one.words:
        return (
            "GLOO_SOCKET_IFNAME names an interface that this node doesn't have, or that has no address.",
            (Fix("Name the one that leads to the others", (f"export GLOO_SOCKET_IFNAME={shlex.quote(way)}",)),),
        )
    if told := re.search(r"remote=\[([^\[\]]+)\]", one.words):
        return (
            f"Another rank told this one to meet it at {told[1]}, and nobody answers there: gloo offers the address that"
            " its own hostname resolves to, or that of GLOO_SOCKET_IFNAME.",
            (
                Fix(
                    "Name the interface that leads to the others, on each node its own",
                    (f"export GLOO_SOCKET_IFNAME={shlex.quote(way)}",),
                ),
            ),
        )
    return _by_stage(one, run)


def _by_stage(one: TriedCollective, run: Run) -> Meaning:
    way = run.way(one)
    if one.stage in BEFORE_THE_STORE:
        return (
            "torch itself doesn't start on this node.",
            (Fix("See why", (f"ddpdoctor check --python {shlex.quote(run.target_python.python)}",)),),
        )
    if one.stage == "store":
        return _store(run)
    if one.stage == "all_reduce of 4 MiB":
        return _large(one, run)
    if one.backend == "nccl":
        return (
            "NCCL makes its connections in the first collective: at the address of the interface that it chose.",
            (
                Fix("Name the interface on every node", (f"export NCCL_SOCKET_IFNAME=={shlex.quote(way)}",)),
                Fix("Try without InfiniBand, on all nodes", ("export NCCL_IB_DISABLE=1",)),
            ),
        )
    return (
        "gloo's ranks meet at the addresses that they offer each other: each takes the one that its hostname resolves to,"
        " unless GLOO_SOCKET_IFNAME names an interface.",
        (Fix("Name the interface on every node", (f"export GLOO_SOCKET_IFNAME={shlex.quote(way)}",)),),
    )


def _store(run: Run) -> Meaning:
    if len(releases := run.releases()) > 1:
        install = pip_install(run.target_python, f"torch=={releases[-1]}")
        return (
            f"The nodes have torch {listed(releases)}, and the protocol of the store changes between releases (2.2, 2.5):"
            " such ranks can't talk to each other.",
            (Fix(f"Install torch {releases[-1]} on the nodes that have another one", (install,)),),
        )
    return (
        f"The connection to {run.meeting.master}:{run.meeting.port} works, but torch's TCPStore doesn't come up there: a"
        " proxy in between, or the master's name means another address to torch.",
        (
            Fix("See what the name means here", (f"getent ahosts {shlex.quote(run.meeting.master)}",)),
            Fix("Try the other kind of store, on all nodes", ("export USE_LIBUV=0",)),
        ),
    )


def _large(one: TriedCollective, run: Run) -> Meaning:
    peer = next((other.address for rank, other in run.nodes.items() if rank != one.node), run.meeting.master)
    mtu = run.nodes[one.node].mtu if one.node in run.nodes else 0
    return (
        "4 B pass and 4 MiB don't: packets as large as the interface allows are lost on the way (MTU), or the link is"
        " extremely slow.",
        (
            Fix(
                f"See whether the largest packets pass ({PING_COMES_IN})",
                (f"ping -c 3 -M do -s {(mtu or 1500) - 28} {shlex.quote(peer)}",),
            ),
            by_root("Send smaller packets, on all nodes", (f"sudo ip link set {shlex.quote(run.way(one))} mtu 1400",)),
        ),
    )
