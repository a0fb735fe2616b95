"""The meaning of a failure of torch's store or of a collective, by torch's own words and by the stage, and its fixes. Pure."""

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
    """The kind of one rank's failure."""

    ERROR = "an error of its own"
    WRONG = "a wrong result"
    CRASH = "it crashed"
    WAITED = "it waited for another rank, or lost it"


WAITING = compile_lazily(
    r"(?i)clients joined|wait timeout|timed? ?out|timeout|connection closed by (?:remote )?peer|connection reset by peer"
    r"|broken pipe|failed to recv|no end within|it was ended, since"
)
"""torch's words where another rank didn't come, or went away."""

TURNED_DOWN = compile_lazily(r"(?i)refused|no route to host|unreachable")
"""Its words where the network says no; gloo calls these time-outs too."""


def kind_of(tried: TriedCollective) -> ErrorKind:
    """Tell in which way a rank has failed."""
    if tried.words.startswith("ended by SIG"):
        return ErrorKind.CRASH
    if tried.words.startswith("wrong sum"):
        return ErrorKind.WRONG
    waited = tried.hung or (WAITING.search(tried.words) and not TURNED_DOWN.search(tried.words))
    return ErrorKind.WAITED if waited else ErrorKind.ERROR


def blamed(ran: Sequence[TriedCollective]) -> list[TriedCollective]:
    """The ranks that failed by themselves; none where every one that failed waited for another."""
    return [tried for tried in ran if not tried.ok and kind_of(tried) is not ErrorKind.WAITED]


Meaning = tuple[str, tuple[Fix, ...]]
"""The cause in a sentence or two, and fixes."""


class Run(NamedTuple):
    """One run of one backend, as it is judged on one node. ran: the outcome of each rank, in their order."""

    ran: Sequence[TriedCollective]
    nodes: dict[int, Node]
    meeting: Meeting
    target_python: TargetPython

    def name(self, tried: TriedCollective) -> str:
        return (self.nodes[tried.node].host if tried.node in self.nodes else "") or f"node {tried.node}"

    def way(self, tried: TriedCollective) -> str:
        """The interface of that node which leads to the others."""
        return (self.nodes[tried.node].interface if tried.node in self.nodes else "") or "eth0"

    def releases(self) -> list[str]:
        """The releases of torch that the nodes have, the newest last."""
        found = {node.torch.partition("+")[0] for node in self.nodes.values() if isinstance(node.torch, str)}
        return sorted(found, key=lambda release: [int(part) for part in re.findall(r"\d+", release)])


def meaning(tried: TriedCollective, kind: ErrorKind, run: Run) -> Meaning:
    """Tell what the words mean; where they don't say, what a failure at that stage usually means."""
    way = shlex.quote(run.way(tried))
    name_for_gloo = (f"export GLOO_SOCKET_IFNAME={way}",)
    if kind is ErrorKind.WRONG:
        return (
            "The numbers were changed on their way or in the reckoning: a network card's offloading, or faulty memory.",
            (
                by_root(
                    "Switch the card's offloading off (ethtool is a package) and run it again",
                    (f"sudo ethtool -K {way} tx off rx off tso off gso off gro off",),
                ),
            ),
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
    if "EADDRINUSE" in tried.words:
        port = re.search(r"port: (\d+)", tried.words)
        return (
            "Another program took the port between the test of the port and the start of the store.",
            (Fix("See who holds it", (f"ss -ltnp 'sport = :{port[1] if port else run.meeting.port}'",)),),
        )
    if "Unable to find address for" in tried.words:
        return (
            "GLOO_SOCKET_IFNAME names an interface that this node doesn't have, or that has no address.",
            (Fix("Name the one that leads to the others", name_for_gloo),),
        )
    if told := re.search(r"remote=\[([^\[\]]+)\]", tried.words):
        return (
            f"Another rank told this one to meet it at {told[1]}, and nobody answers there: gloo offers the address that"
            " its own hostname resolves to, or that of GLOO_SOCKET_IFNAME.",
            (Fix("Name the interface that leads to the others, on each node its own", name_for_gloo),),
        )
    if tried.stage in BEFORE_THE_STORE:
        return (
            "torch itself doesn't start on this node.",
            (Fix("See why", (f"ddpdoctor check --python {shlex.quote(run.target_python.python)}",)),),
        )
    if tried.stage == "store":
        return _store(run)
    if tried.stage == "all_reduce of 4 MiB":
        return _large(tried, run)
    if tried.backend == "nccl":
        return (
            "NCCL makes its connections in the first collective: at the address of the interface that it chose.",
            (
                Fix("Name the interface on every node", (f"export NCCL_SOCKET_IFNAME=={way}",)),
                Fix("Try without InfiniBand, on all nodes", ("export NCCL_IB_DISABLE=1",)),
            ),
        )
    return (
        "gloo's ranks meet at the addresses that they offer each other: each takes the one that its hostname resolves to,"
        " unless GLOO_SOCKET_IFNAME names an interface.",
        (Fix("Name the interface on every node", name_for_gloo),),
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


def _large(tried: TriedCollective, run: Run) -> Meaning:
    peer = next((other.address for rank, other in run.nodes.items() if rank != tried.node), run.meeting.master)
    mtu = run.nodes[tried.node].mtu if tried.node in run.nodes else 0
    return (
        "4 B pass and 4 MiB don't: packets as large as the interface allows are lost on the way (MTU), or the link is"
        " extremely slow.",
        (
            Fix(
                f"See whether the largest packets pass ({PING_COMES_IN})",
                (f"ping -c 3 -M do -s {(mtu or 1500) - 28} {shlex.quote(peer)}",),
            ),
            by_root(
                "Send smaller packets, on all nodes", (f"sudo ip link set {shlex.quote(run.way(tried))} mtu 1400",)
            ),
        ),
    )
