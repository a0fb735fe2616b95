"""Tokens, which say who may take part in a netcheck: a secret that all nodes of the job know, and how they show it without saying it.

The secret never crosses the network. Each side sends a number used once and the HMAC of both numbers, so what was
overheard is of no use another time, and neither side can send the other's proof back to it.

What that is worth depends on the secret:

- One that node 0 made (`make_token`, 59 bits at random) or a person chose well keeps out everybody who doesn't know it.
  Whoever records a handshake can try words against it at home; 59 bits outlast a test of a minute, a pet's name doesn't.
- One derived from a launcher's job id keeps out the nodes of another job with the same address, port scanners and
  passers-by. Open MPI's is random. Slurm's job ids count upwards and anybody on the cluster can list them: its token
  is no defence against a neighbour who means harm.
- With none (a private address, started by hand) the hub takes whoever speaks its language.

Nothing here hides what the nodes tell each other: facts about hosts, of which secrets have been taken out before. Nor
does it stop somebody in the middle, who can pass on both proofs and change what follows.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from typing import Literal

from ddpdoctor.network_check.job import NetcheckJob

Role = Literal["hub", "agent", "host", "visitor"]
"""Roles of those who meet at the hub, and of those who visit another node."""

DERIVED_TOKEN_LENGTH = 20
"""Hex digits of a derived token, 80 bits: node 0 prints it in the command for a node that is missing."""

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Without those that look alike: i, l, o, 0, 1."""

_PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in ("127.0.0.0/8", "169.254.0.0/16", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
                "::1/128", "fe80::/10", "fc00::/7")
)  # fmt: skip


def token_of(job: NetcheckJob, given: str | None) -> str:
    """The token of the job: the one that was given (--token), else one derived from the launcher's job id, else ""."""
    if given:
        return given.strip()
    if not job.job_id:
        return ""
    return _mac(job.job_id, "ddpdoctor netcheck", job.master, str(job.port))[:DERIVED_TOKEN_LENGTH]


def is_private_address(address: str) -> bool:
    """Whether only this machine, its neighbours or a private network reach it: loopback, link-local, RFC 1918, unique
    local, or a carrier's shared 100.64.0.0/10. False for what is no address."""
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped:
        number = number.ipv4_mapped
    return any(number in network for network in _PRIVATE)


def make_token() -> str:
    """A new token, easy to read out and to type: "k7wq-m3xt-9fhr"."""
    return "-".join("".join(secrets.choice(_ALPHABET) for _ in range(4)) for _ in range(3))


def proof(token: str, role: Role, first: str, second: str, *more: object) -> str:
    """Show that the sender knows the token: HMAC-SHA256 over its role, both nonces, and what else it stands for, in
    hex."""
    return _mac(token, role, first, second, *map(str, more))


def matches(proof_given: str, proof_expected: str) -> bool:
    """Whether they are equal, in a time that doesn't say where they differ."""
    return hmac.compare_digest(_bytes(proof_given), _bytes(proof_expected))


def _mac(key: str, *parts: str) -> str:
    # Each part with its length, so that no two lists of parts read the same.
    message = b"".join(len(part).to_bytes(4, "big") + part for part in map(_bytes, parts))
    return hmac.new(_bytes(key), message, hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
