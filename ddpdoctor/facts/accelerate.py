"""accelerate's configuration file: what `accelerate launch` takes for itself where its command line says nothing."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source
from ddpdoctor.facts.network import Resolution

Value = bool | int | float | str | None


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the file whose value is no list and no mapping. line: counts from 1."""

    name: str
    value: Value
    line: int


class ConfigFile(Facts, frozen=True, kw_only=True):
    """One such file, as accelerate's own YAML or JSON reader understands it."""

    path: str
    entries: tuple[ConfigEntry, ...] = ()
    nested: tuple[str, ...] = ()
    """Keys whose value is a list, a mapping, or a text over several lines: only their names are known."""

    def entry(self, name: str) -> ConfigEntry | None:
        """The entry that counts: of doubled keys the last."""
        return next((entry for entry in reversed(self.entries) if entry.name == name), None)

    def value(self, name: str, default: Value = None) -> Value:
        """The value that the file gives, or `default` where it says nothing, or null."""
        found = self.entry(name)
        return default if found is None or found.value is None else found.value

    def number(self, name: str, default: int) -> int | None:
        """A whole number, `default` where there is none; None where something else stands there."""
        value = self.value(name, default)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def __contains__(self, name: object) -> bool:
        return name in self.nested or any(entry.name == name for entry in self.entries)


class Accelerate(Facts, frozen=True, kw_only=True):
    """The file that `accelerate launch` reads where it is given no other, and what becomes of its words on this host."""

    file: Annotated[Maybe[ConfigFile | None], Source("HF_HOME, XDG_CACHE_HOME, ~/.cache/huggingface/accelerate")] = None
    """None: there is none."""
    main_process: Annotated[Maybe[Resolution | None], Source("getaddrinfo of main_process_ip")] = None
    """None: the file names no main process."""
    port_taken: Annotated[bool, Source("bind() to [::] and 0.0.0.0, as torch's store does")] = False
    """main_process_port can't be listened on."""
