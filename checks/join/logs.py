"""What the logs of torchrun's rendezvous show, and no host's facts can."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.engine.registry import LogSign, SignRole, check
from ddpdoctor.facts.log import Log
from ddpdoctor.knowledge.frameworks import ACCELERATE
from ddpdoctor.logs.analyze.launcher_options import launcher_of_log
from ddpdoctor.logs.analyze.sightings import lines, sightings, word

RENDEZVOUS = "torch 1.13.1, 2.9.1 and 2.13.0: torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
MADE = "made to happen with torch 2.13.0"
OPENING = "_create_tcp_store(params)"
OWN_STORE = "in _create_tcp_store_server"
NUMBER = "a host's name of digits alone, which is read as an address: 17 is 0.0.0.17"
FRAME = 3
"""Lines from the head of a traceback's last frame to the exception."""


@check(
    "rdzv-connect-failed",
    severity=FAIL,
    log_signs=(
        LogSign(
            "The client socket has timed out after",
            why="torchrun was opening the store of a c10d rendezvous, as the traceback says",
            pattern=r"while trying to connect to \(?(?P<host>[^,\s:()]+)(?:, |:)(?P<port>\d+)",
            near=OPENING,
            source=MADE,
        ),
        LogSign(
            "The client socket has failed to connect to any network address of (",
            why="torchrun was opening the store of a c10d rendezvous, as the traceback says",
            pattern=r"any network address of \((?P<host>[^,]+), (?P<port>\d+)\)(?!.*errno: 99\b)",
            near=OPENING,
            source=MADE,
        ),
        LogSign(
            "RendezvousConnectionError",
            why="with this frame it was never there; without it, it was lost later",
            near=OPENING,
            source=RENDEZVOUS,
        ),
        LogSign(
            "RendezvousConnectionError",
            why="where no traceback was kept, the words before say that it was never there",
            near="client socket has timed out after",
            source=RENDEZVOUS,
        ),
        LogSign(
            "RendezvousConnectionError",
            why="torchrun's own record of its error, without the traceback: never there, or lost later",
            role=SignRole.HINTS,
            pattern=r"^\s*\"message\": \"RendezvousConnectionError: The connection to the C10d store has failed",
            source="torch 1.13.1: torch/distributed/elastic/multiprocessing/errors/error_handler.py",
        ),
        LogSign(
            "RendezvousClosedError",
            why="the rendezvous was over when this node came: another one had failed before, or was done",
            role=SignRole.EFFECT,
            pattern=r"^torch\.distributed\.elastic\.rendezvous\.api\.RendezvousClosedError",
            source="torch 1.13.1, 2.9.1 and 2.13.0: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        ),
    ),
)
def rdzv_connect_failed(log: Log) -> Iterator[Finding]:
    """torchrun can't reach the store of its c10d rendezvous.

    ## What breaks
    torchrun ends before it starts a single rank: "RendezvousConnectionError: The connection to the C10d store has failed".

    ## Why
    One node hosts the store, at `--rdzv-endpoint`. The endpoint is misspelt, is another network's address, or its port is
    blocked by a packet filter; the host's torchrun hasn't started, or has ended; or nobody hosts it, since no node recognises
    the endpoint as itself: torchrun compares it with the hostname and the addresses that this resolves to, not with the
    interfaces.

    ## Fix
    The same `--rdzv-endpoint HOST:PORT` on all nodes, with a name or address of one of them that the others can route to. If
    the endpoint's own node says this, too, then say who hosts: `--rdzv-conf is_host=1` there and `is_host=0` on the others.
    Or do without a vote: `--node-rank` on each node, with `--master-addr` and `--master-port`.
    """
    seen = sightings(log, "rdzv-connect-failed")
    if not seen:
        return
    host, port = word(seen, "host"), word(seen, "port")
    where = f" at {host}:{port}" if host else ""
    address = host or "HOST"
    conf = "--rdzv_conf" if launcher_of_log(log) == ACCELERATE else "--rdzv-conf"
    yield Finding(
        summary=f"torchrun can't reach the store of its rendezvous{where}: the connection to the C10d store has failed",
        evidence=lines(log, seen),
        fixes=(
            Fix(
                "Test the endpoint and the way between the nodes, on every node at the same time",
                (
                    f"ddpdoctor netcheck --master-addr {shlex.quote(address)}"
                    + (f" --master-port {port}" if port else ""),
                ),
            ),
            Fix(
                f"If {host or 'the endpoint'} is an address of the node that should host the store, and it says this, too, look"
                " there at why torchrun doesn't recognise it",
                ("ddpdoctor check --select rdzv-hostname-not-self",),
            ),
            Fix(f"Then say who hosts it: {conf} is_host=1 on that node, {conf} is_host=0 on the others"),
        ),
    )


@check(
    "rdzv-own-name-unreachable",
    severity=FAIL,
    log_signs=(
        LogSign(
            "The client socket has timed out after",
            why="torchrun was dialling the store that it had just opened itself, as the traceback says",
            pattern=r"while trying to connect to \((?P<host>[^,]+), (?P<port>\d+)\)",
            near=OWN_STORE,
            source=MADE,
        ),
        LogSign(
            "The client socket has failed to connect to any network address of (",
            why="torchrun was dialling the store that it had just opened itself, as the traceback says",
            pattern=r"any network address of \((?P<host>[^,]+), (?P<port>\d+)\)",
            near=OWN_STORE,
            source=MADE,
        ),
        LogSign(
            "any network address of (",
            why=NUMBER,
            pattern=r"any network address of \((?P<host>(?!0+,)\d{1,10}), (?P<port>\d+)\)",
            source="glibc 2.36: resolv/inet_addr.c; torch 2.13.0: torch/csrc/distributed/c10d/socket.cpp",
        ),
        LogSign(
            "while trying to connect to (",
            why=NUMBER,
            pattern=r"while trying to connect to \((?P<host>(?!0+,)\d{1,10}), (?P<port>\d+)\)",
            source="glibc 2.36: resolv/inet_addr.c; torch 2.13.0: torch/csrc/distributed/c10d/socket.cpp",
        ),
        LogSign(
            "TCP client failed to connect/validate to host ",
            why="newer releases say so, too, at each try",
            near=OWN_STORE,
            source=MADE,
        ),
        LogSign(
            "while trying to connect to (",
            why="it is the host's own name that stands behind",
            near=OWN_STORE,
            source=MADE,
        ),
        LogSign(
            "network addresses of (",
            why="it is the host's own name that nobody knows",
            pattern=r"cannot be retrieved \(gai error",
            near=OWN_STORE,
            source=MADE,
        ),
    ),
)
def rdzv_own_name_unreachable(log: Log) -> Iterator[Finding]:
    """torchrun can't reach itself under its own hostname.

    ## What breaks
    With `--standalone` or a c10d rendezvous nothing starts, even on one node: minutes later torchrun says "The client socket
    has timed out ... while trying to connect to (NAME, PORT)", and NAME is the very host that it runs on.

    ## Why
    torchrun opens a store for its ranks and dials it by the host's full name. The name resolves to nothing, to an old address
    or to another host's, or a packet filter takes even what a host sends to itself. Containers and renamed hosts are often
    like that. A name of digits alone, such as a job's number, is taken for an address.

    ## Fix
    On one node `torchrun --local-addr 127.0.0.1 ...`, on several the node's own address on each. Or write the address beside
    the name into /etc/hosts.
    """
    seen = sightings(log, "rdzv-own-name-unreachable")
    if not seen:
        return
    host = word(seen, "host")
    itself = f"torchrun can't reach the store that it opened itself{f', under the name {host}' if host else ''}"
    number = host.isdecimal()
    yield Finding(
        summary=(
            f"A host's name is the number {host}, which is read as the address {_as_address(host)}"
            if number
            else itself
        ),
        evidence=lines(log, seen),
        fixes=(
            *(
                (
                    Fix(
                        "Give the host or container a name with a letter in it: `docker run --hostname NAME`, `hostnamectl`"
                    ),
                )
                if number
                else ()
            ),
            Fix(
                "Tell torchrun the address by which it reaches itself; on several nodes each one's own",
                ("torchrun --local-addr 127.0.0.1 ...",),
            ),
            Fix(
                "See on that host what its name means to it: it must be an address of its own",
                ("getent hosts $(hostname -f)", "hostname -I"),
            ),
            Fix("Or put it right", ("ddpdoctor check --select hostname-unresolvable,hostname-resolves-loopback",)),
        ),
    )


def _as_address(name: str) -> str:
    """What the C library makes of a name that is a number: with a zero before it, it is an octal one."""
    number = int(name, 8) if name.startswith("0") and not set(name) & {"8", "9"} else int(name)
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


@check(
    "rdzv-store-host-exited",
    severity=FAIL,
    log_signs=(
        LogSign(
            "DistNetworkError: Failed to recv, got 0 bytes",
            why="the store closed the connection: its process ended, before this rank was done",
            role=SignRole.HINTS,
            source=MADE,
        ),
        LogSign(
            "DistNetworkError: failed to recv, got 0 bytes",
            why="releases before 2.8 say it in these words",
            role=SignRole.HINTS,
            source="torch 2.7: torch/csrc/distributed/c10d/Utils.hpp, in pytorch pull request 153586",
        ),
        LogSign(
            "DistNetworkError: Broken pipe",
            why="the store is no longer there: its process ended, before this rank was done",
            role=SignRole.HINTS,
            source=MADE,
        ),
        LogSign(
            "DistNetworkError: Connection reset by peer",
            why="the store is no longer there: its process ended, before this rank was done",
            role=SignRole.HINTS,
            source="torch 2.9.1 and 2.13.0: torch/csrc/distributed/c10d/Utils.hpp, with the C library's words for the error",
        ),
        LogSign(
            "via c10d key-value store by key",
            why="rank 0 was to leave NCCL's address in the store, and is gone",
            role=SignRole.HINTS,
            pattern=r"got error: .*(?:Connection reset by peer|Broken pipe|Failed to recv|Connection was likely closed)",
            source="torch 1.13.1 and 2.9.1: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        ),
        LogSign(
            "has failed to send a keep-alive heartbeat to the rendezvous",
            why="a node's torchrun has lost the store of the first one; once, at the end of a run, it was only the first to be done",
            role=SignRole.EFFECT,
            pattern=r"The node '(?P<node>[^']+?)(?:_\d+_\d+)?' has failed .* due to an error of type RendezvousConnectionError",
            source="torch 2.13.0: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        ),
        *(
            LogSign(
                f"RuntimeError: {words}",
                why="the rank asked the store in which all ranks of a group are counted: its process ended, before this rank was done",
                role=SignRole.HINTS,
                pattern=rf"^RuntimeError: {words}\s*$",
                near="in _store_based_barrier",
                within=FRAME,
                source="torch 1.13.1: torch/distributed/distributed_c10d.py, torch/csrc/distributed/c10d/Utils.hpp",
            )
            for words in ("Broken pipe", "Connection reset by peer")
        ),
        LogSign(
            'Failed to check the "should dump" flag on TCPStore',
            why="said each second by a rank that still runs while the store is gone; a few times at the end of a healthy run, too",
            role=SignRole.EFFECT,
            pattern=r"with error: ",
            source="torch 2.9.1: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        ),
        LogSign(
            'Failed to check the "should dump" flag on TCPStore',
            why="a warning of ranks that end a little after rank 0, in healthy runs too",
            role=SignRole.NOISE,
            source="torch 2.9.1: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        ),
        LogSign(
            "Failed to get exception dump flag from the global store",
            why="the same in torch 2.3 and 2.4, at the level of an error",
            role=SignRole.NOISE,
            source="torch 2.4: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, in pytorch issue 128680",
        ),
        LogSign(
            "recvValue failed on",
            why="a warning: the exception behind it counts, and at the end of a healthy run there is none",
            role=SignRole.NOISE,
            source="torch 2.9.1: torch/csrc/distributed/c10d/TCPStore.cpp",
        ),
        LogSign(
            "recvVector failed on",
            why="a warning: the exception behind it counts, and at the end of a healthy run there is none",
            role=SignRole.NOISE,
            source=MADE,
        ),
        LogSign(
            "recvValueWithTimeout failed on",
            why="a warning: the exception behind it counts, and at the end of a healthy run there is none",
            role=SignRole.NOISE,
            source=MADE,
        ),
        LogSign(
            "sendBytes failed on",
            why="a warning: the exception behind it counts, and at the end of a healthy run there is none",
            role=SignRole.NOISE,
            source=MADE,
        ),
    ),
)
def rdzv_store_host_exited(log: Log) -> Iterator[Finding]:
    """The process that hosts the job's store ended before the others were done.

    ## What breaks
    The ranks that ask it something lose the connection: "Failed to recv, got 0 bytes. Connection was likely closed", "Broken
    pipe".

    ## Why
    The store lives in rank 0, or in the torchrun of the first node. That process crashed, was killed, or simply came to its
    end while others still made groups or waited in a barrier. What these ranks say is a consequence.

    ## Fix
    Read the log of rank 0 and of the first node's torchrun: the first error there is the cause. If there is none, keep rank 0
    until all are done: `dist.barrier()` and then `dist.destroy_process_group()` at the end of the script, on every rank.
    """
    seen = sightings(log, "rdzv-store-host-exited")
    if not any(one.role is not SignRole.NOISE for one in seen):
        return
    yield Finding(
        summary="The process that hosts the store, rank 0 or the first node's torchrun, ended before the other ranks were done",
        evidence=lines(log, [one for one in seen if one.role is not SignRole.NOISE]),
        fixes=(
            Fix(
                "Read the log of rank 0 and of the first node's torchrun, or give it to the doctor with the others: the first error"
                " there is the cause",
                ("ddpdoctor diagnose-log node0.log node1.log",),
            ),
            Fix(
                "If rank 0 just came to its end first, let all ranks end together: dist.barrier(), then dist.destroy_process_group()"
            ),
        ),
    )
