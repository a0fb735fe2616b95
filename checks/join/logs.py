"""Illnesses of torchrun's rendezvous that only its logs show."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.frameworks import ACCELERATE
from ddpdoctor.knowledge.launcher_options import launcher_of_log
from ddpdoctor.logs.analyze.sightings import word


@log_check("rdzv-connect-failed", severity=FAIL, owner=Owner.UNKNOWN)
def rdzv_connect_failed(log: Log, seen: Sequence[SignMatch]) -> Finding:
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
    host, port = word(seen, "host"), word(seen, "port")
    where = f" at {host}:{port}" if host else ""
    address = host or "HOST"
    conf = "--rdzv_conf" if launcher_of_log(log) == ACCELERATE else "--rdzv-conf"
    return Finding.of(
        f"torchrun can't reach the store of its rendezvous{where}: the connection to the C10d store has failed",
        Fix(
            "Test the endpoint and the way between the nodes, on every node at the same time",
            (f"ddpdoctor netcheck --master-addr {shlex.quote(address)}" + (f" --master-port {port}" if port else ""),),
        ),
        Fix(
            f"If {host or 'the endpoint'} is an address of the node that should host the store, and it says this, too, look"
            " there at why torchrun doesn't recognise it",
            ("ddpdoctor check --select rdzv-hostname-not-self",),
        ),
        Fix(f"Then say who hosts it: {conf} is_host=1 on that node, {conf} is_host=0 on the others"),
    )


_ALL_ATTEMPTS_LEFT: Final = compile_lazily(r"(?<!\d)(?P<attempts>\d+)/(?P=attempts) attempts left; ")


def _was_the_first_attempt(match: SignMatch, log: Log) -> bool:
    """Whether torchrun says behind it that none of its attempts had been used: it tells of that at each failure, after it."""
    told = match.beside
    return told is not None and told.order > match.line.order and bool(_ALL_ATTEMPTS_LEFT.search(told.text))


@log_check("stale-store-counts", severity=FAIL, owner=Owner.USER, log=LogTraits(refuted=_was_the_first_attempt))
def stale_store_counts(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The store still counts the ranks of an earlier attempt.

    ## What breaks
    After torchrun has started the ranks again, they wait until the timeout in a "store based barrier": more workers are counted there than the
    run has.

    ## Why
    The barrier wants to count exactly as many as there are ranks. What the ranks of the attempt before have left in the store is counted with
    them, where the store outlived that attempt: torchrun's agent or a process that wasn't ended has it.

    ## Fix
    Mend what ended the attempt before: its words stand above. Until then start without new attempts (`--max-restarts=0`), and end what is left
    of the run before you start it again. Newer releases of torch keep the counts of attempts apart.
    """
    came, wanted = word(seen, "came"), word(seen, "wanted")
    return Finding.of(
        f"The store counts {came} workers where the run has {wanted}: those of an earlier attempt, it seems, are among them",
        Fix("Look further up for what ended the attempt before: that is the cause of this one's end, too"),
        Fix("Let a failed attempt be the last one", ("torchrun --max-restarts=0 ...",)),
        Fix("Before the next start, look on each host for processes that the run has left", ("ddpdoctor zombies",)),
    )


@log_check("rdzv-own-name-unreachable", severity=FAIL, owner=Owner.NODE)
def rdzv_own_name_unreachable(log: Log, seen: Sequence[SignMatch]) -> Finding:
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
    host = word(seen, "host")
    itself = f"torchrun can't reach the store that it opened itself{f', under the name {host}' if host else ''}"
    number = host.isdecimal()
    renamed = Fix("Give the host or container a name with a letter in it: `docker run --hostname NAME`, `hostnamectl`")
    return Finding.of(
        f"A host's name is the number {host}, which is read as the address {_as_address(host)}" if number else itself,
        renamed if number else None,
        Fix(
            "Tell torchrun the address by which it reaches itself; on several nodes each one's own",
            ("torchrun --local-addr 127.0.0.1 ...",),
        ),
        Fix(
            "See on that host what its name means to it: it must be an address of its own",
            ("getent hosts $(hostname -f)", "hostname -I"),
        ),
        Fix("Or put it right", ("ddpdoctor check --select hostname-unresolvable,hostname-resolves-loopback",)),
    )


def _as_address(name: str) -> str:
    """Read a name that is a number as the C library does: with a zero before it, it is an octal one."""
    number = int(name, 8) if name.startswith("0") and not set(name) & {"8", "9"} else int(name)
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


@log_check("rdzv-store-host-exited", severity=FAIL, owner=Owner.UNKNOWN)
def rdzv_store_host_exited(log: Log, seen: Sequence[SignMatch]) -> Finding:
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

    return Finding.of(
        "The process that hosts the store, rank 0 or the first node's torchrun, ended before the other ranks were done",
        Fix(
            "Read the log of rank 0 and of the first node's torchrun, or give it to the doctor with the others: the first error"
            " there is the cause",
            ("ddpdoctor diagnose-log node0.log node1.log",),
        ),
        Fix(
            "If rank 0 just came to its end first, let all ranks end together: dist.barrier(), then dist.destroy_process_group()"
        ),
    )
