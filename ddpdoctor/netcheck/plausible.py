"""What a node says of itself that ends up in commands: names, addresses, versions, paths. Pure.

Somebody copies those commands into a shell, so a node that was broken into must not write them. Free text (a log's words,
the value of a setting) is shown and never typed; all that is typed besides is quoted where the command is made.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.meeting import Attempt, Conflict, Meeting
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.network import Interface, Network, Resolution
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.patient import Patient
from ddpdoctor.facts.rdma import Gid, RdmaPort
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.torch import Torch

_KINDS: Final = {
    "a host's name": re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})"),
    "an interface's name": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+-]{0,31}"),
    "a version": re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}"),
    "a path": re.compile(r"[^\x00-\x1f\x7f]{1,4096}"),
    "a setting's name": re.compile(r"(--)?[A-Za-z_][A-Za-z0-9_-]{0,127}"),
    "a word": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}"),
    "words": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,255}"),
    "ports": re.compile(r"[0-9, -]{1,4096}"),
}
_ADDRESS: Final = "an address"
_PLACE: Final = "a host's name or address"

_TYPED: Final[dict[type[msgspec.Struct], dict[str, str]]] = {
    Interface: {"name": "an interface's name", "addresses": _ADDRESS, "qdisc": "a word"},
    Resolution: {"name": _PLACE, "addresses": _ADDRESS},
    Network: {
        "hostname": "a host's name",
        "fqdn": _PLACE,
        "default_interface": "an interface's name",
        "interface_to_master": "an interface's name",
        "reserved_ports": "ports",
    },
    Nccl: {
        "library": "a path",
        "version": "a version",
        "answer_address": _ADDRESS,
        "answer_interface": "an interface's name",
        "predicted_address": _ADDRESS,
        "predicted_interface": "an interface's name",
        "gloo_address": _ADDRESS,
        "gloo_interface": "an interface's name",
    },
    Firewall: {
        "tool": "a word",
        "input_chains": "words",
        "output_chains": "words",
        "enabled_service": "a word",
    },
    Patient: {
        "python": "a path",
        "version": "a version",
        "prefix": "a path",
        "pip_version": "a version",
        "site_packages": "a path",
        "user_site": "a path",
    },
    Torch: {"version": "a version", "cuda": "a version", "hip": "a version", "location": "a path"},
    Package: {"name": "a word", "version": "a version"},
    Driver: {"kernel_version": "a version", "nvml_driver_version": "a version"},
    RdmaPort: {"device": "a word", "counters": "a word", "interfaces": "an interface's name"},
    Gid: {"gid": _ADDRESS, "interface": "an interface's name"},
    Meeting: {"master": _PLACE, "command": "a word", "refusal": "a word", "own_python": "a path"},
    Attempt: {"address": _ADDRESS},
    Conflict: {"name": "a setting's name", "other_name": "a setting's name"},
    Setting: {"name": "a setting's name"},
}
"""The fields that a command may be made of, and what they are."""


def is_host(text: str) -> bool:
    """Whether a host may be called that."""
    return _is(text, "a host's name")


def is_version(text: str) -> bool:
    """Whether a release may be called that."""
    return _is(text, "a version")


def is_address(text: str) -> bool:
    """Whether it is an IP address, perhaps with a zone ("fe80::1%eth0") or the length of its prefix."""
    address, slash, length = text.partition("/")
    address, percent, zone = address.partition("%")
    if (slash and not (length.isascii() and length.isdecimal())) or (percent and not _is(zone, "an interface's name")):
        return False
    try:
        ipaddress.ip_interface(f"{address}{slash}{length}")
    except ValueError:
        return False
    return True


def plausible(snapshot: Snapshot) -> Snapshot:
    """The facts without the groups in which something can't be what it is said to be: they are Unknown, with the reason."""
    refused: dict[str, object] = {}
    for name in snapshot.__struct_fields__:
        group = getattr(snapshot, name)
        if isinstance(group, msgspec.Struct) and (wrong := next(_wrong(group), "")):
            refused[name] = Unknown(f"this node's facts were not taken: {wrong}")
    if isinstance(snapshot.packages, Packages):
        # Any package may have brought odd metadata; the others are no worse for it.
        installed = tuple(one for one in snapshot.packages.installed if not any(_wrong(one)))
        refused["packages"] = msgspec.structs.replace(snapshot.packages, installed=installed)
    if snapshot.host and not is_host(snapshot.host):
        refused["host"] = ""
    if snapshot.tool_version and not _is(snapshot.tool_version, "a version"):
        refused["tool_version"] = ""
    return msgspec.structs.replace(snapshot, **refused) if refused else snapshot


def _wrong(struct: msgspec.Struct) -> Iterator[str]:
    kinds = _TYPED.get(type(struct), {})
    for name in struct.__struct_fields__:
        for one in _flat(getattr(struct, name)):
            if isinstance(one, str):
                # An empty one says that there is none.
                if name in kinds and one and not _is(one, kinds[name]):
                    yield f"{one[:40]!a} is not {kinds[name]}"
            elif isinstance(one, msgspec.Struct):
                yield from _wrong(one)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _is(text: str, kind: str) -> bool:
    if kind == _ADDRESS:
        return is_address(text)
    if kind == _PLACE:
        return is_address(text) or is_host(text)
    return _KINDS[kind].fullmatch(text) is not None
