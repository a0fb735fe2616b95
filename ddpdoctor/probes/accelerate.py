"""Reads accelerate's configuration file, and looks at what it names on this host. Nothing in it is executed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from pathlib import Path

from ddpdoctor.facts.accelerate import Accelerate, ConfigFile
from ddpdoctor.facts.base import Unknown
from ddpdoctor.knowledge.accelerate import NotUnderstoodError, read_config
from ddpdoctor.ownership import foothold_of_file, trusted_users, who_misleads
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.environment import FILE_SECONDS, within
from ddpdoctor.probes.files import open_regular
from ddpdoctor.probes.network import ask_resolver
from ddpdoctor.probes.ports import error_of_bind
from ddpdoctor.redaction import legible

MAX_FILE_BYTES = 64 * 1024


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


def default_path(environ: Mapping[str, str], home: str = "") -> str:
    """Where accelerate looks for the file if it is given none; "" where nobody can say.

    Args:
        home: of a user without HOME.
    """
    home = environ.get("HOME") or home or _home()
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    folder = environ.get("HF_HOME", f"{cache}/huggingface")
    if folder == "~" or folder.startswith("~/"):
        folder = home + folder[1:]
    return f"{folder}/accelerate/default_config.yaml" if folder.startswith("/") else ""


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def read_file(place: Path, shown: str, trusted: Collection[int]) -> ConfigFile | Unknown | None:
    """Read such a file; None where there is none.

    Args:
        trusted: whose word it may be, beside root's.
    """
    try:
        descriptor = open_regular(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return Unknown(f"{shown}: {getattr(error, 'strerror', None) or error}")
    try:
        if foothold := foothold_of_file(descriptor, shown, trusted) or who_misleads(descriptor, place):
            return Unknown(f"{foothold.words}, so that it isn't believed")
        content = os.read(descriptor, MAX_FILE_BYTES + 1)
    except OSError as error:
        return Unknown(f"{shown}: {error.strerror or error}")
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE_BYTES:
        return Unknown(f"{shown} is larger than {MAX_FILE_BYTES // 1024} KiB, so not a configuration of accelerate's")
    try:
        return read_config(shown, content.decode())
    except UnicodeDecodeError:
        return Unknown(f"{shown} isn't a text")
    except NotUnderstoodError as error:
        return Unknown(f"{shown} wasn't understood: {error}")
