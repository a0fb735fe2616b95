"""Asks libnccl which interface it takes, in a subprocess, and predicts the same for NCCL and gloo from the rules.

To answer, ncclGetUniqueId listens on a random TCP port of the interface that it takes, as rank 0 does when a job starts
(with NCCL_COMM_ID set, it doesn't). The subprocess ends right after the answer, some milliseconds later; nothing is sent.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import dotted
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.interface_choice import gloo_choice, interface_with, nccl_choices, version_of
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import isfile
from ddpdoctor.probes.nvidia_libraries import inquiry
from ddpdoctor.probes.run_as import NotRunError, identity_for
from ddpdoctor.probes.subprocesses import EndedProgram, StartedProgram, start

SECONDS = 10.0
MAX_LOG_LENGTH = 4000
STANDARD_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/lib",
)
LOG_FILE_SETTINGS = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
"""Settings that would send NCCL's words elsewhere than to us."""

_USING = compile_lazily(r"Bootstrap ?: Using (?:\[\d+\])?([^:\s]+):(\S*?)<\d+>")
_WORDS = compile_lazily(
    r"NCCL (?:INFO|WARN) (?:.{0,200}?)(?:Bootstrap|SOCKET_IFNAME|SOCKET_FAMILY|COMM_ID|NET/|no socket).*"
)


def probe(context: Context) -> Nccl | Unknown:
    library = find_library(context)
    asked = _ask(library, context) if library else None
    network = context.facts(Network)
    return _predict(context, _understand(str(library), asked.wait(SECONDS), network) if asked else Nccl(), network)


def find_library(context: Context) -> Path | None:
    """The libnccl.so.2 that the target Python's torch would load: pip's, torch's own, its environment's, the system's."""
    return next((folder / "libnccl.so.2" for folder in _folders(context) if isfile(folder / "libnccl.so.2")), None)


def _folders(context: Context) -> Iterator[Path]:
    target_python = context.facts(TargetPython)
    if isinstance(target_python, TargetPython):
        for packages in target_python.site_packages:
            yield Path(packages) / "nvidia" / "nccl" / "lib"
        for packages in target_python.site_packages:
            yield Path(packages) / "torch" / "lib"
        if target_python.prefix:
            yield Path(target_python.prefix) / "lib"
    yield from (
        Path(folder) for folder in context.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")
    )
    yield from (context.path(standard_folder) for standard_folder in STANDARD_FOLDERS)


def _ask(library: Path, context: Context) -> StartedProgram:
    settings = {name: value for name, value in context.environ.items() if name not in LOG_FILE_SETTINGS}
    # The inquiry goes through stdin: the owner of the library, as whom root asks, may not be allowed to read our files, nor
    # to run our Python.
    return start(
        (_python_for(library, context), "-I", "-S", "-", str(library)),
        environ={**settings, "NCCL_DEBUG": "INFO"},
        stdin=inquiry("nccl").read_bytes(),
        loads=(library,),
    )


def _python_for(library: Path, context: Context) -> str:
    try:
        return sys.executable if identity_for([library]) is None else context.python
    except NotRunError:
        return sys.executable  # Which won't be started.


def _understand(library: str, ended: EndedProgram, network: Network | Unknown) -> Nccl:
    # Here and not above: on most hosts there is no NCCL to be asked.
    from ddpdoctor.probes.nvidia_libraries.nccl_inquiry import MARK

    log, mark, line = ended.stdout.decode("utf-8", "replace").rpartition(MARK)
    try:
        said = json.loads(line) if mark else {"error": f"exit code {ended.returncode}"}
    except ValueError:
        said = {"error": "an answer that isn't JSON"}
    failure = f"could not be asked: {ended.failed_to_start or said['error']}" if "error" in said else ""
    if ended.timed_out:
        failure = f"gave no answer within {SECONDS:.0f} s"
    elif ended.signal_name:
        failure = f"died of {ended.signal_name} when asked"
    if failure:
        why = Unknown(f"libnccl {failure}")
        return Nccl(library=library, version=why, answer_status=why)
    interfaces = network.interfaces if isinstance(network, Network) else ()
    using = _USING.search(log)
    # With NCCL_COMM_ID set, the id holds that address instead of ours; so NCCL's own words go first.
    own_words = using[2].partition("%")[0] if using else None
    address = own_words or (address_in(bytes.fromhex(said["id"])) if said["status"] == 0 else None)
    words = "\n".join(dict.fromkeys(found[0].strip() for found in _WORDS.finditer(log)))
    return Nccl(
        library=library,
        version=dotted(version_tuple(int(said["version"]))),
        answer_status=int(said["status"]),
        answer_address=address,
        answer_interface=using[1] if using else (interface_with(address, interfaces) if address else None),
        answer_log=words[:MAX_LOG_LENGTH],
    )


def version_tuple(number: int) -> tuple[int, int, int]:
    """22809 is 2.28.9; before 2.9 it was written 2708 for 2.7.8."""
    if number < 10000:
        return number // 1000, number // 100 % 10, number % 100
    return number // 10000, number // 100 % 100, number % 100


def address_in(unique: bytes) -> str | None:
    """The address in an ncclUniqueId: 8 bytes of magic, then a sockaddr_in or sockaddr_in6."""
    family = int.from_bytes(unique[8:10], sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, unique[12:16])
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, unique[16:32])
    return None


def _predict(context: Context, found: Nccl, network: Network | Unknown) -> Nccl:
    if isinstance(network, Unknown):
        return msgspec.structs.replace(found, predicted_interface=network, gloo_interface=network)
    settings = context.facts(Environment)

    def setting(name: str) -> str:
        # The environment's facts know NCCL's configuration files as well.
        return settings.get(name) if isinstance(settings, Environment) else context.environ.get(name, "")

    choices = nccl_choices(
        network.interfaces,
        ifname=setting("NCCL_SOCKET_IFNAME"),
        family=setting("NCCL_SOCKET_FAMILY"),
        comm_id=setting("NCCL_COMM_ID"),
        version=version_of(found.version),
    )
    found = msgspec.structs.replace(
        found,
        predicted_interface=choices[0].interface if choices else None,
        predicted_address=choices[0].address if choices else None,
    )
    own, ifname = network.own_name, context.environ.get("GLOO_SOCKET_IFNAME", "")
    if isinstance(own, Unknown) and not ifname:
        return msgspec.structs.replace(found, gloo_interface=own, gloo_address=own, gloo_reason=own)
    gloo = gloo_choice(network.interfaces, own.addresses if isinstance(own, Resolution) else (), ifname=ifname)
    return msgspec.structs.replace(
        found,
        gloo_interface=gloo.interface if gloo else None,
        gloo_address=gloo.address if gloo else None,
        gloo_reason=gloo.reason if gloo else "",
    )
