"""Looks at accelerate's configuration files, and at what they name on this host: the one that it finds itself, and the one that a running
launch was given. Nothing in them is executed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ddpdoctor.base.ownership import foothold_of_file, trusted_users, who_misleads
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.redaction import legible
from ddpdoctor.facts.accelerate import Accelerate, ConfigFile
from ddpdoctor.facts.processes import AskedFor
from ddpdoctor.knowledge.accelerate import NotUnderstoodError, read_config
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.environment import FILE_SECONDS, home_of
from ddpdoctor.probes.files import open_regular
from ddpdoctor.probes.network import ask_resolver
from ddpdoctor.probes.processes.command_lines import program_and_arguments
from ddpdoctor.probes.taken_ports import error_of_bind
from ddpdoctor.probes.waiting import within

MAX_FILE_BYTES = 64 * 1024


def probe(context: Context) -> Accelerate:
    path = default_path(context.environ, os.getuid())
    file = within(FILE_SECONDS, lambda: read_file(context.path(path), legible(path), trusted_users())) if path else None
    if not isinstance(file, ConfigFile):
        return Accelerate(file=file)
    name, port = file.value("main_process_ip"), file.number("main_process_port", 0)
    return Accelerate(
        file=file,
        main_process=ask_resolver(name)() if isinstance(name, str) and name else None,
        port_taken=bool(port and 0 < port < 65536 and error_of_bind(port)),
    )


def default_path(environ: Mapping[str, str], uid: int) -> str:
    """Tell where accelerate looks for the file if that user runs it and gives it none; "" where nobody can say."""
    home = environ.get("HOME") or home_of(uid)
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    folder = environ.get("HF_HOME", f"{cache}/huggingface")
    if folder == "~" or folder.startswith("~/"):
        folder = home + folder[1:]
    return f"{folder}/accelerate/default_config.yaml" if folder.startswith("/") else ""


def requested_processes(pid: int, uid: int, words: Sequence[str], environ: Mapping[str, str]) -> AskedFor | None:
    """Read how many processes a running launcher is to start by the file that it was given, or found. None where its command line
    says so, or the file can't be read or is somebody else's than that user's or root's."""
    words = _before_the_script(program_and_arguments(words)[1])
    options = [word.partition("=")[0].replace("-", "_") for word in words]
    if "__num_processes" in options:
        return None
    given = next((number for number, option in enumerate(options) if option == "__config_file"), None)
    if given is not None:
        path = words[given].partition("=")[2] or (words[given + 1] if given + 1 < len(words) else "")
    else:
        path = "" if "__cpu" in options else default_path(environ, uid)
    try:
        if not path or os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):  # noqa: PTH115
            return None
        place = Path(os.readlink(f"/proc/{pid}/cwd")) / path  # noqa: PTH115
    except OSError:
        return None
    file = read_file(place, legible(str(place)), (uid,))
    if not isinstance(file, ConfigFile):
        return None
    entry, count = file.entry("num_processes"), file.number("num_processes", 0)
    return AskedFor(processes=count, source=f"{file.path}, line {entry.line}") if entry and count else None


def _before_the_script(arguments: Sequence[str]) -> Sequence[str]:
    """Take accelerate's own arguments: the script may have a --config_file, too."""
    ends = (number for number, word in enumerate(arguments) if word.endswith(".py") or word in ("-m", "--module"))
    return arguments[: next(ends, len(arguments))]


def read_file(place: Path, shown: str, trusted: Collection[int]) -> ConfigFile | Unknown | None:
    """Read such a file; None where there is none. shown: its path for people. trusted: users that it may belong to, beside root."""
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
