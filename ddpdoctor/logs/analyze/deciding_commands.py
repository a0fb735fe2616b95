"""The command that would decide whether a run really had the illness that its log speaks of. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed
from ddpdoctor.engine.registry import Check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.job_intent import OWN_HOST_NAMES
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.logs.analyze.failures import MAX_LINES_OF_MESSAGE
from ddpdoctor.logs.analyze.illness_traits import by_log_alone
from ddpdoctor.logs.analyze.settings import settings_said
from ddpdoctor.logs.analyze.sightings import host_named

_ENDPOINT: Final = compile_lazily(
    r"(?:\[(?P<bracketed>[A-Za-z0-9_:][\w.:%-]*)\]:|\(\[?(?P<tuple>[\w.:%-]+)\]?, "
    r"|(?<![\w:%-])(?<![\w-]\.)(?P<plain>[A-Za-z][\w-]*(?:\.[\w-]+)*|\d+(?:\.\d+){3}):)"
    r"(?P<port>\d{2,5})\b(?!\.\d|:)"
)
"""Of IPv6 it is known only in brackets or in a pair where the address ends."""
_OF_A_STORE: Final = compile_lazily(r"client socket|server socket|TCPStore|[Rr]endezvous|rdzv|c10d|MASTER_ADDR|master")
_SOURCE: Final = compile_lazily(r"\.(?:cc?|cpp|cuh?|h(?:pp)?|py|so)$")
_LOADS: Final = compile_lazily(r"""\bload\w*\([rb]?(?P<quote>["'])(?P<file>[^"'{}\n]+)(?P=quote)""")
_MAPPED: Final = "::ffff:"
"""Before an IPv4 address, where a socket of IPv6 dials it."""


def deciding(check: Check, seen: Iterable[SignMatch], log: Log, *, sure: bool = False) -> Fix | None:
    """None where only the log can show it. sure: the log names it already, and the command shows what it is like now."""
    seen = tuple(seen)
    if by_log_alone(check):
        return None
    begin = "To see whether it is still so" if sure else "To decide it"
    on = next((match.line.host for match in seen if match.line.host), "")
    there = f" on {host_named(on)}" if on else " on the host of that rank" if log.world_size != 1 else ""
    # What a host's own processes decide, it decides alone.
    if check.groups & {"meeting", "fleet"} and "processes" not in check.groups:
        return _on_all_nodes(begin, [match.line.text for match in seen] + [error.text for error in log.errors], log)
    if "hang" in check.groups:
        return Fix(
            f"{begin}, start the run again, and while it hangs ask{there} what each rank waits for",
            ("ddpdoctor jobs --hang",),
        )
    if "checkpoints" in check.groups:
        file = _loaded(seen, log) or "FILE"
        return Fix(
            f"{begin}, look at the checkpoint itself",
            (f"ddpdoctor check --checkpoint {shlex.quote(file)} --select {check.slug}",),
        )
    said = settings_said(seen, check.catalogue) if "network" in check.groups else {}
    settings = "".join(f"{name}={shlex.quote(value)} " for name, value in said.items())
    return Fix(f"{begin}, look at the facts{there}", (f"{settings}ddpdoctor check --select {check.slug}",))


def _loaded(seen: Iterable[SignMatch], log: Log) -> str:
    """Return the file that the call names by which the exception with those words came about; "" where it names none."""
    for match in seen:
        for raised in log.raised:
            same = raised.line.stream == match.line.stream
            if same and raised.began.number <= match.line.number <= raised.line.number + MAX_LINES_OF_MESSAGE:
                calls = "\n".join(frame.code for frame in (*reversed(raised.frames), raised.own) if frame)
                if found := _LOADS.search(calls):
                    return found["file"]
    return ""


def _on_all_nodes(begin: str, texts: Iterable[str], log: Log) -> Fix:
    master, port = endpoint(texts)
    nnodes = len(log.hosts) if len(log.hosts) > 1 else None
    command = netcheck_command(Meeting(master=master or "HOST", port=port), nnodes, None)
    unknown = ["HOST is where rank 0 runs"] if not master else []
    if nnodes is None:
        command, unknown = f"{command} --nnodes N", [*unknown, "N the number of nodes"]
    what = f"; {listed(unknown)}" if unknown else ""
    return Fix(f"{begin}, run this on every node of the job at the same time{what}", (command,))


def endpoint(texts: Iterable[str]) -> tuple[str, int]:
    """The first host and port of another machine's store or rendezvous that the texts name; without a host where they name
    but this machine itself, as each node calls itself; ("", 0) if they name none."""
    own_port = 0
    for text in texts:
        if not _OF_A_STORE.search(text):
            continue
        for found in _ENDPOINT.finditer(text):
            host = (found["bracketed"] or found["tuple"] or found["plain"]).removeprefix(_MAPPED)
            if _SOURCE.search(host) or (":" in host and not _is_ipv6(host)) or not 0 < int(found["port"]) < 65536:
                continue
            if host not in OWN_HOST_NAMES:
                return host, int(found["port"])
            own_port = own_port or int(found["port"])
    return "", own_port


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).version == 6
    except ValueError:
        return False
