"""Takes out of what a run writes by what its machine and user can be told: names, addresses, folders, serial numbers."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.support.command import ROOT

SERIAL_NUMBERS = (
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), r"\1-UUID"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"(?m)^(\s*(?:Serial Number|Board ID|Chassis Serial Number|GPU PDI)\s*:).*$"), r"\1 (number)"),
)
COMMON_NAMES = ("localhost", "root", "nobody")


def anonymiser(folders: Mapping[str, str]) -> Callable[[str], str]:
    """What takes all that out of a text.

    Args:
        folders: path to the word that is put in its place.
    """
    own = {**folders, str(ROOT): "REPOSITORY"}
    if len(Path.home().parts) > 1:
        own.setdefault(str(Path.home()), "HOME")
    words = {**dict.fromkeys(_host_names(), "HOST"), **dict.fromkeys(_addresses(), "ADDRESS"), **_user()}
    paths = [(re.compile(rf"{re.escape(path)}(?![\w-])"), word) for path, word in _longest_first(own)]
    names = [(re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"), word) for name, word in _longest_first(words)]

    def anonymised(text: str) -> str:
        for pattern, word in (*paths, *names, *SERIAL_NUMBERS):
            text = pattern.sub(word, text)
        return text

    return anonymised


def _longest_first(words: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(words.items(), key=lambda word: -len(word[0]))


def _host_names() -> set[str]:
    name = socket.gethostname()
    return {name, name.partition(".")[0]} - {"", *COMMON_NAMES}


def _addresses() -> set[str]:
    own = {entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries}
    return {
        address for address in own if not address.startswith("127.") and address not in ("::1", "00:00:00:00:00:00")
    }


def _user() -> dict[str, str]:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        return {}
    return {} if name in COMMON_NAMES else {name: "USER"}
