"""Leaves out of a snapshot that somebody else took what can't be a name, an address, a version or a path. Pure.

Commands are made of such words, and somebody copies them into a shell. So where a word can't be what it is said to be, its group
of facts isn't taken. A text that isn't listed here must be plain words; free text (a log's words, the value of a setting) may be
anything. All of it is quoted besides where a command is made of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from ddpdoctor.base.shell import is_typeable
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts import fleet, hang, log, smoke
from ddpdoctor.facts.checkpoints import CheckpointFile, DeviceText, GlobalName, KeyPrefix, Pins, RankFiles
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.environment import Environment, IgnoredLine, Setting, UnreadableFile
from ddpdoctor.facts.extensions import Apex, Extension, SharedObject
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.gpus import Gpu, MigInstance
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.libraries import Libraries, Library
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.meeting import Attempt, Conflict, Meeting
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.network import Interface, Listener, Network, Resolution
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.processes import Process, Processes, RankPlace
from ddpdoctor.facts.rdma import Gid, RdmaPort
from ddpdoctor.facts.remedies import Remedy
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Compiler, Consumer, Nvcc, Toolchain
from ddpdoctor.facts.torch import Torch

_WORDS: Final = "plain words"
_ADDRESS: Final = "an address"
_PLACE: Final = "a host's name or address"
_PATH: Final = "a path"
_FREE: Final = "free text"

_KINDS: Final = {
    "a host's name": re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})"),
    "an interface's name": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+-]{0,31}"),
    "a version": re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}"),
    "a setting's name": re.compile(r"(--)?[A-Za-z_][A-Za-z0-9_-]{0,127}"),
    "a word": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}"),
    "ports": re.compile(r"[0-9, -]{1,4096}"),
    _WORDS: re.compile(r"(?!-)[A-Za-z0-9_./:+@%=, ()\[\]-]{1,4096}"),
}


def _all(kind: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, kind)


FIELDS: Final[dict[type[msgspec.Struct], dict[str, str]]] = {
    Unknown: _all(_FREE, "reason"),
    Interface: {"name": "an interface's name", "addresses": _ADDRESS, "qdisc": "a word"},
    Resolution: {"name": _PLACE, "addresses": _ADDRESS, "error": _FREE},
    Listener: _all(_FREE, "process", "command", "user"),
    Network: {
        "hostname": "a host's name",
        "fqdn": _PLACE,
        "default_interface": "an interface's name",
        "interface_to_master": "an interface's name",
        "reserved_ports": "ports",
        "master_route_error": _FREE,
        "hosts_lines": _FREE,
    },
    Nccl: {
        "library": _PATH,
        "version": "a version",
        "answer_address": _ADDRESS,
        "answer_interface": "an interface's name",
        "answer_log": _FREE,
        "predicted_address": _ADDRESS,
        "predicted_interface": "an interface's name",
        "gloo_address": _ADDRESS,
        "gloo_interface": "an interface's name",
        "gloo_reason": _FREE,
    },
    Firewall: {"tool": "a word", "enabled_service": "a word", "blocked": _FREE},
    TargetPython: {
        **_all(_PATH, "python", "prefix", "site_packages", "user_site", "libstdcxx_path"),
        "version": "a version",
        "pip_version": "a version",
        **_all(_FREE, "chosen_by", "detail", "asked_as"),
    },
    Torch: {
        **_all("a version", "version", "cuda", "hip"),
        **_all(_PATH, "location", "in_the_way"),
        **_all(_FREE, "found_through", "hidden", "import_error", "import_traceback", "cuda_error"),
    },
    Package: {"name": "a word", "version": "a version", "location": _PATH, "requires": _FREE, "installer": _FREE},
    Libraries: _all(_PATH, "search_path", "preload", "missing", "glibcxx_path"),
    Library: _all(_PATH, "soname", "path", "real_path"),
    Extension: {"package": "a word", "version": "a version", "location": _PATH},
    SharedObject: {"path": _PATH, **_all(_FREE, "module", "needed", "missing", "undefined", "glibcxx", "error")},
    Apex: {"location": _PATH, "version": _FREE},
    Toolchain: {**_all(_PATH, "cuda_home", "ninja", "apex_source"), **_all(_FREE, "max_jobs", "arch_list")},
    Nvcc: {"path": _PATH, "version": "a version", "found_by": _FREE, "error": _FREE},
    Compiler: {"path": _PATH, "version": "a version", "found_by": _FREE},
    Consumer: _all(_FREE, "name", "reason"),
    Driver: {
        "kernel_version": "a version",
        "nvml_driver_version": "a version",
        **_all(_PATH, "device_nodes", "unreadable_nodes", "libcuda_path", "nvml_path"),
        **_all(_FREE, "cuda_end", "nvml_message", "nvml_end"),
    },
    Gpu: _all(_FREE, "name", "error"),
    MigInstance: _all(_FREE, "name"),
    KernelLog: _all(_FREE, "source"),
    KernelLine: _all(_FREE, "text"),
    Container: _all(
        _FREE, "nvidia_visible_devices", "nvidia_driver_capabilities", "toolkit", "docker", "docker_runtimes"
    ),
    Machine: {"kernel": "a version", "architecture": "a word", "os_name": _FREE, "kernel_command_line": _FREE},
    SharedMemory: _all(_PATH, "stale"),
    Segment: {"path": _PATH, "user": _FREE, "wanted_by": _FREE},
    Disks: _all(_PATH, "unanswered", "removed"),
    Disk: {**_all(_PATH, "path", "mount"), "purpose": _FREE},
    Environment: {**_all(_PATH, "configuration_files", "file_init"), "undecodable": "a setting's name"},
    Setting: {"name": "a setting's name", "value": _FREE, "origin": _PATH},
    UnreadableFile: {"path": _PATH, "reason": _FREE},
    IgnoredLine: {"path": _PATH, "text": _FREE, "why": _FREE},
    RdmaPort: {"device": "a word", "counters": "a word", "interfaces": "an interface's name"},
    Gid: {"gid": _ADDRESS, "interface": "an interface's name"},
    Processes: _all(_FREE, "unseen"),
    Process: {
        **_all(_FREE, "user", "name", "command", "executable", "marks", "unit", "container", "waits_in"),
        **_all(_PATH, "shared_memory", "writes_to"),
    },
    RankPlace: _all(_FREE, "source"),
    hang.Frame: _all(_FREE, "function", "path"),
    CheckpointFile: {
        "path": _PATH,
        **_all(_FREE, "called", "problem", "advice", "weights_only_blockers", "whole_module"),
        **_all(_FREE, "rng_states", "code_devices"),
    },
    Remedy: {"name": "a word", "paths": _PATH},
    Pins: _all(_FREE, "device"),
    GlobalName: _all(_FREE, "name", "meaning"),
    KeyPrefix: _all(_FREE, "where", "prefix"),
    DeviceText: _all(_FREE, "where", "device"),
    RankFiles: _all(_FREE, "pattern"),
    Meeting: {
        **_all("a word", "command", "refusal"),
        "master": _PLACE,
        "own_python": _PATH,
        **_all(_FREE, "options", "listen_error", "unresolved", "answered_by", "banner", "turned_away", "left_behind"),
    },
    Attempt: {"address": _ADDRESS, "words": _FREE},
    Conflict: {"name": "a setting's name", "other_name": "a setting's name", "value": _FREE, "other_value": _FREE},
    fleet.Fleet: _all(_FREE, "seat", "strangers"),
    fleet.Node: {
        **_all(_PLACE, "host", "address"),
        **_all("an interface's name", "interface", "nccl_interface"),
        **_all(_FREE, "troubles", "lost"),
    },
    fleet.MissingNode: {"host": _PLACE},
    fleet.RejectedNode: {**_all(_PLACE, "host", "address"), "holder": _FREE, "text": _FREE},
    fleet.Reach: {"addresses": _ADDRESS, "rows": _FREE},
    fleet.Link: _all(_FREE, "error"),
    fleet.TriedCollective: _all(_FREE, "words"),
    fleet.Phase: _all(_FREE, "reason"),
    smoke.Smoke: {**_all(_PATH, "python", "folder"), **_all(_FREE, "chosen", "gpus_passed_over", "problem")},
    smoke.RankRun: {
        "host": _PLACE,
        **_all(_FREE, "words", "step", "calls", "last_line", "stack", "stack_source", "device"),
    },
    smoke.Stage: _all(_FREE, "words"),
    smoke.CollectiveCall: _all(_FREE, "call"),
    smoke.Leftovers: {"processes": _FREE, **_all(_PATH, "shared_memory", "unclaimed", "files")},
    smoke.Scaling: _all(_FREE, "larger", "problem"),
    smoke.Speed: _all(_FREE, "way", "problem"),
    hang.Hang: _all(_FREE, "dumps", "refused", "ras", "hidden"),
    hang.WatchedRank: _all(_FREE, "gone", "host"),
    hang.RankLook: _all(_FREE, "others", "source", "state", "waits_in"),
    hang.Recorded: _all(_FREE, "file", "host", "version"),
    hang.RecordedGroup: _all(_FREE, "group"),
    hang.RecordedCollective: _all(_FREE, "name", "state", "dtypes"),
    hang.RasCount: _all(_FREE, "communicator", "host", "first", "second", "status"),
    log.Log: _all(_FREE, "notes", "hosts"),
    log.LogFile: _all(_FREE, "name", "problem"),
    log.SignMatch: _all(_FREE, "sign", "words"),
    log.LogLine: _all(_FREE, "text", "host"),
    log.LoggedException: _all(_FREE, "exception", "message", "announced"),
    log.LogFrame: _all(_FREE, "path", "function", "code"),
    log.ProcessExit: _all(_FREE, "said_by", "host", "error"),
    log.Noise: _all(_FREE, "text", "why"),
}
"""What the texts of a snapshot are; those that are missing are plain words."""


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
    """Leave out the groups in which something can't be what it is said to be: they are Unknown, with the reason."""
    refused: dict[str, object] = {}
    for name in snapshot.__struct_fields__:
        group = getattr(snapshot, name)
        if isinstance(group, msgspec.Struct) and (wrong := next(_wrong(group), "")):
            refused[name] = Unknown(f"the snapshot's facts were not taken: {wrong}")
    if isinstance(snapshot.packages, Packages):
        # Any package may have brought odd metadata; the others are no worse for it.
        installed = tuple(package for package in snapshot.packages.installed if not any(_wrong(package)))
        refused["packages"] = msgspec.structs.replace(snapshot.packages, installed=installed)
    if snapshot.host and not is_host(snapshot.host):
        refused["host"] = ""
    if snapshot.tool_version and not _is(snapshot.tool_version, "a version"):
        refused["tool_version"] = ""
    return msgspec.structs.replace(snapshot, **refused) if refused else snapshot


def _wrong(struct: msgspec.Struct) -> Iterator[str]:
    kinds = FIELDS.get(type(struct), {})
    for name in struct.__struct_fields__:
        kind = kinds.get(name, _WORDS)
        for value in _flat(getattr(struct, name)):
            if isinstance(value, msgspec.Struct):
                yield from _wrong(value)
            # An empty one says that there is none. An enum's values are our own.
            elif type(value) is str and value and not _is(value, kind):
                yield f"{value[:40]!a} is not {kind}"


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        for item in value.items():
            yield from _flat(item)
    else:
        yield value


def _is(text: str, kind: str) -> bool:
    if kind == _FREE:
        return True
    if kind == _PATH:
        return len(text) <= 4096 and not text.startswith("-") and is_typeable(text)
    if kind == _ADDRESS:
        return is_address(text)
    if kind == _PLACE:
        return is_address(text) or is_host(text)
    return _KINDS[kind].fullmatch(text) is not None
