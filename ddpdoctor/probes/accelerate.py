"""Looks at accelerate's configuration file, and at what it names on this host."""

from __future__ import annotations

from ddpdoctor.base.ownership import trusted_users
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.accelerate import Accelerate, ConfigFile
from ddpdoctor.probes.accelerate_files import default_path, read_file
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.environment import FILE_SECONDS, within
from ddpdoctor.probes.network import ask_resolver
from ddpdoctor.probes.ports import error_of_bind


def probe(context: Context) -> Accelerate:
    path = default_path(context.environ)
    file = within(FILE_SECONDS, lambda: read_file(context.path(path), legible(path), trusted_users())) if path else None
    if not isinstance(file, ConfigFile):
        return Accelerate(file=file)
    name, port = file.value("main_process_ip"), file.number("main_process_port", 0)
    return Accelerate(
        file=file,
        main_process=ask_resolver(name)() if isinstance(name, str) and name else None,
        port_taken=bool(port and 0 < port < 65536 and error_of_bind(port)),
    )
