"""The meeting place of a job's nodes: the master's host and port, as flags and settings write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

import msgspec

from ddpdoctor.facts.meeting import Conflict
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.hostlist import HostlistError, expand
from ddpdoctor.knowledge.launchers import number

DEFAULT_PORT = 29500
ENDPOINT_PORT = 29400
"""What torchrun takes for --master-port, and for a rendezvous endpoint without a port."""

ADDRESS_FLAG, PORT_FLAG = "--master-addr", "--master-port"


class PlaceError(ValueError):
    """A host or port that can't be one, in a sentence that names the setting."""


class MeetingPlace(msgspec.Struct, frozen=True):
    """`host` is a name or an address, an IPv6 one without brackets."""

    host: str
    port: int
    conflicts: tuple[Conflict, ...] = ()


def meeting_place(master: str | None, port: int | None, hosts: str, environ: Mapping[str, str]) -> MeetingPlace:
    """The master: the flags', MASTER_ADDR's, the rendezvous endpoint's, or else the first of the launcher's hosts ("node[01-02]").

    Raises:
        PlaceError: none is named, or a name or a port makes no sense.
    """
    address_name = launchers.first_set(environ, launchers.MASTER_ADDRESS)
    port_name = launchers.first_set(environ, launchers.MASTER_PORT)
    set_master, set_port = environ.get(address_name, "").strip(), environ.get(port_name, "").strip()
    endpoint = launchers.store_endpoint(environ).strip()
    own_port: int | None = None
    conflicts: list[Conflict] = []
    if master is not None:
        host, own_port = split(master, ADDRESS_FLAG)
        if own_port and port is not None and own_port != port:
            raise PlaceError(f"{ADDRESS_FLAG} {master} and {PORT_FLAG} {port} name two ports: leave one of them out")
        if set_master and _differ(host, set_master):
            conflicts.append(Conflict(ADDRESS_FLAG, host, address_name, set_master))
    elif set_master:
        host, superfluous = split(set_master, address_name)
        if superfluous:
            raise PlaceError(
                f"{address_name} is {set_master}: torch takes the port as part of the name. "
                f"Write {address_name}={host} MASTER_PORT={superfluous}"
            )
    elif endpoint:
        host, own_port = split(endpoint, launchers.ENDPOINT)
        own_port = own_port or ENDPOINT_PORT
    elif first := _first(hosts):
        _check_host(first, first, "the first of Slurm's list of nodes", in_brackets=False)
        host = first
    else:
        raise PlaceError(f"nothing says where the nodes meet: add {ADDRESS_FLAG} and the name or address of node 0")
    wanted = port if port is not None else own_port
    if wanted is not None:
        settled = checked_port(wanted, PORT_FLAG if port is not None else ADDRESS_FLAG)
        if set_port and number(set_port) != settled and not (master is None and port is None):
            conflicts.append(Conflict(PORT_FLAG, str(settled), port_name, set_port))
    else:
        settled = checked_port(set_port, port_name) if set_port else DEFAULT_PORT
    return MeetingPlace(host, settled, tuple(conflicts))


def split(text: str, name: str) -> tuple[str, int | None]:
    """Host and port of "n1", "10.0.0.11:29500", "fd00::1" or "[fd00::1]:29500". `name` is the setting that says it.

    Raises:
        PlaceError: it is none; in a sentence with that name.
    """
    text = text.strip()
    if not text:
        raise PlaceError(f"{name} is empty; it takes the name or address of node 0")
    if address := _address(text):
        return _dialled(address, name), None
    bracketed = re.fullmatch(r"\[([^\[\]]+)\](?:(:)(.*))?", text)
    host, colon, port = bracketed.groups("") if bracketed else text.rpartition(":")
    if not colon and not bracketed:
        host = text
    _check_host(host, text, name, in_brackets=bool(bracketed))
    if colon and not port:
        raise PlaceError(f"{name} is {text!r}, with no port after the colon")
    address = _address(host)
    return (_dialled(address, name) if address else host), (checked_port(port, name) if colon else None)


def checked_port(port: int | str, name: str) -> int:
    """Give the port as a number.

    Raises:
        PlaceError: a server can't have it.
    """
    value = port if isinstance(port, int) else number(port)
    if value is None or not 1 <= value <= 65535:
        raise PlaceError(f"{name}: {str(port)[:20]!r} is no port; ports go from 1 to 65535")
    return value


def _address(text: str) -> str | None:
    """The text, if it is an IP address; an IPv6 one may have a scope ("fe80::1%eth0")."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return None
    return text


def _dialled(address: str, name: str) -> str:
    number = ipaddress.ip_address(address)
    if number.version == 6 and number.is_link_local and "%" not in address:
        raise PlaceError(
            f"{name} is {address}, a link-local address: it lacks the interface, as in {address}%eth0. That name holds on "
            "this host alone, so better take an address of another kind"
        )
    if number.is_unspecified:
        raise PlaceError(
            f"{name} is {address}, which stands for every address; it takes one that the other nodes can dial"
        )
    return address


def _check_host(host: str, text: str, name: str, *, in_brackets: bool) -> None:
    shown = text[:80]
    if "://" in text or "/" in text:
        raise PlaceError(f"{name} is {shown!r}; it takes a host alone, as in {ADDRESS_FLAG} node01")
    if in_brackets and not _address(host):
        raise PlaceError(f"{name} is {shown!r}; only an IPv6 address stands in brackets")
    if in_brackets:
        return
    if "$" in text:
        raise PlaceError(f"{name} is {shown!r}: the shell did not fill in the variable")
    if "[" in text or "," in text:
        first = _first(text)
        raise PlaceError(
            f"{name} is {shown!r}, a list of hosts; it takes one of them, node 0's{first and f': {first}'}"
        )
    in_parts = all(1 <= len(part) <= 63 for part in host.removesuffix(".").split("."))
    if not in_parts or not re.fullmatch(r"[\w]([\w.-]{0,251}[\w.])?", host):
        raise PlaceError(f"{name} is {shown!r}, which is neither a host's name nor an address")
    if re.fullmatch(r"[\d.]+", host) and not _address(host):
        raise PlaceError(f"{name} is {shown!r}, which is no IPv4 address")


def _first(hosts: str) -> str:
    """The first of a list of hosts; "" where there is none, or it is no such list."""
    try:
        return next(iter(expand(hosts)), "")
    except HostlistError:
        return ""


def _differ(first: str, second: str) -> bool:
    """Whether two names, or two addresses, can't mean the same host. A name and an address may."""
    first, second = first.strip("[]").lower(), second.strip("[]").lower()
    if bool(_address(first)) != bool(_address(second)):
        return False
    if _address(first):
        return ipaddress.ip_address(first) != ipaddress.ip_address(second)
    return first.partition(".")[0] != second.partition(".")[0]
